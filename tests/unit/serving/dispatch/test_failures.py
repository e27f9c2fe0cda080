"""When the model fails, dies or hangs: only the culprit's client notices."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving import ItemError
from batchedapi_serving.metrics import slots
from dispatching import DiedError, HangsError, World

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=40)

pytestmark = pytest.mark.looptime


def raising(poison: set[int]) -> Any:
    """Raises over any batch with one of these."""

    def predict(items: list[int]) -> list[int]:
        if poison & set(items):
            raise ValueError(poison)
        return items

    return predict


def dying(poison: set[int]) -> Any:
    """Ends its process over any batch with one of these."""

    def predict(items: list[int]) -> list[int]:
        if poison & set(items):
            raise DiedError
        return items

    return predict


@pytest.mark.parametrize("culprit", [0, 7, 15, 16, 31])
async def test_one_poisoned_row_in_32_fails_alone(culprit: int) -> None:
    """Found by halves: at most 2 ceil(log2 32) + 1 further runs."""
    world = World(raising({culprit}))

    asked = [world.ask(n) for n in range(32)]
    await asyncio.sleep(5)

    assert [500 if n == culprit else 200 for n in range(32)] == [one.status for one in asked]
    assert [n for n in range(32) if n != culprit] == [
        one.body for one in asked if one.status == 200
    ]
    assert len(world.batches) - 1 <= 2 * math.ceil(math.log2(32)) + 1
    assert {"full": 1, "retry": len(world.batches) - 1} == world.reasons()


@pytest.mark.parametrize(
    ("error", "good"), [(ValueError(), 0), (MemoryError(), 0), (ItemError(410, ""), 0), (None, 1)]
)
async def test_a_process_has_done_its_work_once_a_batch_ran_without_failure(
    error: Exception | None, good: int
) -> None:
    """S21: one that breaks with its first batches would be started again at once for ever."""

    def predict(items: list[int]) -> list[int]:
        if error is not None:
            raise error
        return items

    world = World(predict, lanes=2)

    asked = world.ask(1)
    await asyncio.sleep(5)

    assert asked.status is not None
    assert good == sum(world.memory[slots.ANSWERED + index] for index in range(2))


async def test_the_error_names_the_exception_and_no_more() -> None:
    """Type only: its text may hold other clients' data."""
    world = World(raising({1}))

    asked = world.ask(1)
    await asyncio.sleep(1)

    error = asked.body["error"]
    assert error["code"] == "predictor_failed"
    assert "raised ValueError; the server's log" in error["message"]


async def test_a_wrong_number_of_answers_reaches_nobody() -> None:
    """Cortex leaves one client waiting for ever; here each row is tried alone."""
    world = World(lambda items: items[:-1] if len(items) > 1 else items)

    asked = [world.ask(n) for n in range(8)]
    await asyncio.sleep(5)

    assert list(range(8)) == [one.body for one in asked]


async def test_an_item_error_needs_no_second_run() -> None:
    """It says itself whose it is."""
    world = World(lambda items: [ItemError(404, "x") if n == 2 else n for n in items])

    asked = [world.ask(n) for n in range(4)]
    await asyncio.sleep(1)

    assert [200, 200, 404, 200] == [one.status for one in asked]
    assert len(world.batches) == 1


async def test_an_item_error_that_is_raised_gets_its_status_in_the_end() -> None:
    """Run alone, it is that row's answer."""

    def predict(items: list[int]) -> list[int]:
        if 2 in items:
            raise ItemError(410, "gone")
        return items

    world = World(predict)

    asked = [world.ask(n) for n in range(4)]
    await asyncio.sleep(1)

    assert [200, 200, 410, 200] == [one.status for one in asked]


async def test_another_exception_over_a_lone_request_fails_all_of_it_at_once() -> None:
    """Only an ItemError says that it is one row's; the rest of a batch is not tried row by row."""
    world = World(raising({3}))

    asked = world.ask_rows(list(range(8)))
    await asyncio.sleep(1)

    assert (500, 1) == (asked.status, len(world.batches))


async def test_a_killed_process_costs_nobody_an_answer() -> None:
    """Its batch is run again, whole, by the next process."""
    world = World(seconds=lambda _: 0.1)
    asked = [world.ask(n) for n in range(8)]
    await asyncio.sleep(0.05)

    world.lanes[0].die()
    await asyncio.sleep(2)

    assert list(range(8)) == [one.body for one in asked]
    assert [8, 8] == [len(batch) for batch in world.batches]
    assert {"interval": 1, "retry": 1} == world.reasons()


