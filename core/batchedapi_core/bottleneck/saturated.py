"""Rules for lanes that cannot keep up: does a larger batch help, or only more compute?"""

import math
from typing import Final

from batchedapi_core import contract
from batchedapi_core.bottleneck.evidence import BottleneckEvidence
from batchedapi_core.bottleneck.limits import limit, planned
from batchedapi_core.bottleneck.verdict import Finding, Kind
from batchedapi_core.service_model.utilization import ALL_BUSY
from batchedapi_core.words import ms, percent, rate, size

BUSY: Final = 0.85
"""Of the lanes' time. Alone it says little: lanes that start whatever is queued are busy early."""
FULL: Final = 0.5  # of the batches
FILLED: Final = 0.9  # of the largest batch, on average; of the batches, for all of them
GAIN: Final = 0.1  # in rows/s from twice the size; a tenth is the knee of the curve


def saturated(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """The mean batch is the largest, and a larger one may help; or neither knob does."""
    kind = Kind.COMPUTE if standing is Kind.COMPUTE else Kind.MAX_BATCH_SIZE
    full = (
        e.released_share("full") >= limit(FULL, kind, standing)
        or e.mean_size >= limit(FILLED, kind, standing) * e.max_batch_size
    )
    capacity = e.capacity(e.max_batch_size)
    # Without t(n), and batches not full: lanes that start whatever is queued are busy early.
    if e.busy < limit(BUSY, kind, standing) or (capacity is None and not full):
        return None
    # Also while lanes are used as planned: the same replicas would serve more.
    larger = _larger(e, capacity, standing) if full else None
    if larger is not None or not _short(e, capacity, standing):
        return larger
    if full:
        return _compute(e, capacity, _no_size_helps(e, capacity))
    below = f"mean {size(e.mean_size)} < max {e.max_batch_size}, so neither size nor interval helps"
    return _compute(e, capacity, below)


def _short(e: BottleneckEvidence, capacity: float | None, standing: Kind | None) -> bool:
    """Whether more arrives than was planned for.

    While t(n) is not known, the lanes' time is all there is to tell by. Lanes that are used up show
    `ALL_BUSY` or little more, so that targets near it and beyond cannot be told from used up.
    """
    most = ALL_BUSY if capacity is None else 1.0
    return _used(e, capacity) > planned(e.target_utilization, standing, most=most)


def _used(e: BottleneckEvidence, capacity: float | None) -> float:
    """Share of what the lanes serve.

    Where all batches are full, the lanes' time is that share as measured: clients that wait for
    their answers send no more than is served, and batches may take longer than t(n) learned.
    """
    arrives = e.arrival / capacity if capacity else 0.0
    measured = capacity is None or e.released_share("full") >= FILLED
    return max(arrives, e.busy) if measured else arrives


def _larger(e: BottleneckEvidence, capacity: float | None, standing: Kind | None) -> Finding | None:
    """Twice the size, where that is known to help or nothing is known against it."""
    larger = 2 * e.max_batch_size
    if larger > contract.MAX_BATCH_SIZE_LIMIT:
        return None
    head = (
        f"mean {size(e.mean_size)} of max {e.max_batch_size}, {percent(e.released_share('full'))}"
        f" released full, lanes busy {percent(e.busy)}"
    )
    change = f"raising maxBatchSize from {e.max_batch_size} to {larger}"
    then = e.capacity(larger)
    if not e.fixed_cost_is_known() or capacity is None or then is None:
        return Finding(
            Kind.MAX_BATCH_SIZE,
            f"{head}: {change} may serve more; batches of other sizes were not seen to tell how"
            " much",
        )
    gain = then / capacity - 1
    if gain < limit(GAIN, Kind.MAX_BATCH_SIZE, standing):
        return None
    batch = e.batch_time(larger) or 0.0
    return Finding(
        Kind.MAX_BATCH_SIZE,
        f"{head}: {change} serves {percent(gain)} more rows/s, in batches of {ms(batch)}",
    )


def _compute(e: BottleneckEvidence, capacity: float | None, why: str) -> Finding:
    served = "" if capacity is None else f" and {e.lanes:.0f} lanes serve {rate(capacity)}"
    return Finding(
        Kind.COMPUTE,
        f"{rate(e.arrival)} arrive{served}, busy {percent(e.busy)}: {why}; {_more(e, capacity)}",
    )


def _no_size_helps(e: BottleneckEvidence, capacity: float | None) -> str:
    larger = 2 * e.max_batch_size
    then = e.capacity(larger)
    if larger > contract.MAX_BATCH_SIZE_LIMIT or capacity is None or then is None:
        return f"maxBatchSize {e.max_batch_size} is as large as it gets"
    target = "" if e.latency_target is None else f" within maxLatency {ms(e.latency_target)}"
    return (
        f"maxBatchSize {larger} for {e.max_batch_size} would serve"
        f" {percent(max(0.0, then / capacity - 1))} more{target}, a longer batchInterval nothing"
    )


def _more(e: BottleneckEvidence, capacity: float | None) -> str:
    pods = max(1, len(e.pods))
    replicas = max(pods + 1, math.ceil(pods * _used(e, capacity) / e.target_utilization))
    return (
        f"go from {pods} to {replicas} replicas, or give each more spec.compute and as many"
        " processesPerReplica or threadsPerProcess as it can feed"
    )
