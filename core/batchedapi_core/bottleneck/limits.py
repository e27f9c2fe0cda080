"""What a limit is for the kind that stands already."""

from typing import Final

from batchedapi_core.bottleneck.verdict import Kind

CALM: Final = 0.9
"""What was found stands until the figure is a tenth below the limit: less is noise."""


def limit(figure: float, kind: Kind, standing: Kind | None) -> float:
    """The least that lets `kind` be found, given what was said last."""
    return CALM * figure if standing is kind else figure
