"""An ItemError raised over many rows: whose it is is looked for, and the search has an end."""

import asyncio
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import ItemErrorPolicy
from batchedapi_serving import ItemError
from dispatching import FIXED, PER_ROW, World

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=40)

pytestmark = pytest.mark.looptime


def refusing(refused: set[int]) -> Any:
    """Raises an ItemError over any batch with one of these."""

    def predict(items: list[int]) -> list[int]:
        if refused & set(items):
            raise ItemError(410, "gone")
        return items

    return predict


@pytest.mark.parametrize("culprit", [0, 7, 15])
async def test_an_item_error_raised_over_a_lone_request_is_that_of_its_row(culprit: int) -> None:
    """It gets what it would get had the method returned the error in its list."""
    world = World(refusing({culprit}))

    asked = world.ask_rows(list(range(16)))
    await asyncio.sleep(1)

    error = {"code": "item_failed", "message": "gone", "request_id": None}
    predictions: list[Any] = list(range(16))
    predictions[culprit] = {"error": error}
    assert 410 == asked.status
    assert predictions == asked.body["predictions"]
    assert f"instances[{culprit}] failed" in asked.body["error"]["message"]
    assert len(world.batches) - 1 <= 2 * math.log2(16)


async def test_an_item_error_raised_for_every_row_of_a_few_is_every_rows_answer() -> None:
    """A method that fails for what lies outside its rows; so few are all told apart."""
    world = World(refusing({0, 1, 2, 3, 4}))

    asked = world.ask_rows(list(range(5)))
    await asyncio.sleep(1)

    messages = [row["error"]["message"] for row in asked.body["predictions"]]
    assert (410, ["gone"] * 5) == (asked.status, messages)
    assert len(world.batches) == 2 * 5 - 1


async def test_an_item_error_raised_beside_other_requests_costs_them_nothing() -> None:
    """Requests are told apart first, then the rows of the one at fault."""
    world = World(refusing({11}), max_batch_size=32)

    many = [world.ask_rows(list(range(first, first + 4))) for first in (0, 10, 20)]
    single = world.ask(30)
    await asyncio.sleep(1)

    assert [200, 410, 200, 200] == [one.status for one in [*many, single]]
    assert "instances[1] failed" in many[1].body["error"]["message"]
    assert [10, 12, 13] == [row for row in many[1].body["predictions"] if isinstance(row, int)]


async def test_an_item_error_raised_over_a_part_of_an_oversize_request_names_the_row() -> None:
    """The row is counted from the request's first, not from its part's."""
    world = World(refusing({21}), max_batch_size=8)

    asked = world.ask_rows(list(range(30)))
    await asyncio.sleep(1)

    assert 410 == asked.status
    assert "instances[21] failed" in asked.body["error"]["message"]
    assert [n for n in range(30) if n != 21] == [
        row for row in asked.body["predictions"] if isinstance(row, int)
    ]


async def test_with_fail_batch_an_item_error_raised_over_several_rows_is_not_looked_for() -> None:
    """Nothing is run twice, so nobody knows whose it is; over one row it is that row's answer."""
    world = World(refusing({3}), item_errors=ItemErrorPolicy.FAIL_BATCH)

    several = world.ask_rows([2, 3])
    await asyncio.sleep(1)
    one = world.ask(3)
    await asyncio.sleep(1)

    assert [500, 410] == [several.status, one.status]
    assert [[2, 3], [3]] == world.batches


def further_runs(rows: int) -> int:
    """At most, of the search for culprits in a request: what one costs, and two more."""
    return 2 * math.ceil(math.log2(rows)) + 2


def rows_of(message: str) -> range:
    """Rows of the request that an error is about together."""
    found = re.fullmatch(
        r"gone \(raised for rows (\d+) to (\d+), which were not run one by one\)", message
    )
    assert found, message
    return range(int(found[1]), int(found[2]) + 1)


