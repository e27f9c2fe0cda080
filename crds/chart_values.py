"""Values of the chart: one model, from which values.yaml, its schema and its page are written."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, Field, JsonValue

from batchedapi_core.manifest import LogLevel, Pod, PredictorEnv
from batchedapi_core.manifest.rules import ManifestModel
from batchedapi_operator.logs import LogFormat
from crds.crd import structural_schema
from crds.markdown import HEADER, code, table

_INDENT: Final = "  "
_WIDTH: Final = 96

NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Amount = str | int | float
"""A quantity as YAML reads it: `500m` is text, `1` and `0.5` are numbers."""


class PullPolicy(StrEnum):
    """When the kubelet asks the registry."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ServingImage(ManifestModel):
    """The image of replicas whose BatchedAPI does not name one (`spec.predictor.image`).

    A changed default starts no pod: each revision keeps the image it was made with.
    """

    repository: str = Field("batchedapi-serving", min_length=1, description="Name without a tag.")
    tag: str = Field("", description="Empty: the chart's appVersion.")
    digest: str = Field(
        "", pattern=r"^(sha256:[0-9a-f]{64})?$", description="Instead of the tag: `sha256:...`."
    )


class Image(ServingImage):
    """The operator's image."""

    repository: str = Field("batchedapi-operator", min_length=1, description="Name without a tag.")
    pull_policy: PullPolicy = Field(
        PullPolicy.IF_NOT_PRESENT, description="When the kubelet asks the registry."
    )


class ServiceAccount(ManifestModel):
    """The operator's ServiceAccount."""

    create: bool = Field(True, description="Off: `name` is one that is there already.")
    name: str = Field("", description="Empty: the operator's name.")
    annotations: dict[str, str] = Field(default={}, description="Annotations of the account.")


class Resources(ManifestModel):
    """Resources of the operator's container."""

    requests: dict[str, Amount] = Field(
        default={"cpu": "50m", "memory": "128Mi"}, description="What the scheduler sets aside."
    )
    limits: dict[str, Amount] = Field(
        default={"memory": "256Mi"},
        description="No CPU limit: a throttled operator scales late.",
    )


class Crds(ManifestModel):
    """The CustomResourceDefinition of BatchedAPI."""

    install: bool = Field(
        True,
        description="Install and upgrade it with the chart. One that was applied by hand is taken"
        " over with `helm install --take-ownership`.",
    )
    keep: bool = Field(
        True,
        description="Leave it on `helm uninstall`. Without it every BatchedAPI, and all that it"
        " runs, is deleted with the release.",
    )


class UserRoles(ManifestModel):
    """ClusterRoles that let the users of a namespace see, or edit, its BatchedAPIs.

    Kubernetes adds them to its own view, edit and admin.
    """

    install: bool = Field(
        True,
        description="Off, together with `crds.install`, nothing of the chart is cluster-scoped"
        " where `watchNamespaces` is set.",
    )


class PodDisruptionBudgets(ManifestModel):
    """One for each BatchedAPI and one for the operator.

    A node's drain then takes one replica of an API at a time, and is never held up by a single one.
    """

    enabled: bool = Field(
        True,
        description="Turn it off where APIs have budgets of your own: pods with two cannot be"
        " evicted at all. Those that were made stay until their API, or you, delete them.",
    )


class NetworkPolicies(ManifestModel):
    """One for the operator, and one for each BatchedAPI with `networking.allowFrom`.

    Predictions (8080, and 9000 with gRPC) then come from whom the API names, the rest (8081:
    health, metrics) from the operator and from monitoring. Policies add up, so there is none for
    an API that names nobody. Nothing is said of egress: models are fetched.
    """

    enabled: bool = Field(
        False,
        description="Create them. Those that were made stay until their API, or you, delete them.",
    )
    monitoring_namespaces: list[NamespaceName] = Field(
        default=["monitoring"], description="Whose pods may read metrics: those of Prometheus."
    )


class Exposure(ManifestModel):
    """Addresses beside its Service that a BatchedAPI may ask for in `spec.networking`."""

    gateway: bool = Field(
        False,
        description="`networking.gateway`: routes. The Gateway API's definitions have to be there"
        " first: until then the operator waits for them, and does nothing.",
    )
    ingress: bool = Field(False, description="`networking.ingress`.")


class ServiceMonitor(ManifestModel):
    """A ServiceMonitor of the operator and a PodMonitor of all replicas, for prometheus-operator.

    The operator itself needs no Prometheus: it reads the replicas' metrics directly.
    """

    enabled: bool = Field(False, description="Create both.")
    interval: str = Field("15s", pattern=r"^[0-9]+(ms|s|m)$", description="Scrape interval.")
    labels: dict[str, str] = Field(
        default={}, description="Labels that your Prometheus selects monitors by."
    )
    namespace: str = Field("", description="Where both are made. Empty: the release's.")


