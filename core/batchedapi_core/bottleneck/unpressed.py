"""Rules for lanes that keep up: what cannot be judged, what waits without need, what is fine."""

from typing import Final

from batchedapi_core.bottleneck.evidence import BottleneckEvidence, Finding, Kind, limit
from batchedapi_core.contract import ms, percent, rate, size

SHORTEST_WINDOW: Final = 10.0
"""Seconds that a verdict needs. In less, much of what was counted ran across the window's ends, and
noise would show: the first verdict is believed at once, and each start of an operator has one."""
COVERAGE: Final = 0.5  # of the ready pods; as much as a scaling decision needs
FEWEST_BATCHES: Final = 10.0  # in a window
MOST: Final = 0.5  # of the batches: their reason is what usually happens
LONE: Final = 1.5  # mean size below which batches are requests on their own
FILLED: Final = 0.95  # of the largest batch; above, no interval fills them more
LONGEST_INTERVAL: Final = 60.0  # seconds that a manifest can say


def unseen(e: BottleneckEvidence, _standing: Kind | None) -> Finding | None:
    """Unknown is never idle."""
    if e.coverage < COVERAGE:
        return Finding(
            Kind.UNKNOWN,
            f"metrics of {percent(e.coverage)} of the ready pods are known: expected at least"
            f" {percent(COVERAGE)}",
        )
    if e.seconds < SHORTEST_WINDOW:
        return Finding(
            Kind.UNKNOWN,
            f"{e.seconds:.0f} s of metrics are known: expected at least {SHORTEST_WINDOW:.0f} s",
        )
    if e.lane_seconds <= 0 and e.received > 0:
        return Finding(
            Kind.UNKNOWN,
            f"{rate(e.arrival)} arrive and pods report no lane to run them on: see the log of the"
            " replicas",
        )
    return None


def little(e: BottleneckEvidence, _standing: Kind | None) -> Finding | None:
    """Too few batches to say anything of batching, and lanes to spare.

    Slow models are the exception: nine batches of ten seconds keep a lane busy for a window.
    """
    if e.sums.batches >= FEWEST_BATCHES or e.busy >= MOST:
        return None
    if any(rows > 0 for _, rows in e.rejected):
        return None
    return Finding(
        Kind.IDLE,
        f"{e.sums.batches:.0f} batches in {e.seconds:.0f} s, lanes busy {percent(e.busy)}:"
        " nothing to change",
    )


def interval(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """The mean batch is below the largest, since a wait is over before it is full.

    Mostly that is the interval's end; within reach of the latency target, the target's.
    """
    over, late = e.released_share("interval"), e.released_share("deadline")
    if over + late < limit(MOST, Kind.BATCH_INTERVAL, standing):
        return None
    if e.mean_size >= FILLED * e.max_batch_size:
        return None
    head = f"mean {size(e.mean_size)} < max {e.max_batch_size}:"
    if late > over:
        return Finding(
            Kind.BATCH_INTERVAL,
            f"{head} requests wait{_target(e)} until their answers are nearly late{_waited(e)};"
            f" {_half(e)}",
        )
    return Finding(
        Kind.BATCH_INTERVAL,
        f"{head} batchInterval ({ms(e.batch_interval)}) releases first{_waited(e)};"
        f" {_other_interval(e)}",
    )


def _waited(e: BottleneckEvidence) -> str:
    return "" if e.queue_wait is None else f", after {ms(e.queue_wait)} on average"


def _other_interval(e: BottleneckEvidence) -> str:
    """Longer where that fills batches in time, else shorter.

    The first row opens a batch and the others come at a steady rate, so the time to fill one is
    to the interval as max - 1 is to mean - 1.
    """
    if e.mean_size < LONE:
        return (
            f"requests come alone: lowering it from {ms(e.batch_interval)} to 0 ms answers sooner"
        )
    filling = e.batch_interval * (e.max_batch_size - 1) / (e.mean_size - 1)
    full = e.batch_time(e.max_batch_size)
    allowed = LONGEST_INTERVAL
    if e.latency_target is not None:
        allowed = e.latency_target - (full or 0.0)
    if filling <= allowed:
        answer = "" if full is None else f", answers then take up to {ms(filling + full)}"
        return f"raising it to {ms(filling)} fills batches{answer}{_target(e)}"
    return f"filling them needs {ms(filling)}, too long{_target(e)}: {_half(e)}"


def _half(e: BottleneckEvidence) -> str:
    half = e.batch_interval / 2
    return f"lowering batchInterval from {ms(e.batch_interval)} to {ms(half)} answers sooner"


def _target(e: BottleneckEvidence) -> str:
    return "" if e.latency_target is None else f" (maxLatency {ms(e.latency_target)})"


def shapes(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """Neither size nor interval ends batches: that is none of the other kinds."""
    share = e.released_share("shape")
    if share < limit(MOST, Kind.UNKNOWN, standing):
        return None
    return Finding(
        Kind.UNKNOWN,
        f"{percent(share)} of the batches end because the next row has another shape, mean"
        f" {size(e.mean_size)} < max {e.max_batch_size}: pad= in the Tensor of the model lets"
        " rows of different lengths share a batch, if padding changes no answer",
    )


def idle(e: BottleneckEvidence) -> Finding:
    """Nothing else was found: more load would be served."""
    capacity = e.capacity(e.max_batch_size)
    spare = "" if capacity is None else f" of {rate(capacity)} that {e.lanes:.0f} lanes serve"
    return Finding(
        Kind.IDLE,
        f"{rate(e.arrival)}{spare}, lanes busy {percent(e.busy)}, mean batch {size(e.mean_size)}:"
        " nothing to change",
    )
