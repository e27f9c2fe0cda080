"""Recommendations and counts of the past that still limit what may be done, and their JSON."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchedapi_core.scaling.numbers import MOST_REPLICAS, grouped, table

LONGEST = 3600.0
"""Seconds: the longest window or period that a manifest may ask for."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Replicas that were called for, and until when that counts."""

    replicas: int
    expires: float  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """Replicas that there were, and when so many were last there."""

    time: float  # seconds
    replicas: int


def standing_high(
    before: Iterable[Recommendation], made: Iterable[Recommendation]
) -> tuple[Recommendation, ...]:
    """Those that still matter for the highest: no other is as high and lasts as long."""
    return _standing((*before, *made), lambda replicas: replicas)


def standing_low(
    before: Iterable[Recommendation], made: Iterable[Recommendation]
) -> tuple[Recommendation, ...]:
    """Those that still matter for the lowest: no other is as low and lasts as long."""
    return _standing((*before, *made), lambda replicas: -replicas)


def unexpired(recommendations: Iterable[Recommendation], now: float) -> tuple[Recommendation, ...]:
    """Those that count at `now` (seconds)."""
    return tuple(one for one in recommendations if one.expires > now)


def sizes_of(before: Sequence[Size], current: int, now: float, longest: float) -> tuple[Size, ...]:
    """Counts of the last `longest` seconds in order, each with when it was last there."""
    kept = [size for size in before if now - size.time < longest]
    if kept and kept[-1].replicas == current:
        kept.pop()
    return (*kept, Size(now, current))


def at_begin(sizes: Sequence[Size], now: float, period: float) -> int:
    """Replicas when the period of `period` seconds began; `sizes` end with those of now."""
    return next((one.replicas for one in sizes if now - one.time < period), sizes[-1].replicas)


def most_within(sizes: Sequence[Size], now: float, period: float) -> int:
    """Most replicas within the period of `period` seconds."""
    return max(
        (one.replicas for one in sizes if now - one.time < period), default=sizes[-1].replicas
    )


def _standing(
    recommendations: Iterable[Recommendation], rank: Callable[[int], int]
) -> tuple[Recommendation, ...]:
    kept: list[Recommendation] = []
    best = -math.inf
    for one in sorted(recommendations, key=lambda it: (-it.expires, -rank(it.replicas))):
        if rank(one.replicas) > best:
            kept.append(one)
            best = rank(one.replicas)
    return tuple(kept)


def to_pairs(
    entries: Iterable[tuple[int, float]], merged: Callable[[Iterable[int]], int]
) -> list[list[float]]:
    """At most MOST_SAVED pairs (replicas, seconds), in the order given.

    Args:
        entries: Replicas, and seconds that are left or (negative) have passed.
        merged: Which of neighbours counts; of their seconds it is the longest left.
    """
    return [
        [merged(count for count, _ in group), round(max(left for _, left in group), 3)]
        for group in grouped(list(entries))
    ]


def from_pairs(saved: object, least: float, most: float) -> list[tuple[int, float]] | None:
    """What `to_pairs` returned, or None if `saved` is not that.

    Args:
        saved: From a status that anybody may have edited.
        least: Seconds, and `most`: what an entry may have.
        most: See `least`.
    """
    pairs = table(saved, (0, MOST_REPLICAS), (least, most))
    return None if pairs is None else [(int(replicas), seconds) for replicas, seconds in pairs]
