"""Counts of pods within the window, and the evidence for a verdict on the bottleneck. Pure."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedapi_core import contract
from batchedapi_core.bottleneck import BottleneckEvidence, PodLoad
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling.observe import LoadWindow
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.service_model import BatchSums

# What the pods of an API counted within the window, for the words that explain an API. Pure.
#
# Nothing is decided by it: replicas follow from `batchedapi_core.scaling` alone, which also says
# what rose from one look to the next.


class Sums(NamedTuple):
    """By how much counters rose; names as in PodChange and Counted."""

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
    lengths: float
    padded_lengths: float


@dataclass(frozen=True, slots=True)
class Counts:
    """By how much all counters of a page rose; in one row, since there are many.

    An array of doubles: of each pod there are as many as steps in a window.
    """

    figures: Sequence[float]
    """Those of Sums, batches by release reason, rows by rejection reason, CPU by web process, and
    requests by the time they took."""

    @classmethod
    def of(cls, change: PodChange) -> "Counts":
        """By how much they rose."""
        sums = change.sums
        plain = (sums.batches, sums.rows, sums.rows_squared, sums.seconds, sums.row_seconds)
        sizes = (change.sizes, change.requests)
        return cls(array("d", (change.received, *plain, *sizes, *change.further)))

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """Figure by figure; zeros for nothing at all."""
        figures = zip(_ZEROS, *(one.figures for one in counts), strict=True)
        return cls(array("d", map(sum, figures)))

    @property
    def sums(self) -> Sums:
        """The figures with a name."""
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
        return tuple(self.figures[_WEB_CPU:_LATENCIES])

    @property
    def latencies(self) -> tuple[float, ...]:
        """Requests within each of contract.LATENCY_BUCKETS."""
        return tuple(self.figures[_LATENCIES:])


_PLAIN: Final = len(Sums._fields)
_REJECTED: Final = _PLAIN + len(contract.RELEASE_REASONS)
_WEB_CPU: Final = _REJECTED + len(contract.REJECTION_REASONS)
_LATENCIES: Final = _WEB_CPU + contract.MAX_WEB_PROCESSES
_ZEROS: Final = (0.0,) * (_LATENCIES + len(contract.LATENCY_BUCKETS))


@dataclass(frozen=True, slots=True)
class Rise:
    """The counts of one pod between two looks."""

    pod: str
    """Its name."""
    seconds: float
    lane_seconds: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class ObservedInterval:
    """The counts of all pods between two looks, or in a step of them, in monotonic seconds."""

    begin: float
    end: float
    rises: tuple[Rise, ...]


STEPS: Final = 6
"""Parts of a window: the looks of a step are kept as one, since each pod has many counts."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of all looks of the window."""

    intervals: tuple[ObservedInterval, ...] = ()
    looked_at: float | None = None

    def looked(
        self, changes: Iterable[PodChange], names: Mapping[str, str], now: float, window: float
    ) -> "Tally":
        """One look more; steps that ended before the last `window` seconds are dropped.

        What a pod did before it was known is of no step.

        Args:
            changes: Since the look before.
            names: Of the pods, by their uid.
            now: Monotonic seconds.
            window: Seconds.
        """
        rises = tuple(
            Rise(names[one.pod], one.seconds, one.seconds * one.lanes, Counts.of(one))
            for one in changes
            if not one.first
        )
        latest = ObservedInterval(now if self.looked_at is None else self.looked_at, now, rises)
        kept = tuple(one for one in self.intervals if now - one.end < window)
        last = kept[-1] if kept else latest
        full = now - last.begin > window / STEPS
        # a part of the last step as long as that is not full; seconds unseen stay apart
        if last is latest or full or bool(last.rises) != bool(rises):
            return Tally((*kept, latest), now)
        step = ObservedInterval(last.begin, now, _by_pod((*last.rises, *rises)))
        return Tally((*kept[:-1], step), now)

    @property
    def seconds(self) -> float:
        """Covered: in which at least one pod could be compared with itself."""
        return sum(one.end - one.begin for one in self.intervals if one.rises)

    def by_pod(self) -> tuple[Rise, ...]:
        """One for each pod, over the whole window."""
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


def release_percent(pods: Iterable[Rise]) -> dict[str, int]:
    """Batches by the reason of their release, in percent; reasons below half a percent are out."""
    released = Counts.total(one.counts for one in pods).released
    batches = sum(released)
    shares = zip(contract.RELEASE_REASONS, released, strict=True)
    percent = {reason: round(100 * count / batches) for reason, count in shares if batches > 0}
    return {reason: share for reason, share in percent.items() if share}


def padding_percent(pods: Iterable[Rise]) -> int | None:
    """Padding in batches, in percent of their padded lengths; None: their rows have no lengths."""
    sums = Counts.total(one.counts for one in pods).sums
    return round(100 * (1 - sums.lengths / sums.padded_lengths)) if sums.padded_lengths else None


# The evidence for the verdict on an API's bottleneck, out of what pods counted. Pure.


def evidence_of(
    api: BatchedAPI,
    policy: ScalingPolicy,
    load: LoadWindow,
    pods: tuple[Rise, ...],
    seconds: float,
) -> BottleneckEvidence:
    """Evidence of a window of `seconds`; `policy` has the batching in effect on the replicas."""
    total = Counts.total(one.counts for one in pods)
    sums = total.sums
    counted = [(one, one.counts.sums) for one in pods]
    # share of a core, 0..1; one that runs uses more than nothing, so zero is that none exports it
    web_cpu = max((max(one.counts.web_cpu) / one.seconds for one in pods), default=0.0)
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
        pods=tuple(
            PodLoad(one.pod, own.received, one.lane_seconds, own.batch_seconds)
            for one, own in counted
        ),
        service=load.service,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
        queue_wait=sums.queue_wait / sums.waited if sums.waited > 0 else None,
        request_seconds=(sums.request_seconds / sums.answered if sums.answered > 0 else None),
        web_cpu=min(1.0, web_cpu) if web_cpu > 0.0 else None,
        web_processes=api.spec.predictor.web_processes,
        replica_concurrency=api.spec.overload.max_replica_concurrency,
        answered=sums.answered,
        latencies=total.latencies,
    )
