"""Pooled batching over pods: the window in the status equals the ground truth."""

from dataclasses import replace

import pytest

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.load import BatchingWindow
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ONE_ROW, BatchSums, RequestRows, ServiceTime, fit

TRUE = ServiceTime(fixed=0.008, per_row=0.0005)
POLICY = ScalingPolicy(
    min_replicas=1, max_replicas=9, max_batch_size=32, batch_interval=0.02, warm_up_batches=0
)


def scrape(pod: str, time: float, batches: list[int], *, start: float = 0.0) -> PodSample:
    """A pod that has run `batches` (rows of each) since its start."""
    return PodSample(
        pod=pod,
        time=time,
        process_start=start,
        uptime=time - start,
        rows_received=sum(batches),
        rows_rejected=0,
        batches=len(batches),
        rows=sum(batches),
        full_batches=sum(rows == 32 for rows in batches),
        batch_seconds=sum(TRUE.seconds(rows) for rows in batches),
        rows_squared=sum(rows**2 for rows in batches),
        row_seconds=sum(rows * TRUE.seconds(rows) for rows in batches),
        queue_rows=0,
        lanes=1,
    )


BUSY = [32, 31, 30, 16, 32, 25] * 20
IDLE = [1]
RESTARTED_BEFORE = [4, 5, 6] * 10
RESTARTED_AFTER = [7, 9] * 10


def three_pods() -> tuple[BatchingWindow, ScalingState]:
    """One idle, one restarted mid-window, one busy, over ten seconds."""
    state = ScalingState.empty()
    looks: tuple[tuple[float, tuple[list[int], list[int], list[int]], float], ...] = (
        (1000.0, ([], [], []), 0.0),
        (1005.0, (IDLE, RESTARTED_BEFORE, BUSY), 0.0),
        (1010.0, (IDLE, RESTARTED_AFTER, BUSY + BUSY), 1006.0),
    )
    for now, (idle, restarted, busy), start in looks:
        samples = (
            scrape("idle", now, idle),
            scrape("restarted", now, restarted, start=start),
            scrape("busy", now, busy),
        )
        load, state = observe(POLICY, state, Observation(samples, 3, 3, "a"), now)
    return load.batching, state


def test_three_unlike_pods_pool_to_the_ground_truth() -> None:
    """F1: sums first, ratios last, and a counter that restarted is neither lost nor negative."""
    batching, _ = three_pods()

    truth = IDLE + RESTARTED_BEFORE + RESTARTED_AFTER + BUSY + BUSY
    mean = sum(truth) / len(truth)
    assert mean == pytest.approx(batching.mean_rows, rel=1e-9)
    assert 100 * mean / 32 == pytest.approx(batching.fill_percent, rel=1e-9)
    assert sum(truth) / 10.0 == pytest.approx(batching.rows_per_second, rel=1e-9)
    assert len(truth) / 10.0 == pytest.approx(batching.batches_per_second, rel=1e-9)
    assert truth.count(32) / len(truth) == pytest.approx(batching.full_share, rel=1e-9)
    busy = sum(TRUE.seconds(rows) for rows in truth) / (5 * 3 + 5 * 2 + 4)
    assert busy == pytest.approx(batching.busy, rel=1e-9)


def test_the_line_through_three_unlike_pods_is_the_line_through_all_their_batches() -> None:
    """F1 again: t(n) from pooled sums; the restarted process is still warming up."""
    _, state = three_pods()

    learned = [*BUSY, *IDLE, *RESTARTED_BEFORE]
    forgotten = 0.5 ** (5 / 300)
    expected = BatchSums(
        len(learned),
        sum(learned),
        sum(rows**2 for rows in learned),
        sum(TRUE.seconds(rows) for rows in learned),
        sum(rows * TRUE.seconds(rows) for rows in learned),
    ).scaled(forgotten)
    later = BatchSums(
        len(BUSY),
        sum(BUSY),
        sum(rows**2 for rows in BUSY),
        sum(TRUE.seconds(rows) for rows in BUSY),
        sum(rows * TRUE.seconds(rows) for rows in BUSY),
    )
    line, truth = state.model.service(POLICY), fit(expected.plus(later))
    assert line is not None
    assert truth is not None
    assert (truth.fixed, truth.per_row) == pytest.approx((line.fixed, line.per_row), rel=1e-9)


def test_a_mean_of_means_would_be_wrong_by_a_third() -> None:
    """The fixture can tell the difference: what other autoscalers report is not what happened."""
    batching, _ = three_pods()
    per_pod = (IDLE, RESTARTED_BEFORE + RESTARTED_AFTER, BUSY + BUSY)

    unweighted = sum(sum(pod) / len(pod) for pod in per_pod) / 3

    assert batching.mean_rows is not None
    assert abs(unweighted / batching.mean_rows - 1) > 0.3


