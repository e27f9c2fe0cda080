"""How often the status of APIs may be written.

A token bucket for each API (one token in 10 s, a few saved up, so that a rollout's few states are
seen at once and an object that flaps is not written more than every 10 s), and one for all.
"""

from dataclasses import dataclass
from typing import Final

from batchedapi_operator.keys import ObjectKey

SECONDS_PER_WRITE: Final = 10.0
SAVED_WRITES: Final = 6.0
ALL_WRITES_PER_SECOND: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: float
    time: float

    def filled(self, now: float, rate: float, size: float) -> "_Bucket":
        return _Bucket(min(size, self.tokens + (now - self.time) * rate), now)


class Pace:
    """Says when a status may be written. Owned by the reconciler; times are monotonic seconds."""

    def __init__(self) -> None:
        self._all = _Bucket(ALL_WRITES_PER_SECOND, 0.0)
        self._each: dict[ObjectKey, _Bucket] = {}

    def delay(self, key: ObjectKey, now: float) -> float:
        """Seconds until `key` may be written; 0 takes the token, the caller then writes."""
        everyone = self._all.filled(now, ALL_WRITES_PER_SECOND, ALL_WRITES_PER_SECOND)
        rate = 1.0 / SECONDS_PER_WRITE
        own = self._each.get(key, _Bucket(SAVED_WRITES, now)).filled(now, rate, SAVED_WRITES)
        missing = max((1.0 - own.tokens) / rate, (1.0 - everyone.tokens) / ALL_WRITES_PER_SECOND)
        if missing <= 0.0:
            own = _Bucket(own.tokens - 1.0, now)
            everyone = _Bucket(everyone.tokens - 1.0, now)
        self._each[key], self._all = own, everyone
        return max(0.0, missing)

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._each.pop(key, None)
