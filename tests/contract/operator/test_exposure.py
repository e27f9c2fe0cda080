"""Routes and an Ingress on a real apiserver, with the Gateway API's own definitions."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.test_operator import IN_IMAGE
from tests.contract.operator.world import CUSTOM_RESOURCES, Body, World, until

from batchedapi_operator.cluster import BATCHED_APIS, GRPC_ROUTES, HTTP_ROUTES, INGRESSES, SERVICES
from batchedapi_operator.resources.exposure import ADDRESSES
from gateway_api import definitions

pytestmark = pytest.mark.cluster

GATEWAY: Final = {
    "parentRefs": [{"name": "edge", "sectionName": "https"}],
    "hostnames": ["iris.example.com"],
    "grpcHostnames": ["grpc.example.com"],
}
INGRESS: Final = {"host": "iris.example.com", "className": "nginx", "tlsSecret": "tls"}
EVERYWHERE: Final[Body] = {
    "predictor": IN_IMAGE,
    "networking": {
        "grpc": True,
        "service": {"type": "NodePort", "port": 8000, "trafficDistribution": "PreferClose"},
        "gateway": GATEWAY,
        "ingress": INGRESS,
    },
}


@pytest.fixture
async def exposing(world: World, tmp_path: Path) -> AsyncIterator[World]:
    """The namespace, in which an operator makes addresses."""
    for body in definitions():
        path = f"{CUSTOM_RESOURCES}/{body['metadata']['name']}"
        query = {"fieldManager": "contract-tests", "force": "true"}
        kind = "application/apply-patch+yaml"
        await world.kube._request("PATCH", path, query, body, content_type=kind)
    log = tmp_path / "operator.log"
    operator = start_operator(world.namespace, log, BATCHEDAPI_EXPOSURE="gateway ingress")
    try:
        await until_ready(operator)
        yield world
    finally:
        operator.process.terminate()
        operator.process.wait(30)
    assert "Traceback" not in log.read_text()


async def test_an_api_is_reached_where_its_manifest_says(exposing: World) -> None:
    """Addresses are made as asked for, put right, and gone when they are no longer asked for."""
    await exposing.create_api("iris", EVERYWHERE)
    route = await exposing.appears(HTTP_ROUTES, "iris")
    grpc = await exposing.appears(GRPC_ROUTES, "iris")
    ingress = await exposing.appears(INGRESSES, "iris")
    service = await exposing.appears(SERVICES, "iris")

    (rule,) = route["spec"]["rules"]
    assert ("35000ms", 8000) == (rule["timeouts"]["request"], rule["backendRefs"][0]["port"])
    assert (["grpc.example.com"], 9000) == (
        grpc["spec"]["hostnames"],
        grpc["spec"]["rules"][0]["backendRefs"][0]["port"],
    )
    assert "nginx" == ingress["spec"]["ingressClassName"]
    assert ("NodePort", "PreferClose") == (
        service["spec"]["type"],
        service["spec"]["trafficDistribution"],
    )

    async def told() -> bool:
        return "https://iris.example.com/iris" in shown(exposing.namespace)

    await until(told, "the URL in kubectl get")

    await exposing.patch(HTTP_ROUTES, "iris", {"spec": {"hostnames": ["else.example.com"]}})

    async def right() -> bool:
        found = await exposing.get(HTTP_ROUTES, "iris")
        return found is not None and found["spec"]["hostnames"] == GATEWAY["hostnames"]

    await until(right, "the route to be put right")

    nothing = {"gateway": None, "ingress": None, "service": None}
    await exposing.patch(BATCHED_APIS, "iris", {"spec": {"networking": nothing}})

    async def gone() -> bool:
        return not any([await exposing.get(kind, "iris") for kind in ADDRESSES])

    await until(gone, "the addresses to go")

    async def inside() -> bool:
        return f"http://iris.{exposing.namespace}.svc/iris" in shown(exposing.namespace)

    await until(inside, "the address in the cluster")
    assert "ClusterIP" == (await exposing.appears(SERVICES, "iris"))["spec"]["type"]


async def test_an_ingress_of_somebody_elses_with_the_apis_name_is_no_obstacle(
    exposing: World,
) -> None:
    """Teams that had one before are not asked to delete it."""
    spec = {"defaultBackend": {"service": {"name": "theirs", "port": {"number": 80}}}}
    await exposing.create(INGRESSES, {"metadata": {"name": "before"}, "spec": spec})
    await exposing.create_api("before", {"predictor": IN_IMAGE})

    await exposing.deployment("before")

    await exposing.until_condition("before", "SpecValid", "Accepted")
    theirs = await exposing.get(INGRESSES, "before")
    assert theirs is not None
    assert "ownerReferences" not in theirs["metadata"]


def shown(namespace: str) -> str:
    """What a user sees."""
    command = ["kubectl", "get", "bapi", "-o", "wide", "-n", namespace]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
