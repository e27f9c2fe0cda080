{{/* Name of the release's operator and of everything that belongs to it. */}}
{{- define "batchedapi.operatorName" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-%s-operator" (.Release.Name | trunc 43 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* Gives values that are missing their defaults: after `helm upgrade --reuse-values` all those are
     that the earlier chart did not have. Called first in each file that reads values.

     `null` takes away, too, and is how one gets rid of a limit, or of whoever may read metrics. So
     of a group that is there, an object stays away, and a list where nothing but it is missing. */}}
{{- define "batchedapi.complete" -}}
{{- $earlier := false -}}
{{- $lists := list -}}
{{- range $name, $default := include "batchedapi.defaults" . | fromJson -}}
  {{- $given := index $.Values $name -}}
  {{- if kindIs "invalid" $given -}}
    {{- $_ := set $.Values $name $default -}}
    {{- $earlier = true -}}
  {{- else if kindIs "map" $default -}}
    {{- range $inner, $value := $default -}}
      {{- if not (kindIs "invalid" (index $given $inner)) -}}
      {{- else if and (kindIs "slice" $value) $value -}}
        {{- $lists = append $lists (list $given $inner $value) -}}
      {{- else if not (and (kindIs "map" $value) $value) -}}
        {{- $_ := set $given $inner $value -}}
        {{- $earlier = true -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range ternary $lists list $earlier -}}
  {{- $_ := set (index . 0) (index . 1) (index . 2) -}}
{{- end -}}
{{- end -}}

{{- define "batchedapi.selectorLabels" -}}
app.kubernetes.io/name: batchedapi-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Name of the operator's ServiceAccount, made here or not. */}}
{{- define "batchedapi.account" -}}
{{- with .Values.serviceAccount -}}
{{- if and (not .create) (not .name) -}}
{{- fail "serviceAccount.name: name the account that is there already, or leave create true" -}}
{{- else if and (not .create) .annotations -}}
{{- fail "serviceAccount.annotations: they have no effect while create is false; leave them out" -}}
{{- end -}}
{{- .name | default (include "batchedapi.operatorName" $) -}}
{{- end -}}
{{- end -}}

{{- define "batchedapi.labels" -}}
{{- merge (include "batchedapi.ownLabels" . | fromYaml) .Values.commonLabels | toYaml -}}
{{- end -}}

{{- define "batchedapi.ownLabels" -}}
{{ include "batchedapi.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: batchedapi
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "batchedapi.image" -}}
{{- if and .image.tag .image.digest -}}
{{- fail (printf "image tag %s: it has no effect beside a digest; leave one of them out" .image.tag) -}}
{{- end -}}
{{- with .root.Values.imageRegistry }}{{ . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "batchedapi.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* NetworkPolicyPeers that read metrics and health: the operator, and monitoring. */}}
{{- define "batchedapi.operatorPeer" -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ .Release.Namespace }}
podSelector:
  matchLabels:
    {{- include "batchedapi.selectorLabels" . | nindent 4 }}
{{- end -}}

{{- define "batchedapi.monitoringPeers" -}}
{{- with .Values.networkPolicies.monitoringNamespaces }}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson . }}
{{- else -}}
[]
{{- end }}
{{- end -}}

{{/* What the operator does in a namespace that holds BatchedAPIs. */}}
{{- define "batchedapi.operatorRules" -}}
- apiGroups: [batchedapi.dev]
  resources: [batchedapis]
  verbs: [get, list, watch]
# scale: the number of one that others scale and that has none yet
- apiGroups: [batchedapi.dev]
  resources: [batchedapis/status, batchedapis/scale]
  verbs: [patch]
# children hold back the deletion of their owner, which some clusters allow only with this right
- apiGroups: [batchedapi.dev]
  resources: [batchedapis/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
# delete: the copies of source and manifest of revisions that nothing runs any more
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.podDisruptionBudgets.enabled }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- /* delete: what a manifest no longer asks for */}}
{{- if .Values.networkPolicies.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.exposure.ingress }}
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.exposure.gateway }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes, grpcroutes]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- end -}}

{{/* Fails where another release serves a namespace of this one. `helm template` sees no cluster. */}}
{{- define "batchedapi.refuseSecond" -}}
{{- $remedy := "uninstall it first, or give the two releases different namespaces (watchNamespaces)" -}}
{{- $own := printf "%s/%s" .Release.Namespace (include "batchedapi.operatorName" .) -}}
{{- range $namespace := .Values.watchNamespaces -}}
  {{- $claim := dig "data" dict (lookup "v1" "ConfigMap" $namespace "batchedapi-claim") -}}
  {{- $holder := dig "holderIdentity" "" $claim -}}
  {{- if and $holder (ne $holder $own) -}}
    {{- /* a claim that is not renewed is that of a release which is gone */ -}}
    {{- $renewed := toDate "2006-01-02T15:04:05Z07:00" $claim.renewTime -}}
    {{- if lt (sub now.Unix $renewed.Unix) 60 -}}
      {{- fail (printf "namespace %s is served by another operator, %s: %s" $namespace $holder $remedy) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if not .Values.watchNamespaces -}}
  {{- range $found := dig "items" list (lookup "apps/v1" "Deployment" "" "") -}}
    {{- $labels := $found.metadata.labels | default dict -}}
    {{- $other := printf "%s/%s" $found.metadata.namespace $found.metadata.name -}}
    {{- if and (eq (index $labels "app.kubernetes.io/name" | default "") "batchedapi-operator") (ne $other $own) -}}
      {{- $what := "all namespaces are" -}}
      {{- range (first $found.spec.template.spec.containers).env -}}
        {{- if and (eq .name "BATCHEDAPI_WATCH_NAMESPACE") (dig "value" "" .) -}}
          {{- $what = printf "namespaces %s are" .value -}}
        {{- end -}}
      {{- end -}}
      {{- fail (printf "%s served by another operator, Deployment %s: %s" $what $other $remedy) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