class PrometheusRule(ManifestModel):
    """Recording rules and alerts, for prometheus-operator; each alert links to its runbook."""

    enabled: bool = Field(False, description="Create it.")
    labels: dict[str, str] = Field(
        default={}, description="Labels that your Prometheus selects rules by."
    )
    runbooks: str = Field(
        "docs/reference/alerts.md",
        min_length=1,
        description="Address of that page where your people can open it.",
    )


class Dashboards(ManifestModel):
    """Grafana dashboards (API, Autoscaling, Fleet, Operator) that its sidecar finds by label."""

    enabled: bool = Field(
        False, description='Create their ConfigMap, labelled `grafana_dashboard: "1"`.'
    )


class Defaults(ManifestModel):
    """What lies under the manifest of every BatchedAPI."""

    pod: dict[str, JsonValue] = Field(
        default={},
        description="As `spec.pod`: tolerations, imagePullSecrets, `runAsUser: Platform` on"
        " OpenShift, and so on. labels, annotations and nodeSelector are joined with an API's own"
        " by their keys; of the rest, what an API says stands alone, volumes and volumeMounts"
        " together. A change starts no pod: each revision keeps what it was made with, unless none"
        " of its pods can start.",
    )


class PullSecret(ManifestModel):
    """A Secret of a registry, as a pod names it."""

    name: str = Field(min_length=1, description="Of the Secret.")


