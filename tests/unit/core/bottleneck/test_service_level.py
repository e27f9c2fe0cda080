"""Whether the latency target is met, whether batches fill, and for how long that is said."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.bottleneck.test_rules import evidence, full

from batchedapi_core import contract
from batchedapi_core.bottleneck import (
    BottleneckEvidence,
    Filling,
    Kind,
    Level,
    Told,
    Verdict,
    batches_fill,
    diagnose,
    target_met,
)
from batchedapi_core.bottleneck.service_level import CALM_SECONDS, SETTLED_SECONDS

IDLE = Verdict(Kind.IDLE, "nothing to change")


def answered(slow: int, *, fast: int = 1000, mean: float = 0.02, **changes: Any) -> Any:
    """So many requests within 25 ms, and so many that took 70 ms; the target is 50 ms."""
    within = (0.025, 0.1)
    counts = tuple(
        float(fast * (edge >= within[0]) + slow * (edge >= within[1]))
        for edge in contract.LATENCY_BUCKETS
    )
    values = {"latency_target": 0.05, "request_seconds": mean, "latencies": counts}
    return evidence(**{**values, "answered": float(fast + slow), **changes})


def told(e: BottleneckEvidence, before: Told | None = None, now: float = 0.0) -> Told:
    """The verdict on a target that is set."""
    found = target_met(e, before, now)
    assert found is not None
    return found


def test_without_a_target_nothing_is_said_of_it() -> None:
    """It can be neither met nor missed."""
    assert target_met(answered(0, latency_target=None), None, 0.0) is None


def test_a_target_is_met_when_enough_are_in_time() -> None:
    """Ten of 1010 are one percent."""
    found = told(answered(10))

    assert Level.MET is found.word
    assert "p99 is between 10 ms and 25 ms, target 50 ms" == found.text


@pytest.mark.parametrize(
    ("queue_wait", "word"), [(0.05, Level.QUEUE_WAIT), (0.001, Level.EXECUTION_TIME)]
)
def test_late_requests_are_told_at_once_with_what_made_them_late(
    queue_wait: float, word: Level
) -> None:
    """Batches of eight take 12 ms: whoever waits for longer is late of the queue."""
    found = told(answered(30, queue_wait=queue_wait), Told(Level.MET, ""), 100.0)

    assert word is found.word
    assert found.text.startswith("p99 is between 50 ms and 100 ms, target 50 ms; on average")


@pytest.mark.parametrize(("mean", "word"), [(0.04, Level.MET), (0.09, Level.EXECUTION_TIME)])
def test_in_the_bucket_of_the_target_the_mean_decides(mean: float, word: Level) -> None:
    """Between 50 and 100 ms the histogram cannot tell 70 from 90, and a guess must not alarm."""
    assert word is told(answered(1000, mean=mean, latency_target=0.08)).word


@pytest.mark.parametrize(("mean", "word"), [(0.02, Level.MET), (0.09, Level.EXECUTION_TIME)])
def test_of_replicas_without_a_histogram_the_mean_decides(mean: float, word: Level) -> None:
    """Older replicas tell none."""
    assert word is told(answered(0, mean=mean, latencies=(0.0,) * 14)).word


def test_one_late_request_of_few_is_chance_and_two_are_not() -> None:
    """With a dozen requests p99 would be the slowest one."""
    assert Level.MET is told(answered(1, fast=11)).word
    assert Level.EXECUTION_TIME is told(answered(2, fast=10)).word


def test_slower_than_every_edge_is_slower_than_that() -> None:
    """Half a minute is the last edge."""
    counts = (0.0,) * 13 + (1.0,)
    found = told(evidence(latency_target=1.0, answered=9.0, latencies=counts))

    assert found.text.startswith("p99 is 30000 ms or more, target 1000 ms")


def test_rows_that_are_refused_for_lateness_miss_the_target_too() -> None:
    """Admitted rows are all in time: without this all would seem well."""
    found = told(answered(0, rejected=(("latency", 480.0), ("draining", 96.0))))

    assert Level.SHEDDING is found.word
    assert "10 % of 80 rows/s are refused or given up, target 50 ms at p99" == found.text


def test_nobody_is_late_where_nobody_asks() -> None:
    """A target that was missed before the load ended would be missed for ever."""
    silent = replace(answered(0), answered=0.0, latencies=(0.0,) * 14)

    assert Level.MET is told(silent).word
    unseen = Told(Level.SHEDDING, "before")
    assert unseen is told(replace(silent, coverage=0.2), unseen)


def test_a_missed_target_is_met_again_once_that_has_lasted() -> None:
    """Requests around the target must not be news with every look."""
    missed, good = Told(Level.QUEUE_WAIT, "late"), answered(0)
    first = told(good, missed, 100.0)
    still = told(good, first, 100.0 + CALM_SECONDS - 1.0)
    again = told(answered(30), still, 109.5)
    met = told(good, still, 100.0 + CALM_SECONDS)

    assert [Level.QUEUE_WAIT] * 2 == [first.word, still.word]
    assert Level.QUEUE_WAIT is again.word
    assert Level.MET is met.word


def filling(e: BottleneckEvidence, before: Told | None = None, now: float = 0.0) -> Told:
    """The verdict on the filling of batches, given the bottleneck of the same window."""
    found = batches_fill(e, diagnose(e, None, now), before, now)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("e", "word"),
    [
        pytest.param(evidence(8.0), Filling.FILLING, id="several rows"),
        pytest.param(evidence(1.2), Filling.STARVED, id="mostly alone"),
        pytest.param(evidence(8.0, batches=3.0), Filling.IDLE, id="hardly any"),
        pytest.param(evidence(1.0, max_batch_size=1), Filling.DISABLED, id="off"),
        pytest.param(full(max_batch_size=8), Filling.SATURATED, id="full, and no time left"),
        pytest.param(full(), Filling.SATURATED, id="as large as is of use"),
    ],
)
def test_whether_batches_fill(e: BottleneckEvidence, word: Filling) -> None:
    """The verdict says what to change, this whether batching does anything at all."""
    assert word is filling(e).word


def test_nothing_is_said_of_batches_that_were_not_seen() -> None:
    """The earlier statement stands."""
    unseen = evidence(8.0, coverage=0.1)

    assert batches_fill(unseen, IDLE, None, 0.0) is None
    before = Told(Filling.STARVED, "before")
    assert before is filling(unseen, before)


def test_batches_are_said_to_be_otherwise_once_that_has_lasted() -> None:
    """A load near the boundary crosses it all the time; the first word waits for nothing."""
    starved, fills = evidence(1.2), evidence(8.0)
    first = filling(starved, Told(Filling.IDLE, ""))
    rival = filling(fills, first, 10.0)
    later = filling(fills, rival, 10.0 + SETTLED_SECONDS)

    assert [Filling.STARVED] * 2 == [first.word, rival.word]
    assert Filling.FILLING is later.word
    assert Filling.FILLING is filling(evidence(1.4), later).word
    assert Filling.STARVED is filling(evidence(1.4)).word
