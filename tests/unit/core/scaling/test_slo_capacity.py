"""F2: rows over what one replica serves within the target keeps the target, and not by waste."""

import pytest
from tests.unit.core.scaling.closed_loop import TICK, A, B, C, D, Loop, Scenario, p99_of

from batchedapi_core.service_model import lane_capacity

# The fewest replicas that keep the target in a minute of this loop, tried one by one.
CELLS = [
    (A, 200.0, 1),
    (A, 800.0, 1),
    (A, 2000.0, 2),
    (B, 200.0, 1),
    (B, 800.0, 2),
    (B, 2000.0, 3),
    (C, 200.0, 2),
    (C, 800.0, 7),
    (C, 2000.0, 16),
    (D, 200.0, 1),
    (D, 800.0, 1),
    (D, 2000.0, 1),
]
IDS = [f"{scenario.name} at {rate:g}/s" for scenario, rate, _ in CELLS]
CONVERGED = 6 * TICK
MEASURED = 20.0


@pytest.mark.no_cover
@pytest.mark.parametrize(("scenario", "rate", "oracle"), CELLS, ids=IDS)
def test_within_six_looks_there_is_at_most_one_replica_too_many(
    scenario: Scenario, rate: float, oracle: int
) -> None:
    """At 95 % of the capacity: the load does not move here, which the usual 80 % are kept for."""
    loop = Loop(scenario, oracle, policy=scenario.policy(target=0.95))

    loop.run(rate, CONVERGED)

    assert loop.decisions[-1].terms.steady <= oracle + 1
    assert loop.p99(rate, MEASURED) <= scenario.latency_target
    assert max(decision.desired for decision in loop.decisions) <= oracle + 1
    assert min(decision.desired for decision in loop.decisions) >= oracle


@pytest.mark.no_cover
@pytest.mark.parametrize(("scenario", "rate", "oracle"), CELLS, ids=IDS)
def test_at_the_default_target_the_spare_fifth_is_all_that_is_added(
    scenario: Scenario, rate: float, oracle: int
) -> None:
    """And the line is learned within a tenth, although every batch is off by five percent."""
    loop = Loop(scenario, oracle)
    loop.run(rate, CONVERGED)

    latency = loop.p99(rate, MEASURED)

    assert latency <= scenario.latency_target
    assert loop.desired <= oracle / 0.8 + 1
    terms = loop.decisions[-1].terms
    assert terms.service is not None
    for rows in (terms.mean_batch or 0.0, loop.state.model.largest_mean_batch):
        truth = scenario.service.seconds(rows)
        assert truth == pytest.approx(terms.service.seconds(rows), rel=0.10)


@pytest.mark.parametrize(("scenario", "rate", "oracle"), [CELLS[2], CELLS[4], CELLS[7]])
def test_one_replica_less_misses_the_target(scenario: Scenario, rate: float, oracle: int) -> None:
    """So that the tests above can fail."""
    assert p99_of(scenario, rate, oracle - 1, 30.0) > scenario.latency_target


def test_small_batches_promise_no_more_of_large_ones_than_is_true() -> None:
    """A line through batches of one and two says something of twenty: less than they are worth."""
    loop = Loop(B, 4)
    truth = lane_capacity(
        B.service,
        largest_batch=B.max_batch_size,
        batch_interval=B.batch_interval,
        latency_target=B.latency_target,
        quantile=0.99,
    )

    loop.run(40.0, CONVERGED)

    terms = loop.decisions[-1].terms
    assert (terms.mean_batch or 0.0) < 2.0
    assert 0.8 * truth.rows_per_second < terms.capacity <= truth.rows_per_second