def test_rows_that_come_together_count_from_the_next_look_and_call_for_more_replicas() -> None:
    """One request in ten has 16 rows: more queue behind each other than behind single rows."""
    policy = replace(POLICY, latency_target=0.1)
    needs = []
    for squares_of_a_row in (1.0, 10.6, 0.0):  # the last: a release that does not export them
        state = ScalingState.empty()
        for look in range(5):
            sample = replace(
                scrape("a", 1000.0 + 2.0 * look, [10, 30] * 40 * look),
                answered=1600.0 * look / (1.0 if squares_of_a_row == 1.0 else 2.5),
                squares_received=1600.0 * look * squares_of_a_row,
            )
            decision, state = step(policy, state, Observation((sample,), 1, 1, "a"), sample.time)
        assert state.intervals[-1].arrival == 800.0
        needs.append((decision.terms.requests, decision.terms.need))

    (one_row, single), (mixed, together), (unknown, mean) = needs
    assert (ONE_ROW, RequestRows(2.5, 10.6), RequestRows(2.5, 2.5)) == (one_row, mixed, unknown)
    assert single < mean < together
    assert 1.15 * mean < together


def test_nothing_to_divide_by_is_none_and_not_zero() -> None:
    """A mean batch of 0 would be a lie in a status."""
    load, _ = observe(POLICY, ScalingState.empty(), Observation((), 3, 3, "a"), 0.0)

    batching = load.batching
    assert (None, None, None) == (batching.mean_rows, batching.fill_percent, batching.busy)
    assert (None, None) == (batching.rows_per_second, batching.full_share)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    """A burst two minutes ago is not how batching works now."""
    _, state = three_pods()

    load, _ = observe(POLICY, state, Observation((), 0, 3, "a"), 1100.0)

    assert 0.0 == load.batching.batches


def test_rows_of_a_gap_are_spread_over_the_gap() -> None:
    """A look that saw nobody is made up for by the next, and takes no time out of the rate."""
    state = ScalingState.empty()
    for now, batches in ((1000.0, []), (1005.0, None), (1010.0, [8] * 100)):
        seen = () if batches is None else (scrape("a", now, batches),)
        load, state = observe(POLICY, state, Observation(seen, 1, 1, "a"), now)

    assert 10.0 == load.batching.seconds
    assert 80.0 == load.batching.rows_per_second
    assert load.demand is not None
    assert 80.0 == load.demand.arrival_now


def test_busy_is_a_share_of_the_lanes_that_a_pod_says_it_has() -> None:
    """Two lanes, of which one worked all the time, are half busy."""
    before = replace(scrape("a", 1000.0, []), lanes=2.0)
    after = replace(scrape("a", 1005.0, [8] * 100), lanes=2.0)
    _, state = observe(POLICY, ScalingState.empty(), Observation((before,), 1, 1, "a"), 1000.0)

    load, _ = observe(POLICY, state, Observation((after,), 1, 1, "a"), 1005.0)

    assert 100 * TRUE.seconds(8) / 10.0 == pytest.approx(load.batching.busy)


def test_rows_that_wait_in_unseen_pods_are_estimated_from_those_seen() -> None:
    """As with demand: a silent pod is more likely loaded than idle."""
    both = tuple(replace(scrape(pod, 1000.0, []), queue_rows=10.0) for pod in "ab")
    one = replace(scrape("a", 1005.0, [8]), queue_rows=10.0)
    _, state = observe(POLICY, ScalingState.empty(), Observation(both, 2, 2, "a"), 1000.0)

    load, _ = observe(POLICY, state, Observation((one,), 2, 2, "a"), 1005.0)

    assert (0.5, 20.0) == (load.coverage, load.queue_rows)


def test_a_pod_without_a_lanes_gauge_has_the_lanes_of_the_policy() -> None:
    """Else its busy share would be undefined."""
    policy = replace(POLICY, lanes=2)
    before = replace(scrape("a", 1000.0, []), lanes=0.0)
    after = replace(scrape("a", 1005.0, [8] * 100), lanes=0.0)
    _, state = observe(policy, ScalingState.empty(), Observation((before,), 1, 1, "a"), 1000.0)

    load, _ = observe(policy, state, Observation((after,), 1, 1, "a"), 1005.0)

    assert 100 * TRUE.seconds(8) / 10.0 == pytest.approx(load.batching.busy)
