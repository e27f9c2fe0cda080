"""When memory runs out: a smaller batch, remembered; nobody's request fails for the size alone."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core.batching import ItemErrorPolicy, SizeUnit
from batchedapi_serving.metrics import slots
from batchedapi_serving.oom import OomKills, read_oom_kills
from dispatching import KilledForMemoryError, World

pytestmark = pytest.mark.looptime


def at_most(rows: int, error: type[BaseException] = MemoryError) -> Callable[[list[Any]], Any]:
    """Memory has room for so many rows."""

    def predict(items: list[Any]) -> list[Any]:
        if len(items) > rows:
            raise error
        return items

    return predict


@pytest.mark.parametrize("error", [MemoryError, KilledForMemoryError])
async def test_a_batch_too_large_for_memory_is_halved_and_the_size_remembered(
    error: type[BaseException],
) -> None:
    """C24, F9: more than 20 rows do not fit. 0 failed clients; that size is never tried again."""
    world = World(at_most(20, error), restart=0.1)

    first = [world.ask(n) for n in range(32)]
    await asyncio.sleep(3)
    before = len(world.batches)
    second = [world.ask(n) for n in range(64)]
    await asyncio.sleep(3)
    world.dispatcher.update_gauges()

    assert {200} == {one.status for one in first + second}
    assert [32, 16, 16] == [len(batch) for batch in world.batches[:before]]
    assert [16] * 4 == [len(batch) for batch in world.batches[before:]]
    assert world.counted(slots.MAX_BATCH_SIZE) == 16


async def test_with_less_size_there_is_as_much_less_time_to_fill_it() -> None:
    """C24: the interval is divided by the same factor."""
    world = World(at_most(20), batch_interval=0.1)

    for n in range(32):
        world.ask(n)
    await asyncio.sleep(3)
    world.dispatcher.update_gauges()

    assert pytest.approx(0.05) == world.counted(slots.BATCH_INTERVAL)


async def test_it_is_halved_until_it_fits() -> None:
    """32, 16, 8, 4: the limit is the first that runs."""
    world = World(at_most(5))

    asked = [world.ask(n) for n in range(32)]
    await asyncio.sleep(5)
    world.dispatcher.update_gauges()

    assert {200} == {one.status for one in asked}
    assert world.counted(slots.MAX_BATCH_SIZE) == 4


async def test_a_large_request_is_halved_as_well() -> None:
    """One client sends what memory has no room for; it gets all its rows, in order."""
    world = World(at_most(5))

    asked = world.ask_rows(list(range(30)))
    await asyncio.sleep(5)
    again = world.ask_rows(list(range(30)))
    await asyncio.sleep(5)

    assert {"predictions": list(range(30))} == asked.body == again.body


async def test_a_row_without_room_fails_alone_and_names_memory() -> None:
    """500; and its client shrinks nobody's batches."""

    def predict(items: list[Any]) -> list[Any]:
        if "huge" in items:
            raise MemoryError
        return items

    world = World(predict)
    asked = [world.ask("huge" if n == 9 else n) for n in range(32)]
    await asyncio.sleep(5)
    world.dispatcher.update_gauges()

    assert [500 if n == 9 else 200 for n in range(32)] == [one.status for one in asked]
    assert "ran out of memory on this input alone" in asked[9].body["error"]["message"]
    assert world.counted(slots.MAX_BATCH_SIZE) == 32


async def test_a_row_that_gets_its_process_killed_for_memory_fails_alone() -> None:
    """It is tried a second time: what else ran in that process may have been at fault."""

    def predict(items: list[Any]) -> list[Any]:
        if "huge" in items:
            raise KilledForMemoryError
        return items

    world = World(predict, restart=0.01)
    asked = [world.ask("huge" if n == 3 else n) for n in range(8)]
    await asyncio.sleep(10)

    assert [500 if n == 3 else 200 for n in range(8)] == [one.status for one in asked]
    assert "memory" in asked[3].body["error"]["message"]
    assert 2 == [batch for batch in world.batches if len(batch) == 1].count(["huge"])


