"""Counters of pods within the window, and the evidence for the verdict made of them."""

from dataclasses import dataclass, field, replace

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import api

from batchedapi_core.bottleneck import BottleneckEvidence
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.bottleneck import (
    STEPS,
    Counts,
    Tally,
    evidence_of,
    padding_percent,
    release_percent,
)
from batchedapi_operator.autoscaling.in_effect import refusal_of, samples_of
from batchedapi_operator.autoscaling.metrics_page import MetricsPage, parse_page

POLICY = ScalingPolicy(min_replicas=1, max_replicas=5, max_batch_size=16, batch_interval=0.005)


def at(
    seconds: float, scale: float, *, start: float = 1000.0, uid: str = "uid", extra: str = ""
) -> MetricsPage:
    """A page whose counters are `scale` times those of a plain one."""
    text = page(
        received=100 * scale, batches=10 * scale, rows=100 * scale, full=2 * scale,
        seconds=1.0 * scale, start=start, extra=extra,
    )  # fmt: skip
    return parse_page(text, uid, time=seconds, unix_time=1060.0 + seconds)


@dataclass
class Looks:
    """At pods, with a window of 60 s; as the loop does."""

    tally: Tally = field(default_factory=Tally)
    state: ScalingState = field(default_factory=ScalingState.empty)
    load: LoadWindow | None = None

    def look(self, now: float, pages: dict[str, MetricsPage]) -> None:
        """All at once, by the pods' names."""
        samples = samples_of(api(), tuple(pages.values()))
        seen = Observation(samples, max(1, len(pages)), 2, "r")
        names = {found.sample.pod: name for name, found in pages.items()}
        self.load, self.state = observe(POLICY, self.state, seen, now)
        self.tally = self.tally.looked(self.load.changes, names, now, 60.0)


def looks_of(*looks: tuple[float, dict[str, MetricsPage]]) -> Looks:
    """One after the other."""
    found = Looks()
    for now, pages in looks:
        found.look(now, pages)
    return found


def tally_of(*looks: tuple[float, dict[str, MetricsPage]]) -> Tally:
    """The tally after these looks."""
    return looks_of(*looks).tally


def evidence(looks: Looks, policy: ScalingPolicy = POLICY) -> BottleneckEvidence:
    """The evidence of all looks."""
    assert looks.load is not None
    return evidence_of(api(), policy, looks.load, looks.tally.by_pod(), looks.tally.seconds)


def total_of(tally: Tally) -> Counts:
    """The total of all pods."""
    return Counts.total(one.counts for one in tally.by_pod())


def test_counters_of_pods_are_compared_with_themselves_and_added() -> None:
    """100 rows of one pod and 300 of the other within five seconds."""
    tally = tally_of(
        (0.0, {"a": at(0.0, 1.0), "b": at(0.0, 7.0, uid="other")}),
        (5.0, {"a": at(5.0, 2.0), "b": at(5.0, 10.0, uid="other")}),
    )

    assert (400, 40, 400) == total_of(tally).sums[:3]
    assert {"full": 20, "interval": 80} == release_percent(tally.by_pod())
    assert 5.0 == tally.seconds


def test_padding_is_counted_over_all_pods_since_the_window_began() -> None:
    """300 of 400 padded lengths were the rows' own; an API without lengths has no share."""

    def counted(scale: float, own: float, padded: float, uid: str = "uid") -> MetricsPage:
        extra = (
            f'batchedapi_batch_lengths_total{{method="predict"}} {own}\n'
            f'batchedapi_batch_padded_lengths_total{{method="predict"}} {padded}\n'
        )
        return at(5.0 * scale, scale, uid=uid, extra=extra)

    tally = tally_of(
        (0.0, {"a": counted(0.0, 50, 500), "b": counted(0.0, 0, 0, "other")}),
        (5.0, {"a": counted(1.0, 150, 650), "b": counted(1.0, 200, 250, "other")}),
    )

    assert 25 == padding_percent(tally.by_pod())
    assert padding_percent(tally_of((0.0, {"a": at(0.0, 1.0)})).by_pod()) is None


def test_a_pod_that_started_anew_counts_from_there() -> None:
    """Its counters begin at zero: what it had counted before is known already.

    106 rows: 100 are in batches, 3 wait and 3 were refused.
    """
    tally = tally_of((0.0, {"a": at(0.0, 9.0)}), (5.0, {"a": at(5.0, 1.0, start=1062.0)}))

    (rise,) = tally.by_pod()

    assert (106, 3.0) == (rise.counts.sums.received, rise.seconds)


def test_what_is_older_than_the_window_does_not_count() -> None:
    """The verdict is about now."""
    looks = [(5.0 * n, {"a": at(5.0 * n, 1.0 + n)}) for n in range(30)]

    tally = tally_of(*looks)

    assert 60.0 <= tally.seconds <= 60.0 + 60.0 / STEPS
    assert 20 * tally.seconds == total_of(tally).sums.received
    assert len(tally.intervals) <= STEPS + 1


