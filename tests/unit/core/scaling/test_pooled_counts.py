"""F1: an idle, a restarted and a busy pod add up to what really happened in all of them."""

from statistics import linear_regression, mean

import pytest

from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState

Batch = tuple[int, float]  # rows, seconds

IDLE: list[Batch] = [(1, 0.0101)]
BUSY: list[Batch] = [(rows, 0.010 + 0.0003 * rows + 1e-5 * (rows % 3)) for rows in [8, 7, 8] * 40]
BEFORE_RESTART: list[Batch] = [(5, 0.0115)] * 50
SINCE_RESTART: list[Batch] = [(2, 0.0106), (3, 0.0110)] * 15
LATER: list[Batch] = [(3, 0.0109), (4, 0.0113)] * 10
POLICY = ScalingPolicy(
    min_replicas=1,
    max_replicas=9,
    max_batch_size=8,
    batch_interval=0.010,
    ridge=0.0,
    model_half_life=1e15,
)


def scrape(pod: str, now: float, start: float, batches: list[Batch]) -> PodSample:
    """Counters of a process that has run `batches` since `start`."""
    rows = [size for size, _ in batches]
    return PodSample(
        pod=pod,
        time=now,
        process_start=start,
        uptime=now - start,
        rows_received=float(sum(rows)),
        rows_rejected=0.0,
        batches=float(len(batches)),
        rows=float(sum(rows)),
        full_batches=float(rows.count(8)),
        batch_seconds=sum(seconds for _, seconds in batches),
        rows_squared=float(sum(size * size for size in rows)),
        row_seconds=sum(size * seconds for size, seconds in batches),
        queue_rows=0.0,
        lanes=1.0,
    )


def looks() -> LoadWindow:
    """Three looks, five seconds apart; between the first two one pod starts anew."""
    half, long_ago = len(BUSY) // 2, -1000.0
    old: list[Batch] = [(8, 0.0125)] * 100
    seen = (
        (("idle", long_ago, old), ("restarted", long_ago, BEFORE_RESTART), ("busy", long_ago, old)),
        (
            ("idle", long_ago, old),
            ("restarted", 3.0, SINCE_RESTART),
            ("busy", long_ago, old + BUSY[:half]),
        ),
        (
            ("idle", long_ago, old + IDLE),
            ("restarted", 3.0, SINCE_RESTART + LATER),
            ("busy", long_ago, old + BUSY),
        ),
    )
    state = ScalingState.empty()
    for number, pods in enumerate(seen):
        now = 5.0 * number
        samples = tuple(scrape(pod, now, start, batches) for pod, start, batches in pods)
        load, state = observe(POLICY, state, Observation(samples, 3, 3, "a"), now)
    return load


def test_fill_and_rows_per_second_are_those_of_all_batches_together() -> None:
    """Batches that ran since the restart count once, those before it were counted already."""
    ran = [rows for rows, _ in (*IDLE, *SINCE_RESTART, *LATER, *BUSY)]

    batching = looks().batching

    assert 100 * mean(ran) / 8 == pytest.approx(batching.fill_percent, rel=1e-9)
    assert sum(ran) / 10.0 == pytest.approx(batching.rows_per_second, rel=1e-9)
    assert len(ran) / 10.0 == pytest.approx(batching.batches_per_second, rel=1e-9)


def test_the_service_time_is_the_line_through_all_warm_batches() -> None:
    """The first of a new process are slower than those to come: only they are left out."""
    warm = (*IDLE, *LATER, *BUSY)
    truth = linear_regression([rows for rows, _ in warm], [seconds for _, seconds in warm])

    service = looks().service

    assert service is not None
    assert truth.intercept == pytest.approx(service.fixed, rel=1e-9)
    assert truth.slope == pytest.approx(service.per_row, rel=1e-9)


def test_a_mean_of_the_pods_means_would_be_far_off() -> None:
    """An idle pod would weigh as much as a busy one, and the fleet would look half empty."""
    pods = (IDLE, SINCE_RESTART + LATER, BUSY)
    unweighted = mean(100 * mean(rows for rows, _ in batches) / 8 for batches in pods)

    pooled = looks().batching.fill_percent

    assert pooled is not None
    assert abs(unweighted - pooled) > 0.3 * pooled
