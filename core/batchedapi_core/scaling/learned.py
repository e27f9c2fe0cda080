"""Lessons about replicas: service time, start-up, and how far both are believed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchedapi_core.scaling.load import LoadInterval
from batchedapi_core.scaling.numbers import MOST_SAVED, number, quantile
from batchedapi_core.scaling.policy import LEVEL_SECONDS, ScalingPolicy
from batchedapi_core.scaling.samples import PodChange, PodSample
from batchedapi_core.service_model import BatchSums, ServiceTime, fit

SHARE = 0.1
"""What one replica's newest word counts: it is learned of few batches."""


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Service time of one revision, learned while it serves."""

    revision: str = ""
    sums: BatchSums = BatchSums()  # noqa: RUF009 - a frozen value without fields to share
    largest_mean_batch: float = 1.0  # rows: the largest row-weighted mean of any interval
    updated: float | None = None  # seconds; None: not yet by this process
    fixed: float | None = None
    """Seconds of a batch by the replicas' t(n, L); None: rows have no lengths, or not yet."""

    def learned(
        self, policy: ScalingPolicy, changes: Iterable[PodChange], now: float
    ) -> "LearnedModel":
        """Forget a little, add what warm pods did."""
        sums = self.sums
        largest = self.largest_mean_batch
        fixed = self.fixed
        if self.updated is not None:
            sums = sums.scaled(0.5 ** (max(0.0, now - self.updated) / policy.model_half_life))
        for change in changes:
            if change.tells_service_time:
                sums = sums.plus(change.sums)
                mean = min(change.sums.row_weighted_mean(), float(policy.max_batch_size))
                largest = max(largest, mean)
                if change.fixed is not None:
                    fixed = (
                        change.fixed if fixed is None else fixed + SHARE * (change.fixed - fixed)
                    )
        return LearnedModel(self.revision, sums, largest, now, fixed)

    @property
    def known(self) -> bool:
        """Whether enough was seen for a service time."""
        return fit(self.sums) is not None

    def service(self, policy: ScalingPolicy) -> ServiceTime | None:
        """t(n), or None while too little was seen."""
        return fit(self.sums, policy.ridge, self.fixed)


START_UP_QUANTILE = 0.9
"""The mean would be too short: being late costs more than early, and slow ones are cancelled."""
LONGEST_START = 3600.0
"""Seconds. Longer was no start but a wait for an image or a volume; it counts as this."""
LONGEST_PLACEMENT = 300.0
"""Seconds in which a node that is bought is there. Who waits longer waits for others to go, which
takes no time that could be learned, and no earlier order makes it shorter."""

UNLEARNED = 120.0
"""Seconds after which a start is late where none was measured: few models load for longer, and a
hedge that is given up too early only waits as everybody does."""


def start_ups_of(
    known: tuple[float, ...], before: Iterable[PodSample], samples: Sequence[PodSample]
) -> tuple[float, ...]:
    """Seconds of the last MOST_SAVED that were measured, pods that were not seen before among them.

    Few enough that a change of the image or of the nodes shows.
    """
    new = _new(before, samples)
    measured = (min(one.startup, LONGEST_START) for one in new if one.startup is not None)
    return (*known, *measured)[-MOST_SAVED:]


def placements_of(
    known: tuple[float, ...], before: Iterable[PodSample], samples: Sequence[PodSample]
) -> tuple[float, ...]:
    """The same of the waits for a place, but for those of a full cluster."""
    waits = (one.placement for one in _new(before, samples))
    measured = (one for one in waits if one is not None and one <= LONGEST_PLACEMENT)
    return (*known, *measured)[-MOST_SAVED:]


def _new(before: Iterable[PodSample], samples: Iterable[PodSample]) -> list[PodSample]:
    seen = {sample.pod for sample in before}
    return [sample for sample in samples if sample.pod not in seen]


def start_up_of(start_ups: Sequence[float], unknown: float) -> float:
    """Seconds to plan with; `unknown` while none was measured."""
    return quantile(start_ups, START_UP_QUANTILE) if start_ups else unknown


def late_after(start_ups: Sequence[float]) -> float:
    """Seconds after which a start takes longer than those that were measured."""
    return start_up_of(start_ups, UNLEARNED)


def start_ups_restored(saved: object) -> tuple[float, ...] | None:
    """Start-ups from a status that anybody may have edited; None if it is not that."""
    if not isinstance(saved, list) or len(saved) > MOST_SAVED:
        return None
    known = [seconds for one in saved if (seconds := number(one, 0.0, LONGEST_START)) is not None]
    return tuple(known) if len(known) == len(saved) else None


# A model of service times can be wrong in two ways, which show in two places. Batches take longer
# than the line says, because inputs got longer or it bends: that shows in their measured time at
# once, while the model forgets in minutes. Or capacity is less than rows over seconds would have
# it, because of what the model does not know of: then requests wait longer than they should
# although there is no overload.
#
# The simulated load `drift` shows the first: without slowdown 2.3 % instead of 0.7 % of the
# requests of `cpu` are late, at 3 % less cost. `bent` shows the second: without trust 20 % instead
# of 16 % of those of `cpu`, at 3 % more.

RATIO_SECONDS = 30.0
"""Batches of this long are compared with the model."""
FEWEST_BATCHES = 20.0
SLOWEST = 2.0
"""Times longer than modelled: more is a fault, which more replicas would not mend."""
CALM_SECONDS = 20.0
"""Since the last overload: before, requests wait because of that."""
SLACK = 1.2
"""The mean latency may be this much above what is expected before anything is concluded."""
LEAST_TRUST = 0.6
FALL, RISE = 0.95, 1.01
"""Shares of the trust in LEVEL_SECONDS: lost quickly, regained slowly."""


def slowdown(intervals: Sequence[LoadInterval], service: ServiceTime | None) -> float:
    """Measured over modelled seconds of batches, 1 to SLOWEST; faster is left to the model."""
    sums = BatchSums()
    for one in intervals:
        sums = sums.plus(one.warm)
    if service is None or sums.batches < FEWEST_BATCHES:
        return 1.0
    modelled = sums.modelled(service)
    return min(SLOWEST, max(1.0, sums.seconds / modelled)) if modelled > 0.0 else 1.0


def expected_latency(
    service: ServiceTime,
    rows: int,
    *,
    batch_interval: float,
    latency_target: float,
    quantile: float,
) -> float:
    """Mean seconds from arrival to answer in a replica that is just at its capacity.

    A batch of its own, half of one waited for, and the mean of an exponential tail of queueing
    whose quantile, -ln(1 - quantile) means, is what the target leaves.

    Args:
        service: Seconds of a batch.
        rows: Of the batch at which the capacity is reached.
        batch_interval: Seconds.
        latency_target: Seconds.
        quantile: Of the latencies, to be within the target.
    """
    seconds = service.seconds(rows)
    wait = max(batch_interval, seconds)
    tail = -math.log(1.0 - quantile)
    return seconds + wait / 2 + max(0.0, latency_target - wait - seconds) / tail


def trusted(before: float, *, latency: float, expected: float, seconds: float) -> float:
    """Share of the modelled capacity to believe in, LEAST_TRUST to 1.

    Args:
        before: At the last look.
        latency: Mean seconds from arrival to answer since then, without an overload.
        expected: The same of a replica just at its capacity.
        seconds: Since the last look.
    """
    if latency > SLACK * expected:
        return max(LEAST_TRUST, before * math.pow(FALL, seconds / LEVEL_SECONDS))
    if latency < expected:
        return min(1.0, before * math.pow(RISE, seconds / LEVEL_SECONDS))
    return before
