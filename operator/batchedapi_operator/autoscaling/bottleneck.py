"""What pods counted within the window, and the evidence for a verdict on the bottleneck. Pure."""

import operator
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedapi_core import contract
from batchedapi_core.bottleneck import BottleneckEvidence, PodLoad
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling import RETENTION, LoadWindow, ScalingPolicy
from batchedapi_core.service_model.service_time import BatchSums
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.errors import MetricsUnavailableError

# What the pods of an API counted within the window, for the words that explain an API. Pure.
#
# Nothing is decided by it: replicas follow from `batchedapi_core.scaling` alone. A pod is counted
# between two looks at which the same process answered, or from the start of a new one.


class Sums(NamedTuple):
    """Counters of a page, or by how much they rose; names as in PodSample and Counted."""

    received: float
    batches: float
    rows: float
    rows_squared: float
    batch_seconds: float
    row_seconds: float
    sizes: float
    requests: float
    queue_wait: float
    waited: float
    request_seconds: float
    answered: float


@dataclass(frozen=True, slots=True)
class Counts:
    """All counters of a page, or by how much they rose; in one row, since there are many.

    An array of doubles: of each pod there are as many as steps in a window.
    """

    figures: Sequence[float]
    """Those of Sums, batches by release reason, rows by rejection reason, CPU by web process."""

    @classmethod
    def of(cls, page: MetricsPage) -> "Counts":
        """Since the start of the process."""
        sample, counted = page.sample, page.counted
        sums = Sums(
            sample.rows_received,
            sample.batches,
            sample.rows,
            sample.rows_squared,
            sample.batch_seconds,
            sample.row_seconds,
            sample.sizes,
            sample.requests,
            counted.queue_wait,
            counted.waited,
            counted.request_seconds,
            counted.answered,
        )
        figures = (*sums, *counted.released, *counted.rejected, *counted.web_cpu)
        return cls(array("d", figures))

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """Figure by figure; zeros for nothing at all."""
        figures = zip(_ZEROS, *(one.figures for one in counts), strict=True)
        return cls(array("d", map(sum, figures)))

    def since(self, before: "Counts") -> "Counts":
        """The difference; below zero where something fell."""
        return Counts(array("d", map(operator.sub, self.figures, before.figures)))

    def possible(self) -> bool:
        """Whether nothing fell."""
        return min(self.figures) >= 0.0

    @property
    def sums(self) -> Sums:
        """Those with a name."""
        return Sums(*self.figures[:_PLAIN])

    @property
    def released(self) -> tuple[float, ...]:
        """In the order of contract.RELEASE_REASONS."""
        return tuple(self.figures[_PLAIN:_REJECTED])

    @property
    def rejected(self) -> tuple[float, ...]:
        """In the order of contract.REJECTION_REASONS."""
        return tuple(self.figures[_REJECTED:_WEB_CPU])

    @property
    def web_cpu(self) -> tuple[float, ...]:
        """Seconds, of each web process."""
        return tuple(self.figures[_WEB_CPU:])


_PLAIN: Final = len(Sums._fields)
_REJECTED: Final = _PLAIN + len(contract.RELEASE_REASONS)
_WEB_CPU: Final = _REJECTED + len(contract.REJECTION_REASONS)
_ZEROS: Final = (0.0,) * (_WEB_CPU + contract.MAX_WEB_PROCESSES)


@dataclass(frozen=True, slots=True)
class Rise:
    """What one pod did between two looks."""

    pod: str
    """Its name."""
    seconds: float
    lane_seconds: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two looks, or in a step of them, in monotonic seconds."""

    begin: float
    end: float
    rises: tuple[Rise, ...]


STEPS: Final = 6
"""Of a window: the looks of a step are kept as one, since of each pod there are many counts."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The last believed page of each pod, and what rose at each look of the window."""

    pages: Mapping[str, MetricsPage]
    """By the pod's name."""
    intervals: tuple[Interval, ...] = ()
    looked_at: float | None = None

    @classmethod
    def empty(cls) -> "Tally":
        """Nothing seen."""
        return cls({})

    def refusal(self, name: str, page: MetricsPage) -> MetricsUnavailableError | None:
        """Why a pod's page cannot be true after the one before; None if it can.

        A replica's counters outlive its processes and start anew with its supervisor alone, so one
        that falls is wrong. Were the low figure taken for the start, the way back up would look
        like a demand of everything that was ever counted.
        """
        before = self.pages.get(name)
        if before is None or not _same_process(before, page):
            return None
        if Counts.of(page).since(Counts.of(before)).possible():
            return None
        return MetricsUnavailableError("invalid", f"pod {name}: a counter fell without a restart")

    def looked(self, pages: Mapping[str, MetricsPage], now: float, window: float) -> "Tally":
        """One look more; steps that ended before the last `window` seconds are dropped."""
        rises = [
            rise
            for name, page in pages.items()
            if (rise := _rise(name, self.pages.get(name), page)) is not None
        ]
        begin = now if self.looked_at is None else self.looked_at
        kept = tuple(one for one in self.intervals if now - one.end < window)
        known = {n: p for n, p in self.pages.items() if now - p.sample.time < RETENTION}
        intervals = _with_latest(kept, Interval(begin, now, tuple(rises)), window / STEPS)
        return Tally({**known, **pages}, intervals, now)

    @property
    def seconds(self) -> float:
        """Covered: in which at least one pod could be compared with itself."""
        return sum(one.end - one.begin for one in self.intervals if one.rises)

    def by_pod(self) -> tuple[Rise, ...]:
        """Of each pod over the whole window."""
        return _by_pod(rise for interval in self.intervals for rise in interval.rises)


