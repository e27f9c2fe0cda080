"""Figures that can be worked out on paper come out of a simulated replica."""

from typing import Any

import pytest

from batchedapi_core.batching import Strategy
from batchedapi_core.simulation import NoisyService, Outcome, RecordedTrace, simulate


def all_at_once(service: NoisyService, requests: int) -> Outcome:
    """One replica, and everybody asks at time 0."""
    return simulate(service, RecordedTrace([0.0] * requests, [1] * requests), None, replicas=1)


def service(largest: int, fixed: float, **changes: Any) -> NoisyService:
    """10 ms a row, without noise."""
    return NoisyService(fixed, 0.010, largest, 1.0, noise=0.0, **changes)


def test_a_batch_of_128_has_five_times_the_throughput_and_takes_1280_ms() -> None:
    """C31: 50 ms alone are 20 rows/s; 128 at 10 ms a row are 100 rows/s, and all wait 1280 ms."""
    alone = all_at_once(service(1, 0.040), 128)
    together = all_at_once(service(128, 0.0), 128)

    assert pytest.approx([0.050 * i for i in range(1, 129)]) == sorted(alone.latencies)
    assert pytest.approx([1.280] * 128) == together.latencies.tolist()
    assert {128: 1} == together.batch_rows
    assert pytest.approx(5.0) == alone.latencies.max() / together.latencies.max()


def test_a_lone_request_waits_for_the_interval_under_fixed_alone() -> None:
    """B03, C18: 1 s for others that do not come, then 50 ms; Window expects nobody."""
    fixed, window = (
        all_at_once(service(128, 0.040, strategy=strategy), 1)
        for strategy in (Strategy.FIXED, Strategy.WINDOW)
    )

    assert [pytest.approx(1.050)] == fixed.latencies
    assert [pytest.approx(0.050)] == window.latencies
