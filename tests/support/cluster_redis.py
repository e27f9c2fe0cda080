"""The Redis of example 09 on the local cluster, of an image made of Debian's package."""

from typing import Final

import yaml
from tests.cluster.devcluster import images, local

import cluster

EXAMPLE: Final = cluster.ROOT / "examples/09-own-app/batchedapi.yaml"


def applied(namespace: str) -> str:
    """Its address, as the cluster may have no DNS; it starts."""
    local.load(images.redis_archive())
    for document in yaml.safe_load_all(EXAMPLE.read_text()):
        if document["metadata"]["name"] == "redis":
            cluster.apply(document, namespace)
    address: str = cluster.get("service", "redis", namespace)["spec"]["clusterIP"]
    return address
