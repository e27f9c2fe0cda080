"""The autoscaler's memory between looks, and the part of it that survives a restart.

An operator that restarts needs what took long to learn (service model, start-up times, bursts, how
wrong forecasts are) and what still binds (recommendations, recent counts). How long it was away is
not known, so what binds is kept for all the time that was left when it was saved. Last samples and
demand are seen again within two looks.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.forecast import (
    Burst,
    Foresight,
    bursts_later,
    bursts_restored,
    bursts_to_saved,
)
from batchedapi_core.scaling.learned import LEAST_TRUST, LearnedModel, start_ups_restored
from batchedapi_core.scaling.load import LoadInterval, Share
from batchedapi_core.scaling.need import NODE_MEMORY
from batchedapi_core.scaling.numbers import MOST_REPLICAS, grouped, number, short, table
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import LARGEST_COUNT, PodChange, PodSample
from batchedapi_core.scaling.schedule import Schedule
from batchedapi_core.service_model import BatchSums

LONGEST = 3600.0
"""Seconds: the longest window or period that a manifest may ask for."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Replicas that were called for, and until when that counts."""

    replicas: int
    expires: float  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """Replicas that there were, and when so many were last there."""

    time: float  # seconds
    replicas: int


def standing_high(
    before: Iterable[Recommendation], made: Iterable[Recommendation]
) -> tuple[Recommendation, ...]:
    """Recommendations that still count for the highest: no other is as high and lasts as long."""
    return _standing((*before, *made), lambda replicas: replicas)


def standing_low(
    before: Iterable[Recommendation], made: Iterable[Recommendation]
) -> tuple[Recommendation, ...]:
    """Recommendations that still count for the lowest: no other is as low and lasts as long."""
    return _standing((*before, *made), lambda replicas: -replicas)


def unexpired(recommendations: Iterable[Recommendation], now: float) -> tuple[Recommendation, ...]:
    """Recommendations that count at `now` (seconds)."""
    return tuple(one for one in recommendations if one.expires > now)


def sizes_of(before: Sequence[Size], current: int, now: float, longest: float) -> tuple[Size, ...]:
    """Counts of the last `longest` seconds in order, each with when it was last there."""
    kept = [size for size in before if now - size.time < longest]
    if kept and kept[-1].replicas == current:
        kept.pop()
    return (*kept, Size(now, current))


def at_begin(sizes: Sequence[Size], now: float, period: float) -> int:
    """Replicas when the period of `period` seconds began; `sizes` end with those of now."""
    return next((one.replicas for one in sizes if now - one.time < period), sizes[-1].replicas)


def most_within(sizes: Sequence[Size], now: float, period: float) -> int:
    """Most replicas within the period of `period` seconds."""
    return max(
        (one.replicas for one in sizes if now - one.time < period), default=sizes[-1].replicas
    )


def _standing(
    recommendations: Iterable[Recommendation], rank: Callable[[int], int]
) -> tuple[Recommendation, ...]:
    kept: list[Recommendation] = []
    best = -math.inf
    for one in sorted(recommendations, key=lambda it: (-it.expires, -rank(it.replicas))):
        if rank(one.replicas) > best:
            kept.append(one)
            best = rank(one.replicas)
    return tuple(kept)


def to_pairs(
    entries: Iterable[tuple[int, float]], merged: Callable[[Iterable[int]], int]
) -> list[list[float]]:
    """At most MOST_SAVED pairs (replicas, seconds), in the order given.

    Args:
        entries: Replicas, and seconds that are left or (negative) have passed.
        merged: Which of neighbours counts; of their seconds it is the longest left.
    """
    return [
        [merged(count for count, _ in group), round(max(left for _, left in group), 3)]
        for group in grouped(list(entries))
    ]


