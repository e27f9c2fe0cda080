"""How many replicas are called for, before any limit.

    need = (base + max(forecast, margin) + backlog) * imbalance * boost
           / (target * trust * capacity)
    raw = ceil(need)

Each factor is a field of `Terms`; `concurrency` has the formula of the other policy. The boost is
a hedge while demand is well above what the ready replicas serve; `hedge` says when, and how large.
"""

import math
from dataclasses import dataclass
from typing import assert_never

from batchedapi_core.scaling.concurrency import concurrency_need
from batchedapi_core.scaling.decision import Evidence, Reason
from batchedapi_core.scaling.forecast import forecast
from batchedapi_core.scaling.hedge import hedge_of, overloaded
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.replica import replica_capacity, trusted_batch
from batchedapi_core.service_model.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Need:
    """The formula with its numbers filled in; see `Terms` for their units."""

    base: float
    forecast: float
    margin: float
    backlog: float
    largest_batch: int
    capacity: float
    capacity_batch: int
    feasible: bool
    target: float
    boost: float
    hedge: float
    hedge_rule: str
    one: float  # rows/s to plan one replica with; 0: unknown
    need: float
    raw: int
    lasting: float  # replicas, a fraction, without boost and forecast
    reason: Reason


def needed(policy: ScalingPolicy, evidence: Evidence) -> Need:
    """Fill in the formula; evidence without a demand counts as none, so hold before asking."""
    largest_batch = trusted_batch(policy, evidence.largest_mean_batch)
    replica = replica_capacity(
        policy,
        evidence.service,
        largest_batch=largest_batch,
        rows_per_request=evidence.rows_per_request,
        slowdown=evidence.slowdown,
    )
    match policy.kind:
        case PolicyKind.CAPACITY_SLO:
            return _capacity_need(policy, evidence, replica, largest_batch)
        case PolicyKind.CONCURRENCY:
            need = concurrency_need(policy, evidence)
            return Need(
                base=_base(evidence),
                forecast=0.0,
                margin=0.0,
                backlog=0.0,
                largest_batch=largest_batch,
                capacity=replica.rows_per_second,
                capacity_batch=replica.batch_size,
                feasible=True,
                target=policy.target_concurrency,
                boost=1.0,
                hedge=1.0,
                hedge_rule="",
                one=0.0,
                need=need,
                raw=whole(need),
                lasting=need,
                reason=Reason.DEMAND,
            )
        case _:
            assert_never(policy.kind)


def _capacity_need(
    policy: ScalingPolicy, evidence: Evidence, replica: Capacity, largest_batch: int
) -> Need:
    base, capacity = _base(evidence), replica.rows_per_second
    one = policy.target_utilization * capacity * evidence.trust / evidence.imbalance
    more = _more(policy, evidence, base)
    rates = (base, base + more.margin, base + more.margin + more.backlog)
    plain, likely, lasting = (rate / one if one > 0 else 0.0 for rate in rates)
    need = (base + more.highest + more.backlog) / one if one > 0 else 0.0
    hedge = hedge_of(policy, evidence)
    late = overloaded(policy, base=base, capacity=capacity, ready=evidence.ready)
    boost = hedge.factor if late else 1.0
    raw = whole(boost * need)
    reason = _reason(raw, (lasting, likely, plain, plain / evidence.imbalance), boost)
    grown = _saturated_raw(policy, evidence)
    if grown > raw:
        raw, reason = grown, Reason.SATURATED
    return Need(
        base=base,
        forecast=more.forecast,
        margin=more.margin,
        backlog=more.backlog,
        largest_batch=largest_batch,
        capacity=capacity,
        capacity_batch=replica.batch_size,
        feasible=replica.feasible,
        target=policy.target_utilization,
        boost=boost,
        hedge=hedge.factor,
        hedge_rule=hedge.rule,
        one=one,
        need=boost * need,
        raw=raw,
        lasting=lasting,
        reason=reason,
    )


def idle(evidence: Evidence) -> bool:
    """Nothing arrives and nothing waits: no model is needed to serve that."""
    return (evidence.arrival_window or 0.0) <= 0.0 and evidence.queue_rows <= 0.0


@dataclass(frozen=True, slots=True)
class _More:
    """Rows/s on top of the demand of the present."""

    forecast: float
    margin: float
    backlog: float

    @property
    def highest(self) -> float:
        """A forecast that comes true needs no margin, and one that does not was covered by it."""
        return max(self.forecast, self.margin)


def _more(policy: ScalingPolicy, evidence: Evidence, base: float) -> _More:
    lead = evidence.start_up + (evidence.interval or 0.0)
    likely = min(base * (1.0 + evidence.margin_share), evidence.highest)
    return _More(
        forecast=forecast(evidence.trend, base=base, lead=lead, cap=policy.forecast_cap),
        margin=max(0.0, likely - base),
        backlog=evidence.waiting_rows / policy.drain_seconds,
    )


def _reason(raw: int, without: tuple[float, float, float, float], boost: float) -> Reason:
    """The last term without which it would be fewer replicas.

    Args:
        raw: Replicas.
        without: Replicas without boost and forecast; also without backlog; margin; imbalance.
        boost: Factor.
    """
    terms = (Reason.TREND, Reason.BACKLOG, Reason.MARGIN, Reason.HOT_REPLICA)
    found = (reason for fewer, reason in zip(without, terms, strict=True) if raw > whole(fewer))
    reason = next(found, Reason.DEMAND)
    return Reason.OVERLOAD if reason is Reason.TREND and boost > 1.0 else reason


def _base(evidence: Evidence) -> float:
    return evidence.level or 0.0


def _saturated_raw(policy: ScalingPolicy, evidence: Evidence) -> int:
    """Every lane busy and every batch full while no pod is starting: demand may hide upstream."""
    saturated = evidence.saturated >= policy.saturation_seconds
    if not saturated or evidence.ready < evidence.current:
        return 0
    return math.ceil(policy.saturation_factor * evidence.current)
