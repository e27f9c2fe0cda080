"""What the autoscaler remembers between looks, and the few numbers of it worth keeping for good.

An operator that restarts needs to keep what took long to learn: the service model. Everything else
(last samples, demand, recommendations) is relearned within one window, and until then nothing is
removed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.model import LearnedModel
from batchedapi_core.scaling.samples import LARGEST_COUNT, PodSample
from batchedapi_core.scaling.window import Interval
from batchedapi_core.service_model.fit import BatchSums

SAVED_VERSION = 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Replicas that were called for, and until when that keeps them."""

    replicas: int
    expires: float  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """Replicas that there were."""

    time: float  # seconds
    replicas: int


@dataclass(frozen=True, slots=True)
class ScalingState:
    """An immutable value: every step returns the next one. Times are monotonic seconds."""

    revision: str = ""
    model: LearnedModel = LearnedModel()  # noqa: RUF009 - a frozen value, safe to share
    samples: tuple[PodSample, ...] = ()  # the last of each pod
    intervals: tuple[Interval, ...] = ()
    started: float | None = None  # the first look of this process
    looked: float | None = None  # the last look at which enough pods answered for a demand
    complete: bool = False  # the last look saw every ready pod
    saturated_ticks: int = 0  # in a row
    recommendations: tuple[Recommendation, ...] = ()
    sizes: tuple[Size, ...] = ()

    @classmethod
    def empty(cls) -> "ScalingState":
        """Nothing seen, nothing learned."""
        return cls()

    def to_saved(self) -> dict[str, object]:
        """The numbers that are worth a place in the status of the API: JSON, about 150 bytes."""
        sums = self.model.sums
        numbers = (sums.batches, sums.rows, sums.rows_squared, sums.seconds, sums.row_seconds)
        return {
            "version": SAVED_VERSION,
            "revision": self.revision,
            "sums": [_short(number) for number in numbers],
            "largestMeanBatch": _short(self.model.largest_mean_batch),
        }

    @classmethod
    def restored(cls, saved: object) -> "ScalingState":
        """The state that `saved` describes; an empty one if it is not what `to_saved` returned.

        A status can be edited by anyone with the right to, and outlives operator versions: what it
        says is checked, and learned anew when in doubt.
        """
        if not isinstance(saved, Mapping) or saved.get("version") != SAVED_VERSION:
            return cls()
        revision, sums = saved.get("revision"), saved.get("sums")
        largest = _number(saved.get("largestMeanBatch"))
        if not isinstance(revision, str) or not isinstance(sums, list) or largest is None:
            return cls()
        numbers = [number for number in map(_number, sums) if number is not None]
        if len(numbers) != len(sums) or len(sums) != _SUMS:
            return cls()
        if not 1.0 <= largest <= MAX_BATCH_SIZE_LIMIT:
            return cls()
        return cls(revision=revision, model=LearnedModel(BatchSums(*numbers), largest))


_SUMS = 5


def _short(number: float) -> float:
    """Ten digits: the fit subtracts products of these, six would show."""
    return float(f"{number:.10g}")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= LARGEST_COUNT and not math.isnan(value) else None
