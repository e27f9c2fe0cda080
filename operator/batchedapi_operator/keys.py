"""Which object is meant: of one API, and of the kinds the operator reads and writes."""

from dataclasses import dataclass
from typing import Any, Final

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
        name = (child["metadata"].get("labels") or {}).get(contract.LABEL_API)
        return None if not name else cls(child["metadata"]["namespace"], name)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of namespaced object and where the apiserver keeps it."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path; `namespace` None means all namespaces."""
        prefix = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        parts = [] if namespace is None else ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join((prefix, *parts))


BATCHED_APIS: Final = Resource(contract.API_VERSION, contract.KIND, contract.PLURAL)
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SERVICES: Final = Resource("v1", "Service", "services")
PODS: Final = Resource("v1", "Pod", "pods")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
REPLICA_SETS: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")
