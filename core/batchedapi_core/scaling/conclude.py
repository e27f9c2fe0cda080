"""From evidence to a decision: hold for want of knowledge, else the formula and then the limits.

A function of frozen values and nothing else, which is what makes a recorded decision repeatable.
"""

from dataclasses import fields, replace

from batchedapi_core.scaling.decision import (
    Clamp,
    ClampName,
    Evidence,
    Reason,
    ScalingDecision,
    Terms,
)
from batchedapi_core.scaling.limits import (
    CORTEX_RECOMMENDED,
    CORTEX_STEP_LIMITS,
    RECOMMENDED,
    STEP_LIMITS,
    Limit,
    bounds,
)
from batchedapi_core.scaling.need import Need, idle, needed
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.words import percent


def conclude(policy: ScalingPolicy, evidence: Evidence) -> ScalingDecision:
    """Choose a replica count within the policy's bounds, and say why."""
    need = needed(policy, evidence)
    hold = _hold(policy, evidence)
    if hold is not None:
        decision = _held(policy, evidence, need, hold)
    else:
        decision = _moved(policy, evidence, need)
    return _paused(evidence, decision) if policy.paused else decision


def _moved(policy: ScalingPolicy, evidence: Evidence, need: Need) -> ScalingDecision:
    recommended, before = _recommended(policy, evidence, need)
    steady = _steady(policy, need, recommended)
    desired, after = _step(policy, evidence, need, recommended)
    clamps = (*before, *after)
    return ScalingDecision(
        desired=desired,
        reason=_reason(evidence, need, desired, clamps),
        terms=_terms(evidence, need, recommended, steady),
        clamps=clamps,
        bound=clamps[-1].name.value if clamps else "",
    )


def _paused(evidence: Evidence, decision: ScalingDecision) -> ScalingDecision:
    """What would be done stays in the record; not even the bounds move a paused API."""
    current = evidence.current
    clamp = Clamp(ClampName.PAUSED, decision.desired, current, "spec.paused is true")
    return replace(
        decision,
        desired=current,
        reason=Reason.PAUSED,
        clamps=(*decision.clamps, clamp),
        bound=clamp.name.value,
    )


def _hold(policy: ScalingPolicy, evidence: Evidence) -> Clamp | None:
    """What is not known forbids every move."""
    current = evidence.current
    if evidence.ready <= 0:
        detail = "no pod is ready"
        return Clamp(ClampName.NO_READY_PODS, current, current, detail)
    if evidence.arrival_now is None or evidence.coverage < policy.hold_coverage:
        detail = (
            f"counters of {percent(evidence.coverage)} of {evidence.ready} ready pods could be "
            f"compared, {percent(policy.hold_coverage)} are needed"
        )
        return Clamp(ClampName.NO_METRICS, current, current, detail)
    learned = policy.kind is PolicyKind.CAPACITY_SLO
    if learned and evidence.service is None and not idle(evidence):
        detail = "too few batches were seen to know what one replica serves"
        return Clamp(ClampName.MODEL_UNKNOWN, current, current, detail)
    return None


_HOLD_REASONS = {
    ClampName.NO_READY_PODS: Reason.NO_READY_PODS,
    ClampName.NO_METRICS: Reason.NO_METRICS,
    ClampName.MODEL_UNKNOWN: Reason.MODEL_UNKNOWN,
}


def _held(policy: ScalingPolicy, evidence: Evidence, need: Need, hold: Clamp) -> ScalingDecision:
    """Stay, unless the user's bounds say otherwise: those need no measurement."""
    limit = bounds(policy, evidence.current)
    desired = evidence.current if limit is None else limit.after
    clamps = (hold,) if limit is None else (hold, limit)
    return ScalingDecision(
        desired=desired,
        reason=_HOLD_REASONS[hold.name],
        terms=_terms(evidence, need, desired, desired),
        clamps=clamps,
        bound=clamps[-1].name.value,
    )


