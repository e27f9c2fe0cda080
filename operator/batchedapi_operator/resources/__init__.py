"""The objects that the operator makes of a BatchedAPI; one kind a file, every builder pure.

Here is what all of them have: names, labels and owner references.
"""

from collections.abc import Mapping
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.cluster import JsonObject, Resource

REVISION_DIGITS: Final = 8
"""Length of the hash in a revision's name: among the few kept, a clash is one in 10^9."""


LABEL_NAME: Final = "app.kubernetes.io/name"
SERVING: Final = "batchedapi-serving"
WORKER: Final = "batchedapi-worker"
"""Name of pods that take rows from a queue; a Service of pods that answer must not select them."""


def web_name(api_name: str) -> str:
    """Name of the Deployment of the pods that answer for an API with a queue, and of its budget."""
    return f"{api_name}-web"


def canary_name(api_name: str) -> str:
    """Name of the Deployment of the pods of a revision that is tried beside another."""
    return f"{api_name}-canary"


def deployment_names(api_name: str) -> set[str]:
    """Names of the Deployments that an API may have."""
    return {api_name, web_name(api_name), canary_name(api_name)}


def peers_name(api_name: str) -> str:
    """Name of the Service by which the pods of an API find each other."""
    return f"{api_name}-peers"


def record_name(api_name: str) -> str:
    """Name of the ConfigMap with what each minute brought to an API."""
    return f"{api_name}-record"


def revision_name(api_name: str, digest: str) -> str:
    """Name of a revision's ConfigMap."""
    return f"{api_name}-{digest}"


def url(api: BatchedAPI) -> str:
    """Where predictions are asked for: the most public address that leads to the endpoint.

    A host with `*` is no address, and `paths` may leave the endpoint out.
    """
    networking = api.spec.networking
    gateway, ingress, port = networking.gateway, networking.ingress, networking.service.port
    offered: list[tuple[str, list[str], list[str]]] = []
    if gateway is not None:
        offered.append((gateway.scheme, gateway.hostnames, gateway.paths))
    if ingress is not None:
        scheme = "http" if ingress.tls_secret is None else "https"
        offered.append((scheme, [ingress.host], ingress.paths))
    for scheme, hosts, paths in offered:
        named = [host for host in hosts if not host.startswith("*")]
        if named and any(f"{api.endpoint}/".startswith(f"{path.rstrip('/')}/") for path in paths):
            return f"{scheme}://{named[0]}{api.endpoint}"
    shown = "" if port == contract.SERVICE_PORT else f":{port}"
    return f"http://{api.metadata.name}.{api.metadata.namespace}.svc{shown}{api.endpoint}"


def selector_labels(api_name: str) -> dict[str, str]:
    """Labels that select the pods of an API; a Deployment's selector can never be changed."""
    return {contract.LABEL_API: api_name}


def selector_text(api_name: str) -> str:
    """The same as a label selector, for /scale and for lists."""
    return f"{contract.LABEL_API}={api_name}"


def role_labels(api_name: str, role: str) -> dict[str, str]:
    """Labels that select the pods of one role of an API with a queue."""
    return {**selector_labels(api_name), contract.LABEL_ROLE: role}


def answering_labels(api_name: str) -> dict[str, str]:
    """Labels that select the pods that answer requests: replicas and web pods, but no workers."""
    return {**selector_labels(api_name), LABEL_NAME: SERVING}


def worker_selector_text(api_name: str) -> str:
    """For /scale of an API with a queue: its web pods are not what is scaled."""
    return f"{selector_text(api_name)},{contract.LABEL_ROLE}={contract.ROLE_WORKER}"


def labels(api_name: str) -> dict[str, str]:
    """On every child."""
    return {
        **selector_labels(api_name),
        LABEL_NAME: SERVING,
        "app.kubernetes.io/instance": api_name,
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
    }


def annotate(body: JsonObject, further: Mapping[str, str]) -> None:
    """Add annotations to those that a child has."""
    if further:
        body["metadata"].setdefault("annotations", {}).update(further)


def head(api: BatchedAPI, resource: Resource, name: str) -> JsonObject:
    """The common part of a child; being owned, it goes with its API and needs no finalizer."""
    further = api.spec.child_metadata
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": api.metadata.namespace,
            "labels": {**further.labels, **labels(api.metadata.name)},
            **({"annotations": dict(further.annotations)} if further.annotations else {}),
            "ownerReferences": [
                {
                    "apiVersion": contract.API_VERSION,
                    "kind": contract.KIND,
                    "name": api.metadata.name,
                    "uid": api.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }
