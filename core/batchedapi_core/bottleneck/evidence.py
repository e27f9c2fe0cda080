"""Evidence of a verdict, the verdict, and when another takes its place."""

import enum
from dataclasses import dataclass, replace
from typing import Final

from batchedapi_core.service_model import BatchSums, ServiceTime, as_planned, lane_capacity

ALIKE = 0.01
"""Squared relative spread of batch sizes below which all are taken for one size."""
FREE_LUNCH = 0.01
"""Share of a full batch's time; a fixed cost below may be none, or one that could not be seen."""


@dataclass(frozen=True, slots=True)
class PodLoad:
    """One pod's work within the window."""

    pod: str  # name, for the advice
    rows: float  # received, accepted or not
    lane_seconds: float  # its lanes, times how long it was seen
    batch_seconds: float  # of those, running batches


@dataclass(frozen=True, slots=True)
class BottleneckEvidence:
    """Sums over the pods that answered, and what is in effect in them.

    Everything optional is None where pods do not tell; no rule takes unknown for zero.
    """

    seconds: float  # the window that is covered
    coverage: float  # ready pods that answered, 0..1
    received: float  # rows, accepted or not
    rejected: tuple[tuple[str, float], ...]  # (one of contract.REJECTION_REASONS, rows)
    released: tuple[tuple[str, float], ...]  # (one of contract.RELEASE_REASONS, batches)
    sums: BatchSums  # of all batches; without the squares the fit is taken as it is
    sizes: float  # sum over batches, in the unit of max_batch_size: rows, requests or cost
    lane_seconds: float
    max_batch_size: int  # in effect, >= 1
    batch_interval: float  # seconds, in effect
    target_utilization: float  # share of the capacity that replicas are planned with; (0, 1]
    pods: tuple[PodLoad, ...]
    service: ServiceTime | None = None  # learned t(n) of one lane, n in rows
    latency_target: float | None = None  # seconds
    quantile: float = 0.99  # of the rows that are to meet it
    queue_wait: float | None = None  # mean seconds from arrival to dispatch
    request_seconds: float | None = None  # mean from a request's last byte to its answer
    web_cpu: float | None = None  # of one core, by the busiest web process of any pod; 0..1
    web_processes: int = 1  # of a pod
    replica_concurrency: int | None = None  # requests that a pod lets in
    answered: float = 0.0  # requests whose time was measured
    latencies: tuple[float, ...] = ()  # of those, up to each of contract.LATENCY_BUCKETS

    @property
    def arrival(self) -> float:
        """Rows per second, accepted or not."""
        return self.received / self.seconds

    @property
    def lanes(self) -> float:
        """Lanes of all pods, on average over the window."""
        return self.lane_seconds / self.seconds

    @property
    def busy(self) -> float:
        """Share of the lanes' time; 0 where there were none. Over 1 if batches outlast looks."""
        return self.sums.seconds / self.lane_seconds if self.lane_seconds > 0 else 0.0

    @property
    def mean_size(self) -> float:
        """Size of a batch, in the unit of `max_batch_size`; 0 without batches."""
        return self.sizes / self.sums.batches if self.sums.batches > 0 else 0.0

    def released_share(self, reason: str) -> float:
        """Share of the batches that were released for it; 0 without batches."""
        total = sum(count for _, count in self.released)
        return dict(self.released).get(reason, 0.0) / total if total > 0 else 0.0

    def rejected_share(self, reason: str) -> float:
        """Share of the received rows that were rejected for it; 0 without rows."""
        return dict(self.rejected).get(reason, 0.0) / self.received if self.received > 0 else 0.0

    def rows_of(self, size: float) -> float:
        """Rows that a batch of `size` has at present, >= 1."""
        each = self.sums.rows / self.sizes if self.sizes > 0 else 1.0
        return max(1.0, size * each)

    def batch_time(self, size: float) -> float | None:
        """Seconds that a batch of `size` takes; None while t(n) is not known."""
        return None if self.service is None else self.service.seconds(self.rows_of(size))

    def capacity(self, max_batch_size: int) -> float | None:
        """Rows per second that all lanes serve within the target with batches of at most that.

        None while t(n) is not known, or where pods have no lanes.
        """
        if self.service is None or self.lane_seconds <= 0:
            return None
        lane = lane_capacity(
            self.service,
            largest_batch=max(1, round(self.rows_of(max_batch_size))),
            batch_interval=self.batch_interval,
            latency_target=self.latency_target,
            quantile=self.quantile,
        )
        return lane.rows_per_second * self.lanes

    def fixed_cost_is_known(self) -> bool:
        """Whether t(n) tells what larger batches save.

        A fit through batches of one size sees no fixed cost, whatever it is (`fit`). One that sees
        a fixed cost all the same learned it from other batches before.
        """
        if self.service is None:
            return False
        seen = self.service.fixed > FREE_LUNCH * self.service.seconds(
            self.rows_of(self.max_batch_size)
        )
        sums = self.sums
        spread = sums.rows_squared * sums.batches - sums.rows**2
        return seen or spread > ALIKE * sums.rows**2