class ChartValues(ManifestModel):
    """Everything that can be set on the chart."""

    image_registry: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9.:/_-]*[a-z0-9])?$",
        description="Written before the names of both images, such as `registry.example.com/team`.",
    )
    image: Image = Field(default_factory=Image, description=Image.__doc__)
    replicas: int = Field(
        1,
        ge=1,
        le=5,
        description="Of the operator. One acts, the others stand by; `values-ha.yaml` has two.",
    )
    serving_image: ServingImage = Field(
        default_factory=ServingImage, description=ServingImage.__doc__
    )
    image_pull_secrets: list[str | PullSecret] = Field(
        default=[],
        description="Secrets that the operator's image is pulled with: `[pull]`, or"
        " `[{name: pull}]` as Kubernetes writes it.",
    )
    fullname_override: str = Field(
        "",
        pattern=r"^([a-z]([-a-z0-9]{0,52}[a-z0-9])?)?$",
        description="Name of the operator and its objects. Empty: after the release. Its Lease has"
        " it, too, so a change is one of leader.",
    )
    common_labels: dict[str, str] = Field(
        default={}, description="Further labels of every object of the chart; its own stay."
    )
    service_account: ServiceAccount = Field(
        default_factory=ServiceAccount, description=ServiceAccount.__doc__
    )
    extra_env: list[JsonValue] = Field(
        default=[],
        description="Further variables of the operator, such as a proxy's or a CA's; those of"
        " BATCHEDAPI_* have values of their own.",
    )
    pod_security_context: dict[str, JsonValue] = Field(
        default={"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        description="Of the operator's pod, as in Kubernetes.",
    )
    security_context: dict[str, JsonValue] = Field(
        default={
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        description="Of the operator's container.",
    )
    watch_namespaces: list[NamespaceName] = Field(
        default=[],
        json_schema_extra={"uniqueItems": True},
        description="Namespaces whose BatchedAPIs are served; they have to exist. Empty: all but"
        " kube-system, which is served only by its name. When it is set, the operator has a Role in"
        " each and no right outside them.",
    )
    defaults: Defaults = Field(default_factory=Defaults, description=Defaults.__doc__)
    pod_labels: dict[str, str] = Field(
        default={}, description="Further labels of the operator's pod; its own stay."
    )
    pod_annotations: dict[str, str] = Field(
        default={}, description="Further annotations of the operator's pod."
    )
    node_selector: dict[str, JsonValue] = Field(
        default={}, description="Labels that the operator's node must have."
    )
    tolerations: list[JsonValue] = Field(
        default=[], description="Taints of nodes that do not keep the operator away."
    )
    affinity: dict[str, JsonValue] = Field(
        default={}, description="Nodes, and other pods, that the operator is to be near to."
    )
    topology_spread_constraints: list[JsonValue] = Field(
        default=[], description="How the operator's own pods are spread; without labelSelector."
    )
    priority_class_name: str = Field("", description="PriorityClass of the operator.")
    runtime_class_name: str = Field("", description="RuntimeClass of the operator.")
    log_level: LogLevel = Field(LogLevel.INFO, description="Least severe log lines written.")
    log_format: LogFormat = Field(LogFormat.JSON, description="One JSON object, or text, a line.")
    resources: Resources = Field(default_factory=Resources, description=Resources.__doc__)
    crds: Crds = Field(default_factory=Crds, description=Crds.__doc__)
    user_roles: UserRoles = Field(default_factory=UserRoles, description=UserRoles.__doc__)
    image_volumes: bool = Field(
        False,
        description="Whether models at `oci://` are volumes of kind image: needs Kubernetes 1.35,"
        " or 1.31 with the feature gate ImageVolume, and nodes whose runtime has them. A"
        " change starts the pods of these APIs anew.",
    )
    pod_disruption_budgets: PodDisruptionBudgets = Field(
        default_factory=PodDisruptionBudgets, description=PodDisruptionBudgets.__doc__
    )
    network_policies: NetworkPolicies = Field(
        default_factory=NetworkPolicies, description=NetworkPolicies.__doc__
    )
    exposure: Exposure = Field(default_factory=Exposure, description=Exposure.__doc__)
    service_monitor: ServiceMonitor = Field(
        default_factory=ServiceMonitor, description=ServiceMonitor.__doc__
    )
    prometheus_rule: PrometheusRule = Field(
        default_factory=PrometheusRule, description=PrometheusRule.__doc__
    )
    dashboards: Dashboards = Field(default_factory=Dashboards, description=Dashboards.__doc__)


def values_schema() -> str:
    """JSON schema that helm checks every install, upgrade, lint and template against."""
    schema = ChartValues.model_json_schema(by_alias=True)
    # Helm hands `global` to a chart that is used as a dependency; this chart does not read it.
    schema["properties"]["global"] = {"type": "object"}
    # Refused by the chart itself, which can say what it is called now.
    schema["properties"]["watchNamespace"] = {"type": "string"}
    pod = _closed(structural_schema(Pod))
    schema["$defs"]["Defaults"]["properties"]["pod"] |= pod
    schema["properties"]["extraEnv"]["items"] = _closed(structural_schema(PredictorEnv))
    for name in _AS_OF_PODS:
        schema["properties"][name] |= pod["properties"][name]
    header = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Generated by crds/generate.py (make generate); do not edit.",
    }
    return json.dumps(header | schema, indent=2, ensure_ascii=False) + "\n"


_AS_OF_PODS: Final = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""Values for the operator's own pod that have the language of `spec.pod`."""


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A structural schema for Helm, which takes a field that is not listed for a good one."""
    closed: dict[str, Any] = {}
    for key, member in schema.items():
        if key == "properties":
            closed |= {
                key: {name: _closed(inner) for name, inner in member.items()},
                "additionalProperties": False,
            }
        elif isinstance(member, dict):
            closed[key] = _closed(member)
        elif not key.startswith("x-kubernetes-") and key != "description":
            closed[key] = member
    return closed


def values_yaml() -> str:
    """The defaults, each under its description."""
    header = (
        "# Generated by crds/generate.py from crds/chart_values.py (make generate); do not edit.\n"
    )
    return header + "\n".join(["", *_yaml_lines(ChartValues(), "")]) + "\n"


def defaults_template() -> str:
    """The defaults once more, where the templates can read them: helm hides values.yaml."""
    defaults = json.dumps(ChartValues().model_dump(mode="json", by_alias=True), indent=2)
    header = "{{/* Generated by crds/generate.py (make generate); do not edit. */}}\n"
    return f'{header}{{{{- define "batchedapi.defaults" -}}}}\n{defaults}\n{{{{- end -}}}}\n'


def _yaml_lines(model: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        for paragraph in (field.description or "").strip().splitlines():
            yield from _comment(paragraph.strip(), indent)
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{field.alias}:"
            yield from _yaml_lines(value, indent + _INDENT)
        else:
            yield f"{indent}{field.alias}: {_flow(value)}"
        if not indent:
            yield ""


def _comment(text: str, indent: str) -> Iterator[str]:
    line = f"{indent}#"
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = f"{indent}#"
        line += f" {word}"
    yield line


def _flow(value: Any) -> str:
    """A default on one line: `""`, `{cpu: 50m}`, `true`."""
    if isinstance(value, str):
        return json.dumps(str(value)) if value in {"", "1"} else str(value)
    return yaml.safe_dump(value, default_flow_style=True, width=_WIDTH).splitlines()[0]


def page() -> str:
    """The reference page of the values."""
    rows = [
        (code(path), code(_flow(value) if value != "" else '""'), description)
        for path, value, description in _leaves(ChartValues(), "")
    ]
    return (
        f"{HEADER}# Values of the chart\n\n"
        "`helm show values charts/batchedapi` prints the same. Unknown keys are refused. A value"
        " that is missing, as after `helm upgrade --reuse-values` from a chart that had fewer, has"
        " its default.\n\n"
        f"{table(('value', 'default', 'meaning'), rows)}"
    )


def _leaves(model: BaseModel, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), f"{prefix}{field.alias}"
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value, field.description or ""