def from_pairs(saved: object, least: float, most: float) -> list[tuple[int, float]] | None:
    """The pairs that `to_pairs` returned, or None if `saved` is not that.

    Args:
        saved: From a status that anybody may have edited.
        least: Seconds, and `most`: what an entry may have.
        most: See `least`.
    """
    pairs = table(saved, (0, MOST_REPLICAS), (least, most))
    return None if pairs is None else [(int(replicas), seconds) for replicas, seconds in pairs]


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
    intervals: tuple[LoadInterval, ...] = ()
    started: float | None = None  # since when all is remembered, by this process or one before
    opened: float | None = None  # the first look of this process
    seen: float | None = None  # the last look
    looked: float | None = None  # the last look at which enough pods answered for a demand
    complete: bool = False  # the last look saw every ready pod
    recommendations: tuple[Recommendation, ...] = ()  # that hold a scale-down
    lows: tuple[Recommendation, ...] = ()  # that hold a scale-up
    sizes: tuple[Size, ...] = ()  # replicas asked for
    ready_sizes: tuple[Size, ...] = ()  # of those, ready
    shares: tuple[Share, ...] = ()
    start_ups: tuple[float, ...] = ()  # seconds, as measured
    placements: tuple[float, ...] = ()  # seconds that those waited for a node
    hedge: Recommendation | None = None  # what was ordered beyond the need; not saved
    node_wait: float | None = None  # the last look at which an ordered pod had no node
    foresight: Foresight = Foresight()  # noqa: RUF009 - a frozen value, safe to share
    bursts: tuple[Burst, ...] = ()  # in order of time
    schedule: Schedule = Schedule()  # noqa: RUF009 - a frozen value, safe to share
    trust: float = 1.0  # in the capacity, by how long requests wait
    overloaded: float | None = None  # when it last was, or replicas were starting
    watched: float = 0.0  # seconds, by processes before this one
    front: tuple[PodSample, ...] = ()  # the last of each web pod
    row_seen: float | None = None  # the last look at which there may have been rows

    @property
    def in_use(self) -> LearnedModel:
        """The model to plan with."""
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
        """The part that is kept in the status of the API: JSON, 300 bytes to 2 kB.

        As many jumps as are remembered of a schedule take 4 kB more.
        """
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
            "placements": [round(seconds, 3) for seconds in self.placements],
            "bursts": bursts_to_saved(self.bursts, now),
            "trust": short(self.trust),
            "nodeWait": None if self.node_wait is None else round(self.node_wait - now, 3),
            **self.foresight.to_saved(now),
            **self.schedule.to_saved(),
        }

    @classmethod
    def restored(cls, saved: object) -> "ScalingState":
        """The state that `saved` describes; an empty one if it is not what `to_saved` returned.

        A status can be edited by anyone with the right to, and outlives operator versions: what it
        says is checked, and learned anew when in doubt.
        """
        if not isinstance(saved, Mapping):
            return cls()
        # of each version alike: ten days are not to be lost by an upgrade
        afresh = cls(schedule=Schedule.restored(saved))
        if saved.get("version") != SAVED_VERSION:
            return afresh
        model = _model(saved)
        watched = number(saved.get("watched"), 0.0, LARGEST_COUNT)
        high = from_pairs(saved.get("high"), 0.0, LONGEST)
        low = from_pairs(saved.get("low"), 0.0, LONGEST)
        sizes = from_pairs(saved.get("sizes"), -LONGEST, 0.0)
        ready = from_pairs(saved.get("readySizes"), -LONGEST, 0.0)
        state = _lessons(saved)
        if model is None or watched is None or state is None:
            return afresh
        if high is None or low is None or sizes is None or ready is None:
            return afresh
        return replace(
            state,
            schedule=afresh.schedule,
            model=model,
            recommendations=tuple(Recommendation(*pair) for pair in high),
            lows=tuple(Recommendation(*pair) for pair in low),
            sizes=tuple(Size(seconds, replicas) for replicas, seconds in sizes),
            ready_sizes=tuple(Size(seconds, replicas) for replicas, seconds in ready),
            watched=min(watched, LONGEST),
        )


def _lessons(saved: Mapping[object, object]) -> ScalingState | None:
    """Lessons beside the service model."""
    start_ups = start_ups_restored(saved.get("startUps"))
    placements = start_ups_restored(saved.get("placements", []))
    peaks, foresight = bursts_restored(saved.get("bursts")), Foresight.restored(saved)
    trust = number(saved.get("trust"), 0.0, 1.0)
    if start_ups is None or placements is None:
        return None
    if peaks is None or foresight is None or trust is None:
        return None
    return ScalingState(
        start_ups=start_ups,
        placements=placements,
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


# A new revision is learned from its own pods alone. Until enough is known of it, which is never
# if the rollout is stuck, replicas are planned with what the pods of the old one taught and still
# teach.


def of_revision(state: ScalingState, revision: str) -> ScalingState:
    """Another image, model or batching has another service time; a rollback has the one before."""
    if state.model.revision == revision:
        return state
    found = (state.in_use, state.model, state.former)
    known = [one for one in found if one is not None and one.known]
    model = next((one for one in known if one.revision == revision), LearnedModel(revision))
    former = next((one for one in known if one.revision != revision), LearnedModel())
    return _anew(state, replace(state, model=model, former=former))


def taught(
    policy: ScalingPolicy,
    state: ScalingState,
    changes: Sequence[PodChange],
    now: float,
    *,
    over: bool,
) -> ScalingState:
    """Both models after a look.

    Args:
        policy: Says how fast a model forgets.
        state: Of the revision that is rolled out.
        changes: Of the pods that answered.
        now: Monotonic seconds.
        over: No pod of another revision is left.
    """
    model = state.model.learned(policy, _teachers(state, changes, state.model), now)
    former = state.former
    if former is not None:
        former = former.learned(policy, _teachers(state, changes, former), now)
        # The first of the new pods get little load. A line through small batches says nothing of
        # large ones, and would call for many times the replicas: so they are to be half as large
        # as those of the old revision, if those still fit.
        half = min(former.largest_mean_batch, float(policy.max_batch_size)) / 2
        comparable = not former.known or model.largest_mean_batch >= half
        if over or (model.known and comparable):
            former = None
    return _anew(state, replace(state, model=model, former=former))


def teaches(state: ScalingState, pod: PodChange, model: LearnedModel) -> bool:
    """Whether a pod's batches are those of one of the two models; of a third revision, of none."""
    if model is state.model:
        return state.runs(pod)
    return not state.runs(pod) and model.revision in ("", pod.revision)


def of_model(intervals: Iterable[LoadInterval], model: LearnedModel) -> list[LoadInterval]:
    """Changes of the pods whose batches can be compared with it."""
    return [one for one in intervals if one.revision == model.revision]


def _teachers(
    state: ScalingState, changes: Iterable[PodChange], model: LearnedModel
) -> list[PodChange]:
    return [one for one in changes if teaches(state, one, model)]


def _anew(before: ScalingState, after: ScalingState) -> ScalingState:
    """Trust and shares are about the service time that is planned with; another begins anew."""
    if after.in_use.revision == before.in_use.revision:
        return after
    return replace(after, shares=(), trust=1.0)
