"""What one replica sustains within the latency target, as far as its batches were seen."""

import math

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model.capacity import Capacity, lane_capacity
from batchedapi_core.service_model.line import ServiceTime


def trusted_batch(policy: ScalingPolicy, largest_mean_batch: float) -> int:
    """Rows of the largest batch to plan with: t(n) is a line only as far as it was seen."""
    return min(policy.max_batch_size, max(1, math.ceil(policy.seen_factor * largest_mean_batch)))


def replica_capacity(
    policy: ScalingPolicy,
    service: ServiceTime | None,
    *,
    largest_batch: int,
    rows_per_request: float,
    slowdown: float,
) -> Capacity:
    """Rows/s of all lanes of a replica together; 0 without a service time.

    Args:
        policy: Target, batching and lanes.
        service: As learned.
        largest_batch: Rows, by `trusted_batch`.
        rows_per_request: Rows that arrive at once.
        slowdown: Times longer than learned that batches take at present.
    """
    if service is None:
        return Capacity(0.0, 0, feasible=True)
    lane = lane_capacity(
        service,
        largest_batch=largest_batch,
        full_batch=policy.max_batch_size,
        batch_interval=policy.batch_interval,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
        rows_per_request=rows_per_request,
    )
    rate = lane.rows_per_second * policy.lanes / slowdown
    return Capacity(rate, lane.batch_size, feasible=lane.feasible)


def latency_of(policy: ScalingPolicy, service: ServiceTime, largest_batch: int) -> float:
    """The latency target in seconds; without one, a full batch waited for and one of its own."""
    target = policy.latency_target
    return 2.0 * service.seconds(largest_batch) if target is None else target
