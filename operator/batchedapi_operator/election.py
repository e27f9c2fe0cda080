"""The rules of Leases and claims: whether this process may write, and until when by its own clock.

A Lease says who holds it and for how many seconds from each renewal on. Its dates are for people:
a candidate measures for how long it has seen no renewal, and a holder from before it asked for one,
so that the holder's time is always over before anybody else's begins. Wall clocks may be anywhere.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from batchedapi_core import contract
from batchedapi_operator.cluster import ObjectKey, section

LEADER_SECONDS: Final = 10
"""Without a renewal, after which another replica leads."""
CLAIM_SECONDS: Final = 30
"""Without a change, after which another release may act instead: longer than a rollout's gap."""
MARGIN_SECONDS: Final = 0.5
"""By which the time of a holder is over earlier: clocks do not run at quite the same pace."""
SHORTEST_WRITE: Final = 0.5
"""Seconds: a write that would have less time is not begun."""

Clock = Callable[[], float]


def clock() -> float:
    """Seconds that go on while the machine is suspended, where it can tell: Linux can."""
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class Held:
    """A Lease, or a claim, as it was read."""

    holder: str
    """Empty: it was given back."""
    seconds: float
    transitions: int
    """How often the holder changed: a term's number."""
    version: str
    state: str
    """`WANTED` or `ACTING`, or nothing."""
    namespaces: str
    """Namespaces of its holder: names with commas between, or `ALL`."""

    @classmethod
    def of(cls, body: Any) -> Self:
        """From the body of a Lease or of a ConfigMap, by any writer."""
        metadata = body["metadata"]
        spec = section(body, "spec") or section(body, "data")
        notes = section(metadata, "annotations")
        return cls(
            spec.get("holderIdentity") or "",
            _whole(spec.get("leaseDurationSeconds")) or LEADER_SECONDS,
            _whole(spec.get("leaseTransitions")),
            metadata["resourceVersion"],
            notes.get(contract.ANNOTATION_CLAIM, ""),
            notes.get(contract.ANNOTATION_NAMESPACES, ""),
        )


def _whole(told: object) -> int:
    """A number, of which a ConfigMap has the digits; 0: none is told."""
    digits = str(told)
    return int(digits) if re.fullmatch(r"[0-9]{1,9}", digits) else 0


@dataclass(frozen=True, slots=True)
class SeenLease:
    """One of them, and since when it has been as it is, as far as this process saw."""

    held: Held
    since: float

    def free(self, now: float) -> bool:
        """Whether anybody may have it."""
        return not self.held.holder or now >= self.since + self.held.seconds


def seen(before: SeenLease | None, held: Held, now: float) -> SeenLease:
    """The same Lease read again at `now`."""
    if before is not None and before.held.version == held.version:
        return before
    return SeenLease(held, now)


class Permit:
    """Whether this process may write. Set by the election, asked directly before each write.

    A write gets no more time than is left, of the apiserver as well, so that none is carried out
    once another may lead.
    """

    def __init__(self, now: Clock = clock) -> None:
        self._now = now
        self._until = float("-inf")
        self._ended = False
        self.under_way = 0
        """Writes that were begun and are not answered."""

    def extend(self, until: float) -> None:
        """Writing is allowed until then; earlier than before is a limit, too."""
        self._until = until

    def end(self) -> None:
        """For good: the process is stopping."""
        self._ended = True

    @property
    def seconds(self) -> float:
        """Seconds left to write in; 0 and less: none."""
        return float("-inf") if self._ended else self._until - MARGIN_SECONDS - self._now()

    @property
    def valid(self) -> bool:
        """Whether a write may be begun."""
        return self.seconds >= SHORTEST_WRITE


# ---------------------------------------------------------------- of two releases
ALL: Final = "*"
WANTED: Final = "Wanted"
ACTING: Final = "Acting"


@dataclass(frozen=True, slots=True)
class Other:
    """A claim of another release: to all namespaces, or to the one that it lies in."""

    key: ObjectKey
    held: Held
    alive: bool
    """It has changed within `CLAIM_SECONDS`, as far as was seen."""

    @property
    def is_claim(self) -> bool:
        """It is to that namespace: operators of all have one under their own name."""
        return self.key.name == contract.CLAIM


@dataclass(frozen=True, slots=True)
class Survey:
    """Conclusion of an operator of all namespaces from the claims of other releases."""

    in_the_way: Other | None
    """It acts on namespaces of ours, or may begin to; None: nobody does."""
    disarmed: tuple[Other, ...]
    """Before we act these are to be changed: whoever holds one will see that somebody has acted."""


def survey(others: tuple[Other, ...], *, acting: bool) -> Survey:
    """Conclude from the claims of other releases.

    Args:
        acting: We have acted until now. Whoever only wants to will see that, and yield.
    """
    rivals = [
        one for one in others if one.held.state and (one.is_claim or one.held.namespaces == ALL)
    ]
    for one in rivals:
        wants = not acting and not one.is_claim and one.held.state == WANTED
        if one.alive and (one.held.state == ACTING or wants):
            return Survey(one, ())
    # a claim that is only wanted waits for this: its holder cannot see that we act
    return Survey(None, tuple(one for one in rivals if one.is_claim or not one.alive))


def refusal_of(what: str, holder: str) -> str:
    """The sentence for whoever installed the second one.

    Args:
        what: Which namespaces both are for.
        holder: Namespace and name of the other.
    """
    return (
        f"another operator, {holder}, serves {what}: this one does nothing until that is gone;"
        " uninstall one of the two releases, or give them different namespaces (watchNamespaces)"
    )
