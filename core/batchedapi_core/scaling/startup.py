"""How long a replica takes from its creation to its readiness, learned from those that came."""

from collections.abc import Iterable, Sequence

from batchedapi_core.scaling.numbers import MOST_SAVED, number, quantile
from batchedapi_core.scaling.samples import PodSample

START_UP_QUANTILE = 0.9
"""The mean would be too short: being late costs more than early, and slow ones are cancelled."""
LONGEST_START = 3600.0
"""Seconds. Longer was no start but a wait for a node, an image or a volume; it counts as this."""

UNLEARNED = 120.0
"""Seconds after which a start is late where none was measured: few models load for longer, and a
hedge that is given up too early only waits as everybody does."""


def start_ups_of(
    known: tuple[float, ...], before: Iterable[PodSample], samples: Sequence[PodSample]
) -> tuple[float, ...]:
    """Seconds of the last MOST_SAVED that were measured, pods that were not seen before among them.

    Few enough that a change of the image or of the nodes shows.
    """
    seen = {sample.pod for sample in before}
    measured = (
        min(sample.startup, LONGEST_START)
        for sample in samples
        if sample.startup is not None and sample.pod not in seen
    )
    return (*known, *measured)[-MOST_SAVED:]


def start_up_of(start_ups: Sequence[float], unknown: float) -> float:
    """Seconds to plan with; `unknown` while none was measured."""
    return quantile(start_ups, START_UP_QUANTILE) if start_ups else unknown


def late_after(start_ups: Sequence[float]) -> float:
    """Seconds after which a start takes longer than those that were measured."""
    return start_up_of(start_ups, UNLEARNED)


def start_ups_restored(saved: object) -> tuple[float, ...] | None:
    """Start-ups from a status that anybody may have edited; None if it is not that."""
    if not isinstance(saved, list) or len(saved) > MOST_SAVED:
        return None
    known = [seconds for one in saved if (seconds := number(one, 0.0, LONGEST_START)) is not None]
    return tuple(known) if len(known) == len(saved) else None
