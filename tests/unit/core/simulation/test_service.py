"""A service says what it cannot be, and how much it holds."""

from math import inf
from typing import Any

import pytest

from batchedapi_core.simulation import NoisyService

GOOD: dict[str, Any] = {
    "fixed": 0.025,
    "per_row": 0.005,
    "max_batch_size": 32,
    "batch_interval": 0.020,
    "latency_target": 0.5,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixed": -1.0}, "fixed: finite seconds"),
        ({"per_row": inf}, "per_row: finite seconds"),
        ({"fixed": 0.0, "per_row": 0.0}, "fixed \\+ per_row > 0"),
        ({"max_batch_size": 0}, "max_batch_size >= 1"),
        ({"batch_interval": -0.1}, "batch_interval: finite"),
        ({"latency_target": 0.0}, "latency_target: finite"),
        ({"queue_limit": 31}, "queue_limit >= max_batch_size"),
        ({"noise": 1.0}, "noise within"),
        ({"lanes": 0}, "lanes >= 1"),
    ],
)
def test_a_service_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    """Otherwise the simulation would never end, or divide by zero."""
    with pytest.raises(ValueError, match=message):
        NoisyService(**{**GOOD, **changes})


def test_capacity_is_of_full_batches_on_every_lane() -> None:
    """32 rows in 185 ms."""
    assert pytest.approx(2 * 32 / 0.185) == NoisyService(**GOOD, lanes=2).capacity


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"queue_limit": 77}, 77),
        ({}, int(4 * 0.5 * 32 / 0.185)),
        ({"latency_target": 0.001}, 64),
        ({"latency_target": None}, inf),
        ({"max_in_flight": 10}, inf),
    ],
)
def test_a_queue_is_bounded_by_the_work_in_it(changes: dict[str, Any], rows: float) -> None:
    """Unless requests in the replica are counted, as the serving image does."""
    assert rows == NoisyService(**{**GOOD, **changes}).most_queued
