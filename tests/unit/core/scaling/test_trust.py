"""Guards against a wrong model of service times only ever lower the capacity."""

import math
from dataclasses import replace

import pytest
from tests.unit.core.scaling.evidence import POLICY

from batchedapi_core.scaling.learned import expected_latency, slowdown, trusted
from batchedapi_core.scaling.load import BatchTotals, LoadInterval
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import BatchSums, ServiceTime

LINE = ServiceTime(0.010, 0.001)


def ran(batches: float, seconds: float) -> LoadInterval:
    """Two seconds in which warm pods ran batches of ten rows, `seconds` long each."""
    sums = BatchSums(batches, 10 * batches, 100 * batches, seconds * batches, 0.0)
    return LoadInterval.of(0.0, 2.0, 100.0, BatchTotals(), warm=sums)


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
    found = expected_latency(LINE, 10, batch_interval=0.050, latency_target=0.300, quantile=0.99)

    assert 0.020 + 0.025 + 0.230 / math.log(100) == pytest.approx(found)
    tight = expected_latency(LINE, 10, batch_interval=0.050, latency_target=0.010, quantile=0.99)
    assert 0.045 == pytest.approx(tight)


def counted(pod: str, look: int) -> PodSample:
    """A warm pod that runs 60 batches of six rows every five seconds, 16 ms each."""
    batches = 60.0 * look
    return PodSample(
        pod=pod,
        time=5.0 * look,
        process_start=-1000.0,
        uptime=1000.0 + 5.0 * look,
        rows_received=6 * batches,
        rows_rejected=0.0,
        batches=batches,
        rows=6 * batches,
        full_batches=0.0,
        batch_seconds=0.016 * batches,
        rows_squared=36 * batches,
        row_seconds=6 * 0.016 * batches,
        queue_rows=0.0,
        lanes=1.0,
    )


def looked(extra_rows: float) -> tuple[LoadWindow, ScalingState]:
    """A look at which one of two pods counts 60 batches more of a second each, and these rows.

    120 batches in all; without extra rows it counts 360, six for each of the batches it ran.
    """
    state = ScalingState.empty()
    for look in range(1, 21):
        samples = (counted("honest", look), counted("other", look))
        _, state = observe(POLICY, state, Observation(samples, 2, 2, "a"), 5.0 * look)
    other = counted("other", 21)
    other = replace(
        other,
        batches=other.batches + 60,
        rows=other.rows + extra_rows,
        batch_seconds=other.batch_seconds + 60.0,
    )
    samples = (counted("honest", 21), other)
    return observe(POLICY, state, Observation(samples, 2, 2, "a"), 105.0)


@pytest.mark.parametrize("extra_rows", [-360.0, -300.0, -241.0])
def test_counters_of_fewer_rows_than_batches_slow_nothing_down(extra_rows: float) -> None:
    """Such counters are wrong, so their seconds may be, too: only the other pod's are compared."""
    load, state = looked(extra_rows)

    assert 60.0 == state.intervals[-1].warm.batches
    assert 1.0 == pytest.approx(load.slowdown)


def test_batches_of_a_row_each_do_slow_down() -> None:
    """The least that is possible: the same seconds now count."""
    load, state = looked(-240.0)

    assert 180.0 == state.intervals[-1].warm.batches
    assert load.slowdown > 1.5


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
