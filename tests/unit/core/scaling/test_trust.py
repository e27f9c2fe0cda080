"""What guards against a wrong model of service times only ever lowers the capacity."""

import pytest

from batchedapi_core.scaling.trust import expected_latency, slowdown, trusted
from batchedapi_core.scaling.window import BatchTotals, Interval
from batchedapi_core.service_model.fit import BatchSums
from batchedapi_core.service_model.line import ServiceTime

LINE = ServiceTime(0.010, 0.001)


def ran(batches: float, seconds: float) -> Interval:
    """Two seconds in which warm pods ran batches of ten rows, `seconds` long each."""
    sums = BatchSums(batches, 10 * batches, 100 * batches, seconds * batches, 0.0)
    return Interval(0.0, 2.0, 100.0, BatchTotals(), warm=sums)


def test_longer_inputs_show_at_once_in_the_time_of_batches() -> None:
    """The model forgets in minutes; faster than modelled is left to it."""
    assert 1.5 == pytest.approx(slowdown([ran(30, 0.02), ran(30, 0.04)], LINE))
    assert 1.0 == slowdown([ran(30, 0.01)], LINE)
    assert 2.0 == slowdown([ran(30, 0.9)], LINE)


def test_a_few_batches_say_nothing() -> None:
    """Nor do any without a model to compare them with."""
    assert 1.0 == slowdown([ran(19, 0.9)], LINE)
    assert 1.0 == slowdown([ran(30, 0.9)], None)
    assert 1.0 == slowdown([ran(30, 0.9)], ServiceTime(0.0, 0.0))


def test_the_latency_of_a_replica_at_its_capacity() -> None:
    """20 ms of its own, half of 50 ms waited, and the mean of a tail of 230 ms."""
    found = expected_latency(LINE, 10, batch_interval=0.050, latency_target=0.300)

    assert 0.020 + 0.025 + 0.230 / 4.6 == pytest.approx(found)
    tight = expected_latency(LINE, 10, batch_interval=0.050, latency_target=0.010)
    assert 0.045 == pytest.approx(tight)


@pytest.mark.parametrize(
    ("before", "latency", "after"),
    [(1.0, 0.13, 0.95), (0.6, 9.9, 0.6), (0.8, 0.11, 0.8), (0.8, 0.09, 0.808), (1.0, 0.01, 1.0)],
    ids=["too long", "at its least", "a little too long", "as it should be", "at its most"],
)
def test_trust_is_lost_quickly_and_regained_slowly(
    before: float, latency: float, after: float
) -> None:
    """In ten seconds; 0.1 s are expected."""
    found = trusted(before, latency=latency, expected=0.1, seconds=10.0)

    assert after == pytest.approx(found)
