"""A user's wishes of the autoscaler, with every default of the algorithm in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.service_model import DEFAULT_RIDGE

# Stabilization is symmetric: down only to the highest recommendation of its window, up only to
# the lowest. A policy limits what happens within one period; where there are several, `select`
# says whether the one that allows most or the one that allows least counts.
#
# Two roundings differ from the HPA's, both towards fewer surprises: a percentage never removes
# more than it says (half of 3 is 1, the HPA removes 2), and always one replica may come or go.

SHORTEST_HOLD: Final = 60.0
"""Seconds: the stabilization that is as long as a start-up is not shorter than this.

Half of it costs 2 % less, and lets a quarter more requests be late where bursts are random.
"""
PROMPT: Final = 1.5
"""Seconds: where requests may take longer, the autoscaler takes as much more time: see `pace`.

Such an API has few requests, each for long: as many come by chance in some seconds and not in the
next as make replicas come and go, and what a burst brings can wait for the next batch.
"""
DEFAULT_TARGET: Final = 0.93
LEVEL_SECONDS: Final = 10.0
"""The present: demand is read from no more than this much of the past, times the pace."""


class StepKind(StrEnum):
    """The unit of a step policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


class Select(StrEnum):
    """The choice among several step policies."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """At most `value` replicas, or percent of those at its begin, within one period."""

    kind: StepKind
    value: int
    period: float  # seconds

    def __str__(self) -> str:
        """As the sentences write it."""
        pods = "pod" if self.value == 1 else "pods"
        unit = "%" if self.kind is StepKind.PERCENT else pods
        return f"{self.value} {unit} in {self.period:g} s"


@dataclass(frozen=True, slots=True)
class Behavior:
    """Scaling in one direction.

    Raises:
        ValueError: A value that no decision could be made with.
    """

    stabilization: float | None  # seconds; None: as long as a replica takes to start
    policies: tuple[StepPolicy, ...]  # none: any step is allowed
    select: Select = Select.MAX
    tolerance: float = 0.0  # share of the replicas by which the need must differ

    def __post_init__(self) -> None:
        possible = all(one.value > 0 and 0 < one.period < math.inf for one in self.policies)
        window = 0.0 if self.stabilization is None else self.stabilization
        if not (0 <= window < math.inf and 0 <= self.tolerance < math.inf and possible):
            raise ValueError(
                "scaling behavior: expected stabilization >= 0, tolerance >= 0 and policies with "
                f"value > 0 and period > 0, got {self}"
            )

    def window(self, start_up: float, pace: float) -> float:
        """Seconds of stabilization, where a replica takes `start_up` seconds to start.

        What goes must be started again if it was needed after all: hence the default.
        """
        if self.stabilization is None:
            return max(SHORTEST_HOLD * pace, start_up)
        return self.stabilization

    @property
    def longest_period(self) -> float:
        """Seconds of history that the policies need."""
        return max((policy.period for policy in self.policies), default=0.0)


def most(behavior: Behavior, starts: Sequence[int], current: int) -> int | None:
    """Replicas that a scale-up may reach; None: as many as it likes.

    Args:
        behavior: Of scale-up.
        starts: For each policy, the replicas at the begin of its period.
        current: Replicas now.
    """
    reached = [
        _reached(policy, start, 1) for policy, start in zip(behavior.policies, starts, strict=True)
    ]
    match behavior.select:
        case Select.DISABLED:
            return current
        case Select.MAX:
            return max(current, *reached) if reached else None
        case Select.MIN:
            return max(current, min(reached)) if reached else None
        case _:
            assert_never(behavior.select)


def fewest(behavior: Behavior, starts: Sequence[int], current: int) -> int:
    """Replicas that a scale-down must leave.

    Args:
        behavior: Of scale-down.
        starts: For each policy, the most replicas within its period.
        current: Replicas now.
    """
    left = [
        _reached(policy, start, -1) for policy, start in zip(behavior.policies, starts, strict=True)
    ]
    match behavior.select:
        case Select.DISABLED:
            return current
        case Select.MAX:
            return min(current, *left) if left else 0
        case Select.MIN:
            return min(current, max(left)) if left else 0
        case _:
            assert_never(behavior.select)


def _reached(policy: StepPolicy, start: int, sign: int) -> int:
    """Replicas that one policy allows from `start`; `sign` is 1 going up and -1 going down."""
    match policy.kind:
        case StepKind.PODS:
            step = policy.value
        case StepKind.PERCENT:
            rounded_up = -(-start * (100 + sign * policy.value) // 100)
            step = max(1, sign * (rounded_up - start))
        case _:
            assert_never(policy.kind)
    return start + sign * step


class PolicyKind(StrEnum):
    """The rule that decides replicas."""

    CAPACITY_SLO = "CapacitySLO"
    CONCURRENCY = "Concurrency"


SECONDS_BETWEEN_LOOKS: Final = 2.0
"""In the operator, and in simulations of it."""
CAPACITY_UP: Final = Behavior(
    stabilization=0.0,
    policies=(
        StepPolicy(StepKind.PERCENT, 900, SECONDS_BETWEEN_LOOKS),
        StepPolicy(StepKind.PODS, 4, SECONDS_BETWEEN_LOOKS),
    ),
    tolerance=0.05,
)
"""At once; what limits it is counted from one look to the next."""
CAPACITY_DOWN: Final = Behavior(
    stabilization=None, policies=(StepPolicy(StepKind.PERCENT, 50, 60.0),)
)
CONCURRENCY_UP: Final = Behavior(
    stabilization=60.0, policies=(StepPolicy(StepKind.PERCENT, 50, 10.0),), tolerance=0.05
)
"""Cortex's max_upscale_factor 1.5, upscale_stabilization_period 1m and upscale_tolerance 0.05."""
CONCURRENCY_DOWN: Final = Behavior(
    stabilization=300.0, policies=(StepPolicy(StepKind.PERCENT, 25, 10.0),), tolerance=0.05
)
"""Cortex's max_downscale_factor 0.75, downscale_stabilization_period 5m, downscale_tolerance."""


