"""The objects that the operator makes of a BatchedAPI; one kind a file, every builder pure.

Here is what all of them have: names, labels and owner references.
"""

from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.cluster import JsonObject, Resource

REVISION_DIGITS: Final = 8
"""Of the hash in a revision's name: among the few revisions kept, a clash is one in 10^9."""


def revision_name(api_name: str, digest: str) -> str:
    """Name of a revision's ConfigMap."""
    return f"{api_name}-{digest}"


def url(api: BatchedAPI) -> str:
    """Where predictions are asked for from inside the cluster."""
    return f"http://{api.metadata.name}.{api.metadata.namespace}.svc{api.endpoint}"


def selector_labels(api_name: str) -> dict[str, str]:
    """What selects the pods of an API; a Deployment's selector can never be changed."""
    return {contract.LABEL_API: api_name}


def selector_text(api_name: str) -> str:
    """The same as a label selector, for /scale and for lists."""
    return f"{contract.LABEL_API}={api_name}"


def labels(api_name: str) -> dict[str, str]:
    """On every child."""
    return {
        **selector_labels(api_name),
        "app.kubernetes.io/name": "batchedapi-serving",
        "app.kubernetes.io/instance": api_name,
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
    }


def head(api: BatchedAPI, resource: Resource, name: str) -> JsonObject:
    """The common part of a child; being owned, it goes with its API and needs no finalizer."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": api.metadata.namespace,
            "labels": labels(api.metadata.name),
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
