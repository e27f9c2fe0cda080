"""The quick replica does what the real one does."""

import numpy as np
import pytest

from autoscaling.quick import quick
from autoscaling.services import MAX_REPLICAS, MIN_REPLICAS, SERVICES, LoadTested
from batchedapi_core.simulation import CapacityController, RecordedTrace, simulate


@pytest.mark.parametrize("service", ["cpu", "emb"])
@pytest.mark.parametrize("most", [1, 8])
def test_a_fleet_has_the_same_fate_to_the_last_digit(service: str, most: int) -> None:
    """With starts, drains, refusals and requests of several rows."""
    known, rng = LoadTested(SERVICES[service], 200.0), np.random.default_rng(5)
    times = np.concatenate([rng.uniform(0.0, 120.0, 9_000), rng.uniform(40.0, 55.0, 12_000)])
    trace = RecordedTrace(times.tolist(), rng.integers(1, most + 1, len(times)).tolist())

    def outcome() -> tuple[float, ...]:
        ran = simulate(
            known.service,
            trace,
            CapacityController(known.policy()),
            startup=(3.0, 6.0),
            min_replicas=MIN_REPLICAS,
            max_replicas=MAX_REPLICAS,
        )
        return (ran.missed, ran.rejected, ran.cost, ran.scale_events, *map(sum, [ran.latencies]))

    real = outcome()
    with quick():
        assert real == pytest.approx(outcome(), rel=1e-12)
    assert real[0] > 0
    assert real[3] > 1
