"""How many replicas are called for, before any limit.

    need = max((base + max(forecast, margin) + backlog) * boost, floor) * imbalance
           / (target * trust * capacity)
    raw = ceil(need)

Each factor is a field of `Terms`; `concurrency_need` is the other policy's formula. The boost is a
hedge while demand is well above what the ready replicas serve; `hedge_of` says when, and how large.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from batchedapi_core.scaling.decision import Cause, Evidence
from batchedapi_core.scaling.forecast import LEAST_LOAD, forecast
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.policy import DEFAULT_TARGET, PolicyKind, ScalingPolicy, Select
from batchedapi_core.service_model import Capacity, RequestRows, ServiceTime, lane_capacity

# `Concurrency` scales as Cortex does:
#
#     need = mean requests in flight over the window / target_replica_concurrency
#
# Formula, tolerances, factors and stabilization are those of Cortex 0.20 (pkg/autoscaler); its
# factors bound what is recommended, its stabilization what is done: the lowest recommendation of
# the last minute going up, the highest of the last five going down, and no move in a direction
# before that long was watched. What differs: it looks at each tick of ten seconds, here at each
# of two, with the factors per ten seconds; and what is missing holds by the rules of CapacitySLO.


def concurrency_need(policy: ScalingPolicy, evidence: Evidence) -> float:
    """Replicas, a fraction; none for evidence without a measurement, so hold before asking."""
    return (evidence.in_flight or 0.0) / policy.target_concurrency


def replica_capacity(
    policy: ScalingPolicy,
    service: ServiceTime | None,
    *,
    requests: RequestRows,
    slowdown: float,
) -> Capacity:
    """Rows/s of all lanes of a replica together; 0 without a service time.

    Args:
        policy: Target, batching and lanes.
        service: As learned.
        requests: Rows that arrive at once.
        slowdown: Times longer than learned that batches take at present.
    """
    if service is None:
        return Capacity(0.0, 0, feasible=True)
    lane = lane_capacity(
        service,
        largest_batch=policy.max_batch_size,
        batch_interval=policy.batch_interval,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
        requests=requests,
    )
    rate = lane.rows_per_second * policy.lanes / slowdown
    return Capacity(rate, lane.batch_size, feasible=lane.feasible)


def latency_of(policy: ScalingPolicy, service: ServiceTime) -> float:
    """The latency target in seconds; without one, a full batch waited for and one of its own."""
    target = policy.latency_target
    return 2.0 * service.seconds(policy.max_batch_size) if target is None else target


# How long a replica takes to start varies, so of three times as many the first third is ready
# much sooner; the others are cancelled then, most of them before they began to serve. That helps
# where all that they have to do is start. Where they wait for a node or fail, more of them are
# ready no sooner; and where nodes are bought, each replica too many may buy one that stays.

DEFAULT_HEDGE: Final = 3.0
"""Where nothing speaks against it: over 24 simulated cases 5.6 % of the requests were late at 1.71
times the cost of a clairvoyant, and without a hedge 7.1 % at 1.57."""
NODE_MEMORY: Final = 3600.0
"""Seconds since a pod last waited for a node. A cluster that had none free then either buys nodes,
and one bought for nothing is kept for about ten minutes, or is full, and a hedge takes the place
of others; neither ends within minutes."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """The largest factor on the need at present, and the rule that says so."""

    factor: float
    rule: str


def hedge_of(policy: ScalingPolicy, evidence: Evidence) -> Hedge:
    """Events first, then the user's words, then what is known of the cluster."""
    against = _against(policy, evidence)
    if against:
        return Hedge(1.0, against)
    if policy.hedge is not None:
        return Hedge(policy.hedge, f"autoscaling.hedge is {policy.hedge:g}")
    if policy.gpu:
        return Hedge(1.0, "replicas ask for GPUs or claims and autoscaling.hedge is not set")
    if evidence.waited_for_node:
        lately = f"pods waited for a node within {NODE_MEMORY:.0f} s"
        return Hedge(1.0, f"{lately} and autoscaling.hedge is not set")
    return Hedge(DEFAULT_HEDGE, "autoscaling.hedge is not set")


def _against(policy: ScalingPolicy, evidence: Evidence) -> str:
    """Why more would not be ready sooner or could not go again; or ""."""
    if policy.down.select is Select.DISABLED:
        return "behavior.scaleDown is Disabled"
    if evidence.wanted:
        return wait_elsewhere(evidence)
    if evidence.unschedulable:
        return f"no node has room for {_pods(evidence.unschedulable)}"
    if evidence.failing:
        return f"{_pods(evidence.failing)} cannot start"
    if evidence.oldest_start > evidence.late_after:
        late = f"an ordered pod is not ready after {evidence.oldest_start:.0f} s"
        return f"{late}, {evidence.late_after:.0f} s are expected"
    return ""


def wait_elsewhere(evidence: Evidence) -> str:
    """Who wants a place that replicas without need have."""
    one = evidence.wanted == 1
    who = "1 pod of another API waits" if one else f"{evidence.wanted} pods of other APIs wait"
    return f"{who} for a place"


