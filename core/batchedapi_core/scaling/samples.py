"""Changes of a pod's counters between two looks.

A counter says nothing by itself: it counts from the start of its process, restarts with it, and
its pod may be seen for the first time or not at all. `change` answers how much it rose, or None
when that cannot be known; unknown is never taken for zero.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batchedapi_core.service_model import BatchSums

LARGEST_COUNT = 1e24
"""No replica counts this far, not even squared rows; above, sums of products would overflow."""
CLOCK_SLACK = 5.0
"""Seconds by which a node's clock and the operator's may disagree about a restart."""
MATURE = 10.0
"""Seconds of uptime until endpoints and connections have settled on a new pod."""
RETENTION = 600.0
"""Seconds for which the last sample of a pod that no longer answers is worth comparing with."""


@dataclass(frozen=True, slots=True)
class PodSample:
    """One scrape of one pod, summed over its methods."""

    pod: str  # uid
    time: float  # seconds, the operator's monotonic clock at the scrape
    process_start: float  # unix seconds
    uptime: float  # seconds since process_start at the scrape, >= 0
    # Counters since the start of the process.
    rows_received: float  # accepted or not
    rows_rejected: float
    batches: float
    rows: float  # in batches
    full_batches: float  # released because full
    batch_seconds: float
    rows_squared: float  # sum over batches; 0 where not exported
    row_seconds: float  # sum over batches of rows * seconds; 0 where not exported
    # Gauges.
    queue_rows: float
    lanes: float
    # A counter like those above: sum over batches, in the unit of maxBatchSize; 0 where not known
    sizes: float = 0.0
    # Another: requests in batches; 0 where not known
    requests: float = 0.0
    # A gauge: requests that were accepted and not answered yet
    in_flight: float = 0.0
    # Seconds from the pod's placement on a node to its readiness; None: not known
    startup: float | None = None
    # Seconds from its creation to its placement; None: not known
    placement: float | None = None
    # A counter: seconds from arrival to dispatch, summed over `requests`; 0 where not known
    wait_seconds: float = 0.0
    # Another: requests that ended, also refused or given up; 0 where not known
    answered: float = 0.0
    # Another: sum over the requests received of their rows squared; 0 where not known
    squares_received: float = 0.0
    # A gauge: seconds of a batch by its t(n, L); None: rows have no lengths
    fixed: float | None = None
    # What the pod runs; "": not known, it is taken to run what is looked at
    revision: str = ""
    # Counters that explain and decide nothing, in an order that is their reader's
    further: Sequence[float] = ()

    @property
    def rows_arrived(self) -> float:
        """Since the start of the process.

        Rows in batches, in queue and rejected make up for a server that does not count them all as
        received. Compared from look to look they would not: a batch that outlasts a look counts
        with its rows in one and has taken them out of the queue in another.
        """
        return max(self.rows_received, self.rows + self.queue_rows + self.rows_rejected)


@dataclass(frozen=True, slots=True)
class Unready:
    """Replicas that were ordered and have never been ready, as the cluster tells of them."""

    unschedulable: int = 0  # no node has room for them
    failing: int = 0  # they cannot be created or cannot start
    oldest: float = 0.0  # seconds since the first of them that has a node was placed on it


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The one queue of all replicas, as web pods tell of it at one look."""

    samples: tuple[PodSample, ...]  # of the ready web pods that answered
    ready: int  # web pods
    rows: float  # that wait
    oldest: float  # seconds for which the oldest of them has waited
    told: bool  # web pods know what the methods of the revision are like


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at all pods of an API."""

    samples: tuple[PodSample, ...]  # of the ready pods that answered
    ready: int  # pods
    current: int  # replicas asked for so far, ready or starting
    revision: str  # what the replicas run; a new one makes the service model be learned anew
    unready: Unready = Unready()
    wanted: int = 0  # places for which pods of other APIs wait
    queue: QueueLook | None = None  # one for all replicas; None: each has its own
    wall: float | None = None  # Unix seconds; None: nothing is known of schedules


@dataclass(frozen=True, slots=True)
class PodChange:
    """How much the counters of one pod rose within `seconds`."""

    pod: str
    seconds: float
    received: float  # rows
    full_batches: float
    sums: BatchSums
    queue_rows: float
    lanes: float
    warming_up: bool  # its batches are slower than those to come
    sizes: float = 0.0  # sum over batches
    requests: float = 0.0  # in batches
    in_flight: float = 0.0
    wait_seconds: float = 0.0  # sum over `requests`
    requests_received: float = 0.0  # 0 where not known
    squares_received: float = 0.0  # sum over them of rows squared; 0 where not known
    mature: bool = False  # had its full share of the load since before the last look
    fixed: float | None = None  # see PodSample
    revision: str = ""  # see PodSample
    further: Sequence[float] = ()  # see PodSample
    first: bool = False  # the pod was not known before, and this is its whole life

    @property
    def tells_service_time(self) -> bool:
        """Whether its batches are such as those to come."""
        return not self.warming_up and self.sums.batches >= 1 and self.sums.possible()


def usable(samples: Iterable[PodSample]) -> tuple[PodSample, ...]:
    """The latest sample of each pod; one with an impossible number is as good as none."""
    latest: dict[str, PodSample] = {}
    for sample in samples:
        known = latest.get(sample.pod)
        if _possible(sample) and (known is None or known.time <= sample.time):
            latest[sample.pod] = sample
    return tuple(latest.values())


def change(
    before: PodSample | None,
    after: PodSample,
    *,
    window: float,
    since_full_look: float | None,
    warm_up_batches: float,
) -> PodChange | None:
    """Changes in a pod since it was last seen, or None if they cannot be known.

    Args:
        before: The pod's previous sample.
        after: Its sample now.
        window: Seconds; an unknown pod no older than this is taken at its whole life.
        since_full_look: Seconds since a look at which every ready pod answered, if the last one
            was such: a pod unknown then was not ready, so all it counted came afterwards.
        warm_up_batches: A process that had run fewer at the last look is warming up.

    Returns:
        None for a pod that is old and unknown (the operator restarted), for a counter that fell
        without a restart (taking the whole value as the increase would show a demand of many
        times the real one), and for clocks that contradict each other.
    """
    if before is None:
        oldest, seconds = window, after.uptime
        if since_full_look is not None:
            oldest, seconds = max(window, RETENTION), min(seconds, since_full_look)
        if not 0 < after.uptime <= oldest:
            return None
        return replace(_rise(None, after, seconds, warming_up=True), first=True)
    gap = after.time - before.time
    if gap <= 0 or after.process_start < before.process_start:
        return None
    if after.process_start > before.process_start:
        possible = 0 < after.uptime <= gap + CLOCK_SLACK
        return _rise(None, after, min(after.uptime, gap), warming_up=True) if possible else None
    warming_up = before.batches < warm_up_batches
    return None if fell(before, after) else _rise(before, after, gap, warming_up=warming_up)


def fell(before: PodSample, after: PodSample) -> bool:
    """Whether a counter of one process is smaller than it was, which is wrong."""
    return after.process_start == before.process_start and any(
        new < old for old, new in zip(_counters(before), _counters(after), strict=True)
    )


def _rise(
    before: PodSample | None, after: PodSample, seconds: float, *, warming_up: bool
) -> PodChange:
    start = (0.0,) * len(_counters(after)) if before is None else _counters(before)
    rises = [new - old for old, new in zip(start, _counters(after), strict=True)]
    full, batches, rows, squared, busy, row_seconds = rises[2:8]
    sizes, requests, wait_seconds, answered, squares = rises[8:_DECIDING]
    flight_growth = after.in_flight - (before.in_flight if before else 0.0)
    counted = after.answered > 0 or after.batches <= 0  # batches without answers: not exported
    return PodChange(
        pod=after.pod,
        seconds=max(seconds, 1e-3),  # scrapes closer than a millisecond carry no rate
        received=max(0.0, after.rows_arrived - (before.rows_arrived if before else 0.0)),
        full_batches=full,
        sums=BatchSums(batches, rows, squared, busy, row_seconds).with_moments(),
        queue_rows=after.queue_rows,
        lanes=after.lanes,
        warming_up=warming_up,
        sizes=sizes,
        requests=requests,
        wait_seconds=wait_seconds,
        in_flight=after.in_flight,
        requests_received=max(0.0, answered + flight_growth) if counted else 0.0,
        squares_received=squares,
        mature=before is not None and before.uptime > MATURE,
        fixed=after.fixed,
        revision=after.revision,
        further=array("d", rises[_DECIDING:]),
    )


def _counters(sample: PodSample) -> tuple[float, ...]:
    return (
        sample.rows_received,
        sample.rows_rejected,
        sample.full_batches,
        sample.batches,
        sample.rows,
        sample.rows_squared,
        sample.batch_seconds,
        sample.row_seconds,
        sample.sizes,
        sample.requests,
        sample.wait_seconds,
        sample.answered,
        sample.squares_received,
        *sample.further,
    )


_DECIDING = 13
"""Counters before those that explain."""


def _possible(sample: PodSample) -> bool:
    amounts = (
        *_counters(sample),
        sample.uptime,
        sample.queue_rows,
        sample.lanes,
        sample.in_flight,
        0.0 if sample.startup is None else sample.startup,
        0.0 if sample.fixed is None else sample.fixed,
        0.0 if sample.placement is None else sample.placement,
    )
    return (
        math.isfinite(sample.time)
        and math.isfinite(sample.process_start)
        and all(0.0 <= amount <= LARGEST_COUNT for amount in amounts)
    )
