"""A simulated replica: batches, refusals and drains of the product's own batcher and admission."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.simulation import RecordedTrace, simulate
from batchedapi_core.simulation.fleet import Integers
from batchedapi_core.simulation.replica import RESTART, Durations, NoisyService, SimulatedReplica

IMMEDIATE = NoisyService(0.010, 0.001, 8, 0.005, strategy=Strategy.IMMEDIATE, noise=0.0)


def run(
    service: NoisyService, times: list[float], rows: list[int] | None = None
) -> SimulatedReplica:
    """To the end of everything."""
    replica = SimulatedReplica(service, Durations(service, (0,), cold=0), 0.0)
    replica.serve(times, rows, inf)
    return replica


def test_immediate_starts_with_what_is_there() -> None:
    """The second request waits for the lane, not for the interval."""
    replica = run(IMMEDIATE, [0.0, 0.001, 0.002])

    assert [1, 2] == replica.answers.rows
    assert pytest.approx([0.011, 0.023]) == replica.answers.ends


def test_two_lanes_run_two_batches_at_once() -> None:
    """A replica with two model processes."""
    replica = run(replace(IMMEDIATE, lanes=2), [0.0, 0.001])

    assert pytest.approx([0.011, 0.012]) == replica.answers.ends


def test_a_request_counts_its_rows() -> None:
    """A batch of eight rows has room for five and three, not for the two after them."""
    replica = run(IMMEDIATE, [0.0, 0.001, 0.002, 0.003], [1, 5, 3, 2])

    assert [1, 8, 2] == replica.answers.rows
    assert [1, 2, 1] == replica.answers.requests
    assert 11 == replica.counters.received
    assert 1 == replica.counters.full_batches


def test_a_batch_of_rows_that_have_lengths_takes_the_time_of_its_longest() -> None:
    """10 ms + (1 ms + 0.1 ms a unit of length) a row; both rows wait while the first runs."""
    service = replace(IMMEDIATE, per_length=0.0001, lengths=(20,))

    replica = run(service, [0.0, 0.001, 0.002])

    assert [1, 2] == replica.answers.rows
    assert pytest.approx([0.013, 0.029]) == replica.answers.ends
    assert pytest.approx(0.003) == service.time.per_row


def test_rows_of_like_lengths_ride_together_in_the_simulation_too() -> None:
    """By the product's rule: of rows of 1 and 1,000 in turn, far fewer units are computed."""
    service = replace(IMMEDIATE, per_row=0.0, per_length=0.00001, lengths=(1, 1000))
    times = [0.002 * n for n in range(2000)]

    together = run(service, times)
    padded = run(replace(service, lengths=(1000,)), times)

    assert together.counters.batch_seconds < 0.75 * padded.counters.batch_seconds


def test_with_sizes_in_requests_rows_are_not_counted() -> None:
    """`sizeUnit: Requests`."""
    service = replace(IMMEDIATE, size_unit=SizeUnit.REQUESTS, max_batch_size=2)

    replica = run(service, [0.0, 0.001, 0.002], [50, 60, 70])

    assert [50, 130] == replica.answers.rows
    assert 3 == replica.counters.sizes == replica.counters.requests


def test_an_oversize_request_is_answered_with_its_last_part() -> None:
    """One answer, in three batches."""
    replica = run(IMMEDIATE, [0.0], [20])

    assert [8, 8, 4] == replica.answers.rows
    assert [0, 0, 1] == replica.answers.requests
    assert [0.0] == replica.answers.arrived
    assert 0 == replica.in_flight


def test_more_requests_than_may_be_in_a_replica_are_refused() -> None:
    """`maxReplicaConcurrency` counts those that run, too."""
    replica = run(replace(IMMEDIATE, max_in_flight=2), [0.0, 0.001, 0.002])

    assert 1 == replica.answers.refused == replica.counters.rejected
    assert 2 == len(replica.answers.arrived)


def test_what_would_be_too_late_is_refused_at_the_door() -> None:
    """The serving image's own admission, which learns from the first batch."""
    service = replace(IMMEDIATE, max_latency=0.030)
    burst = [0.02 + i * 1e-5 for i in range(100)]

    replica = run(service, [0.0, *burst])

    assert 0 < replica.answers.refused < 100
    late = max(
        end - arrived
        for arrived, end in zip(
            replica.answers.arrived,
            [
                end
                for end, n in zip(replica.answers.ends, replica.answers.requests, strict=True)
                for _ in range(n)
            ],
            strict=True,
        )
    )
    assert late < 0.040


def test_what_waited_longer_than_the_timeout_is_given_up() -> None:
    """504: what is queued never runs and counts as rejected, what runs is answered as late."""
    service = replace(IMMEDIATE, fixed=0.4, timeout=0.5)

    replica = run(service, [0.0, 0.01, 0.2])

    assert 2 == replica.answers.refused
    assert 1 == replica.counters.rejected
    assert [1, 1] == replica.answers.rows
    assert [1, 0] == replica.answers.requests
    assert 0 == replica.in_flight


