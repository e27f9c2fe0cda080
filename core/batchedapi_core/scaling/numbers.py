"""Numbers: quantiles, whole replicas, and the way into a status that anybody may edit, and back."""

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_SAVED = 16
"""Entries of a list in the status. Neighbours are merged into one that binds at least as much."""
MOST_REPLICAS = 10**9
"""Any need above is the same to the limits, and fits the integers of the Kubernetes API."""
ROUNDING = 1e-9
"""A need of 3 that arithmetic turned into 3.0000000001 is 3."""


def whole(need: float) -> int:
    """Replicas for a fractional need; one is kept for the request to come."""
    return max(1, math.ceil(min(need, MOST_REPLICAS) - ROUNDING))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of `values`, which are not empty, are at or below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def short(value: float) -> float:
    """Ten digits: the fit subtracts products of these, six would show."""
    return float(f"{value:.10g}")


def number(value: object, least: float, most: float) -> float | None:
    """`value` as a float; None unless it is a number within `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= most else None


def grouped(entries: Sequence[T]) -> list[Sequence[T]]:
    """Neighbours together, in at most MOST_SAVED groups."""
    step = max(1, -(-len(entries) // MOST_SAVED))
    return [entries[first : first + step] for first in range(0, len(entries), step)]


def table(saved: object, *columns: tuple[float, float]) -> list[tuple[float, ...]] | None:
    """A saved list of at most MOST_SAVED lists of numbers; None if `saved` is not that.

    Args:
        saved: From a status.
        columns: Least and most of the numbers of each entry.
    """
    if not isinstance(saved, list) or len(saved) > MOST_SAVED:
        return None
    rows = []
    for entry in saved:
        if not isinstance(entry, list) or len(entry) != len(columns):
            return None
        row = [number(one, *bounds) for one, bounds in zip(entry, columns, strict=True)]
        known = tuple(one for one in row if one is not None)
        if len(known) != len(columns):
            return None
        rows.append(known)
    return rows