@pytest.mark.parametrize(("size", "parts"), [(1024, 1), (32, 32)])
async def test_a_request_of_which_every_row_is_refused_has_few_further_runs(
    size: int, parts: int
) -> None:
    """Down to the row they would be 2046, for one body; in one piece or in parts."""
    world = World(refusing(set(range(1024))), max_batch_size=size)

    asked = world.ask_rows(list(range(1024)))
    await asyncio.sleep(5)

    assert (410, parts + further_runs(1024)) == (asked.status, len(world.batches))
    rows = asked.body["predictions"]
    assert 1024 == len(rows)
    assert all(n in rows_of(row["error"]["message"]) for n, row in enumerate(rows))


@SETTINGS
@given(data=st.data(), rows=st.integers(2, 100), size=st.sampled_from([8, 32, 100]))
async def test_the_search_for_culprits_blames_no_row_for_another_request_or_part(
    data: st.DataObject, rows: int, size: int
) -> None:
    """Culprits fail; who fails beside them ran with one in the last run there was for them."""
    refused = data.draw(st.sets(st.integers(0, rows - 1), min_size=1))
    world = World(refusing(refused), max_batch_size=size)

    neighbour, asked = world.ask(-1), world.ask_rows(list(range(rows)))
    await asyncio.sleep(10)

    assert (200, 410) == (neighbour.status, asked.status)
    for n, answer in enumerate(asked.body["predictions"]):
        if answer == n:
            assert n not in refused
        elif answer["error"]["message"] == "gone":
            assert n in refused
        else:
            together = rows_of(answer["error"]["message"])
            assert n in together
            assert refused & set(together)
    first_runs = math.ceil(rows / size) + 1 + 2  # the neighbour may have shared one, told apart
    assert len(world.batches) <= first_runs + further_runs(rows)


@pytest.mark.parametrize("rows", [32, 256, 1024])
async def test_a_neighbour_waits_for_one_run_of_anothers_search(rows: int) -> None:
    """One body with nothing but wrong rows held the lane for 22 s."""
    world = World(refusing({-1}), max_batch_size=rows)

    bad = world.ask_rows([-1] * rows)
    asked = []
    for _ in range(200):  # each of them long after the one before
        asked.append((world.loop.time(), world.ask(1)))
        await asyncio.sleep(0.1)
    waits = [good.at - began for began, good in asked]

    own = 2 * (FIXED + 2 * PER_ROW) + 0.020  # its run and the one before it, and the interval
    assert {200} == {good.status for _, good in asked}
    assert waits[0] <= FIXED + PER_ROW * rows + own
    assert max(waits[1:]) <= FIXED + PER_ROW * rows / 2 + own
    assert bad.at < 3


async def test_a_search_goes_on_while_the_queue_is_never_empty() -> None:
    """They take turns: whoever has a wrong row is answered in an overload too."""
    world = World(refusing({-1}), max_batch_size=64, timeout=2.0)
    bad = world.ask_rows([-1] * 64)

    for _ in range(200):
        world.ask_rows(list(range(64)))
        await asyncio.sleep(0.01)

    assert 410 == bad.status


async def test_neighbours_in_the_batch_are_answered_before_rows_are_told_apart() -> None:
    """The retries of a batch go first, the search in a request takes turns with all others."""
    world = World(refusing(set(range(100, 120))), max_batch_size=32)

    bad = world.ask_rows(list(range(100, 116)))
    good = [world.ask(n) for n in range(8)]
    await asyncio.sleep(5)

    assert [410, *[200] * 8] == [one.status for one in [bad, *good]]
    runs = [set(batch) for batch in world.batches]
    first_of_search = next(i for i, run in enumerate(runs) if run < set(range(100, 116)))
    assert not any(run & set(range(8)) for run in runs[first_of_search:])


async def test_nobody_is_answered_after_a_deadline_that_passes_in_a_search() -> None:
    """504 once, and what was left of the search is not run."""
    world = World(refusing(set(range(32))), seconds=lambda _: 0.1, timeout=0.45)

    asked = world.ask_rows(list(range(32)))
    await asyncio.sleep(5)

    assert 504 == asked.status
    assert len(world.batches) < 1 + further_runs(32)
