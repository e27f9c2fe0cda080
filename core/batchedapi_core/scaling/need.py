"""How many replicas are called for, before any limit.

    need = (base + forecast + backlog) * imbalance * boost / (target * capacity)
    raw = ceil(need)

Each factor is a field of `Terms`; `concurrency` has the formula of the other policy.
"""

import math
from dataclasses import dataclass
from typing import assert_never

from batchedapi_core.scaling.concurrency import concurrency_need
from batchedapi_core.scaling.decision import Evidence, Reason
from batchedapi_core.scaling.demand import base_demand
from batchedapi_core.scaling.forecast import forecast
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.service_model.capacity import Capacity, lane_capacity

ROUNDING = 1e-9
"""A need of 3 that arithmetic turned into 3.0000000001 is 3."""
MOST_REPLICAS = 1e9
"""Any need above is the same to the limits, and fits the integers of the Kubernetes API."""


@dataclass(frozen=True, slots=True)
class Need:
    """The formula with its numbers filled in; see `Terms` for their units."""

    base: float
    forecast: float
    backlog: float
    largest_batch: int
    capacity: float
    capacity_batch: int
    feasible: bool
    target: float
    boost: float
    need: float
    raw: int
    steady: int  # replicas, without boost and forecast
    reason: Reason


def needed(policy: ScalingPolicy, evidence: Evidence) -> Need:
    """Fill in the formula; evidence without a demand counts as none, so hold before asking."""
    largest_batch = trusted_batch(policy, evidence.largest_mean_batch)
    lane = _lane(policy, evidence, largest_batch)
    match policy.kind:
        case PolicyKind.CAPACITY_SLO:
            return _capacity_need(policy, evidence, lane, largest_batch)
        case PolicyKind.CONCURRENCY:
            need = concurrency_need(policy, evidence)
            return Need(
                base=_base(evidence),
                forecast=0.0,
                backlog=0.0,
                largest_batch=largest_batch,
                capacity=lane.rows_per_second * policy.lanes,
                capacity_batch=lane.batch_size,
                feasible=True,
                target=policy.target_concurrency,
                boost=1.0,
                need=need,
                raw=whole(need),
                steady=whole(need),
                reason=Reason.DEMAND,
            )
        case _:
            assert_never(policy.kind)


def _capacity_need(
    policy: ScalingPolicy, evidence: Evidence, lane: Capacity, largest_batch: int
) -> Need:
    base, capacity = _base(evidence), lane.rows_per_second * policy.lanes
    backlog = _backlog(policy, evidence, capacity, largest_batch)
    one = policy.target_utilization * capacity / evidence.imbalance
    lead = evidence.start_up + (evidence.interval or 0.0)
    expected = forecast(evidence.trend, base=base, lead=lead, cap=policy.forecast_cap)
    steady = (base + backlog) / one if one > 0 else 0.0
    need = (base + backlog + expected) / one if one > 0 else 0.0
    boost = 1.0
    if steady * policy.overload_factor > need and _overloaded(policy, evidence, base, capacity):
        expected, boost = 0.0, policy.overload_factor
        need = steady * boost
    raw = whole(need)
    reason = _reason(raw, steady, boost, base / one if one > 0 else 0.0, evidence.imbalance)
    grown = _saturated_raw(policy, evidence)
    if grown > raw:
        raw, reason = grown, Reason.SATURATED
    return Need(
        base=base,
        forecast=expected,
        backlog=backlog,
        largest_batch=largest_batch,
        capacity=capacity,
        capacity_batch=lane.batch_size,
        feasible=lane.feasible,
        target=policy.target_utilization,
        boost=boost,
        need=need,
        raw=raw,
        steady=whole(steady),
        reason=reason,
    )


def _reason(raw: int, steady: float, boost: float, plain: float, imbalance: float) -> Reason:
    """The last term without which it would be fewer replicas."""
    if raw > whole(steady):
        return Reason.OVERLOAD if boost > 1.0 else Reason.TREND
    if raw > whole(plain):
        return Reason.BACKLOG
    return Reason.HOT_REPLICA if raw > whole(plain / imbalance) else Reason.DEMAND


def idle(evidence: Evidence) -> bool:
    """Nothing arrives and nothing waits: no model is needed to serve that."""
    return _base(evidence) <= 0.0 and evidence.queue_rows <= 0.0


def trusted_batch(policy: ScalingPolicy, largest_mean_batch: float) -> int:
    """Rows of the largest batch to plan with: t(n) is a line only as far as it was seen."""
    return min(policy.max_batch_size, max(1, math.ceil(policy.seen_factor * largest_mean_batch)))


def whole(need: float) -> int:
    """Replicas for a fractional need; one is kept for the request to come."""
    return max(1, math.ceil(min(need, MOST_REPLICAS) - ROUNDING))


def backlog_rate(queue_rows: float, *, waiting: float, sustained: float, drain: float) -> float:
    """Rows/s more for what waits beyond the ordinary to be gone in `drain` seconds.

    Args:
        queue_rows: In all pods.
        waiting: Seconds that a row may wait in queue in the ordinary course.
        sustained: Rows/s of all ready pods.
        drain: Seconds.
    """
    return max(0.0, queue_rows - waiting * sustained) / drain


def _backlog(
    policy: ScalingPolicy, evidence: Evidence, capacity: float, largest_batch: int
) -> float:
    """Half of the latency target is an ordinary wait; without a target, one full batch is."""
    if evidence.service is None:
        return 0.0
    target = policy.latency_target
    waiting = evidence.service.seconds(largest_batch) if target is None else 0.5 * target
    return backlog_rate(
        evidence.queue_rows,
        waiting=waiting,
        sustained=capacity * evidence.ready,
        drain=policy.drain_seconds,
    )


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
        rows_per_request=evidence.rows_per_request,
    )


def _overloaded(policy: ScalingPolicy, evidence: Evidence, base: float, capacity: float) -> bool:
    """Demand far above what is ready: start more at once, they start slowly and a queue waits."""
    return base > policy.overload_trigger * capacity * evidence.ready and capacity > 0


def _saturated_raw(policy: ScalingPolicy, evidence: Evidence) -> int:
    """Every lane busy and every batch full while no pod is starting: demand may hide upstream."""
    saturated = evidence.saturated_ticks >= policy.saturation_ticks
    if not saturated or evidence.ready < evidence.current:
        return 0
    return math.ceil(policy.saturation_factor * evidence.current)
