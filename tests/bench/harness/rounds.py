"""Statistics of interleaved rounds: medians, ranges, and ratios within one run."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """The middle and the ends of a few values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError if there are none."""
        if not values:
            raise ValueError("Spread: expected at least one value, got none")
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 0, unit: str = "") -> str:
        """`median (low-high)`."""
        middle, low, high = (f"{value:,.{digits}f}" for value in self)
        return f"{middle}{unit} ({low}-{high})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ratio of the medians, with the range of the ratios of rounds run one after the other.

    Raises:
        ValueError: the rounds are not pairs.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"ratio: expected pairs of rounds, got {len(ours)} and {len(theirs)}")
    pairs = [quotient(a, b) for a, b in zip(ours, theirs, strict=True)]
    middle = quotient(statistics.median(ours), statistics.median(theirs))
    return Spread(middle, min(pairs), max(pairs))


def mean_and_error(values: Sequence[float]) -> str:
    """`mean +- standard error` of independent values; nan is the error of one."""
    error = math.nan
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.3f} +- {error:.3f}"


def quotient(a: float, b: float) -> float:
    """`a / b`; infinite where b is 0, as for a server that answered nothing."""
    return a / b if b else math.inf


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("percentile: expected at least one value, got none")
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]
