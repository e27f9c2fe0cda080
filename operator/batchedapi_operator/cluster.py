"""Names of objects of a cluster, and of their kinds; and the wall clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from batchedapi_core import contract

JsonObject = dict[str, Any]
"""A Kubernetes object as the apiserver sends it, before a view has been made of it."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Namespace and name of a namespaced object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, body: Any) -> "ObjectKey":
        """The key of a namespaced object's body."""
        return cls(body["metadata"]["namespace"], body["metadata"]["name"])

    @classmethod
    def of_api(cls, child: Any) -> "ObjectKey | None":
        """The BatchedAPI that a child belongs to by its label; None without the label."""
        name = section(child["metadata"], "labels").get(contract.LABEL_API)
        return None if not name else cls(child["metadata"]["namespace"], name)


SYSTEM_NAMESPACE: Final = "kube-system"
OUTSIDE_SYSTEM: Final = f"metadata.namespace!={SYSTEM_NAMESPACE}"
"""Field selector of every list and watch that is of all namespaces: nothing of it is even sent."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces whose BatchedAPIs are served."""

    named: tuple[str, ...] = ()
    """These alone; empty: all but `SYSTEM_NAMESPACE`, which is served only by its name."""

    def __str__(self) -> str:
        return ", ".join(self.named) or f"all but {SYSTEM_NAMESPACE}"

    @property
    def lists(self) -> tuple[str | None, ...]:
        """One list or watch for each, as `Resource.path` takes them: None is all of them."""
        return self.named or (None,)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of namespaced object and where the apiserver keeps it."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path; `namespace` None means all namespaces.

        Names are quoted: users write them, and `../` in one must not lead to another object.
        """
        prefix = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        parts = [] if namespace is None else ["namespaces", namespace]
        parts += [part for part in (self.plural, quote(name, safe=""), subresource) if part]
        return "/".join((prefix, *parts))


BATCHED_APIS: Final = Resource(contract.API_VERSION, contract.KIND, contract.PLURAL)
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SERVICES: Final = Resource("v1", "Service", "services")
PODS: Final = Resource("v1", "Pod", "pods")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
REPLICA_SETS: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
DISRUPTION_BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INGRESSES: Final = Resource("networking.k8s.io/v1", "Ingress", "ingresses")
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
GRPC_ROUTES: Final = Resource("gateway.networking.k8s.io/v1", "GRPCRoute", "grpcroutes")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")


def section(body: Mapping[str, Any], name: str) -> JsonObject:
    """The object `name` in an object of the cluster; empty where it is absent or null."""
    found: JsonObject = body.get(name) or {}
    return found


def listed(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list `name`, likewise."""
    found: Sequence[Any] = body.get(name) or ()
    return found


def utc_now() -> datetime:
    """The wall clock: for dates that people read, never for decisions."""
    return datetime.now(UTC)


def rfc3339(time: datetime) -> str:
    """As in `lastTransitionTime`: whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(time: datetime) -> str:
    """As in `eventTime`: microseconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
