"""Timeouts that requests bring themselves: kept, cheap, and never longer than the replica's."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import QueueOrder, Strategy
from batchedapi_serving.metrics import slots
from dispatching import World, echo

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

pytestmark = pytest.mark.looptime


async def test_a_request_may_bring_a_shorter_timeout() -> None:
    """X-Request-Timeout-Ms, a gRPC deadline: 504 then, though others may wait for longer."""
    world = World(seconds=lambda _: 10.0)
    before, own, after = world.ask(1), world.ask(2, timeout=1.0), world.ask(3)
    await asyncio.sleep(20)

    assert [200, 504, 200] == [one.status for one in (before, own, after)]
    assert pytest.approx(1.0, abs=0.01) == own.at
    assert "no answer within 1 s as the request asked" in own.body["error"]["message"]


async def test_a_longer_timeout_than_the_replicas_changes_nothing() -> None:
    """overload.timeout is the operator's promise to everybody else."""
    world = World(seconds=lambda _: 10.0, timeout=2.0)

    asked = world.ask(1, timeout=100.0)
    await asyncio.sleep(5)

    assert asked.status == 504
    assert pytest.approx(2.0, abs=0.01) == asked.at
    assert "(overload.timeout)" in asked.body["error"]["message"]


async def test_without_a_timeout_of_the_replica_a_requests_own_holds() -> None:
    """`timeout: 0s`, and a client in a hurry."""
    world = World(seconds=lambda _: 3600.0, timeout=None)
    waits, own = world.ask(1), world.ask(2, timeout=0.5)

    await asyncio.sleep(4000)

    assert (200, 504) == (waits.status, own.status)
    assert pytest.approx(0.5, abs=0.01) == own.at


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_request_that_comes_too_late_is_answered_and_never_run(seconds: float) -> None:
    """Its deadline passed on the way here."""
    world = World(strategy=Strategy.WINDOW)

    asked = world.ask(1, timeout=seconds)
    await asyncio.sleep(1)

    assert 504 == asked.status
    assert [] == world.batches


async def test_no_row_is_run_after_its_deadline() -> None:
    """S18: whatever its timeout, and however long the queue."""
    begun: list[tuple[float, list[float]]] = []
    world = World(seconds=lambda _: 0.2, max_batch_size=2, timeout=3.0)
    began = world.began

    def observed(meta: dict[str, Any], payload: bytes) -> None:
        began(meta, payload)
        begun.append((world.loop.time(), world.batches[-1]))

    world.began = observed  # type: ignore[method-assign]  # to see when
    asked = []
    for n in range(200):
        own = None if n % 3 else 0.05 * (n % 7)
        deadline = world.loop.time() + (3.0 if own is None else own)
        asked.append(world.ask(deadline, timeout=own))
        await asyncio.sleep(0.03)
    await asyncio.sleep(10)

    assert {200, 504} == {one.status for one in asked}
    assert begun
    assert all(at < deadline for at, batch in begun for deadline in batch)
    assert world.counted(slots.REJECTION_SLOT["expired"]) > 0


async def test_own_timeouts_do_not_get_a_healthy_process_killed() -> None:
    """A hang is a batch that takes the replica's timeout, not a client's."""
    world = World(seconds=lambda _: 5.0, timeout=30.0)

    asked = world.ask(1, timeout=0.1)
    await asyncio.sleep(20)

    assert 504 == asked.status
    assert [] == world.replaced


async def test_short_timeouts_with_a_wrong_estimate_are_tried_all_the_same() -> None:
    """One slow batch must not make every later request seem hopeless for ever."""
    slow = True
    world = World(seconds=lambda _: 2.0 if slow else 0.01, strategy=Strategy.WINDOW)
    world.ask(0)
    await asyncio.sleep(3)
    slow = False

    asked = [world.ask(n, timeout=0.5) for n in range(3)]
    await asyncio.sleep(3)

    assert [200, 200, 200] == [one.status for one in asked]


async def test_under_deadline_order_who_is_in_a_hurry_goes_first() -> None:
    """B18: the earliest deadline; those without their own in order of arrival."""
    world = World(
        echo, seconds=lambda _: 1.0, max_batch_size=1, queue_order=QueueOrder.DEADLINE, timeout=60.0
    )
    world.ask("runs")
    for name, timeout in (("c", None), ("b", 20.0), ("a", 10.0), ("d", None)):
        world.ask(name, timeout=timeout)

    await asyncio.sleep(10)

    assert [["runs"], ["a"], ["b"], ["c"], ["d"]] == world.batches


@SETTINGS
@example(requests=[(0.0, None, False)] * 5 + [(0.25, None, False)] * 8)  # 504 well before 2 s
@given(
    requests=st.lists(
        st.tuples(st.floats(0.0, 0.3), st.none() | st.floats(0.01, 3.0), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
async def test_everybody_is_answered_at_the_deadline_or_before(
    requests: list[tuple[float, float | None, bool]],
) -> None:
    """Deadlines that do not ascend, among requests that are answered or cancelled meanwhile.

    Nobody is given up before half of its own timeout is over: see RequestQueue.take.
    """
    world = World(seconds=lambda rows: 0.3 * rows, max_batch_size=3, timeout=2.0)
    begun = world.loop.time()
    asked = []
    for pause, timeout, leaves in requests:
        one = world.ask(1, timeout=timeout)
        own = 2.0 if timeout is None else min(2.0, timeout)
        asked.append((one, world.loop.time(), own, leaves))
        await asyncio.sleep(pause)
        if leaves:
            world.cancel(one)
    await asyncio.sleep(20)

    assert world.loop.time() > begun
    for one, at, own, leaves in asked:
        assert len(one.answers) == 1 or (leaves and not one.answers)
        if one.answers:
            assert one.at <= at + own + 0.002
            assert one.status == 200 or one.at >= at + own / 2 - 0.002
    jobs = world.dispatcher._in_flight
    assert (0, []) == (len(jobs.by_id), jobs._by_deadline)


async def test_answered_requests_with_a_timeout_are_not_kept_until_then() -> None:
    """A million answered requests with a deadline in an hour would be a million in memory."""
    world = World(seconds=lambda _: 0.0, batch_interval=0.0, timeout=None)
    held = world.dispatcher._in_flight
    world.ask("first", timeout=3600.0)
    for n in range(2000):
        world.ask(n, timeout=3600.0)
        await asyncio.sleep(0.001)

    assert len(held._by_deadline) <= 64 + 2
