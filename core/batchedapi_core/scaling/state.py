"""What the autoscaler remembers between looks, and the part of it that survives a restart.

An operator that restarts needs what took long to learn (service model, start-up times, bursts, how
wrong forecasts are) and what still binds (recommendations, recent counts). How long it was away is
not known, so what binds is kept for all the time that was left when it was saved. Last samples and
demand are seen again within two looks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.bursts import Burst, bursts_later, bursts_restored, bursts_to_saved
from batchedapi_core.scaling.foresight import Foresight
from batchedapi_core.scaling.hedge import NODE_MEMORY
from batchedapi_core.scaling.imbalance import Share
from batchedapi_core.scaling.memory import (
    LONGEST,
    Recommendation,
    Size,
    from_pairs,
    to_pairs,
)
from batchedapi_core.scaling.model import LearnedModel
from batchedapi_core.scaling.numbers import number, short
from batchedapi_core.scaling.samples import LARGEST_COUNT, PodChange, PodSample
from batchedapi_core.scaling.startup import start_ups_restored
from batchedapi_core.scaling.trust import LEAST_TRUST
from batchedapi_core.scaling.window import Interval
from batchedapi_core.service_model.fit import BatchSums

SAVED_VERSION = 2


@dataclass(frozen=True, slots=True)
class ScalingState:
    """An immutable value: every step returns the next one. Times are monotonic seconds.

    Until the first look there is no clock: times of what was restored count from that look.
    """

    model: LearnedModel = LearnedModel()  # noqa: RUF009 - a frozen value, safe to share
    # Of the revision before, until the new one is known as well; None: it is
    former: LearnedModel | None = LearnedModel()  # noqa: RUF009 - a frozen value, safe to share
    samples: tuple[PodSample, ...] = ()  # the last of each pod
    intervals: tuple[Interval, ...] = ()
    started: float | None = None  # since when all is remembered, by this process or one before
    opened: float | None = None  # the first look of this process
    seen: float | None = None  # the last look
    looked: float | None = None  # the last look at which enough pods answered for a demand
    complete: bool = False  # the last look saw every ready pod
    saturated: float = 0.0  # seconds in which every lane was busy and every batch full
    recommendations: tuple[Recommendation, ...] = ()  # that hold a scale-down
    lows: tuple[Recommendation, ...] = ()  # that hold a scale-up
    sizes: tuple[Size, ...] = ()  # replicas asked for
    ready_sizes: tuple[Size, ...] = ()  # of those, ready
    shares: tuple[Share, ...] = ()
    start_ups: tuple[float, ...] = ()  # seconds, as measured
    hedge: Recommendation | None = None  # what was ordered beyond the need; not saved
    node_wait: float | None = None  # the last look at which an ordered pod had no node
    foresight: Foresight = Foresight()  # noqa: RUF009 - a frozen value, safe to share
    bursts: tuple[Burst, ...] = ()  # in order of time
    trust: float = 1.0  # in the capacity, by how long requests wait
    overloaded: float | None = None  # when it last was, or replicas were starting
    watched: float = 0.0  # seconds, by processes before this one

    @property
    def in_use(self) -> LearnedModel:
        """What to plan with."""
        return self.model if self.former is None or not self.former.known else self.former

    def runs(self, pod: PodSample | PodChange) -> bool:
        """Whether a pod is of the revision that is looked at."""
        return pod.revision in ("", self.model.revision)

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
            sizes=_shifted(self.sizes, now),
            ready_sizes=_shifted(self.ready_sizes, now),
            foresight=self.foresight.later(now),
            bursts=bursts_later(self.bursts, now),
            node_wait=None if self.node_wait is None else self.node_wait + now,
        )

    def to_saved(self) -> dict[str, object]:
        """What is worth a place in the status of the API: JSON, 300 bytes to 2 kB."""
        model, sums = self.in_use, self.in_use.sums
        numbers = (sums.batches, sums.rows, sums.rows_squared, sums.seconds, sums.row_seconds)
        now = 0.0 if self.seen is None else self.seen
        watched = self.watched if self.started is None else now - self.started
        return {
            "version": SAVED_VERSION,
            "revision": model.revision,
            "sums": [short(one) for one in numbers],
            "largestMeanBatch": short(model.largest_mean_batch),
            "watched": round(min(watched, LONGEST), 3),
            "high": to_pairs(_left(self.recommendations, now), max),
            "low": to_pairs(_left(self.lows, now), min),
            "sizes": to_pairs(_ages(self.sizes, now), max),
            "readySizes": to_pairs(_ages(self.ready_sizes, now), max),
            "startUps": [round(seconds, 3) for seconds in self.start_ups],
            "bursts": bursts_to_saved(self.bursts, now),
            "trust": short(self.trust),
            "nodeWait": None if self.node_wait is None else round(self.node_wait - now, 3),
            **self.foresight.to_saved(now),
        }

    @classmethod
    def restored(cls, saved: object) -> "ScalingState":
        """The state that `saved` describes; an empty one if it is not what `to_saved` returned.

        A status can be edited by anyone with the right to, and outlives operator versions: what it
        says is checked, and learned anew when in doubt.
        """
        if not isinstance(saved, Mapping) or saved.get("version") != SAVED_VERSION:
            return cls()
        model = _model(saved)
        watched = number(saved.get("watched"), 0.0, LARGEST_COUNT)
        high = from_pairs(saved.get("high"), 0.0, LONGEST)
        low = from_pairs(saved.get("low"), 0.0, LONGEST)
        sizes = from_pairs(saved.get("sizes"), -LONGEST, 0.0)
        ready = from_pairs(saved.get("readySizes"), -LONGEST, 0.0)
        state = _lessons(saved)
        if model is None or watched is None or state is None:
            return cls()
        if high is None or low is None or sizes is None or ready is None:
            return cls()
        return replace(
            state,
            model=model,
            recommendations=tuple(Recommendation(*pair) for pair in high),
            lows=tuple(Recommendation(*pair) for pair in low),
            sizes=tuple(Size(seconds, replicas) for replicas, seconds in sizes),
            ready_sizes=tuple(Size(seconds, replicas) for replicas, seconds in ready),
            watched=min(watched, LONGEST),
        )


def _lessons(saved: Mapping[object, object]) -> ScalingState | None:
    """What was learned beside the service model."""
    start_ups = start_ups_restored(saved.get("startUps"))
    peaks, foresight = bursts_restored(saved.get("bursts")), Foresight.restored(saved)
    trust = number(saved.get("trust"), 0.0, 1.0)
    if start_ups is None or peaks is None or foresight is None or trust is None:
        return None
    return ScalingState(
        start_ups=start_ups,
        bursts=peaks,
        foresight=foresight,
        trust=max(LEAST_TRUST, trust),
        node_wait=number(saved.get("nodeWait"), -NODE_MEMORY, 0.0),
    )


_SUMS = 5


def _left(recommendations: tuple[Recommendation, ...], now: float) -> list[tuple[int, float]]:
    return [(one.replicas, one.expires - now) for one in recommendations]


def _later(recommendations: tuple[Recommendation, ...], now: float) -> tuple[Recommendation, ...]:
    return tuple(Recommendation(one.replicas, one.expires + now) for one in recommendations)


def _ages(sizes: tuple[Size, ...], now: float) -> list[tuple[int, float]]:
    return [(one.replicas, one.time - now) for one in sizes]


def _shifted(sizes: tuple[Size, ...], now: float) -> tuple[Size, ...]:
    return tuple(Size(size.time + now, size.replicas) for size in sizes)


def _model(saved: Mapping[object, object]) -> LearnedModel | None:
    revision, sums = saved.get("revision"), saved.get("sums")
    largest = number(saved.get("largestMeanBatch"), 1.0, MAX_BATCH_SIZE_LIMIT)
    if not isinstance(revision, str) or not isinstance(sums, list) or largest is None:
        return None
    found = (number(one, 0.0, LARGEST_COUNT) for one in sums)
    numbers = [one for one in found if one is not None]
    if len(numbers) != len(sums) or len(sums) != _SUMS:
        return None
    return LearnedModel(revision, BatchSums(*numbers), largest)
