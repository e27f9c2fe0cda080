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
CHANCE = 0.05
"""Share by which a burst is above all that was there within the hold; less is the same, and noise.
Asked to be a whole surprise above it, many a true burst on a load that wanders was missed."""
LEAST_LOAD = 0.5
"""Of one replica's capacity: what fewer rows do is no burst but chance."""
LASTING = 10.0
"""Seconds from one look at a burst to the next, at most: it goes on while demand is as high."""
BURST_MEMORY = 900.0
"""Seconds for which a burst is remembered."""
WORTH = 16.0
"""A burst that is missed until replicas have started is worth this many start-ups of all of them:
of the requests of a service with a target of 99 %, few may be missed."""
IDLE_LOAD = 0.05
"""Of one replica's capacity: an API with less has nothing to do but for probes and the odd call."""
IDLE_SECONDS = 300.0
"""Since the last burst, for which an idle API keeps anything. With some load on, keeping costs what
the burst needs beyond it; with none all that is kept does nothing. Five minutes is what the
HorizontalPodAutoscaler keeps by default, and what its users expect of an API that nobody calls."""
IDLE_SHARE = 0.5
"""Of a burst's replicas, that an idle API keeps. Half of them serve the next one's beginning while
the others start, and are half the price of a guess."""


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
    gap: float  # seconds from the end of one as high to the next, on average
    since: float  # seconds since the last one as high ended
    remembered: float  # seconds for which there will be two of them in memory


@dataclass(frozen=True, slots=True)
class Kept:
    """Replicas that stay for a burst, and for how long unless another comes."""

    replicas: int
    burst: Recurrence
    seconds: float


def bursts_of(
    before: Sequence[Burst],
    now: float,
    *,
    error: float | None,
    base: float,
    recent: float,
    least: float,
    hold: float,
) -> tuple[Burst, ...]:
    """The bursts to remember after a look.

    Args:
        before: After the last look.
        now: Seconds.
        error: Demand over its forecast, less 1; None: not known.
        base: Rows/s.
        recent: Rows/s, the highest of the last `hold` seconds. What only comes back to it was never
            gone: a client that paused is no burst, and its replicas are still there.
        least: Rows/s of the smallest burst.
        hold: Seconds for which replicas are held; more surprises within belong to the same burst.
    """
    kept = tuple(one for one in before if now - one.end < BURST_MEMORY)
    if kept and now - kept[-1].end < LASTING and base * (1.0 + SURPRISE) >= kept[-1].peak:
        kept = (*kept[:-1], replace(kept[-1], end=now))
    if error is None or error <= SURPRISE or base <= least:
        return kept
    if kept and now - kept[-1].end < hold:
        last = replace(kept[-1], end=now, peak=max(kept[-1].peak, base))
        return (*kept[:-1], last)
    if base <= recent * (1.0 + CHANCE):
        return kept
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
            left = max(0.0, those[-2].end + BURST_MEMORY - now)
            found.append(Recurrence(peak, mean, now - those[-1].end, left))
    return tuple(found)


def kept_for(
    recurring: Iterable[Recurrence], *, need: int, one: float, lead: float, idle: bool
) -> Kept | None:
    """Replicas worth keeping, more than `need`, and what for; None: none.

    To keep n instead of `need` until the next burst costs (n - need) * gap replica-seconds. Not to
    keep them loses about n * lead replica-seconds of requests, worth WORTH times as much. A burst
    that is overdue by more than that is given up.

    Args:
        recurring: Peaks.
        need: Replicas without them.
        one: Rows/s to plan a replica with, > 0.
        lead: Seconds that a replica takes to start.
        idle: Less than IDLE_LOAD arrives.
    """
    found = []
    for it in recurring:
        count = whole(it.peak / one * (IDLE_SHARE if idle else 1.0))
        if count <= need:
            continue
        worth = WORTH * count * lead / (count - need)
        until = min(worth, IDLE_SECONDS) if idle else worth
        if it.gap < worth and it.since < until:
            found.append(Kept(count, it, min(until - it.since, it.remembered)))
    return max(found, key=lambda one: (one.replicas, one.seconds), default=None)


def bursts_later(bursts: Iterable[Burst], now: float) -> tuple[Burst, ...]:
    """On a clock that shows `now` where this one shows 0."""
    return tuple(Burst(one.begin + now, one.end + now, one.peak) for one in bursts)


def bursts_to_saved(bursts: Iterable[Burst], now: float) -> list[list[float]]:
    """As JSON: (begin, end, peak), times from 0 backwards."""
    return [[round(it.begin - now, 3), round(it.end - now, 3), short(it.peak)] for it in bursts]


def bursts_restored(saved: object) -> tuple[Burst, ...] | None:
    """What `to_saved` returned, or None if it is not that."""
    bursts = table(saved, (-1e6, 0.0), (-1e6, 0.0), (0.0, HIGHEST_RATE))
    if bursts is None or any(begin > end for begin, end, _ in bursts):
        return None
    return tuple(sorted((Burst(*one) for one in bursts), key=lambda one: one.begin))
