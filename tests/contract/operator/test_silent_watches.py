"""Connections to the apiserver that are open at the operator's end alone: nothing comes."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.world import NAMESPACES, World, until
from tests.support.apiserver_proxy import proxy

from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES
from batchedapi_operator.kube import Kube

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed_crd")]

NOTICED_SECONDS: Final = 60.0
SPEC: Final[dict[str, Any]] = {"predictor": {"path": "model:Iris"}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A namespace of its own, and of an operator of its own."""
    async with Kube.connected() as kube:
        made = World(kube, f"silent-{uuid.uuid4().hex[:8]}")
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace}}
        await kube._request("POST", NAMESPACES, {}, body)
        yield made
        await kube._request("DELETE", f"{NAMESPACES}/{made.namespace}", {})


async def test_what_a_silent_watch_does_not_tell_is_noticed_within_a_minute(
    world: World, tmp_path: Path
) -> None:
    """Changes of every kind, users' ConfigMaps included, are noticed on a silent connection."""
    kubeconfig = await asyncio.to_thread(Path(os.environ["KUBECONFIG"]).read_text)
    await world.create(CONFIG_MAPS, {"metadata": {"name": "files"}, "data": {"model.py": "x = 1"}})
    async with proxy(kubeconfig, tmp_path, "proxy") as (made, config):
        log = tmp_path / "operator.log"
        running = start_operator(world.namespace, log, kubeconfig=config)
        try:
            await until_ready(running)
            for name in ("edited", "robbed", "unserved"):
                await world.create_api(name, SPEC)
            nowhere = {"pod": {"nodeSelector": {"nowhere": "true"}}}  # no kubelet says otherwise
            await world.create_api("started", SPEC | nowhere)
            source = {"predictor": {**SPEC["predictor"], "source": {"configMap": "files"}}}
            await world.create_api("sourced", source)
            for name in ("edited", "robbed", "unserved", "started", "sourced"):
                await world.until_condition(name, "SpecValid", "Accepted")
                await world.deployment(name)
            await asyncio.sleep(5.0)  # what that made has been looked at

            assert made.silence() > 5
            await asyncio.gather(*(noticed(world) for noticed in CHANGES))
        finally:
            running.process.kill()
            running.process.wait()


async def _edited(world: World) -> None:
    before = (await world.deployment("edited"))["spec"]["template"]
    await world.patch(BATCHED_APIS, "edited", {"spec": {"networking": {"grpc": True}}})

    async def rolled() -> bool:
        return (await world.deployment("edited"))["spec"]["template"] != before

    await until(rolled, "a new template", NOTICED_SECONDS)


async def _robbed(world: World) -> None:
    uid = (await world.deployment("robbed"))["metadata"]["uid"]
    await world.delete(DEPLOYMENTS, "robbed")

    async def back() -> bool:
        found = await world.get(DEPLOYMENTS, "robbed")
        return found is not None and found["metadata"]["uid"] != uid

    await until(back, "a new Deployment", NOTICED_SECONDS)


async def _unserved(world: World) -> None:
    await world.patch(SERVICES, "unserved", {"spec": {"selector": {"app": "another"}}})

    async def right() -> bool:
        found = await world.appears(SERVICES, "unserved")
        return "batchedapi.dev/api" in found["spec"]["selector"]

    await until(right, "the selector to be put right", NOTICED_SECONDS)


async def _started(world: World) -> None:
    async def told() -> bool:
        # a controller may have made another since
        pods = await world.kube.find(PODS, world.namespace, "batchedapi.dev/api=started")
        await world.make_ready(pods)
        return (await world.condition("started", "Ready")).get("status") == "True"

    await until(told, "a pod that is ready to be told of", NOTICED_SECONDS)


async def _sourced(world: World) -> None:
    before = (await world.deployment("sourced"))["spec"]["template"]
    await world.patch(CONFIG_MAPS, "files", {"data": {"model.py": "x = 2"}})

    async def rolled() -> bool:
        return (await world.deployment("sourced"))["spec"]["template"] != before

    await until(rolled, "a new revision", NOTICED_SECONDS)


async def _created(world: World) -> None:
    await world.create_api("created", SPEC)
    await until(lambda: _there(world), "a new API to be seen", NOTICED_SECONDS)


async def _there(world: World) -> bool:
    return await world.get(DEPLOYMENTS, "created") is not None


CHANGES: Final = (_edited, _robbed, _unserved, _started, _sourced, _created)
