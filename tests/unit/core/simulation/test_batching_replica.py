"""The exact engine: what only the product's own batcher and admission can do."""

from dataclasses import replace
from math import inf

import pytest

from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.simulation.engines import BatchingReplica
from batchedapi_core.simulation.replica import RESTART, Durations, Service

IMMEDIATE = Service(0.010, 0.001, 8, 0.005, strategy=Strategy.IMMEDIATE, noise=0.0)


def run(service: Service, times: list[float], rows: list[int] | None = None) -> BatchingReplica:
    """To the end of everything."""
    replica = BatchingReplica(service, Durations(service, (0,), cold=0), 0.0)
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
