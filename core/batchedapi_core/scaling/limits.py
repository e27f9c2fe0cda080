"""Limits on what the formula asks for: rules applied in order, each recorded when it binds."""

from collections.abc import Callable

from batchedapi_core.contract import percent
from batchedapi_core.scaling.decision import Cause, Clamp, ClampName, Evidence
from batchedapi_core.scaling.forecast import IDLE_LOAD, kept_for
from batchedapi_core.scaling.need import Need, idle
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.policy import Behavior, ScalingPolicy, Select, fewest, most

Limit = Callable[[ScalingPolicy, Evidence, Need, int], Clamp | None]


def within_tolerance(
    policy: ScalingPolicy, evidence: Evidence, need: Need, wanted: int
) -> Clamp | None:
    """No replica comes or goes for a need a few percent off what there is."""
    current, above, below = evidence.current, policy.up.tolerance, policy.down.tolerance
    if wanted > current and need.reason is not Cause.OVERLOAD:
        tolerance, within = above, need.need <= current * (1.0 + above)
    elif wanted < current:
        tolerance, within = below, below > 0.0 and need.need >= current * (1.0 - below)
    else:
        return None
    if not within:
        return None
    detail = f"a need of {need.need:.2f} is within {percent(tolerance)} of {current}"
    return Clamp(ClampName.WITHIN_TOLERANCE, wanted, current, detail)


def bounds(policy: ScalingPolicy, wanted: int) -> Clamp | None:
    """The user's own minimum and maximum."""
    if wanted < policy.min_replicas:
        detail = f"minReplicas is {policy.min_replicas}"
        return Clamp(ClampName.MIN_REPLICAS, wanted, policy.min_replicas, detail)
    if wanted > policy.max_replicas:
        detail = f"maxReplicas is {policy.max_replicas}"
        return Clamp(ClampName.MAX_REPLICAS, wanted, policy.max_replicas, detail)
    return None


