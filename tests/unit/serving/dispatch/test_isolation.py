"""How much one bad input may cost: few further runs, or none, as the user chose."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import ItemErrorPolicy
from batchedapi_serving import ItemError
from dispatching import DiedError, World

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
