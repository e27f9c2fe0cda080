"""What the autoscaler remembers between looks, and the part of it that survives a restart.

An operator that restarts needs what took long to learn (service model, start-up time) and what
still binds (recommendations, recent counts). How long it was away is not known, so what binds is
kept for all the time that was left when it was saved. Last samples and demand are seen again
within two looks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.imbalance import Share
from batchedapi_core.scaling.memory import (
    LONGEST,
    Recommendation,
    Size,
    from_pairs,
    to_pairs,
)
from batchedapi_core.scaling.model import LearnedModel
from batchedapi_core.scaling.samples import LARGEST_COUNT, PodSample
from batchedapi_core.scaling.window import Interval
from batchedapi_core.service_model.fit import BatchSums

SAVED_VERSION = 2


@dataclass(frozen=True, slots=True)
class ScalingState:
    """An immutable value: every step returns the next one. Times are monotonic seconds.

    Until the first look there is no clock: times of what was restored count from that look.
    """

    revision: str = ""
    model: LearnedModel = LearnedModel()  # noqa: RUF009 - a frozen value, safe to share
    samples: tuple[PodSample, ...] = ()  # the last of each pod
    intervals: tuple[Interval, ...] = ()
    started: float | None = None  # since when all is remembered, by this process or one before
    opened: float | None = None  # the first look of this process
    seen: float | None = None  # the last look
    looked: float | None = None  # the last look at which enough pods answered for a demand
    complete: bool = False  # the last look saw every ready pod
    saturated_ticks: int = 0  # in a row
    recommendations: tuple[Recommendation, ...] = ()  # that hold a scale-down
    lows: tuple[Recommendation, ...] = ()  # that hold a scale-up
    sizes: tuple[Size, ...] = ()
    shares: tuple[Share, ...] = ()
    start_up: float | None = None  # seconds, as measured
    watched: float = 0.0  # seconds, by processes before this one

    @classmethod
    def empty(cls) -> "ScalingState":
        """Nothing seen, nothing learned."""
        return cls()

    def at(self, now: float) -> "ScalingState":
        """The state on the clock of a look at `now`."""
        if self.opened is not None:
            return replace(self, seen=now)
        return replace(
            self,
            started=now - self.watched,
            opened=now,
            seen=now,
            recommendations=_later(self.recommendations, now),
            lows=_later(self.lows, now),
            sizes=tuple(Size(size.time + now, size.replicas) for size in self.sizes),
        )

    def to_saved(self) -> dict[str, object]:
        """What is worth a place in the status of the API: JSON, 200 bytes to 1 kB."""
        sums = self.model.sums
        numbers = (sums.batches, sums.rows, sums.rows_squared, sums.seconds, sums.row_seconds)
        now = 0.0 if self.seen is None else self.seen
        watched = self.watched if self.started is None else now - self.started
        saved: dict[str, object] = {
            "version": SAVED_VERSION,
            "revision": self.revision,
            "sums": [_short(number) for number in numbers],
            "largestMeanBatch": _short(self.model.largest_mean_batch),
            "watched": round(min(watched, LONGEST), 3),
            "high": to_pairs(_left(self.recommendations, now), max),
            "low": to_pairs(_left(self.lows, now), min),
            "sizes": to_pairs(((one.replicas, one.time - now) for one in self.sizes), max),
        }
        return saved if self.start_up is None else {**saved, "startUp": _short(self.start_up)}

    @classmethod
    def restored(cls, saved: object) -> "ScalingState":
        """The state that `saved` describes; an empty one if it is not what `to_saved` returned.

        A status can be edited by anyone with the right to, and outlives operator versions: what it
        says is checked, and learned anew when in doubt.
        """
        if not isinstance(saved, Mapping) or saved.get("version") != SAVED_VERSION:
            return cls()
        revision, model = saved.get("revision"), _model(saved)
        watched, start_up = _number(saved.get("watched")), _number(saved.get("startUp", 0.0))
        high = from_pairs(saved.get("high"), 0.0, LONGEST)
        low = from_pairs(saved.get("low"), 0.0, LONGEST)
        sizes = from_pairs(saved.get("sizes"), -LONGEST, 0.0)
        if not isinstance(revision, str) or model is None or watched is None or start_up is None:
            return cls()
        if high is None or low is None or sizes is None:
            return cls()
        return cls(
            revision=revision,
            model=model,
            recommendations=tuple(Recommendation(*pair) for pair in high),
            lows=tuple(Recommendation(*pair) for pair in low),
            sizes=tuple(Size(seconds, replicas) for replicas, seconds in sizes),
            start_up=start_up if "startUp" in saved else None,
            watched=min(watched, LONGEST),
        )


_SUMS = 5


def _left(recommendations: tuple[Recommendation, ...], now: float) -> list[tuple[int, float]]:
    return [(one.replicas, one.expires - now) for one in recommendations]


def _later(recommendations: tuple[Recommendation, ...], now: float) -> tuple[Recommendation, ...]:
    return tuple(Recommendation(one.replicas, one.expires + now) for one in recommendations)


def _model(saved: Mapping[object, object]) -> LearnedModel | None:
    sums, largest = saved.get("sums"), _number(saved.get("largestMeanBatch"))
    if not isinstance(sums, list) or largest is None or not 1.0 <= largest <= MAX_BATCH_SIZE_LIMIT:
        return None
    numbers = [number for number in map(_number, sums) if number is not None]
    if len(numbers) != len(sums) or len(sums) != _SUMS:
        return None
    return LearnedModel(BatchSums(*numbers), largest)


def _short(number: float) -> float:
    """Ten digits: the fit subtracts products of these, six would show."""
    return float(f"{number:.10g}")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= LARGEST_COUNT and not math.isnan(value) else None
