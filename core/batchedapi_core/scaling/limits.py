"""Limits on what the formula asks for: rules applied in order, each recorded when it binds."""

import math
from collections.abc import Callable

from batchedapi_core.scaling.decision import Clamp, ClampName, Evidence, Reason, percent
from batchedapi_core.scaling.need import Need
from batchedapi_core.scaling.policy import ScalingPolicy

Limit = Callable[[ScalingPolicy, Evidence, Need, int], Clamp | None]


def within_tolerance(
    policy: ScalingPolicy, evidence: Evidence, need: Need, wanted: int
) -> Clamp | None:
    """No replica is added for a need a few percent above what there is."""
    ceiling = evidence.current * (1.0 + policy.up_tolerance)
    if wanted <= evidence.current or need.reason is Reason.SATURATED or need.need > ceiling:
        return None
    detail = (
        f"a need of {need.need:.2f} is within {percent(policy.up_tolerance)} of {evidence.current}"
    )
    return Clamp(ClampName.WITHIN_TOLERANCE, wanted, evidence.current, detail)


def bounds(policy: ScalingPolicy, wanted: int) -> Clamp | None:
    """The user's own minimum and maximum."""
    if wanted < policy.min_replicas:
        detail = f"minReplicas is {policy.min_replicas}"
        return Clamp(ClampName.MIN_REPLICAS, wanted, policy.min_replicas, detail)
    if wanted > policy.max_replicas:
        detail = f"maxReplicas is {policy.max_replicas}"
        return Clamp(ClampName.MAX_REPLICAS, wanted, policy.max_replicas, detail)
    return None


def surge(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """One step up is bounded, whatever the numbers say."""
    current = evidence.current
    most = max(math.floor(policy.surge_factor * current), current + policy.surge_step)
    if wanted <= max(current, most):
        return None
    detail = f"one step from {current} reaches at most {most}"
    return Clamp(ClampName.SURGE_LIMITED, wanted, most, detail)


def coverage(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """Nothing is removed on the word of too few pods."""
    if wanted >= evidence.current or evidence.coverage >= policy.down_coverage:
        return None
    seen = f"{percent(evidence.coverage)} of {evidence.ready} ready pods were seen"
    detail = f"{seen}, {percent(policy.down_coverage)} are needed to remove any"
    return Clamp(ClampName.PARTIAL_METRICS, wanted, evidence.current, detail)


def stabilization(
    policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int
) -> Clamp | None:
    """Down only to the highest recommendation of the last minutes."""
    current = evidence.current
    held = min(current, evidence.held if evidence.settled else current)
    if wanted >= held:
        return None
    span = f"{policy.down_stabilization:g} s"
    if evidence.settled:
        detail = f"{evidence.held} were recommended within the last {span}"
    else:
        detail = f"the operator has watched for less than {span}"
    return Clamp(ClampName.SCALE_DOWN_STABILIZING, wanted, held, detail)


def down_rate(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """At most a share is removed in one period, yet always one replica may go."""
    most = evidence.largest_recent
    floor = min(math.ceil((1.0 - policy.down_share) * most - 1e-9), most - 1)
    allowed = min(evidence.current, floor)
    if wanted >= allowed:
        return None
    detail = (
        f"at most {percent(policy.down_share)} of {most} are removed in {policy.down_period:g} s"
    )
    return Clamp(ClampName.SCALE_DOWN_RATE, wanted, allowed, detail)


STEP_LIMITS: tuple[Limit, ...] = (surge, coverage, stabilization, down_rate)
"""Between the bounds on what is recommended and the bounds on what is done."""
