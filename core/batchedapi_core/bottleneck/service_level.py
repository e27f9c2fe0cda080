"""Whether the latency target is met and whether batches fill, from the evidence of a verdict."""

import enum
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from batchedapi_core import contract
from batchedapi_core.bottleneck.evidence import BottleneckEvidence, Kind, Verdict, limit
from batchedapi_core.bottleneck.unpressed import COVERAGE, FEWEST_BATCHES, LONE, SHORTEST_WINDOW
from batchedapi_core.contract import ms, percent, rate, size

CALM_SECONDS: Final = 10.0
"""For which requests must be in time again, or late for another reason, before that is said."""
SETTLED_SECONDS: Final = 30.0
"""For which batches must be other than they were said to be: a load near a boundary crosses it all
the time, and nobody has to act within seconds."""
_SHED: Final = ("latency", "queue_full", "expired")


class Level(enum.StrEnum):
    """Reasons of the condition SLOMet."""

    MET = "Met"
    QUEUE_WAIT = "QueueWait"
    EXECUTION_TIME = "ExecutionTime"
    SHEDDING = "Shedding"


class Filling(enum.StrEnum):
    """Reasons of the condition BatchingEffective."""

    FILLING = "Filling"
    STARVED = "Starved"
    SATURATED = "Saturated"
    DISABLED = "Disabled"
    IDLE = "Idle"


@dataclass(frozen=True, slots=True)
class Told:
    """A condition as it is told, and what must be known to tell another."""

    word: Level | Filling
    text: str  # what was seen, with figures
    rival: Level | Filling | None = None  # what the evidence says instead
    rival_since: float = 0.0  # monotonic seconds; without meaning while there is no rival


def target_met(e: BottleneckEvidence, before: Told | None, now: float) -> Told | None:
    """Whether as many requests as `e.quantile` says are answered within `e.latency_target`.

    Late requests are told at once. One late request of a window is chance, however few there are.

    Args:
        e: What the last window says.
        before: What was returned at the look before.
        now: Monotonic seconds.

    Returns:
        None: there is no target.
    """
    if e.latency_target is None:
        return None
    if not _known(e):
        return before
    found = _level(e, e.latency_target)
    was_met = before is None or before.word is Level.MET
    return _settled(found, before, now, 0.0 if was_met else CALM_SECONDS)


def batches_fill(
    e: BottleneckEvidence, verdict: Verdict, before: Told | None, now: float
) -> Told | None:
    """Whether batches have several rows; None: nothing is known, and nothing was said before.

    Args:
        e: What the last window says.
        verdict: On the same window: full batches that wait for lanes are its finding.
        before: What was returned at the look before.
        now: Monotonic seconds.
    """
    if e.max_batch_size <= 1:
        return Told(Filling.DISABLED, "maxBatchSize in effect is 1")
    if not _known(e):
        return before
    text = f"mean batch {size(e.mean_size)} of max {e.max_batch_size}"
    standing = Kind.IDLE if before is not None and before.word is Filling.FILLING else None
    if e.sums.batches < FEWEST_BATCHES:
        found = Told(Filling.IDLE, f"{e.sums.batches:.0f} batches in {e.seconds:.0f} s")
    elif verdict.kind in {Kind.MAX_BATCH_SIZE, Kind.COMPUTE}:
        found = Told(Filling.SATURATED, f"{text}; {verdict.advice}")
    elif e.mean_size < limit(LONE, Kind.IDLE, standing):
        found = Told(Filling.STARVED, text)
    else:
        found = Told(Filling.FILLING, text)
    silent = before is None or before.word in {Filling.IDLE, Filling.DISABLED}
    return _settled(found, before, now, 0.0 if silent else SETTLED_SECONDS)


def _known(e: BottleneckEvidence) -> bool:
    return e.coverage >= COVERAGE and e.seconds >= SHORTEST_WINDOW


def _settled(found: Told, before: Told | None, now: float, seconds: float) -> Told:
    """`before`, until the evidence has said something else for so many seconds."""
    if before is None or before.word is found.word:
        return found
    since = before.rival_since if before.rival is found.word else now
    if now - since >= seconds:
        return found
    return replace(before, rival=found.word, rival_since=since)


def _level(e: BottleneckEvidence, target: float) -> Told:
    name = f"p{100 * e.quantile:g}"
    shed = sum(e.rejected_share(reason) for reason in _SHED)
    if shed > 1.0 - e.quantile:
        text = f"{percent(shed)} of {rate(e.arrival)} are refused or given up, target {ms(target)}"
        return Told(Level.SHEDDING, f"{text} at {name}")
    if e.answered <= 0:
        return Told(Level.MET, "no request was answered in the last minute, and none refused")
    mean = e.request_seconds or 0.0
    low, high = _bucket(e, mean)
    # in the bucket of the target itself the histogram cannot tell, but the mean may
    late = low >= target or (high > target and mean > target)
    between = f"{name} is {ms(low)} or more" if high == float("inf") else (
        f"{name} is between {ms(low)} and {ms(high)}"
    )  # fmt: skip
    text = f"{between}, target {ms(target)}"
    if not late:
        return Told(Level.MET, text)
    waits = e.queue_wait or 0.0
    runs = e.sums.row_seconds / e.sums.rows if e.sums.rows > 0 else 0.0
    text += f"; on average a request waits {ms(waits)} in the queue and {ms(runs)} in a batch"
    return Told(Level.QUEUE_WAIT if waits > runs else Level.EXECUTION_TIME, text)


def _bucket(e: BottleneckEvidence, mean: float) -> tuple[float, float]:
    """Edges in seconds between which the quantile of the requests' times is.

    One request may always be later: of fewer than a hundred, p99 would be the slowest. Replicas
    that tell no histogram have a mean alone.
    """
    if not any(e.latencies):
        return mean, mean
    rank = min(e.quantile * e.answered, e.answered - 1.0)
    edges = (0.0, *contract.LATENCY_BUCKETS)
    for (low, high), below in zip(pairwise(edges), e.latencies, strict=True):
        if below >= rank:
            return low, high
    return edges[-1], float("inf")
