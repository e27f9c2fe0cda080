"""The operator is killed, or a call of its fails."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.contract.operator.conftest import OperatorProcess, start_operator
from tests.contract.operator.world import CHILDREN, NAMESPACES, Body, World, until
from tests.support.apiserver_proxy import KILLS, Proxy, proxy

from batchedapi_operator.kube import Kube

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed_crd")]

SPEC: Final[Body] = {
    "predictor": {"path": "model:Iris"},
    "autoscaling": {"minReplicas": 2},
    "networking": {"allowFrom": [{"podSelector": {}}]},
}
NAME: Final = "crashed"
SAMPLE: Final = ((0.3, "after"), (0.5, "lost"), (0.7, "before"), (0.8, "429"))
"""Which share of its calls the operator has made, and what happens then."""
QUIET_SECONDS: Final = 5.0
"""Without a change, after which a run in which nothing fails is over: the looks come every 2 s."""


@pytest.fixture
async def spaces() -> AsyncIterator[list[World]]:
    """A namespace for each case, and one for the case in which nothing happens."""
    async with Kube.connected() as kube:
        made = [World(kube, f"crash-{uuid.uuid4().hex[:8]}") for _ in range(1 + len(SAMPLE))]
        for world in made:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}}
            await kube._request("POST", NAMESPACES, {}, body)
        yield made
        for world in made:
            await kube._request("DELETE", f"{NAMESPACES}/{world.namespace}", {})


async def state(world: World) -> dict[str, Body]:
    """Children, without what differs from one API to another."""
    return {
        name: {
            "labels": body["metadata"]["labels"],
            "owners": [one["name"] for one in body["metadata"].get("ownerReferences", ())],
            "data": body.get("data"),
            "replicas": body.get("spec", {}).get("replicas"),
            "template": body.get("spec", {}).get("template"),
        }
        for name, body in (await world.children(NAME)).items()
    }


async def ended(
    world: World,
    made: Proxy,
    config: Path,
    *,
    at: int = -1,
    how: str = "",
    wanted: dict[str, Body] | None = None,
) -> tuple[dict[str, Body], int]:
    """The state once it is the one that is wanted, else once nothing changes; and the calls."""
    await world.create_api(NAME, SPEC)
    log = config.with_suffix(".log")
    running: list[OperatorProcess] = []

    def start() -> None:
        running.append(start_operator(world.namespace, log, kubeconfig=config))

    def kill() -> None:
        running[-1].process.kill()

    made.die = kill
    made.arm(at, how)
    start()
    try:
        if at >= 0:
            async with asyncio.timeout(60.0):
                await made.fired.wait()
        if how in KILLS:
            await asyncio.to_thread(running[-1].process.wait)
            start()
        told: dict[str, Body] = {}
        since = time.monotonic()

        async def right() -> bool:
            nonlocal told, since
            now = await state(world)
            if now != told:
                told, since = now, time.monotonic()
            accepted = (await world.condition(NAME, "SpecValid")).get("reason") == "Accepted"
            quiet = time.monotonic() - since > QUIET_SECONDS
            return accepted and (
                told == wanted if wanted is not None else len(told) == len(CHILDREN) and quiet
            )

        await until(right, f"the state of a run without {how} at call {at}")
    finally:
        made.disarm()
        running[-1].process.kill()
        running[-1].process.wait()
    return told, len(made.calls)


async def test_whatever_happens_to_a_call_the_children_are_the_same(
    spaces: list[World], tmp_path: Path
) -> None:
    """The bench does it at each call."""
    kubeconfig = await asyncio.to_thread(Path(os.environ["KUBECONFIG"]).read_text)
    async with proxy(kubeconfig, tmp_path, "golden") as (made, config):
        golden, calls = await ended(spaces[0], made, config)

    async def case(world: World, share: float, how: str) -> dict[str, Body]:
        async with proxy(kubeconfig, tmp_path, how) as (made, config):
            at = int(share * calls)
            return (await ended(world, made, config, at=at, how=how, wanted=golden))[0]

    # side by side: an operator that was killed waits for its own Lease
    found = await asyncio.gather(
        *(case(world, *one) for world, one in zip(spaces[1:], SAMPLE, strict=True))
    )

    assert [golden] * len(SAMPLE) == found
