"""The last decisions about each API, for whoever asks why; the status has the newest alone.

Decisions in a row that came to the same are one entry: a quiet hour is one line, not 720.
"""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from batchedapi_core.scaling import ScalingDecision, ScalingPolicy, record
from batchedapi_operator.cluster import rfc3339
from batchedapi_operator.keys import JsonObject, ObjectKey

ENTRIES: Final = 64
"""Of one API; an entry is a decision, whose size does not depend on anybody's input."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Decisions in a row with the same replicas, reason and binding limit."""

    since: datetime
    time: datetime
    """Of the latest."""
    count: int
    policy: ScalingPolicy
    decision: ScalingDecision
    """The latest: its figures are those of `time`."""

    def goes_on(self, decision: ScalingDecision) -> bool:
        """Whether `decision` came to the same."""
        mine = (self.decision.desired, self.decision.reason, self.decision.bound)
        return mine == (decision.desired, decision.reason, decision.bound)

    def to_json(self) -> JsonObject:
        """As `status.autoscaling.lastDecision`, and since when and how often it was taken."""
        return {
            "since": rfc3339(self.since),
            "count": self.count,
            **decision_json(self.policy, self.decision, rfc3339(self.time)),
        }


def decision_json(policy: ScalingPolicy, decision: ScalingDecision, now: str) -> JsonObject:
    """A decision as users read it; `now` is RFC 3339."""
    recorded = record(policy, decision)
    return {
        "time": now,
        "desired": decision.desired,
        "reason": decision.reason.value,
        "text": recorded["text"],
        "record": recorded,
    }


class DecisionRing:
    """Bounded: the oldest entry of an API makes room. Owned by the autoscaler."""

    def __init__(self) -> None:
        self._stretches: dict[ObjectKey, deque[Stretch]] = {}

    def add(
        self, key: ObjectKey, time: datetime, policy: ScalingPolicy, decision: ScalingDecision
    ) -> None:
        """Remember a decision."""
        stretches = self._stretches.setdefault(key, deque(maxlen=ENTRIES))
        if stretches and stretches[-1].goes_on(decision):
            last = stretches.pop()
            stretches.append(Stretch(last.since, time, last.count + 1, policy, decision))
        else:
            stretches.append(Stretch(time, time, 1, policy, decision))

    def last(self, key: ObjectKey, count: int) -> list[JsonObject]:
        """At most `count` entries, the newest first; none for an API that nothing is known of."""
        stretches = reversed(self._stretches.get(key, ()))
        return [one.to_json() for one, _ in zip(stretches, range(count), strict=False)]

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._stretches.pop(key, None)
