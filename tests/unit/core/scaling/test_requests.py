"""Where `maxBatchSize` counts requests: rows of a full batch, and how full batches are."""

from dataclasses import replace

import pytest

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling import (
    LoadWindow,
    Observation,
    PodSample,
    ScalingPolicy,
    ScalingState,
    decide,
    in_requests,
    observe,
    record,
    replay,
)

POLICY = ScalingPolicy(
    min_replicas=1, max_replicas=9, max_batch_size=8, batch_interval=0.01, warm_up_batches=0
)
"""As a replica exports it: 8 requests."""


def sample_of(time: float, rows: float, requests: float, *, pod: str = "a") -> PodSample:
    """A pod that has run `requests` with `rows` altogether, 8 requests a batch."""
    batches = requests / 8
    return PodSample(
        pod=pod,
        time=time,
        process_start=0.0,
        uptime=time,
        rows_received=rows,
        rows_rejected=0,
        batches=batches,
        rows=rows,
        full_batches=batches,
        batch_seconds=0.01 * batches + 0.0002 * rows,
        rows_squared=0,
        row_seconds=0,
        batch_rows_buckets=(),
        queue_rows=0,
        lanes=1,
        requests=requests,
    )


def looked(*samples: PodSample) -> tuple[LoadWindow, ScalingState, ScalingPolicy]:
    """One look at each sample of one pod, in order."""
    state = ScalingState.empty()
    for sample in samples:
        policy = in_requests(POLICY, state, [sample], sample.time)
        load, state = observe(policy, state, Observation((sample,), 1, 1, "a"), sample.time)
    return load, state, policy


def test_a_full_batch_has_the_rows_of_its_requests() -> None:
    """8 requests of 10 rows are 80 rows, all of which t(n) and capacity are about."""
    _, state, policy = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800))

    assert (80, 8) == (policy.max_batch_size, policy.max_batch_requests)
    assert in_requests(POLICY, state, [], 1005.0) == policy


def test_the_requests_of_the_last_minute_count_and_not_those_of_last_week() -> None:
    """Clients that begin to send 10 rows a request are planned for as soon as they do."""
    long_ago = sample_of(1000.0, 1e6, 1e6)
    _, state, _ = looked(long_ago, sample_of(1005.0, 1e6 + 8000, 1e6 + 800))

    policy = in_requests(POLICY, state, [long_ago], 1005.0)

    assert policy.max_batch_size == 80


def test_without_recent_batches_all_that_was_counted_is_used() -> None:
    """The first look after the operator started has no window yet."""
    seen = [sample_of(1000.0, 300, 100), sample_of(1000.0, 0, 0, pod="b")]

    policy = in_requests(POLICY, ScalingState.empty(), seen, 1000.0)

    assert policy.max_batch_size == 24


@pytest.mark.parametrize("seen", [(), (sample_of(1000.0, 0, 0),)], ids=["nobody", "idle"])
def test_before_any_batch_a_request_is_taken_to_have_one_row(seen: tuple[PodSample, ...]) -> None:
    """Nothing is decided on it: without batches there is no service time either."""
    policy = in_requests(POLICY, ScalingState.empty(), seen, 1000.0)

    assert (8, 8) == (policy.max_batch_size, policy.max_batch_requests)


@pytest.mark.parametrize(
    ("rows", "requests", "expected"),
    [(1e12, 1.0, MAX_BATCH_SIZE_LIMIT), (1.0, 1e12, 1), (float("nan"), 1.0, 8)],
)
def test_impossible_counts_leave_a_batch_that_is_possible(
    rows: float, requests: float, expected: int
) -> None:
    """A pod runs its user's code and may export anything."""
    policy = in_requests(POLICY, ScalingState.empty(), [sample_of(1.0, rows, requests)], 1.0)

    assert expected == policy.max_batch_size


def test_fill_is_requests_of_the_largest_batch() -> None:
    """In rows a batch of 8 requests would be called 1000 % full."""
    load, _, _ = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800))
    half = replace(sample_of(1010.0, 12000, 1200), batches=200.0)
    fuller, _, _ = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800), half)

    assert load.batching.fill_percent == pytest.approx(100.0)
    assert fuller.batching.fill_percent == pytest.approx(75.0)
    assert fuller.batching.mean_rows == pytest.approx(60.0)


def test_a_decision_on_requests_is_recorded_with_both_limits_and_replays() -> None:
    """F3 holds for this unit, too."""
    load, state, policy = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800))
    decision, _ = decide(policy, load, state, 1005.0)

    recorded = record(policy, decision)

    assert (80, 8) == tuple(
        recorded["policy"][name] for name in ("max_batch_size", "max_batch_requests")
    )
    assert "mean batch 80.0 of 80" in recorded["text"]
    assert decision.desired == replay(recorded)


def test_a_counter_of_requests_that_fell_is_not_compared() -> None:
    """As with every other counter: without a restart it cannot fall."""
    load, _, _ = looked(
        sample_of(1000.0, 8000, 800), replace(sample_of(1005.0, 8080, 808), requests=9)
    )

    assert load.seen == 0


def test_a_limit_of_no_requests_is_refused() -> None:
    """Nothing could be divided by it."""
    with pytest.raises(ValueError, match="max_batch_requests >= 1"):
        replace(POLICY, max_batch_requests=0)
