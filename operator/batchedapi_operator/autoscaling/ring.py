"""The last decisions about each API, for whoever asks why; the status has the newest alone.

Decisions in a row that came to the same are one entry: a quiet hour is one line, not 720.
"""

import itertools
import json
import zlib
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import essence, record, taken_again
from batchedapi_operator.cluster import JsonObject, ObjectKey, rfc3339

ENTRIES: Final = 64
"""Of one API; an entry is a decision, whose size does not depend on anybody's input."""


@dataclass(slots=True)
class Stretch:
    """Decisions in a row with the same replicas, reason and binding limit. Owned by the ring."""

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
    """Bounded: the oldest entry of an API makes room. Owned by the autoscaler.

    Of each API the present stretch is kept as it is, of those before what they follow from, as
    compressed JSON. That is alike in its words: the first that was packed is the dictionary of all.
    """

    def __init__(self) -> None:
        self._present: dict[ObjectKey, Stretch] = {}
        self._past: defaultdict[ObjectKey, deque[bytes]] = defaultdict(
            lambda: deque(maxlen=ENTRIES - 1)
        )
        self._dictionary = b""

    def add(
        self, key: ObjectKey, time: datetime, policy: ScalingPolicy, decision: ScalingDecision
    ) -> None:
        """Remember a decision."""
        last = self._present.get(key)
        if last is not None and last.goes_on(decision):
            last.time, last.count = time, last.count + 1
            last.policy, last.decision = policy, decision
            return
        if last is not None:
            times = (last.since.isoformat(), last.time.isoformat(), last.count)
            found = (*times, essence(last.policy, last.decision))
            text = json.dumps(found, separators=(",", ":")).encode()
            self._dictionary = self._dictionary or text
            packer = zlib.compressobj(zdict=self._dictionary)
            self._past[key].append(packer.compress(text) + packer.flush())
        self._present[key] = Stretch(time, time, 1, policy, decision)

    def last(self, key: ObjectKey, count: int) -> list[JsonObject]:
        """At most `count` entries, the newest first; none for an API that nothing is known of."""
        present = self._present.get(key)
        if present is None:
            return []
        entries = [present.to_json()]
        for packed in itertools.islice(reversed(self._past.get(key, ())), count - 1):
            text = zlib.decompressobj(zdict=self._dictionary).decompress(packed)
            since, time, times, kept = json.loads(text)
            begin, end = datetime.fromisoformat(since), datetime.fromisoformat(time)
            entries.append(Stretch(begin, end, times, *taken_again(kept)).to_json())
        return entries

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._present.pop(key, None)
        self._past.pop(key, None)