def _by_pod(found: Iterable[Rise]) -> tuple[Rise, ...]:
    pods: defaultdict[str, list[Rise]] = defaultdict(list)
    for one in found:
        pods[one.pod].append(one)
    return tuple(
        Rise(
            name,
            sum(one.seconds for one in rises),
            sum(one.lane_seconds for one in rises),
            Counts.total(one.counts for one in rises),
        )
        for name, rises in pods.items()
    )


def _with_latest(kept: tuple[Interval, ...], latest: Interval, step: float) -> tuple[Interval, ...]:
    """As a part of the last step as long as that is not full; seconds unseen stay apart."""
    last = kept[-1] if kept else latest
    full = latest.end - last.begin > step
    if last is latest or full or bool(last.rises) != bool(latest.rises):
        return (*kept, latest)
    rises = _by_pod((*last.rises, *latest.rises))
    return (*kept[:-1], Interval(last.begin, latest.end, rises))


def _rise(name: str, before: MetricsPage | None, after: MetricsPage) -> Rise | None:
    """None where the two do not make a difference that could be true."""
    if before is None:
        return None
    was, now = before.sample, after.sample
    seconds = now.time - was.time
    counts = Counts.of(after)
    if _same_process(before, after):
        counts = counts.since(Counts.of(before))
    else:
        seconds = min(seconds, now.uptime)
    if seconds <= 0.0 or not counts.possible():
        return None
    return Rise(name, seconds, seconds * now.lanes, counts)


def _same_process(before: MetricsPage, after: MetricsPage) -> bool:
    was, now = before.sample, after.sample
    return (was.pod, was.process_start) == (now.pod, now.process_start)


def release_percent(pods: Iterable[Rise]) -> dict[str, int]:
    """Batches by the reason of their release, in percent; reasons below half a percent are out."""
    released = Counts.total(one.counts for one in pods).released
    batches = sum(released)
    shares = zip(contract.RELEASE_REASONS, released, strict=True)
    percent = {reason: round(100 * count / batches) for reason, count in shares if batches > 0}
    return {reason: share for reason, share in percent.items() if share}


# The evidence for the verdict on an API's bottleneck, out of what pods counted. Pure.


def evidence_of(
    api: BatchedAPI,
    policy: ScalingPolicy,
    load: LoadWindow,
    pods: tuple[Rise, ...],
    seconds: float,
) -> BottleneckEvidence:
    """What a window of `seconds` says; `policy` has the batching in effect on the replicas."""
    total = Counts.total(one.counts for one in pods)
    sums = total.sums
    return BottleneckEvidence(
        seconds=seconds,
        coverage=load.coverage,
        received=sums.received,
        rejected=tuple(zip(contract.REJECTION_REASONS, total.rejected, strict=True)),
        released=tuple(zip(contract.RELEASE_REASONS, total.released, strict=True)),
        sums=BatchSums(
            sums.batches, sums.rows, sums.rows_squared, sums.batch_seconds, sums.row_seconds
        ),
        sizes=sums.sizes or sums.rows,  # older replicas, limited in rows, do not count sizes
        lane_seconds=sum(one.lane_seconds for one in pods),
        max_batch_size=policy.max_batch_size if policy.max_size is None else policy.max_size,
        batch_interval=policy.batch_interval,
        target_utilization=policy.target_utilization,
        pods=tuple(map(_load_of, pods)),
        service=load.service,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
        queue_wait=sums.queue_wait / sums.waited if sums.waited > 0 else None,
        request_seconds=(sums.request_seconds / sums.answered if sums.answered > 0 else None),
        web_cpu=_busiest_web_process(pods),
        web_processes=api.spec.predictor.web_processes,
        replica_concurrency=api.spec.overload.max_replica_concurrency,
    )


def _load_of(pod: Rise) -> PodLoad:
    counts = pod.counts.sums
    return PodLoad(pod.pod, counts.received, pod.lane_seconds, counts.batch_seconds)


def _busiest_web_process(pods: tuple[Rise, ...]) -> float | None:
    """Share of a core, 0..1; None where none exports it: one that runs uses more than nothing."""
    share = max((max(one.counts.web_cpu) / one.seconds for one in pods), default=0.0)
    return min(1.0, share) if share > 0.0 else None