async def test_a_row_that_kills_its_process_fails_alone() -> None:
    """Whole, then each alone, then 500 for the killer only."""
    world = World(dying({5}), restart=0.1)

    asked = [world.ask(n) for n in range(8)]
    await asyncio.sleep(10)

    assert [500 if n == 5 else 200 for n in range(8)] == [one.status for one in asked]
    assert "died on this input" in asked[5].body["error"]["message"]
    assert [8, 8, *[1] * 8] == [len(batch) for batch in world.batches]


@pytest.mark.parametrize("threads", [2, 4])
async def test_a_killer_does_not_take_those_with_it_that_run_on_other_threads(threads: int) -> None:
    """A process dies with all its batches; in the end each is tried alone."""
    world = World(dying({5}), threads=threads, restart=0.05, max_batch_size=4, timeout=1000.0)

    asked = [world.ask(n) for n in range(40)]
    await asyncio.sleep(60)

    assert [500 if n == 5 else 200 for n in range(40)] == [one.status for one in asked]


async def test_a_row_that_hangs_costs_those_beside_it_their_deadline_and_nobody_else() -> None:
    """504 for its batch; whoever came later is answered by the next process."""

    def predict(items: list[int]) -> list[int]:
        if 0 in items:
            raise HangsError
        return items

    world = World(predict, timeout=1.0, restart=0.1)
    first = [world.ask(n) for n in range(3)]
    await asyncio.sleep(0.5)
    later = [world.ask(n) for n in range(1, 4)]
    await asyncio.sleep(3)

    assert [504] * 3 == [one.status for one in first]
    assert [200] * 3 == [one.status for one in later]
    assert [1] == world.replaced


@SETTINGS
@given(
    poison=st.sets(st.integers(0, 40), max_size=6),
    killers=st.sets(st.integers(0, 40), max_size=3),
    lanes=st.integers(1, 3),
)
async def test_whoever_is_innocent_is_answered_whatever_the_others_do(
    poison: set[int], killers: set[int], lanes: int
) -> None:
    """3.6: one bad request must not fail the others."""

    def predict(items: list[int]) -> list[int]:
        dying(killers)(items)
        return list(raising(poison)(items))

    world = World(predict, lanes=lanes, restart=0.05, max_batch_size=16, timeout=1000.0)
    asked = [world.ask(n) for n in range(41)]
    await asyncio.sleep(100)

    expected = [500 if n in poison | killers else 200 for n in range(41)]
    assert expected == [one.status for one in asked]
    assert all(one.body == one.value for one in asked if one.status == 200)


async def test_what_was_run_is_counted_as_such() -> None:
    """Every batch has one reason; histograms and reasons agree when nobody died."""
    world = World(raising({3, 9}))
    for n in range(40):
        world.ask(n)
    await asyncio.sleep(5)

    total = sum(world.reasons().values())
    buckets = [world.counted(slots.BATCH_ROWS + i) for i in range(slots.SIZE_SUM)]
    assert len(world.batches) == total == sum(buckets)
    assert sum(map(len, world.batches)) == world.counted(slots.BATCH_ROWS + slots.SIZE_SUM)


async def test_an_overload_kills_no_healthy_process_and_serves_at_capacity() -> None:
    """Rows are late when they are dispatched; the process that runs them is not to blame for it.

    13.3 rows a second can be served within 2 s; 20 are asked for, for 30 s.
    """
    world = World(
        seconds=lambda rows: 0.1 + 0.05 * rows, max_batch_size=4, timeout=2.0, max_latency=None
    )

    asked = []
    for number in range(600):
        asked.append(world.ask(number))
        await asyncio.sleep(0.05)
    await asyncio.sleep(10)

    answered = [one.status for one in asked].count(200)
    assert [] == world.replaced
    assert answered > 0.9 * 30 * 4 / 0.3


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_device_that_is_lost_costs_nobody_but_the_row_that_lost_it(lanes: int) -> None:
    """As after a death: the process is replaced, the batch runs again, the culprit gets its 500."""
    broken: set[int] = set()

    def predict(items: list[int]) -> list[int]:
        process = next(p for p in world.processes if p.lanes[0].sent)
        if 5 in items:
            broken.add(process.pid)
        if process.pid in broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return items

    world = World(predict, restart=0.1, lanes=lanes, max_batch_size=8)
    asked = [world.ask(n) for n in range(8)]
    await asyncio.sleep(10)
    later = [world.ask(n) for n in range(10, 18)]
    await asyncio.sleep(5)

    assert [500 if n == 5 else 200 for n in range(8)] == [one.status for one in asked]
    assert {200} == {one.status for one in later}
    assert 3 == len(broken)
