"""How many replicas the demand calls for, before any limit.

    need = base / (target * capacity),     raw = ceil(need)

Further terms add to the demand or multiply the need; each is a field of `Terms`.
"""

import math
from dataclasses import dataclass

from batchedapi_core.scaling.decision import Evidence, Reason
from batchedapi_core.scaling.demand import base_demand
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model.capacity import Capacity, lane_capacity

ROUNDING = 1e-9
"""A need of 3 that arithmetic turned into 3.0000000001 is 3."""
MOST_REPLICAS = 1e9
"""Any need above is the same to the limits, and fits the integers of the Kubernetes API."""


@dataclass(frozen=True, slots=True)
class Need:
    """The formula with its numbers filled in; see `Terms` for their units."""

    base: float
    largest_batch: int
    capacity: float
    capacity_batch: int
    feasible: bool
    boost: float
    need: float
    raw: int
    steady: int  # replicas, without boost
    reason: Reason


def needed(policy: ScalingPolicy, evidence: Evidence) -> Need:
    """Fill in the formula; evidence without a demand counts as none, so hold before asking."""
    base = _base(evidence)
    largest_batch = trusted_batch(policy, evidence.largest_mean_batch)
    lane = _lane(policy, evidence, largest_batch)
    capacity = lane.rows_per_second * policy.lanes
    plain = base / (policy.target_utilization * capacity) if capacity > 0 else 0.0
    boost = _boost(policy, evidence, base, capacity)
    steady = whole(plain)
    raw = whole(plain * boost)
    reason = Reason.OVERLOAD if raw > steady else Reason.DEMAND
    grown = _saturated_raw(policy, evidence)
    if grown > raw:
        raw, reason = grown, Reason.SATURATED
    return Need(
        base=base,
        largest_batch=largest_batch,
        capacity=capacity,
        capacity_batch=lane.batch_size,
        feasible=lane.feasible,
        boost=boost,
        need=plain * boost,
        raw=raw,
        steady=steady,
        reason=reason,
    )


def idle(evidence: Evidence) -> bool:
    """Nothing arrives and nothing waits: no model is needed to serve that."""
    return _base(evidence) <= 0.0 and evidence.queue_rows <= 0.0


def trusted_batch(policy: ScalingPolicy, largest_mean_batch: float) -> int:
    """Rows of the largest batch to plan with: t(n) is a line only as far as it was seen."""
    return min(policy.max_batch_size, max(1, math.ceil(policy.seen_factor * largest_mean_batch)))


def whole(need: float) -> int:
    """Replicas for a fractional need; one is kept for the request to come."""
    return max(1, math.ceil(min(need, MOST_REPLICAS) - ROUNDING))


def _base(evidence: Evidence) -> float:
    now, window, interval = evidence.arrival_now, evidence.arrival_window, evidence.interval
    if now is None or window is None or interval is None:
        return 0.0
    return base_demand(now, window, interval)


def _lane(policy: ScalingPolicy, evidence: Evidence, largest_batch: int) -> Capacity:
    if evidence.service is None:
        return Capacity(0.0, 0, feasible=True)
    return lane_capacity(
        evidence.service,
        largest_batch=largest_batch,
        batch_interval=policy.batch_interval,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
    )


def _boost(policy: ScalingPolicy, evidence: Evidence, base: float, capacity: float) -> float:
    """Demand far above what is ready: start more at once, they start slowly and a queue waits."""
    overloaded = base > policy.overload_trigger * capacity * evidence.ready
    return policy.overload_factor if overloaded and capacity > 0 else 1.0


def _saturated_raw(policy: ScalingPolicy, evidence: Evidence) -> int:
    """Every lane busy and every batch full while no pod is starting: demand may hide upstream."""
    saturated = evidence.saturated_ticks >= policy.saturation_ticks
    if not saturated or evidence.ready < evidence.current:
        return 0
    return math.ceil(policy.saturation_factor * evidence.current)
