"""The counter of batch sizes counts what maxBatchSize does."""

import asyncio
from collections.abc import Sequence

import pytest

from batchedapi_core.batching import SizeUnit
from batchedapi_serving.metrics import slots
from dispatching import World

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(
    ("costs", "unit", "expected"),
    [
        pytest.param(None, SizeUnit.ROWS, 4, id="rows"),
        pytest.param(None, SizeUnit.REQUESTS, 2, id="requests"),
        pytest.param((3, 5), SizeUnit.ROWS, 16, id="what rows cost"),
    ],
)
async def test_sizes_add_up_in_the_unit_of_the_largest(
    costs: Sequence[int] | None, unit: SizeUnit, expected: int
) -> None:
    """The operator divides rows by them to know how many rows the largest batch has."""
    world = World(size_unit=unit, max_batch_size=64)

    for _ in range(2):
        world.ask_rows(["short", "a longer one"], sizes=costs)
    await asyncio.sleep(5)

    assert expected == world.counted(slots.BATCH_SIZE)
    assert 4 == world.counted(slots.BATCH_ROWS + slots.SIZE_SUM)