def default_behaviors(kind: PolicyKind) -> tuple[Behavior, Behavior]:
    """(up, down) of a policy."""
    match kind:
        case PolicyKind.CAPACITY_SLO:
            return CAPACITY_UP, CAPACITY_DOWN
        case PolicyKind.CONCURRENCY:
            return CONCURRENCY_UP, CONCURRENCY_DOWN
        case _:
            assert_never(kind)


WARM_UP_BATCHES: Final = 20.0
"""Of a new process: they are slower than those to come."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """Targets and limits of one API; durations in seconds, shares in 0..1.

    The defaults were chosen by simulation over three services and six load traces;
    docs/decisions/0003 says what each is for.

    Raises:
        ValueError: A value that no decision could be made with.
    """

    min_replicas: int
    max_replicas: int
    max_batch_size: int  # rows, in effect on the replicas
    batch_interval: float  # in effect on the replicas
    latency_target: float | None = None  # None: plan for full batches
    quantile: float = 0.99  # of the latencies, to be within the target
    target_utilization: float = DEFAULT_TARGET  # of the capacity within the target
    lanes: int = 1  # model instances of a replica, each running one batch at a time
    max_size: int | None = None  # the largest batch in the unit of sizes, by `in_rows`; None: rows

    kind: PolicyKind = PolicyKind.CAPACITY_SLO
    target_concurrency: float = 1.0  # requests in flight of a replica, for kind Concurrency
    paused: bool = False  # nothing moves, whatever is decided
    up: Behavior = CAPACITY_UP  # of the kind in use: `default_behaviors`
    down: Behavior = CAPACITY_DOWN

    window: float = 60.0  # over which batching and a slow trend are measured
    model_half_life: float = 300.0
    ridge: float = DEFAULT_RIDGE  # batches
    warm_up_batches: float = WARM_UP_BATCHES  # of a new process, kept out of the model

    start_up: float = 30.0  # from a pod's creation to its readiness, until measured
    forecast_cap: float = 1.5  # a forecast adds at most this share of the demand
    drain_seconds: float = 5.0  # a backlog is to be gone after this long, times the pace
    hot_utilization: float = 0.95  # of the replica with the most load; above, replicas are added
    imbalance_cap: float = 1.5  # on the need
    imbalance_half_life: float = 60.0

    overload_trigger: float = 1.15  # demand over ready capacity
    hedge: float | None = None  # largest factor on the need then; None: `need.hedge_of` chooses
    gpu: bool = False  # each replica has GPUs of its own
    passing_hold: float = 6.0  # what overload or forecast asked for is given up after this long

    hold_coverage: float = 0.5  # below this share of pods seen nothing moves
    down_coverage: float = 0.8  # below it nothing is removed
    idle_timeout: float = 300.0  # without rows, until there is no replica; min_replicas 0

    def __post_init__(self) -> None:
        target = self.latency_target
        for accepted, expected in (
            (
                0 <= self.min_replicas <= self.max_replicas and self.max_replicas >= 1,
                "0 <= min_replicas <= max_replicas and max_replicas >= 1",
            ),
            (0 < self.idle_timeout < math.inf, "a finite idle_timeout > 0"),
            (
                1 <= self.max_batch_size <= MAX_BATCH_SIZE_LIMIT,
                f"max_batch_size within 1..{MAX_BATCH_SIZE_LIMIT}",
            ),
            (0 <= self.batch_interval < math.inf, "a finite batch_interval >= 0"),
            (target is None or 0 < target < math.inf, "a finite latency_target > 0, or none"),
            (0 < self.quantile < 1, "a quantile between 0 and 1"),
            (0 < self.target_utilization <= 1, "target_utilization within (0, 1]"),
            (self.lanes >= 1, "lanes >= 1"),
            (self.hedge is None or 1 <= self.hedge < math.inf, "a finite hedge >= 1, or none"),
            (self.max_size is None or self.max_size >= 1, "max_size >= 1, or none"),
            (0 < self.target_concurrency < math.inf, "a finite target_concurrency > 0"),
            (self.window > 0, "window > 0"),
            (self.drain_seconds > 0, "drain_seconds > 0"),
            (self.imbalance_half_life > 0, "imbalance_half_life > 0"),
            (self.model_half_life > 0, "model_half_life > 0"),
        ):
            if not accepted:
                raise ValueError(f"scaling policy: expected {expected}, got {self}")

    @property
    def pace(self) -> float:
        """Times that this API may take longer than one of a prompt answer, 1 to 6.

        The window over which demand is read, the hold, and the time for a backlog are longer by it.
        """
        slow = 1.0 if self.latency_target is None else self.latency_target / PROMPT
        return max(1.0, min(slow, self.window / LEVEL_SECONDS))
