"""Async methods: calls side by side over each process's channel, beside the lanes."""

import asyncio
from typing import Any

import pytest

from batchedapi_core.batching import LaneChoice
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor import MethodSpec
from dispatching import DiedError, World, echo

pytestmark = pytest.mark.looptime

CALL = MethodSpec("predict", batched=False, is_async=True)
BATCHED = MethodSpec("predict", batched=True, is_async=True, max_batch_size=4)
SYNC = MethodSpec("embed", batched=True, max_batch_size=4)


async def patient(payload: Any, _query: object, _headers: object) -> Any:
    """Answers after a second."""
    await asyncio.sleep(1.0)
    return payload


async def test_calls_run_side_by_side_without_taking_lanes() -> None:
    """N09: 50 calls of a second each take a second; the only lane is free meanwhile."""
    world = World(methods=[(CALL, patient), (SYNC, echo)])

    asked = [world.ask(n) for n in range(50)]
    sync = world.ask(7, method="embed")
    await asyncio.sleep(2)

    assert list(range(50)) == [one.body for one in asked]
    assert max(one.at for one in asked) < 1.1
    assert sync.at < 0.1


async def test_calls_are_bounded_by_the_limit_of_requests_alone() -> None:
    """By `maxReplicaConcurrency`; the gauge of lanes says the same."""
    world = World(methods=[(CALL, patient)], max_concurrency=20, lanes=2)

    for n in range(20):
        world.ask(n)
    world.dispatcher.update_gauges()

    assert world.most_running == 20
    assert world.counted(slots.LANES) == 20
    await asyncio.sleep(2)


async def test_a_batched_async_method_runs_as_many_batches_as_there_are_threads() -> None:
    """Its own processes x threads, as of a sync method."""

    async def slow(items: list[Any]) -> list[Any]:
        await asyncio.sleep(1.0)
        return items

    world = World(methods=[(BATCHED, slow)], max_batch_size=4, lanes=2, threads=2)

    asked = [world.ask(n) for n in range(20)]
    await asyncio.sleep(0.5)
    at_once = world.most_running
    await asyncio.sleep(3)

    assert 4 == at_once == world.most_running
    assert list(range(20)) == [one.body for one in asked]
    assert [4] * 5 == [len(batch) for batch in world.batches]


async def test_least_loaded_shares_calls_out_evenly() -> None:
    """B10: of two processes each gets half."""
    world = World(methods=[(CALL, patient)], lanes=2, lane_choice=LaneChoice.LEAST_LOADED)

    for n in range(10):
        world.ask(n)
    channels = [process.channel for process in world.processes]
    await asyncio.sleep(2)

    assert [5, 5] == [channel.most_at_once for channel in channels if channel is not None]


async def test_when_a_process_dies_its_calls_are_made_again_elsewhere() -> None:
    """The same rule as for batches: nobody notices a kill."""
    world = World(methods=[(CALL, patient)], lanes=2)
    asked = [world.ask(n) for n in range(10)]
    await asyncio.sleep(0.5)

    world.processes[0].die()
    await asyncio.sleep(3)

    assert list(range(10)) == [one.body for one in asked]
    assert world.reasons()["retry"] >= 1


async def test_a_call_that_kills_its_process_fails_alone() -> None:
    """500 after the second try; whoever was beside it is answered."""

    async def mortal(payload: Any, query: object, headers: object) -> Any:
        if payload == 3:
            raise DiedError
        return await patient(payload, query, headers)

    world = World(methods=[(CALL, mortal)], restart=0.01)

    asked = [world.ask(n) for n in range(6)]
    await asyncio.sleep(10)

    assert [500 if n == 3 else 200 for n in range(6)] == [one.status for one in asked]


async def test_a_call_that_waits_for_ever_gets_504_and_its_process_lives() -> None:
    """One call awaits something that never comes; the calls beside it are answered."""

    async def some_hang(payload: Any, query: object, headers: object) -> Any:
        if payload == "hangs":
            await asyncio.Event().wait()
        return await patient(payload, query, headers)

    world = World(methods=[(CALL, some_hang)], timeout=2.0)
    hung = world.ask("hangs")
    asked = []
    for n in range(20):
        asked.append(world.ask(n))
        await asyncio.sleep(0.3)
    await asyncio.sleep(2)

    assert hung.status == 504
    assert pytest.approx(2.0, abs=0.01) == hung.at
    assert {200} == {one.status for one in asked}
    assert [] == world.replaced


async def test_a_process_whose_loop_hangs_is_replaced() -> None:
    """Nothing comes back at all: not even the end of a call that was cancelled."""
    world = World(methods=[(CALL, patient)], timeout=2.0, restart=0.1)
    asked = world.ask(1)
    await asyncio.sleep(0.5)
    channel = world.processes[0].channel
    assert channel is not None
    channel.deaf = True
    for call in channel.calls.values():
        call.cancel()
    channel.calls.clear()
    await asyncio.sleep(4)

    after = world.ask(2)
    await asyncio.sleep(2)

    assert (504, 200) == (asked.status, after.status)
    assert [1] == world.replaced


async def test_a_call_that_began_as_another_ended_may_hang_as_any() -> None:
    """The answer to the one before it is none since it began."""
    world = World(methods=[(BATCHED, ends_or_hangs)], max_batch_size=1, timeout=4.0, restart=0.1)
    first, second = world.ask(1), world.ask("hangs")
    await asyncio.sleep(1.5)
    channel = world.processes[0].channel
    assert channel is not None
    channel.deaf = True
    for call in channel.calls.values():
        call.cancel()
    channel.calls.clear()
    await asyncio.sleep(6)

    assert (200, 504) == (first.status, second.status)
    assert [1] == world.replaced


async def ends_or_hangs(items: list[Any]) -> list[Any]:
    """After a second, or never."""
    await asyncio.sleep(1.0)
    if items == ["hangs"]:
        await asyncio.Event().wait()
    return items


async def test_a_sync_method_beside_it_needs_no_channel_to_be_ready() -> None:
    """And a queue of calls waits for one: each is served as soon as it can be."""
    world = World(methods=[(SYNC, echo), (CALL, patient)], lanes=0)
    world.start_process()

    asked = [world.ask(1, method="embed"), world.ask(2)]
    await asyncio.sleep(3)

    assert [200, 200] == [one.status for one in asked]