def test_seconds_in_which_a_pod_was_not_seen_are_none_of_those_it_was_counted_in() -> None:
    """A rate over them would be too low."""
    tally = tally_of(
        (0.0, {"a": at(0.0, 1.0)}),
        (2.0, {"a": at(2.0, 2.0)}),
        (4.0, {}),
        (6.0, {"a": at(6.0, 4.0)}),
        (8.0, {"a": at(8.0, 5.0)}),
    )

    assert 6.0 == tally.seconds
    assert [(400, 8.0)] == [(r.counts.sums.received, r.seconds) for r in tally.by_pod()]


def test_the_busiest_web_process_of_any_pod_tells_whether_python_is_short_of_cpu() -> None:
    """The mean of two would hide that the one with the queue has used up its core."""

    def with_cpu(seconds: float, first: float, second: float) -> MetricsPage:
        series = "batchedapi_web_cpu_seconds_total"
        extra = f'{series}{{process="0"}} {first}\n{series}{{process="1"}} {second}\n'
        return parse_page(page(extra=extra), "uid", time=seconds, unix_time=1060.0 + seconds)

    new = looks_of(
        (0.0, {"a": with_cpu(0.0, 10.0, 1.0), "b": at(0.0, 1.0, uid="other")}),
        (5.0, {"a": with_cpu(5.0, 14.5, 3.0), "b": at(5.0, 2.0, uid="other")}),
    )
    older = looks_of((0.0, {"a": at(0.0, 1.0)}), (5.0, {"a": at(5.0, 2.0)}))

    assert 0.9 == evidence(new).web_cpu
    assert evidence(older).web_cpu is None


def test_a_counter_that_falls_is_no_page() -> None:
    """F10: believed, the way back up would be a demand of all that was ever counted."""
    before = at(0.0, 9.0).sample

    refusal = refusal_of(api(), "a", at(5.0, 1.0), before)

    assert refusal is not None
    assert "invalid" == refusal.result
    assert refusal_of(api(), "a", at(5.0, 9.5), before) is None
    assert refusal_of(api(), "a", at(5.0, 1.0, start=1062.0), before) is None
    assert refusal_of(api(), "a", at(5.0, 1.0), None) is None


def test_a_counter_that_explains_must_not_fall_either() -> None:
    """A page that is wrong in one figure may be wrong in all."""
    page_of = replace(at(5.0, 9.5).sample, further=[0.0] * len(at(0.0, 9.0).sample.further))

    assert refusal_of(api(), "a", replace(at(5.0, 9.5), sample=page_of), at(0.0, 9.0).sample)


def test_the_evidence_is_the_sums_over_pods() -> None:
    """Shares and means are made of sums: a mean of means would weigh an idle pod like a busy."""
    looks = looks_of(
        (0.0, {"a": at(0.0, 1.0), "b": at(0.0, 7.0, uid="other")}),
        (5.0, {"a": at(5.0, 2.0), "b": at(5.0, 10.0, uid="other")}),
    )

    policy = replace(POLICY, target_utilization=0.8)

    found = evidence(looks, policy)

    assert (80.0, 0.2, 0.2) == (found.arrival, found.busy, found.released_share("full"))
    assert [("a", 100, 10.0), ("b", 300, 10.0)] == [
        (pod.pod, pod.rows, pod.lane_seconds) for pod in found.pods
    ]
    assert (16, 0.005, 0.8, 1, 1024) == (
        found.max_batch_size,
        found.batch_interval,
        found.target_utilization,
        found.web_processes,
        found.replica_concurrency,
    )


async def test_the_verdict_and_the_release_reasons_are_in_the_status() -> None:
    """C28: batches of 10 of 16 rows that the interval releases; the advice has the numbers."""
    waiting = Situation(autoscaling={"maxReplicas": 1})
    waiting.rate = 300.0

    waiting.extra = (
        'batchedapi_batch_lengths_total{{method="predict"}} {rows}\n'
        'batchedapi_batch_padded_lengths_total{{method="predict"}} {padded}\n'
    )
    await waiting.run(90)

    batching = waiting.status["batching"]
    assert 75 == batching["paddingPercent"]
    assert ("BatchInterval", {"interval": 100}) == (
        batching["bottleneck"],
        batching["releaseReasons"],
    )
    assert "mean 10.0 < max 16: batchInterval (5 ms) releases first" in batching["advice"]
    assert "CapacitySLO" == waiting.status["autoscaling"]["policy"]


async def test_a_new_operator_leaves_the_verdict_until_it_has_seen_enough() -> None:
    """Else every restart would flip the column."""
    waiting = Situation(autoscaling={"maxReplicas": 1})
    waiting.rate = 300.0
    await waiting.run(90)
    before = waiting.status["batching"]["bottleneck"]
    waiting.restarted()

    seen = []
    for _ in range(10):
        await waiting.run(5)
        seen.append(waiting.status["batching"]["bottleneck"])

    assert {before} == set(seen)


@pytest.mark.parametrize("rows", [0.0, 100.0])
async def test_an_idle_api_is_called_idle(rows: float) -> None:
    """Nothing to change is an answer, too."""
    idle = Situation()
    idle.rows = rows

    await idle.run(60)

    assert "Idle" == idle.status["batching"]["bottleneck"]
    assert "releaseReasons" not in idle.status["batching"]