def _pods(count: int) -> str:
    return "1 ordered pod" if count == 1 else f"{count} ordered pods"


def overloaded(policy: ScalingPolicy, *, base: float, capacity: float, ready: int) -> bool:
    """Whether demand (rows/s) is far above what the ready replicas serve (rows/s each)."""
    return capacity > 0.0 and base > policy.overload_trigger * capacity * ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The formula with its numbers filled in; see `Terms` for their units."""

    base: float
    forecast: float = 0.0
    margin: float = 0.0
    backlog: float = 0.0
    floor: float = 0.0
    capacity: float
    capacity_batch: int
    feasible: bool = True
    target: float
    boost: float = 1.0
    hedge: float = 1.0
    hedge_rule: str = ""
    one: float = 0.0  # rows/s to plan one replica with; 0: unknown
    need: float
    raw: int
    lasting: float  # replicas, a fraction, without boost, forecast and floor
    reason: Cause = Cause.DEMAND


def needed(policy: ScalingPolicy, evidence: Evidence) -> Need:
    """Fill in the formula; evidence without a demand counts as none, so hold before asking."""
    replica = replica_capacity(
        policy,
        evidence.service,
        requests=evidence.requests,
        slowdown=evidence.slowdown,
    )
    match policy.kind:
        case PolicyKind.CAPACITY_SLO:
            return _capacity_need(policy, evidence, replica)
        case PolicyKind.CONCURRENCY:
            need = concurrency_need(policy, evidence)
            return Need(
                base=_base(evidence),
                capacity=replica.rows_per_second,
                capacity_batch=replica.batch_size,
                target=policy.target_concurrency,
                need=need,
                raw=whole(need),
                lasting=need,
            )
        case _:
            assert_never(policy.kind)


def _capacity_need(policy: ScalingPolicy, evidence: Evidence, replica: Capacity) -> Need:
    base, capacity = _base(evidence), replica.rows_per_second
    # what is not used is for later, and pods of other APIs wait for its place now
    spare = policy.target_utilization == DEFAULT_TARGET  # one of the user's own stands
    target = 1.0 if evidence.wanted and spare else policy.target_utilization
    one = target * capacity * evidence.trust / evidence.imbalance
    lead = evidence.lead + (evidence.interval or 0.0)
    rising = forecast(evidence.trend, base=base, lead=lead, cap=policy.forecast_cap)
    margin = max(0.0, min(base * (1.0 + evidence.margin_share), evidence.highest) - base)
    backlog = evidence.waiting_rows / (policy.pace * policy.drain_seconds)
    rates = (base, base + margin, base + margin + backlog)
    plain, likely, lasting = (rate / one if one > 0 else 0.0 for rate in rates)
    # a forecast that comes true needs no margin, and one that does not was covered by it
    need = (base + max(rising, margin) + backlog) / one if one > 0 else 0.0
    hedge = hedge_of(policy, evidence)
    boost = hedge.factor if _late(policy, evidence, base=base, capacity=capacity) else 1.0
    floor = _floor(evidence, capacity)
    hedged, scheduled = boost * need, floor / one if one > 0 else 0.0
    raw = whole(max(hedged, scheduled))
    without = {  # each term and those above it
        Cause.SCHEDULE: hedged,
        Cause.OVERLOAD if boost > 1.0 else Cause.TREND: lasting,
        Cause.BACKLOG: likely,
        Cause.MARGIN: plain,
        Cause.HOT_REPLICA: plain / evidence.imbalance,
    }
    # the last term without which it would be fewer replicas
    reason = next((term for term, few in without.items() if raw > whole(few)), Cause.DEMAND)
    return Need(
        base=base,
        forecast=rising,
        margin=margin,
        backlog=backlog,
        floor=floor,
        capacity=capacity,
        capacity_batch=replica.batch_size,
        feasible=replica.feasible,
        target=target,
        boost=boost,
        hedge=hedge.factor,
        hedge_rule=hedge.rule,
        one=one,
        need=max(hedged, scheduled),
        raw=raw,
        lasting=lasting,
        reason=reason,
    )


def _floor(evidence: Evidence, capacity: float) -> float:
    """Rows/s; it is for later, so nothing while pods of other APIs wait for a place."""
    expected = evidence.expected
    if expected is None or expected.given_up or evidence.wanted:
        return 0.0
    return expected.ratio * max(expected.usual, LEAST_LOAD * capacity)


def _late(policy: ScalingPolicy, evidence: Evidence, *, base: float, capacity: float) -> bool:
    """Whether the replicas do not keep up with demand."""
    if evidence.ready <= 0 and evidence.idle_for is not None:
        return False  # there was none to keep up: rows wait, and the first replica is on its way
    return overloaded(policy, base=base, capacity=capacity, ready=evidence.ready)


def idle(evidence: Evidence) -> bool:
    """Nothing arrives and nothing waits: no model is needed to serve that."""
    return (evidence.arrival_window or 0.0) <= 0.0 and evidence.queue_rows <= 0.0


def _base(evidence: Evidence) -> float:
    return evidence.level or 0.0
