"""Bursts: demand that no forecast saw coming, and the replicas worth keeping for the next.

Nobody can start replicas in time for demand that jumps. Where it does so again and again, those of
the last burst may be kept: the ski rental problem, where buying is keeping and renting is missing.
One burst alone is no pattern.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from batchedapi_core.scaling.foresight import HIGHEST_RATE
from batchedapi_core.scaling.numbers import MOST_SAVED, short, table, whole

SURPRISE = 0.25
"""Share by which demand is above its forecast of one start-up ago in a burst."""
LEAST_LOAD = 0.5
"""Of one replica's capacity: what fewer rows do is no burst but chance."""
LASTING = 10.0
"""Seconds from one look at a burst to the next, at most: it goes on while demand is as high."""
MEMORY = 900.0
"""Seconds for which a burst is remembered."""
WORTH = 16.0
"""A burst that is missed until replicas have started is worth this many start-ups of all of them:
of the requests of a service with a target of 99 %, few may be missed."""


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst; more surprises within one start-up belong to it."""

    begin: float  # seconds
    end: float  # when demand was last about as high
    peak: float  # rows/s


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A peak that was reached at least twice."""

    peak: float  # rows/s
    gap: float  # seconds from one as high to the next: the mean, or since the last if longer


def bursts_of(
    before: Sequence[Burst],
    now: float,
    *,
    error: float | None,
    base: float,
    least: float,
    lead: float,
) -> tuple[Burst, ...]:
    """The bursts to remember after a look.

    Args:
        before: After the last look.
        now: Seconds.
        error: Demand over its forecast, less 1; None: not known.
        base: Rows/s.
        least: Rows/s of the smallest burst.
        lead: Seconds that a replica takes to start.
    """
    kept = tuple(one for one in before if now - one.end < MEMORY)
    if kept and now - kept[-1].end < LASTING and base * (1.0 + SURPRISE) >= kept[-1].peak:
        kept = (*kept[:-1], replace(kept[-1], end=now))
    if error is None or error <= SURPRISE or base <= least:
        return kept
    if kept and now - kept[-1].end < lead:
        last = replace(kept[-1], end=now, peak=max(kept[-1].peak, base))
        return (*kept[:-1], last)
    return (*kept[-(MOST_SAVED - 1) :], Burst(now, now, base))


def recurrences(bursts: Iterable[Burst], now: float) -> tuple[Recurrence, ...]:
    """For each peak that was reached at least twice, how often; `bursts` are in order of time."""
    every = list(bursts)
    found = []
    for peak in sorted({one.peak for one in every}, reverse=True):
        those = [one for one in every if one.peak >= peak]
        if len(those) > 1:
            between = [later.begin - earlier.end for earlier, later in pairwise(those)]
            mean = sum(between) / len(between)
            found.append(Recurrence(peak, max(mean, now - those[-1].end)))
    return tuple(found)


def kept_for(
    recurring: Iterable[Recurrence], *, need: int, one: float, lead: float
) -> tuple[int, Recurrence | None]:
    """Replicas worth keeping, at least `need`, and what for.

    To keep n instead of `need` until the next burst costs (n - need) * gap replica-seconds. Not to
    keep them loses about n * lead replica-seconds of requests, worth WORTH times as much.

    Args:
        recurring: Peaks.
        need: Replicas without them.
        one: Rows/s to plan a replica with, > 0.
        lead: Seconds that a replica takes to start.
    """
    kept, reason = need, None
    for it in recurring:
        count = whole(it.peak / one)
        if count > kept and (count - need) * it.gap < WORTH * count * lead:
            kept, reason = count, it
    return kept, reason


def later(bursts: Iterable[Burst], now: float) -> tuple[Burst, ...]:
    """On a clock that shows `now` where this one shows 0."""
    return tuple(Burst(one.begin + now, one.end + now, one.peak) for one in bursts)


def to_saved(bursts: Iterable[Burst], now: float) -> list[list[float]]:
    """As JSON: (begin, end, peak), times from 0 backwards."""
    return [[round(it.begin - now, 3), round(it.end - now, 3), short(it.peak)] for it in bursts]


def restored(saved: object) -> tuple[Burst, ...] | None:
    """What `to_saved` returned, or None if it is not that."""
    bursts = table(saved, (-1e6, 0.0), (-1e6, 0.0), (0.0, HIGHEST_RATE))
    if bursts is None or any(begin > end for begin, end, _ in bursts):
        return None
    return tuple(sorted((Burst(*one) for one in bursts), key=lambda one: one.begin))
