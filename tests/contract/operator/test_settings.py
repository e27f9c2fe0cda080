"""A pod's settings are part of its revision, against a real apiserver."""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.world import NAMESPACES, Body, World, until

from batchedapi_core.contract import LABEL_REVISION
from batchedapi_core.manifest import parse_api
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS
from batchedapi_operator.resources.configmap import revision_of

pytestmark = pytest.mark.cluster

SPEC: Final[Body] = {
    # as the apiserver would not write them: it makes 1500m, 1Gi and no value of these
    "predictor": {"path": "model:Iris", "env": [{"name": "B", "value": ""}, {"name": "A"}]},
    "compute": {"cpu": "1.5", "mem": "1024Mi", "gpu": 1},
}


async def label(world: World, name: str) -> str:
    """The revision label of the pods that the Deployment asks for."""
    labels = (await world.deployment(name))["spec"]["template"]["metadata"]["labels"]
    revision: str = labels[LABEL_REVISION]
    return revision


async def observed(world: World, name: str, generation: int) -> None:
    """Until the status is of that generation."""

    async def seen() -> bool:
        status = (await world.api(name)).get("status") or {}
        return bool(status.get("observedGeneration") == generation)

    await until(seen, f"generation {generation} of {name} to be observed")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (0, {"compute": {"cpu": "375m"}}),
        (1, {"compute": {"gpu": 2}}),
        (2, {"compute": {"mem": "2Gi"}}),
        (3, {"predictor": {"env": [{"name": "A", "value": "x"}, {"name": "B"}]}}),
    ],
    ids=["cpu", "gpu", "mem", "env"],
)
async def test_another_setting_labels_the_pods_anew(
    world: World, number: int, changed: Body
) -> None:
    """With the old label, the capacity learned before the cut would be believed after it."""
    name = f"setting-{number}"
    await world.create_api(name, SPEC)
    before = await label(world, name)

    await world.patch(BATCHED_APIS, name, {"spec": changed})

    async def renamed() -> bool:
        return await label(world, name) != before

    await until(renamed, "another revision")
    after = await label(world, name)
    assert {f"{name}-{before}", f"{name}-{after}"} == set(await world.revisions(name))
    limit = await world.patch(BATCHED_APIS, name, {"spec": {"autoscaling": {"maxReplicas": 7}}})
    await observed(world, name, limit["metadata"]["generation"])
    assert after == await label(world, name)


async def test_an_upgrade_rolls_nothing(world: World, tmp_path: Path) -> None:
    """The names that an earlier operator gave stay, whatever the apiserver made of the setting."""
    world = World(world.kube, f"{world.namespace}-upgrade")
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}}
    await world.kube._request("POST", NAMESPACES, {}, head)
    first = start_operator(world.namespace, tmp_path / "first.log")
    try:
        await until_ready(first)
        await world.create_api("upgraded", SPEC)
        before = await world.deployment("upgraded")
        await observed(world, "upgraded", 1)
    finally:
        first.process.terminate()
        first.process.wait(timeout=30)
    # by its files and image alone, as every revision was named once
    as_then = revision_of(parse_api(await world.api("upgraded")), {}, {}).digest

    second = start_operator(world.namespace, tmp_path / "second.log")
    try:
        await until_ready(second)
        for most in (7, 8):
            limit = {"spec": {"autoscaling": {"maxReplicas": most}}}
            made = await world.patch(BATCHED_APIS, "upgraded", limit)
            await observed(world, "upgraded", made["metadata"]["generation"])
        await asyncio.sleep(1)
        after = await world.get(DEPLOYMENTS, "upgraded")
    finally:
        await world.kube._request("DELETE", f"{NAMESPACES}/{world.namespace}", {})
        second.process.terminate()
        second.process.wait(timeout=30)
    assert after is not None
    assert before["spec"]["template"] == after["spec"]["template"]
    assert as_then == after["spec"]["template"]["metadata"]["labels"][LABEL_REVISION]
