"""How much one bad input may cost: few further runs, or none, as the user chose."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import Client, ItemErrorPolicy, Strategy
from batchedapi_serving import ItemError
from batchedapi_serving.predictor import MethodSpec
from dispatching import DiedError, World, echo

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

pytestmark = pytest.mark.looptime


@SETTINGS
@given(data=st.data(), size=st.integers(2, 64))
async def test_each_culprit_costs_at_most_two_log2_b_further_runs(
    data: st.DataObject, size: int
) -> None:
    """F9: found by halves, and nobody beside it fails."""
    poison = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=5))

    def predict(items: list[int]) -> list[int]:
        if poison & set(items):
            raise ValueError
        return items

    world = World(predict, max_batch_size=size, timeout=None)
    asked = [world.ask(n) for n in range(size)]
    await asyncio.sleep(100)

    assert [500 if n in poison else 200 for n in range(size)] == [one.status for one in asked]
    assert len(world.batches) - 1 <= len(poison) * 2 * math.ceil(math.log2(size))


@pytest.mark.parametrize("error", [ValueError, DiedError])
async def test_with_fail_batch_all_of_a_batch_fail_and_nothing_is_run_twice(
    error: type[BaseException],
) -> None:
    """For predictors that must not see the same input twice."""

    def predict(items: list[int]) -> list[int]:
        if 3 in items:
            raise error
        return items

    world = World(predict, item_errors=ItemErrorPolicy.FAIL_BATCH, max_batch_size=8, restart=0.01)
    asked = [world.ask(n) for n in range(16)]
    await asyncio.sleep(3)

    assert [500] * 8 + [200] * 8 == [one.status for one in asked]
    assert [8, 8] == [len(batch) for batch in world.batches]
    assert {"full": 2} == world.reasons()


async def test_with_fail_batch_an_item_error_still_fails_one_item() -> None:
    """It is an answer, not a failure."""

    def predict(items: list[Any]) -> list[Any]:
        return [ItemError(404, "x") if item == 2 else item for item in items]

    world = World(predict, item_errors=ItemErrorPolicy.FAIL_BATCH)
    asked = [world.ask(n) for n in range(4)]
    await asyncio.sleep(1)

    assert [200, 200, 404, 200] == [one.status for one in asked]


def refusing(_: list[int]) -> list[int]:
    """Raises over every batch."""
    raise ItemError(410, "gone")


def without_memory(_: list[int]) -> list[int]:
    """Memory runs out, whatever the size."""
    raise MemoryError


def failing(_: list[int]) -> list[int]:
    """Raises what says nothing of rows."""
    raise ValueError


ALWAYS = [refusing, without_memory, failing]


@pytest.mark.parametrize("predict", ALWAYS)
async def test_a_batch_of_culprits_costs_its_budget_and_then_a_run_each(predict: Any) -> None:
    """Not 2 n - 2: and of the next, when everything fails, there are no halves at all."""
    world = World(predict, max_batch_size=64, timeout=None)
    for _ in range(64):
        world.ask(1)
    await asyncio.sleep(50)
    first = len(world.batches)
    asked = [world.ask(1) for _ in range(64)]
    await asyncio.sleep(50)

    assert first <= 1 + 2 * 6 + 2 + 64
    assert 1 + 64 == len(world.batches) - first
    assert {500 if predict is not refusing else 410} == {one.status for one in asked}


async def test_a_good_row_is_answered_although_everything_else_fails() -> None:
    """It runs alone in the end; halves are worth a try again from then on."""
    bad = set(range(1, 64))

    def predict(items: list[int]) -> list[int]:
        if bad & set(items):
            raise ValueError
        return items

    world = World(predict, max_batch_size=64, timeout=None)
    for _ in range(3):
        asked = [world.ask(n) for n in range(64)]
        await asyncio.sleep(50)
        assert [200] + [500] * 63 == [one.status for one in asked]
    before = len(world.batches)
    bad = {7}
    asked = [world.ask(n) for n in range(64)]
    await asyncio.sleep(50)

    assert [7] == [one.value for one in asked if one.status == 500]
    assert len(world.batches) - before <= 1 + 2 * 6


@pytest.mark.parametrize("predict", ALWAYS)
@pytest.mark.parametrize("lanes", [1, 2])
async def test_rows_that_always_raise_leave_another_method_its_share(
    predict: Any, lanes: int
) -> None:
    """64 clients of one method, 4 of another: p50 at most 2 x, 60 % of the answers."""

    async def beside(first: Any) -> list[float]:
        world = World(
            methods=[
                (MethodSpec("first", batched=True, max_batch_size=64), first),
                (MethodSpec("second", batched=True, max_batch_size=64), echo),
            ],
            max_batch_size=64,
            strategy=Strategy.WINDOW,
            lanes=lanes,
        )
        waits: list[float] = []
        clients = [asyncio.create_task(client(world, "first", [])) for _ in range(64)]
        clients += [asyncio.create_task(client(world, "second", waits)) for _ in range(4)]
        await asyncio.sleep(4)
        for each in clients:
            each.cancel()
        return sorted(waits)

    well, badly = await beside(echo), await beside(predict)

    assert badly[len(badly) // 2] <= 2 * well[len(well) // 2]
    assert len(badly) >= 0.6 * len(well)


async def client(world: World, method: str, waits: list[float]) -> None:
    """Asks again as soon as it is answered; seconds to each answer."""
    connection = Client()
    while True:
        asked = world.ask(1, connection, method=method)
        began = world.loop.time()
        await asked.answered.wait()
        waits.append(asked.at - began)


async def test_the_share_of_reruns_is_one_batch_in_turn_with_each_method() -> None:
    """Two others with work get a batch each before the next rerun, and none gets a second."""
    methods = [MethodSpec(name, batched=True, max_batch_size=4) for name in ("bad", "b", "c")]
    world = World(
        methods=list(zip(methods, (failing, echo, echo), strict=True)),
        max_batch_size=4,
        timeout=None,
    )
    for n in range(4):
        world.ask(n, method="bad")
    for n in range(40):
        world.ask(n, method="b")
        await asyncio.sleep(0.0001)
        world.ask(n, method="c")
    await asyncio.sleep(30)

    ran = world.methods_run[1:]
    reruns = [i for i, name in enumerate(ran) if name == "bad"]
    assert [{"b", "c"}] * len(reruns) == [set(ran[i - 2 : i]) for i in reruns]
