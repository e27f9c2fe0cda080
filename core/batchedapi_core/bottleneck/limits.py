"""What a limit is for the kind that stands already."""

from typing import Final

from batchedapi_core.bottleneck.verdict import Kind
from batchedapi_core.service_model.utilization import as_planned

CALM: Final = 0.9
"""What was found stands until the figure is a tenth below the limit: less is noise."""
ROOM: Final = 0.9
"""Of the capacity. A target far below is room for jumps of the load, and used by one as it is
meant to be."""


def limit(figure: float, kind: Kind, standing: Kind | None) -> float:
    """The least that lets `kind` be found, given what was said last."""
    return CALM * figure if standing is kind else figure


def planned(target: float, standing: Kind | None, *, most: float = 1.0) -> float:
    """Share of the capacity up to which lanes are used as planned, and need no more compute.

    That is where the autoscaler, too, ceases to take a busy lane for one that does what it should:
    `service_model.utilization`. A tenth less would be below the target, and
    `Kind.COMPUTE` would stand for ever; it stands until halfway back to the target instead.

    Args:
        target: Share of the capacity that replicas are planned with.
        standing: What was said last.
        most: What can be measured of lanes that are used up.
    """
    above = as_planned(target, least=ROOM, most=most)
    return (above + min(target, above)) / 2 if standing is Kind.COMPUTE else above
