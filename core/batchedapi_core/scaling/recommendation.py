"""A maxBatchSize and batchInterval that would serve more within the latency target, and the gain.

    learned t(n), the target, what is in effect -> recommend -> BatchingRecommendation

A setting is judged by the capacity with which replicas are counted (`need.replica_capacity`): what
is said of one is what the autoscaler plans with once it is followed. The size is twice the smallest
that serves nearly as much as any, as far as a full batch fits twice into the target: a row may wait
for one and ride in the next. Twice, because batches that are mostly full leave the next burst to
wait for one more: simulated, they serve up to 22 % less. A size is never lowered, since it costs
nothing where batches do not reach it; where full ones outlast the target, SpecAdvice says so.

The interval is the time of that batch, as under the strategy Adaptive: to hold rows back for that
long costs nothing, and longer than is in effect nobody waits. Together they are the rule of thumb:
size = throughput * interval.

p99 is not forecast: a formula for it was off by up to 43 % on 14 of 42 simulated cases. That it is
within the target at the rate that is told is what replicas are counted by, and
tests/unit/core/scaling/test_recommendation.py compares that rate with simulated truth.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT, ms, rate
from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.need import replica_capacity
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.service_model import ONE_ROW, BatchSums, RequestRows, ServiceTime

REACH: Final = 4.0
"""Times the batch that the mean row rode in. Beyond, the line is no knowledge: caches end, and so
does memory. Whoever follows a recommendation has larger batches, and the next reaches further."""
SPREAD: Final = 0.04
"""Squared relative spread of the sizes that ran, a fifth of their mean: of batches that are alike,
the price of a row is noise, and at four times their size it would be four times as wrong."""
PULL: Final = 0.1
"""Share of the fixed cost that `service_model.fit` may hide for want of batches."""
ROOM: Final = 0.95
"""Share of the target that two full batches take at the most: batches are not all alike."""
ENOUGH: Final = 0.95
"""Share of the most that any size serves: more rows would only make everybody wait."""
GAIN: Final = 0.1
"""In rows/s, for which it is worth to roll every replica; half of it keeps what was said."""
ALIKE: Final = 0.1
"""Share by which numbers differ that say the same."""


class NoRecommendation(Enum):
    """Why no setting is recommended; docs/reference/recommendations.md is made of this."""

    AS_GOOD_AS_ANY = (
        "none needed: what is in effect serves as much as any",
        f"No size and no interval serves {100 * GAIN:g} % more.",
    )
    NO_TARGET = (
        "none without a latency target: set maxLatency, or autoscaling.slo.latency",
        "Without a target larger batches always serve more, and everybody waits longer.",
    )
    OFF = (
        "none: batching is off, maxBatchSize in effect is 1",
        "By the manifest, or for want of `@batched`.",
    )
    NO_ROOM = (
        (
            "none: {target} have no room for two batches of one row, {batch} each: one to wait for,"
            " one to ride in"
        ),
        "A row waits for one batch and rides in the next; two of one row are too long already.",
    )
    SEVERAL_METHODS = (
        (
            "none: what batches take is learned of all methods together, and several are batched,"
            " or one has batching of its own"
        ),
        "Several methods are batched, or `predictor.methods` says otherwise for one.",
    )
    ALIKE_OR_FEW = (
        "not known yet: batches of more and of fewer rows must have run, to tell what a row adds",
        "Batches of different sizes have not run lately.",
    )
    TOO_SMALL = (
        "not known yet: batches have too few rows to tell what more than {size} take",
        f"Batches as large as 1/{REACH:g} of `maxBatchSize` have not run lately.",
    )

    def __init__(self, effect: str, meaning: str) -> None:
        self.effect = effect
        """As the status says it, with places for figures."""
        self.meaning = meaning


class Batching(NamedTuple):
    """Size and interval, as a manifest says them."""

    max_batch_size: int  # in its unit: rows, requests or cost
    batch_interval: float  # seconds

    @classmethod
    def in_effect(cls, policy: ScalingPolicy) -> "Batching":
        """On the replicas."""
        return cls(policy.max_size or policy.max_batch_size, policy.batch_interval)

    def alike(self, other: "Batching") -> bool:
        """Whether no number differs by more than a tenth."""
        return all(abs(a - b) <= ALIKE * max(a, b) for a, b in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class BatchingRecommendation:
    """A change of the manifest, or why there is none."""

    effect: str
    """In words; without `batching`, why there is none."""
    batching: Batching | None = None
    known: bool = True
    """False: too little was seen, and what was recommended before stands."""


@dataclass(frozen=True, slots=True)
class _Replica:
    """One of the API, as it would be under any batching."""

    policy: ScalingPolicy
    service: ServiceTime
    requests: RequestRows

    @property
    def rows_each(self) -> float:
        """Rows for one of size, at present."""
        size = self.policy.max_size
        return 1.0 if size is None else self.policy.max_batch_size / size

    def rows(self, size: int) -> int:
        """Rows of a batch of `size`."""
        return min(max(1, round(size * self.rows_each)), MAX_BATCH_SIZE_LIMIT)

    def seconds(self, size: int) -> float:
        """Seconds of a batch of `size`."""
        return self.service.seconds(self.rows(size))

    def serves(self, batching: Batching) -> float:
        """Rows/s within the target; 0: none, as no batch is in time."""
        policy = replace(
            self.policy,
            max_batch_size=self.rows(batching.max_batch_size),
            batch_interval=batching.batch_interval,
        )
        capacity = replica_capacity(policy, self.service, requests=self.requests, slowdown=1.0)
        return capacity.rows_per_second if capacity.feasible else 0.0


def recommend(
    policy: ScalingPolicy,
    learned: LearnedModel,
    *,
    requests: RequestRows = ONE_ROW,
    arrival: float = 0.0,
    most: int = MAX_BATCH_SIZE_LIMIT,
    standing: bool = False,
) -> BatchingRecommendation:
    """The batching to write into the manifest; costs some 300 microseconds.

    Args:
        policy: With the batching that is in effect on the replicas, and its latency target.
        learned: What batches took.
        requests: Rows that arrive at once.
        arrival: Rows/s of the API, for the number of replicas that they would take.
        most: Size above which memory did not hold a batch.
        standing: Something is recommended already, and is not taken back for little.
    """
    target, service = policy.latency_target, learned.service(policy)
    now = Batching.in_effect(policy)
    if target is None:
        return BatchingRecommendation(NoRecommendation.NO_TARGET.effect)
    if service is None or not tells_a_row_s_price(learned.sums, policy.ridge):
        off = now.max_batch_size == 1
        why = NoRecommendation.OFF if off else NoRecommendation.ALIKE_OR_FEW
        return BatchingRecommendation(why.effect, known=off)
    replica = _Replica(policy, service, requests)
    fits = bisect_left(range(1, most + 1), ROOM * target / 2, key=replica.seconds)
    if fits < 1:
        no_room = NoRecommendation.NO_ROOM.effect
        return BatchingRecommendation(
            no_room.format(target=ms(target), batch=ms(replica.seconds(1)))
        )
    best = min(2 * _smallest(replica, fits), fits)
    reach = int(REACH * learned.sums.row_weighted_mean() / replica.rows_each)
    if best > now.max_batch_size >= reach:
        return BatchingRecommendation(
            NoRecommendation.TOO_SMALL.effect.format(size=now.max_batch_size), known=False
        )
    size = max(now.max_batch_size, min(best, reach))
    interval = float(f"{replica.seconds(size):.2g}")  # as one would write it
    found = Batching(size, min(now.batch_interval, interval))
    before, after = replica.serves(now), replica.serves(found)
    if found.alike(now) or after < before * (1.0 + (GAIN / 2 if standing else GAIN)):
        return BatchingRecommendation(NoRecommendation.AS_GOOD_AS_ANY.effect)
    told = (
        f"a replica serves {rate(after)} instead of {rate(before)} within {ms(target)} at"
        f" p{100 * policy.quantile:g}, in full batches of {ms(replica.seconds(size))} instead of"
        f" {ms(replica.seconds(now.max_batch_size))}"
    )
    if policy.kind is PolicyKind.CAPACITY_SLO and before > 0.0:
        few, many = (whole(arrival / (policy.target_utilization * one)) for one in (after, before))
        told += f"; {rate(arrival)} take {few} instead of {many} replicas" * (few < many)
    return BatchingRecommendation(told, found)


def tells_a_row_s_price(sums: BatchSums, ridge: float) -> bool:
    """Whether batches differ enough, and are enough, for t(n) of sizes that did not run."""
    if sums.batches <= 0 or sums.rows <= 0:
        return False
    spread = sums.rows_squared * sums.batches / sums.rows**2 - 1.0
    return spread >= SPREAD and ridge <= PULL * sums.batches * spread


def _smallest(replica: _Replica, largest: int) -> int:
    """A size up to `largest` that serves enough; of those the largest serves the most."""

    def serves(size: int) -> float:
        return replica.serves(Batching(size, 0.0))

    return 1 + bisect_left(range(1, largest), ENOUGH * serves(largest), key=serves)