async def test_each_shape_has_its_own_limit() -> None:
    """Long rows run out of memory where short ones do not."""

    def predict(items: list[str]) -> list[str]:
        if len(items) * max(map(len, items)) > 100:
            raise MemoryError
        return items

    world = World(predict, max_batch_size=16)
    for _ in range(2):
        for shape in (10, 1):
            asked = [world.ask("x" * shape, shape=(shape,)) for _ in range(16)]
            await asyncio.sleep(2)
            assert {200} == {one.status for one in asked}

    assert [16, 8, 8, 16, 8, 8, 16] == [len(batch) for batch in world.batches]


async def test_under_requests_a_large_request_is_halved_without_a_limit_of_one() -> None:
    """A size of one request says nothing of the next request's rows."""
    world = World(at_most(8), size_unit=SizeUnit.REQUESTS, max_batch_size=4)

    large = world.ask_rows(list(range(20)))
    await asyncio.sleep(3)
    small = [world.ask(n) for n in range(4)]
    await asyncio.sleep(3)

    assert {"predictions": list(range(20))} == large.body
    assert {200} == {one.status for one in small}
    assert [0, 1, 2, 3] == world.batches[-1]


async def test_with_fail_batch_nothing_is_run_twice_but_the_size_is_remembered() -> None:
    """The next batch is one that fits."""
    world = World(at_most(20), item_errors=ItemErrorPolicy.FAIL_BATCH)

    first = [world.ask(n) for n in range(32)]
    await asyncio.sleep(1)
    second = [world.ask(n) for n in range(32)]
    await asyncio.sleep(1)

    assert ({500}, {200}) == ({one.status for one in first}, {one.status for one in second})
    assert [32, 16, 16] == [len(batch) for batch in world.batches]


async def test_a_limit_is_logged_once_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads it as advice: maxBatchSize is too large for this memory."""
    world = World(at_most(20))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            for n in range(32):
                world.ask(n)
            await asyncio.sleep(3)

    records = [r for r in caplog.records if r.getMessage() == "batch ran out of memory"]
    assert [(32, 16)] == [(vars(r)["size"], vars(r)["max_batch_size"]) for r in records]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("low 0\n", 0),
        ("oom_kill x\n", 0),
        ("", 0),
    ],
)
def test_the_kernels_kills_are_read_from_the_cgroup(
    tmp_path: Path, text: str, expected: int
) -> None:
    """memory.events of cgroup v2; whatever else is there is none."""
    path = tmp_path / "memory.events"
    path.write_text(text)

    assert expected == read_oom_kills(path)
    assert read_oom_kills(tmp_path / "missing") == 0


def test_each_kill_explains_one_death_on_all_its_connections() -> None:
    """A process has several lanes, and a second that dies beside it may have crashed."""
    kills = 0
    oom = OomKills(lambda: kills)
    kills = 1

    assert [True, True, False, True] == [oom.ended(pid) for pid in (1, 1, 2, 1)]


def test_two_killed_together_are_both_explained() -> None:
    """Their connections close one after the other, with both kills counted already."""
    kills = 0
    oom = OomKills(lambda: kills)
    kills = 2

    assert [True, True, False] == [oom.ended(pid) for pid in (1, 2, 3)]


def test_a_kill_before_a_process_started_explains_nothing() -> None:
    """It was another; and a process id may be used again."""
    kills = 0
    oom = OomKills(lambda: kills)
    kills = 1
    assert oom.ended(1)
    kills = 2

    oom.started(1)

    assert not oom.ended(1)


def test_the_dead_are_not_remembered_for_ever() -> None:
    """A replica may lose thousands of processes."""
    oom = OomKills(lambda: 0)

    for pid in range(1000):
        oom.ended(pid)

    assert len(oom._verdicts) <= 64