def test_who_would_be_answered_too_late_is_not_run() -> None:
    """The serving image's own margin: in an overload the oldest rows are those about to expire."""
    service = replace(IMMEDIATE, max_batch_size=1, fixed=0.3, timeout=1.0)

    replica = run(service, [0.0, *[0.001 * n for n in range(1, 8)]])

    assert [1, 1, 1] == replica.answers.requests
    assert 5 == replica.answers.refused == replica.counters.rejected


def test_a_batch_that_takes_the_timeout_gets_its_process_replaced() -> None:
    """All of it is answered 504 by then, and what comes meanwhile waits for another process."""
    service = replace(IMMEDIATE, fixed=1.0, timeout=0.5)

    replica = run(service, [0.0, 0.6, RESTART + 0.4])
    served = run(replace(service, fixed=0.1), [0.0])

    assert [] == replica.answers.rows
    assert 3 == replica.answers.refused
    assert 1 == replica.counters.rejected
    assert 0 == replica.in_flight == served.answers.refused


def test_an_oversize_request_is_given_up_once() -> None:
    """All of its parts with the first that is late; the one that ran is not an answer."""
    service = replace(IMMEDIATE, fixed=0.4, timeout=0.5)

    replica = run(service, [0.0], [24])

    assert 1 == replica.answers.refused
    assert 16 == replica.counters.rejected
    assert [0] == replica.answers.requests
    assert 0 == replica.in_flight


def test_a_window_ends_at_the_next_arrival_that_makes_it_worth_it() -> None:
    """Fixed waits up to its interval and is woken by the row that fills the batch."""
    service = replace(IMMEDIATE, strategy=Strategy.FIXED, max_batch_size=2, batch_interval=1.0)

    replica = run(service, [0.0, 0.25, 0.5])

    assert pytest.approx([0.262, 1.511]) == replica.answers.ends


def test_a_replica_that_drains_waits_for_nobody() -> None:
    """It was removed: nobody comes any more, and the batch would never be full."""
    service = NoisyService(0.01, 0.0, 8, 60.0, noise=0.0)
    replica = SimulatedReplica(service, Durations(service, (0,), cold=0), 0.0)
    replica.serve([0.5, 0.6], None, 1.0)
    assert not replica.drained

    replica.drain(1.0)
    replica.serve([], None, 2.0)

    assert [1.01] == replica.answers.ends
    assert replica.drained


def test_a_replica_with_a_batch_still_running_is_not_drained() -> None:
    """Its answers are still owed, and it is still paid for."""
    service = NoisyService(5.0, 0.0, 1, 0.0, noise=0.0)
    replica = SimulatedReplica(service, Durations(service, (0,), cold=0), 0.0)
    replica.serve([0.5], None, 1.0)
    replica.drain(1.0)

    assert not replica.drained
    assert 1 == replica.in_flight

    replica.serve([], None, 6.0)
    assert replica.drained
    assert 0 == replica.in_flight


def test_the_first_batches_of_a_new_replica_are_slow() -> None:
    """As measured of caches and allocators; the autoscaler must not take them for the model."""
    service = NoisyService(0.01, 0.001, 4, 0.0, noise=0.0)

    durations = Durations(service, (0,), cold=2)

    assert pytest.approx([0.028, 0.028, 0.014]) == [durations.next(4, 4, 0.0) for _ in range(3)]


def test_a_pace_is_told_whose_batch_it_is_when_it_starts_and_how_full_it_is() -> None:
    """Slow nodes, inputs that grow and lines that bend differ in these three alone."""
    told = []

    def pace(replica: int, start: float, size: float) -> float:
        told.append((replica, start, size))
        return 2.0

    service = NoisyService(0.01, 0.0, 4, 0.25, noise=0.0, pace=pace)
    trace = RecordedTrace([1.0, 1.0, 2.5], [1, 1, 1])

    outcome = simulate(service, trace, None, replicas=2, balancer=to_the_last)

    assert [(1, 1.25, 0.5), (1, 2.75, 0.25)] == told
    assert pytest.approx([0.27] * 3) == outcome.latencies.tolist()


def to_the_last(ready: Sequence[int], requests: int, rng: np.random.Generator) -> Integers:  # noqa: ARG001 - see Balancer
    """All requests to one replica."""
    return np.full(requests, len(ready) - 1)


def test_noise_is_of_mean_one_and_the_same_for_the_same_seed() -> None:
    """It must change the tail, not the capacity."""
    service = NoisyService(0.01, 0.0, 4, 0.0, noise=0.2)
    first, second, other = (Durations(service, seed, cold=0) for seed in ((1,), (1,), (2,)))

    drawn = [first.next(1, 1, 0.0) for _ in range(4000)]

    assert pytest.approx(0.01, rel=0.02) == sum(drawn) / len(drawn)
    assert drawn == [second.next(1, 1, 0.0) for _ in range(4000)]
    assert drawn[0] != other.next(1, 1, 0.0)
