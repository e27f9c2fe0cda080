"""What is said, and when something else is said instead.

A load near a boundary crosses it all the time. Another kind is therefore taken up only once the
evidence has said nothing else for a while, and once the last change is long enough ago.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final

PERSISTENCE: Final = 60.0
"""Seconds for which the evidence must say the same before it is believed: one default window, so
that one that still holds the load of before and one of the load of now are told apart."""
REST: Final = 300.0
"""Seconds at least between two changes of kind."""


class Kind(enum.StrEnum):
    """What limits throughput or latency."""

    IDLE = "Idle"  # nothing does
    BATCH_INTERVAL = "BatchInterval"
    MAX_BATCH_SIZE = "MaxBatchSize"
    COMPUTE = "Compute"
    ADMISSION = "Admission"
    PYTHON_CPU = "PythonCPU"
    SKEW = "Skew"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one window of counters says."""

    kind: Kind
    advice: str  # one sentence with the numbers, and what to change from what to what


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of an API, and what must be known to change it."""

    kind: Kind
    advice: str  # as in Finding; of the last window that said `kind`
    changed: float | None = None  # monotonic seconds; None: still the first that was said
    rival: Kind | None = None  # what the evidence says instead
    rival_since: float = 0.0  # monotonic seconds; without meaning while there is no rival


def settle(found: Finding, before: Verdict | None, now: float) -> Verdict:
    """Hold on to the verdict before, unless something else is found persistently.

    The first verdict gives way without rest, since it may come from a window of the start; and if
    it is Unknown, at once, since nothing was said then.

    Returns:
        `changed` differs at most once in `REST` seconds, whatever is found.
    """
    if before is None or (before.changed is None and before.kind is Kind.UNKNOWN):
        return Verdict(found.kind, found.advice)
    if before.kind is found.kind:
        return Verdict(found.kind, found.advice, before.changed)
    since = before.rival_since if before.rival is found.kind else now
    rested = before.changed is None or now - before.changed >= REST
    if rested and now - since >= PERSISTENCE:
        return Verdict(found.kind, found.advice, changed=now)
    return replace(before, rival=found.kind, rival_since=since)
