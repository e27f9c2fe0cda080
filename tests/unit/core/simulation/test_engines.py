"""The fast engine and the product's own batcher are the same server under the rule `Fixed`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.simulation import RecordedTrace, simulate
from batchedapi_core.simulation.engines import BatchingReplica, FixedReplica
from batchedapi_core.simulation.fleet import Integers
from batchedapi_core.simulation.replica import Counters, Durations, Replica, Service


@dataclass
class Ran:
    """What came out of a replica."""

    answers: list[tuple[float, float]]  # (arrived, answered)
    batches: list[tuple[float, int]]  # (end, rows)
    refused: int
    counters: Counters
    gauges: list[tuple[int, int]]  # (queue rows, in flight) after each second


def run(replica: Replica, times: list[float]) -> Ran:
    """Second by second, then to the end."""
    gauges = []
    last = int(times[-1]) + 1 if times else 1
    for second in range(last):
        replica.serve([t for t in times if second <= t < second + 1], None, second + 1.0)
        gauges.append((replica.queue_rows, replica.in_flight))
    replica.serve([], None, inf)
    answers = replica.answers
    ends = [end for end, n in zip(answers.ends, answers.requests, strict=True) for _ in range(n)]
    return Ran(
        list(zip(answers.arrived, ends, strict=True)),
        list(zip(answers.ends, answers.rows, strict=True)),
        answers.refused,
        replica.counters,
        gauges,
    )


SERVICES = st.builds(
    Service,
    fixed=st.sampled_from([0.001, 0.01, 0.2]),
    per_row=st.sampled_from([0.0, 0.0005, 0.05]),
    max_batch_size=st.sampled_from([1, 2, 5, 32]),
    batch_interval=st.sampled_from([0.0, 0.005, 0.1, 1.5]),
    queue_limit=st.sampled_from([None, 32, 33, 45]),
    latency_target=st.sampled_from([None, 0.05, 0.5]),
    noise=st.sampled_from([0.0, 0.05]),
)
TIMES = st.integers(0, 90).flatmap(  # a list left to itself is of a few: no queue gets full
    lambda n: st.lists(st.floats(0.0, 3.9), unique=True, min_size=n, max_size=n).map(sorted)
)


@settings(max_examples=300)
@given(service=SERVICES, times=TIMES, cold=st.sampled_from([0, 2]))
def test_both_engines_form_the_same_batches_at_the_same_times(
    service: Service, times: list[float], cold: int
) -> None:
    """What is tuned on the fast one holds for the batcher that the serving image runs."""
    fast, exact = (
        run(engine(service, Durations(service, (1, 2), cold=cold), 0.0), times)
        for engine in (FixedReplica, BatchingReplica)
    )

    assert exact.batches == fast.batches
    assert exact.answers == fast.answers
    assert exact.refused == fast.refused
    ours, theirs = fast.counters, exact.counters
    assert pytest.approx(theirs.batch_seconds) == ours.batch_seconds  # added in another order
    assert pytest.approx(theirs.row_seconds) == ours.row_seconds
    assert pytest.approx(theirs.wait_seconds, abs=1e-6) == ours.wait_seconds
    ours, theirs = (
        replace(one, batch_seconds=0.0, row_seconds=0.0, wait_seconds=0.0) for one in (ours, theirs)
    )
    assert theirs == ours
    assert len(times) == fast.counters.received
    assert exact.gauges == fast.gauges


@pytest.mark.parametrize("engine", [FixedReplica, BatchingReplica])
def test_a_replica_that_drains_waits_for_nobody(
    engine: type[FixedReplica | BatchingReplica],
) -> None:
    """It was removed: nobody comes any more, and the batch would never be full."""
    service = Service(0.01, 0.0, 8, 60.0, noise=0.0)
    replica = engine(service, Durations(service, (0,), cold=0), 0.0)
    replica.serve([0.5, 0.6], None, 1.0)
    assert not replica.drained(1.0)

    replica.drain(1.0)
    replica.serve([], None, 2.0)

    assert [1.01] == replica.answers.ends
    assert replica.drained(2.0)


@pytest.mark.parametrize("engine", [FixedReplica, BatchingReplica])
def test_a_replica_with_a_batch_still_running_is_not_drained(
    engine: type[FixedReplica | BatchingReplica],
) -> None:
    """Its answers are still owed, and it is still paid for."""
    service = Service(5.0, 0.0, 1, 0.0, noise=0.0)
    replica = engine(service, Durations(service, (0,), cold=0), 0.0)
    replica.serve([0.5], None, 1.0)
    replica.drain(1.0)

    assert not replica.drained(1.0)
    assert 1 == replica.in_flight

    replica.serve([], None, 6.0)
    assert replica.drained(6.0)
    assert 0 == replica.in_flight


def test_the_first_batches_of_a_new_replica_are_slow() -> None:
    """As measured of caches and allocators; the autoscaler must not take them for the model."""
    service = Service(0.01, 0.001, 4, 0.0, noise=0.0)

    durations = Durations(service, (0,), cold=2)

    assert pytest.approx([0.028, 0.028, 0.014]) == [durations.next(4, 4, 0.0) for _ in range(3)]


@pytest.mark.parametrize("timeout", [inf, 1e9], ids=["fast", "exact"])
def test_a_pace_is_told_whose_batch_it_is_when_it_starts_and_how_full_it_is(
    timeout: float,
) -> None:
    """Slow nodes, inputs that grow and lines that bend differ in these three alone."""
    told = []

    def pace(replica: int, start: float, size: float) -> float:
        told.append((replica, start, size))
        return 2.0

    service = Service(0.01, 0.0, 4, 0.25, noise=0.0, timeout=timeout, pace=pace)
    trace = RecordedTrace([1.0, 1.0, 2.5], [1, 1, 1])

    outcome = simulate(service, trace, None, replicas=2, balancer=to_the_last)

    assert [(1, 1.25, 0.5), (1, 2.75, 0.25)] == told
    assert pytest.approx([0.27] * 3) == outcome.latencies.tolist()


def to_the_last(ready: Sequence[int], requests: int, rng: np.random.Generator) -> Integers:  # noqa: ARG001 - see Balancer
    """All requests to one replica."""
    return np.full(requests, len(ready) - 1)


def test_noise_is_of_mean_one_and_the_same_for_the_same_seed() -> None:
    """It must change the tail, not the capacity."""
    service = Service(0.01, 0.0, 4, 0.0, noise=0.2)
    first, second, other = (Durations(service, seed, cold=0) for seed in ((1,), (1,), (2,)))

    drawn = [first.next(1, 1, 0.0) for _ in range(4000)]

    assert pytest.approx(0.01, rel=0.02) == sum(drawn) / len(drawn)
    assert drawn == [second.next(1, 1, 0.0) for _ in range(4000)]
    assert drawn[0] != other.next(1, 1, 0.0)