# A load near a boundary crosses it all the time. Another kind is therefore taken up only once the
# evidence has said nothing else for a while, and once the last change is long enough ago.

PERSISTENCE: Final = 60.0
"""Seconds for which the evidence must say the same before it is believed: one default window, so
that one that still holds the load of before and one of the load of now are told apart."""
REST: Final = 300.0
"""Seconds at least between two changes of kind."""


class Kind(enum.StrEnum):
    """The limit of throughput or latency."""

    IDLE = "Idle"  # nothing does
    BATCH_INTERVAL = "BatchInterval"
    MAX_BATCH_SIZE = "MaxBatchSize"
    COMPUTE = "Compute"
    ADMISSION = "Admission"
    PYTHON_CPU = "PythonCPU"
    SKEW = "Skew"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit that one window of counters shows."""

    kind: Kind
    advice: str  # one sentence with the numbers, and what to change from what to what


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on an API, and what must be known to change it."""

    kind: Kind
    advice: str  # as in Finding; of the last window that said `kind`
    changed: float | None = None  # monotonic seconds; None: still the first that was said
    rival: Kind | None = None  # what the evidence says instead
    rival_since: float = 0.0  # monotonic seconds; without meaning while there is no rival


def settle(found: Finding, before: Verdict | None, now: float) -> Verdict:
    """Hold on to the verdict before, unless something else is found persistently.

    The first verdict gives way without rest, since it may come from a window of the start; and if
    it is Unknown, at once, since nothing was said then.

    Returns:
        `changed` differs at most once in `REST` seconds, whatever is found.
    """
    if before is None or (before.changed is None and before.kind is Kind.UNKNOWN):
        return Verdict(found.kind, found.advice)
    if before.kind is found.kind:
        return Verdict(found.kind, found.advice, before.changed)
    since = before.rival_since if before.rival is found.kind else now
    rested = before.changed is None or now - before.changed >= REST
    if rested and now - since >= PERSISTENCE:
        return Verdict(found.kind, found.advice, changed=now)
    return replace(before, rival=found.kind, rival_since=since)


CALM: Final = 0.9
"""A finding stands until the figure is a tenth below the limit: less is noise."""
ROOM: Final = 0.9
"""Share of the capacity. A target far below is room for jumps of the load, and used by one as it is
meant to be."""


def limit(figure: float, kind: Kind, standing: Kind | None) -> float:
    """The least that lets `kind` be found, given what was said last."""
    return CALM * figure if standing is kind else figure


def planned(target: float, standing: Kind | None, *, most: float = 1.0) -> float:
    """Share of the capacity up to which lanes are used as planned, and need no more compute.

    That is where the autoscaler, too, ceases to take a busy lane for one that does what it should:
    `service_model.as_planned`. A tenth less would be below the target, and
    `Kind.COMPUTE` would stand for ever; it stands until halfway back to the target instead.

    Args:
        target: Share of the capacity that replicas are planned with.
        standing: What was said last.
        most: What can be measured of lanes that are used up.
    """
    above = as_planned(target, least=ROOM, most=most)
    return (above + min(target, above)) / 2 if standing is Kind.COMPUTE else above