def to_zero(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """No replica where none has to be, and no row has come for as long as was asked for.

    Where there is none, it stays at that until there are rows, however short that was watched.
    """
    if policy.min_replicas > 0 or evidence.idle_for is None or not evidence.told:
        return None
    if evidence.current <= 0 and idle(evidence):
        return Clamp(ClampName.IDLE, wanted, 0, "minReplicas is 0, and there are no rows")
    if evidence.idle_for < policy.idle_timeout:
        return None
    detail = f"no rows for {evidence.idle_for:.0f} s, idleTimeout is {policy.idle_timeout:g} s"
    return Clamp(ClampName.IDLE, wanted, 0, detail)


def first_replica(
    _policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int
) -> Clamp | None:
    """One at least, where rows wait or web pods have yet to learn what the methods are like."""
    if wanted > 0 or evidence.idle_for is None or (evidence.told and evidence.queue_rows <= 0.0):
        return None
    detail = "rows wait, and no replica runs"
    if not evidence.told:
        detail = "web pods need one to know what the methods are like"
    return Clamp(ClampName.FIRST_REPLICA, wanted, 1, detail)


def coverage(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """Nothing is removed on the word of too few pods."""
    if wanted >= evidence.current or evidence.coverage >= policy.down_coverage:
        return None
    seen = f"{percent(evidence.coverage)} of {evidence.ready} ready pods were seen"
    detail = f"{seen}, {percent(policy.down_coverage)} are needed to remove any"
    return Clamp(ClampName.PARTIAL_METRICS, wanted, evidence.current, detail)


def down_stabilization(
    policy: ScalingPolicy, evidence: Evidence, need: Need, wanted: int
) -> Clamp | None:
    """Down only to the highest recommendation of as long as a start takes, or as was asked for.

    What a hedge ordered has as long to start, unless enough are ready before.
    """
    current = evidence.current
    if evidence.wanted and evidence.settled and policy.down.stabilization is None:
        return None  # what is held is for later, and pods of other APIs wait for its place now
    hedged = evidence.hedged if evidence.ready < whole(need.lasting) else 0
    held = min(current, max(evidence.held, hedged) if evidence.settled else current)
    if wanted >= held:
        return None
    span = f"{policy.down.window(evidence.start_up, policy.pace):.3g} s"
    if evidence.settled and hedged > evidence.held:
        ready = f"{evidence.ready} of {whole(need.lasting)} are ready"
        detail = f"{hedged} were a hedge within the last {evidence.start_up:.3g} s and {ready}"
    elif evidence.settled:
        detail = f"{evidence.held} were recommended within the last {span}"
    else:
        detail = f"the operator has watched for less than {span}"
    return Clamp(ClampName.SCALE_DOWN_STABILIZING, wanted, held, detail)


def bursts(_policy: ScalingPolicy, evidence: Evidence, need: Need, wanted: int) -> Clamp | None:
    """Replicas stay for bursts that come again and again, while that costs less than missing."""
    if wanted >= evidence.current or need.one <= 0.0 or evidence.wanted:
        return None
    idle = need.base <= IDLE_LOAD * need.capacity
    kept = kept_for(
        evidence.recurring, need=wanted, one=need.one, lead=evidence.start_up, idle=idle
    )
    if kept is None:
        return None
    pattern = f"bursts of {kept.burst.peak:.0f} rows/s come without warning"
    every = f"every {kept.burst.gap:.0f} s, the last {kept.burst.since:.0f} s ago"
    detail = f"{pattern} {every}; given up in {kept.seconds:.0f} s if none comes"
    return Clamp(ClampName.BURSTS, wanted, min(kept.replicas, evidence.current), detail)


def up_stabilization(
    policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int
) -> Clamp | None:
    """Up only to the lowest recommendation of the last minutes."""
    current, lowest = evidence.current, evidence.lowest
    if not evidence.settled_up:
        reached = current
        span = f"{policy.up.window(evidence.start_up, policy.pace):.3g} s"
        detail = f"the operator has watched for less than {span}"
    elif lowest is not None:
        reached = max(current, lowest)
        span = f"{policy.up.window(evidence.start_up, policy.pace):.3g} s"
        detail = f"as few as {lowest} were recommended within the last {span}"
    else:
        return None
    if wanted <= reached:
        return None
    return Clamp(ClampName.SCALE_UP_STABILIZING, wanted, reached, detail)


def up_rate(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """Replicas that come within one period are bounded, whatever the numbers say."""
    current = evidence.current
    reached = most(policy.up, evidence.grown_from, current)
    if reached is None or wanted <= max(current, reached):
        return None
    if policy.up.select is Select.DISABLED:
        detail = "behavior.scaleUp is Disabled"
    else:
        detail = f"at most {_steps(policy.up)} may be added to {_counts(evidence.grown_from)}"
    return Clamp(ClampName.SURGE_LIMITED, wanted, reached, detail)


def down_rate(policy: ScalingPolicy, evidence: Evidence, _need: Need, wanted: int) -> Clamp | None:
    """So may what goes, and replicas that came within the period do not make it more."""
    allowed = fewest(policy.down, evidence.shrunk_from, evidence.current)
    if wanted >= allowed:
        return None
    if policy.down.select is Select.DISABLED:
        detail = "behavior.scaleDown is Disabled"
    else:
        detail = f"at most {_steps(policy.down)} may go of {_counts(evidence.shrunk_from)}"
    return Clamp(ClampName.SCALE_DOWN_RATE, wanted, allowed, detail)


RECOMMENDED: tuple[Limit, ...] = (within_tolerance,)
STEP_LIMITS: tuple[Limit, ...] = (
    coverage,
    down_stabilization,
    bursts,
    up_stabilization,
    up_rate,
    down_rate,
)
"""From what is recommended to what is done, in the HPA's order: stabilization, then rate."""
CORTEX_RECOMMENDED: tuple[Limit, ...] = (within_tolerance, up_rate, down_rate)
CORTEX_STEP_LIMITS: tuple[Limit, ...] = (coverage, down_stabilization, up_stabilization)
"""Cortex remembers recommendations as its factors left them, so it climbs a step each window."""


def _counts(starts: tuple[int, ...]) -> str:
    return " or ".join(str(start) for start in dict.fromkeys(starts))


def _steps(behavior: Behavior) -> str:
    joint = " and " if behavior.select is Select.MIN else " or "
    return joint.join(str(policy) for policy in behavior.policies)
