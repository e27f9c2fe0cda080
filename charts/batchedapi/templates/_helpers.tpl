{{/* Name of the release's operator and of everything that belongs to it. */}}
{{- define "batchedapi.operatorName" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-%s-operator" (.Release.Name | trunc 43 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- define "batchedapi.selectorLabels" -}}
app.kubernetes.io/name: batchedapi-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "batchedapi.labels" -}}
{{ include "batchedapi.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: batchedapi
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "batchedapi.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .appVersion) -}}
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
- apiGroups: [batchedapi.dev]
  resources: [batchedapis/status]
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
{{- if .Values.networkPolicies.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- end -}}
