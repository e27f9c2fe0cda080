"""How busy lanes are that are used as planned, and how busy when they are used up."""

from typing import Final

ALL_BUSY: Final = 0.98
"""Of the lanes' time: between two batches there is a moment even with a queue."""


def as_planned(target: float, *, least: float, most: float) -> float:
    """Share up to which lanes are used as planned: halfway from the target to all there is.

    Args:
        target: Share of the capacity that replicas are planned with.
        least: No less than this, however low the target.
        most: What can be measured of lanes that are used up.
    """
    return max(least, min(most, (1.0 + target) / 2))
