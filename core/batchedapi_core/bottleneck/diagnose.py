"""The rules in the order of who hides whom, and the verdict over time."""

from collections.abc import Callable
from typing import Final, TypeAlias

from batchedapi_core.bottleneck.evidence import BottleneckEvidence
from batchedapi_core.bottleneck.outside import admission, outside
from batchedapi_core.bottleneck.saturated import saturated
from batchedapi_core.bottleneck.uneven import uneven
from batchedapi_core.bottleneck.unpressed import idle, interval, little, shapes, unseen
from batchedapi_core.bottleneck.verdict import Finding, Kind, Verdict, settle

Rule: TypeAlias = Callable[[BottleneckEvidence, Kind | None], Finding | None]

_RULES: Final[tuple[Rule, ...]] = (
    unseen,
    little,
    # One pod that drowns beside idle ones rejects, is full and is busy: the others would be blamed.
    uneven,
    # Lanes that cannot keep up make the door reject and answers late.
    saturated,
    admission,
    outside,
    # Waiting matters only where nothing else holds requests.
    interval,
    shapes,
)


def find(evidence: BottleneckEvidence, standing: Kind | None) -> Finding:
    """What this window says; limits are lower for the kind that stands."""
    for rule in _RULES:
        found = rule(evidence, standing)
        if found is not None:
            return found
    return idle(evidence)


def diagnose(evidence: BottleneckEvidence, before: Verdict | None, now: float) -> Verdict:
    """Name the bottleneck of an API.

    Args:
        evidence: Counters of the last window, pooled over pods.
        before: What was returned at the look before; None at the first.
        now: Monotonic seconds.

    Returns:
        A verdict whose kind changes at most once in five minutes.
    """
    return settle(find(evidence, None if before is None else before.kind), before, now)
