"""Two replicas of one release, and two releases over the same namespaces."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.operator.conftest import OperatorProcess, start_operator
from tests.contract.operator.world import NAMESPACES, World, until
from tests.support.apiserver_proxy import proxy

from batchedapi_core import contract
from batchedapi_operator.cluster import EVENTS, LEASES
from batchedapi_operator.kube import Kube

SPEC = {"predictor": {"path": "model:Model"}}
FAILOVER_SECONDS = 15.0
TERM_SECONDS = 2.0
BUSY_SECONDS = 5.0
"""By which a busy machine may be slower than what is promised of an idle one."""


@pytest.fixture
async def own(installed_crd: None) -> AsyncIterator[World]:  # noqa: ARG001 - needed, not used
    """A namespace of its own: nobody else's operator has claimed it."""
    name = f"leaders-{uuid.uuid4().hex[:8]}"
    async with Kube.connected() as kube:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await kube._request("POST", NAMESPACES, {}, body)
        yield World(kube, name)
        await kube._request("DELETE", f"{NAMESPACES}/{name}", {})


def leads(running: OperatorProcess) -> bool:
    """Whether its gauge says so."""
    return f"\n{contract.OPERATOR_LEADER} 1.0" in running.admin("/metrics")[1]


async def until_leads(running: OperatorProcess) -> float:
    """Seconds that it took."""
    began = time.monotonic()

    async def leading() -> bool:
        return leads(running)

    await until(leading, f"to lead; log: {running.log.read_text()[-2000:]}")
    return time.monotonic() - began


async def until_ready(running: OperatorProcess) -> None:
    """Ready to take over, too."""

    async def ready() -> bool:
        return running.admin("/readyz")[0] == 200

    await until(ready, f"to be ready; log: {running.log.read_text()[-2000:]}")


def stop(*all_running: OperatorProcess) -> None:
    """Whatever state they are in."""
    for running in all_running:
        running.process.send_signal(signal.SIGCONT)
        running.process.kill()
        running.process.wait(timeout=30)


async def test_another_replica_takes_over_and_the_one_that_is_woken_stands_by(
    own: World, tmp_path: Path
) -> None:
    """Killed, stopped and woken, asked to end; each time the work goes on."""
    first = start_operator(own.namespace, tmp_path / "first.log")
    second = start_operator(own.namespace, tmp_path / "second.log")
    both = [first, second]
    try:
        await asyncio.gather(*map(until_ready, both))

        async def one_leads() -> bool:
            return [True] == [one for one in map(leads, both) if one]

        await until(one_leads, "one of them to lead")
        both.sort(key=leads)
        standby, leader = both
        await own.create_api("before", SPEC)
        await own.deployment("before")

        leader.process.send_signal(signal.SIGSTOP)
        stopped = await until_leads(standby)
        await own.create_api("meanwhile", SPEC)
        await own.deployment("meanwhile")
        leader.process.send_signal(signal.SIGCONT)

        async def woken_stands_by() -> bool:
            return leader.admin("/readyz")[0] == 200 and not leads(leader)

        await until(woken_stands_by, "the one that was woken to stand by")

        standby.process.send_signal(signal.SIGTERM)
        ended = await until_leads(leader)
        assert 0 == standby.process.wait(timeout=30)
        await own.create_api("after", SPEC)
        await own.deployment("after")
    finally:
        stop(*both)

    assert stopped <= FAILOVER_SECONDS + BUSY_SECONDS
    assert ended <= TERM_SECONDS + BUSY_SECONDS


async def test_one_that_ends_beside_a_slow_write_waits_for_it_and_gives_the_lease_back(
    own: World, tmp_path: Path
) -> None:
    """Nobody has to wait until the Lease runs out."""
    release = f"ending-{own.namespace}"
    told = await asyncio.to_thread(Path(os.environ["KUBECONFIG"]).read_text)
    async with proxy(told, tmp_path, "ending") as (made, config):
        log = tmp_path / "ending.log"
        running = start_operator(own.namespace, log, release=release, kubeconfig=config)
        try:
            await until_leads(running)
            made.slow = f"PATCH /apis/apps/v1/namespaces/{own.namespace}/deployments"
            await own.create_api("slow", SPEC)
            async with asyncio.timeout(60.0):
                await made.fired.wait()
            running.process.send_signal(signal.SIGTERM)
            assert 0 == await asyncio.to_thread(running.process.wait, 30)
        finally:
            stop(running)
    lease = LEASES.path("default", release)
    left = await own.kube._request("GET", lease, {})
    await own.kube._request("DELETE", lease, {})

    assert "" == left["spec"].get("holderIdentity", "")
    assert await own.deployment("slow")


async def test_a_second_release_over_the_same_namespace_is_refused(
    own: World, tmp_path: Path
) -> None:
    """It says why in log, readiness and an event, and writes nothing."""
    first_release = f"first-of-{own.namespace}"
    first = start_operator(own.namespace, tmp_path / "first.log", release=first_release)
    second = None
    try:
        await until_leads(first)
        second = start_operator(own.namespace, tmp_path / "second.log", release="second")

        async def refused() -> bool:
            return f"serves namespace {own.namespace}" in second.admin("/readyz")[1]

        await until(refused, "the second one to be refused")

        async def told() -> bool:
            events = await own.kube.find(EVENTS, "default")
            notes = [one["note"] for one in events if one["reason"] == "Refused"]
            return any(first_release in note for note in notes)

        await until(told, "an event that names the first one")
        assert not leads(second)
        assert leads(first)
    finally:
        stop(*[one for one in (first, second) if one is not None])
        lease = LEASES.path("default", "second")
        await own.kube._request("DELETE", lease, {})
