"""A full batch waits at a busy lane: who waits for it notices nothing but the time it saves."""

import asyncio
from typing import Any

import pytest

from batchedapi_core.batching import Receipts, scheduler
from batchedapi_serving.metrics import slots
from dispatching import Asked, DiedError, HangsError, World

pytestmark = pytest.mark.looptime

SECONDS = 0.5
"""That a batch takes."""


@pytest.fixture(autouse=True)
def any_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take whole seconds here, behind which nothing would be worth sending ahead."""
    monkeypatch.setattr(scheduler, "LONGEST_AHEAD", 60.0)


async def ahead_of(world: World, rows: int = 8) -> list[Asked]:
    """Requests of one row, in a world whose lane knows what a batch of 4 takes.

    The first 4 have begun, the next 4 are ahead.
    """
    learned = [world.ask(-n) for n in range(4)]
    await asyncio.wait_for(learned[-1].answered.wait(), 10)
    asked = [world.ask(n) for n in range(rows)]
    await asyncio.sleep(0)
    (lane,) = world.lanes
    assert [4, 4] == [frame.meta["rows"] for frame in lane.sent]
    assert 2 == len(world.batches)
    return asked


def model(predict: Any = None, **options: Any) -> World:
    """One lane, batches of 4; each takes as long."""
    by_default = {"seconds": lambda _: SECONDS, "max_batch_size": 4, "restart": 0.1}
    return World(predict or (lambda items: items), **{**by_default, **options})


async def test_the_next_batch_begins_when_the_one_before_ends() -> None:
    """Its wait at the lane is a wait in the queue; no lane is busy twice at a time."""
    world = model(receipts=Receipts.HEADERS)
    asked = await ahead_of(world)
    began = world.loop.time()
    world.dispatcher.update_gauges()
    queued = world.counted(slots.QUEUE_ROWS)
    await asyncio.sleep(10)

    assert [200] * 8 == [one.status for one in asked]
    assert pytest.approx([began + SECONDS, began + 2 * SECONDS]) == [asked[0].at, asked[4].at]
    assert (4, 0.5, 0.5) == (
        queued,
        float(asked[4].receipt["queue-ms"]) / 1000,
        float(asked[4].receipt["exec-ms"]) / 1000,
    )
    assert pytest.approx(3 * SECONDS) == world.counted(slots.LANE_BUSY)
    assert {"full": 3} == world.reasons()


async def test_a_model_process_that_dies_gives_back_what_was_ahead() -> None:
    """It is first in its queue, as it stood, and runs once; only what ran is tried again."""
    world = model()
    asked = await ahead_of(world, 12)
    await asyncio.sleep(SECONDS / 2)
    (process,) = world.processes
    process.die()
    await asyncio.sleep(10)

    ran = [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [8, 9, 10, 11]]
    assert ran == world.batches[1:]
    assert list(range(12)) == [one.body for one in asked]
    assert {"full": 4, "retry": 1} == world.reasons()


async def test_a_row_that_ends_its_process_from_ahead_fails_alone() -> None:
    """It is suspected once it has begun, as if it had been queued until then."""

    def predict(items: list[int]) -> list[int]:
        if 5 in items:
            raise DiedError
        return items

    world = model(predict)
    asked = await ahead_of(world)
    await asyncio.sleep(20)

    assert [500 if n == 5 else 200 for n in range(8)] == [one.status for one in asked]
    assert 1 == world.batches.count([0, 1, 2, 3])


async def test_who_leaves_while_its_batch_is_ahead_is_not_run_again() -> None:
    """The others of its batch are."""
    world = model()
    asked = await ahead_of(world)
    world.cancel(asked[6])
    (process,) = world.processes
    process.die()
    await asyncio.sleep(10)

    assert [] == asked[6].answers
    assert [200] * 7 == [one.status for one in asked if one is not asked[6]]
    assert [4, 5, 7] == world.batches[2]


async def test_who_is_late_while_its_batch_is_ahead_is_told_so_in_time() -> None:
    """As in the queue, at its deadline, however long the batch before takes."""
    seconds = [SECONDS, 5.0, SECONDS]
    world = model(seconds=lambda _: seconds.pop(0), timeout=3.0)
    began = world.loop.time() + SECONDS
    asked = await ahead_of(world)
    await asyncio.sleep(10)

    assert {504} == {one.status for one in asked}
    assert pytest.approx([began + 3.0] * 8, abs=0.01) == [one.at for one in asked]


async def test_a_batch_ahead_hangs_from_when_it_began() -> None:
    """The timeout of a batch does not include its wait at the lane."""

    def predict(items: list[int]) -> list[int]:
        if 5 in items:
            raise HangsError
        return items

    world = model(predict, timeout=1.2)
    asked = await ahead_of(world)
    await asyncio.sleep(SECONDS + 1.19)
    early = list(world.replaced)
    await asyncio.sleep(0.02)

    assert ([], [1]) == (early, world.replaced)
    await asyncio.sleep(10)
    assert [200] * 4 + [504] * 4 == [one.status for one in asked]


async def test_behind_a_batch_that_hangs_all_wait_as_in_the_queue() -> None:
    """Until its process is replaced, when it is too late for them: none is run, or suspected."""

    def predict(items: list[int]) -> list[int]:
        if 0 in items:
            raise HangsError
        return items

    world = model(predict, timeout=2.0)
    for n in range(4):
        world.ask(-1 - n)
    await asyncio.sleep(1.0)
    hang = [world.ask(n) for n in range(4)]
    await asyncio.sleep(SECONDS / 2)
    behind = [world.ask(n) for n in range(4, 8)]
    (lane,) = world.lanes
    assert 2 == len(lane.sent)
    await asyncio.sleep(10)

    assert {504} == {one.status for one in (*hang, *behind)}
    assert pytest.approx([hang[0].at + world.restart] * 4, abs=0.01) == [one.at for one in behind]
    assert [0, 1, 2, 3] == world.batches[-1]


async def test_what_is_ahead_when_a_stop_begins_is_answered() -> None:
    """With all that is queued."""
    world = model()
    asked = await ahead_of(world, 11)
    world.dispatcher.drain()
    await asyncio.sleep(10)

    assert list(range(11)) == [one.body for one in asked]
