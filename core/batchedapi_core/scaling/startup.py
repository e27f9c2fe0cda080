"""How long a replica takes from its creation to its readiness, learned from those that came."""

from collections.abc import Iterable, Sequence

from batchedapi_core.scaling.samples import PodSample

_SLOWER, _FASTER = 0.5, 0.1
"""Weights of a pod that took longer or shorter than expected. Five to one: the estimate settles
where five times as much is below as above (an expectile), as being late costs more than early."""
LONGEST = 3600.0
"""Seconds. Longer was no start but a wait for a node, an image or a volume; it counts as this."""


def start_up_of(
    known: float | None, before: Iterable[PodSample], samples: Sequence[PodSample]
) -> float | None:
    """Seconds, with every pod that was not seen before taken in; None while none was measured."""
    seen = {sample.pod for sample in before}
    taken = sorted(
        min(sample.startup, LONGEST)
        for sample in samples
        if sample.startup is not None and sample.pod not in seen
    )
    for seconds in taken:
        known = seconds if known is None else _towards(known, seconds)
    return known


def _towards(known: float, seconds: float) -> float:
    return known + (_SLOWER if seconds > known else _FASTER) * (seconds - known)
