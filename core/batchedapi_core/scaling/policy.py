"""What a user asks of the autoscaler, with every default of the algorithm in one place."""

import math
from dataclasses import dataclass

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.service_model.fit import DEFAULT_RIDGE


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
    target_utilization: float = 0.80  # of the capacity within the target
    lanes: int = 1  # model instances of a replica, each running one batch at a time
    max_size: int | None = None  # the largest batch in the unit of sizes, by `in_rows`; None: rows

    window: float = 60.0  # over which demand and batching are averaged
    model_half_life: float = 300.0
    ridge: float = DEFAULT_RIDGE  # batches
    seen_factor: float = 2.0  # batches at most this much larger than seen are counted on
    warm_up_batches: float = 20.0  # of a new process, kept out of the model

    overload_trigger: float = 1.3  # demand over ready capacity
    overload_factor: float = 1.5  # on the need: drains the backlog, covers slow starters
    overload_hold: float = 60.0  # such replicas are given up after this long
    saturation_share: float = 0.9  # of busy time and of full batches
    saturation_ticks: int = 2  # in a row
    saturation_factor: float = 1.5  # on the replicas, when demand may hide upstream

    up_tolerance: float = 0.05
    surge_factor: float = 10.0  # one step up: at most this times the replicas ...
    surge_step: int = 4  # ... or this many more
    down_stabilization: float = 180.0
    down_share: float = 0.5  # of the replicas, removed at most in one period
    down_period: float = 60.0

    hold_coverage: float = 0.5  # below this share of pods seen nothing moves
    down_coverage: float = 0.8  # below it nothing is removed

    def __post_init__(self) -> None:
        target = self.latency_target
        for accepted, expected in (
            (1 <= self.min_replicas <= self.max_replicas, "1 <= min_replicas <= max_replicas"),
            (
                1 <= self.max_batch_size <= MAX_BATCH_SIZE_LIMIT,
                f"max_batch_size within 1..{MAX_BATCH_SIZE_LIMIT}",
            ),
            (0 <= self.batch_interval < math.inf, "a finite batch_interval >= 0"),
            (target is None or 0 < target < math.inf, "a finite latency_target > 0, or none"),
            (0 < self.quantile < 1, "a quantile between 0 and 1"),
            (0 < self.target_utilization <= 1, "target_utilization within (0, 1]"),
            (self.lanes >= 1, "lanes >= 1"),
            (self.max_size is None or self.max_size >= 1, "max_size >= 1, or none"),
            (self.window > 0, "window > 0"),
            (self.model_half_life > 0, "model_half_life > 0"),
        ):
            if not accepted:
                raise ValueError(f"scaling policy: expected {expected}, got {self}")