def _recommended(
    policy: ScalingPolicy, evidence: Evidence, need: Need
) -> tuple[int, tuple[Clamp, ...]]:
    """What the demand calls for, within the user's bounds."""
    cortex = policy.kind is PolicyKind.CONCURRENCY
    limits = CORTEX_RECOMMENDED if cortex else RECOMMENDED
    return _limited(policy, evidence, need, need.raw, limits)


def _steady(policy: ScalingPolicy, need: Need, recommended: int) -> int:
    """What of it is likely to be needed for good."""
    if policy.kind is PolicyKind.CONCURRENCY or need.reason is Reason.SATURATED:
        return recommended
    lasting = whole(need.lasting)
    limit = bounds(policy, lasting)
    return min(recommended, lasting if limit is None else limit.after)


def _step(
    policy: ScalingPolicy, evidence: Evidence, need: Need, recommended: int
) -> tuple[int, tuple[Clamp, ...]]:
    """How far to go towards it now."""
    cortex = policy.kind is PolicyKind.CONCURRENCY
    limits = CORTEX_STEP_LIMITS if cortex else STEP_LIMITS
    return _limited(policy, evidence, need, recommended, limits)


def _limited(
    policy: ScalingPolicy,
    evidence: Evidence,
    need: Need,
    wanted: int,
    limits: tuple[Limit, ...],
) -> tuple[int, tuple[Clamp, ...]]:
    """`wanted` after `limits` and, last, the user's bounds."""
    clamps = []
    for limit in limits:
        clamp = limit(policy, evidence, need, wanted)
        if clamp is not None:
            clamps.append(clamp)
            wanted = clamp.after
    outside = bounds(policy, wanted)
    if outside is not None:
        clamps.append(outside)
        wanted = outside.after
    return wanted, tuple(clamps)


def _reason(evidence: Evidence, need: Need, desired: int, clamps: tuple[Clamp, ...]) -> Reason:
    """The one thing a user should know first; the clamps have the rest."""
    if desired < evidence.current:
        return Reason.SCALE_DOWN
    reason = _STEP_REASONS[clamps[-1].name] if clamps else need.reason
    passing = (
        Reason.PARTIAL_METRICS,
        Reason.SCALE_DOWN_STABILIZING,
        Reason.SCALE_UP_STABILIZING,
        Reason.BURSTS,
        Reason.SURGE_LIMITED,
    )
    if not need.feasible and reason not in passing:
        return Reason.LATENCY_TARGET_INFEASIBLE
    return reason


_STEP_REASONS = {
    ClampName.WITHIN_TOLERANCE: Reason.WITHIN_TOLERANCE,
    ClampName.MIN_REPLICAS: Reason.MIN_REPLICAS,
    ClampName.MAX_REPLICAS: Reason.MAX_REPLICAS,
    ClampName.SURGE_LIMITED: Reason.SURGE_LIMITED,
    ClampName.PARTIAL_METRICS: Reason.PARTIAL_METRICS,
    ClampName.SCALE_DOWN_STABILIZING: Reason.SCALE_DOWN_STABILIZING,
    ClampName.SCALE_UP_STABILIZING: Reason.SCALE_UP_STABILIZING,
    ClampName.BURSTS: Reason.BURSTS,
    ClampName.SCALE_DOWN_RATE: Reason.SCALE_DOWN_STABILIZING,
}


def _terms(evidence: Evidence, need: Need, recommended: int, steady: int) -> Terms:
    known = {field.name: getattr(evidence, field.name) for field in fields(Evidence)}
    return Terms(
        **known,
        base=need.base,
        forecast=need.forecast,
        margin=need.margin,
        backlog=need.backlog,
        largest_batch=need.largest_batch,
        capacity=need.capacity,
        capacity_batch=need.capacity_batch,
        feasible=need.feasible,
        target=need.target,
        boost=need.boost,
        hedge=need.hedge,
        hedge_rule=need.hedge_rule,
        need=need.need,
        raw=need.raw,
        recommended=recommended,
        steady=steady,
    )
