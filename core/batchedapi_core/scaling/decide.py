"""One step of the autoscaler: `observe` what happened, `decide` what to do about it."""

from dataclasses import fields, replace

from batchedapi_core.contract import percent
from batchedapi_core.scaling.decision import (
    Cause,
    Clamp,
    ClampName,
    Evidence,
    ScalingDecision,
    Terms,
)
from batchedapi_core.scaling.forecast import LEAST_LOAD, bursts_of, recurrences
from batchedapi_core.scaling.learned import (
    CALM_SECONDS,
    expected_latency,
    late_after,
    start_up_of,
    trusted,
)
from batchedapi_core.scaling.limits import (
    CORTEX_RECOMMENDED,
    CORTEX_STEP_LIMITS,
    RECOMMENDED,
    STEP_LIMITS,
    Limit,
    bounds,
    first_replica,
    to_zero,
)
from batchedapi_core.scaling.need import (
    NODE_MEMORY,
    Need,
    idle,
    latency_of,
    needed,
    replica_capacity,
)
from batchedapi_core.scaling.numbers import whole
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.schedule import Expected
from batchedapi_core.scaling.state import (
    Recommendation,
    ScalingState,
    at_begin,
    most_within,
    sizes_of,
    standing_high,
    standing_low,
    unexpired,
)


def step(
    policy: ScalingPolicy, state: ScalingState, observation: Observation, now: float
) -> tuple[ScalingDecision, ScalingState]:
    """Observe and decide.

    Args:
        policy: Of the API, with the values in effect on its replicas.
        state: As returned by the previous step, or `ScalingState.restored(...)`.
        observation: The scrapes of this look.
        now: Monotonic seconds, later than at the previous step.

    Returns:
        The decision, and the state for the next step.
    """
    load, state = observe(policy, state, observation, now)
    return decide(policy, load, state, now)


def decide(
    policy: ScalingPolicy, load: LoadWindow, state: ScalingState, now: float
) -> tuple[ScalingDecision, ScalingState]:
    """Choose a replica count from a load that was observed at `now` (monotonic seconds).

    What is learned from this look counts from the next one on: so more demand can only ever mean
    more replicas, whatever it teaches.
    """
    ready = min(load.ready, load.current)
    state = replace(
        state,
        sizes=sizes_of(state.sizes, load.current, now, policy.up.longest_period),
        ready_sizes=sizes_of(state.ready_sizes, ready, now, policy.down.longest_period),
        recommendations=unexpired(state.recommendations, now),
        lows=unexpired(state.lows, now),
        hedge=state.hedge if state.hedge and state.hedge.expires > now else None,
    )
    decision = conclude(policy, _evidence(policy, load, state, now))
    return decision, learned(policy, state, load, decision, now)


def _evidence(policy: ScalingPolicy, load: LoadWindow, state: ScalingState, now: float) -> Evidence:
    demand, batching = load.demand, load.batching
    watched = now - (now if state.started is None else state.started)
    start_up = start_up_of(state.start_ups, policy.start_up)
    return Evidence(
        ready=load.ready,
        current=load.current,
        coverage=load.coverage,
        arrival_now=None if demand is None else demand.arrival_now,
        arrival_window=None if demand is None else demand.arrival_window,
        level=None if demand is None else demand.level,
        interval=None if demand is None else demand.interval,
        queue_rows=load.queue_rows,
        waiting_rows=_waiting_rows(policy, load),
        service=load.service,
        mean_batch=batching.mean_rows,
        fill=None if batching.fill_percent is None else batching.fill_percent / 100.0,
        full_share=batching.full_share,
        busy=batching.busy,
        held=max((one.replicas for one in state.recommendations), default=0),
        settled=watched >= policy.down.window(start_up, policy.pace),
        shrunk_from=tuple(
            most_within(state.ready_sizes, now, one.period) for one in policy.down.policies
        ),
        grown_from=tuple(at_begin(state.sizes, now, one.period) for one in policy.up.policies),
        lowest=min((one.replicas for one in state.lows), default=None),
        settled_up=watched >= policy.up.window(start_up, policy.pace),
        trend=0.0 if demand is None else demand.trend,
        margin_share=state.foresight.margin,
        highest=state.foresight.highest,
        recurring=recurrences(state.bursts, now),
        expected=_expected(state, load, start_up),
        slowdown=load.slowdown,
        trust=state.trust,
        start_up=start_up,
        placement=start_up_of(state.placements, 0.0),
        wanted=load.wanted,
        unschedulable=load.unready.unschedulable,
        failing=load.unready.failing,
        oldest_start=load.unready.oldest,
        late_after=late_after(state.start_ups),
        waited_for_node=state.node_wait is not None and now - state.node_wait < NODE_MEMORY,
        hedged=0 if state.hedge is None else state.hedge.replicas,
        imbalance=load.imbalance,
        requests=load.came,
        in_flight=None if demand is None else demand.in_flight,
        idle_for=None if load.queue is None else load.idle_for,
        oldest=0.0 if load.queue is None else load.queue.oldest,
        told=load.queue is None or load.queue.told,
    )


def _expected(state: ScalingState, load: LoadWindow, start_up: float) -> Expected | None:
    if load.wall is None or load.demand is None:
        return None
    lead = start_up + start_up_of(state.placements, 0.0) + load.demand.interval
    return state.schedule.expected(load.wall, lead=lead)


def _waiting_rows(policy: ScalingPolicy, load: LoadWindow) -> float:
    """Rows in queue beyond the ordinary, pod by pod: what waits in one is not served by others.

    What a replica serves in half of the latency target waits in the ordinary course. In one queue
    for all that is the same for all of them together, unless the oldest has waited longer already.
    """
    if load.service is None or load.coverage <= 0.0:
        return 0.0
    replica = replica_capacity(
        policy,
        load.service,
        requests=load.came,
        slowdown=load.slowdown,
    )
    ordinary = 0.5 * latency_of(policy, load.service) * replica.rows_per_second
    if load.queue is not None:
        late = load.queue.oldest > 0.5 * latency_of(policy, load.service)
        return max(0.0, load.queue_rows - (0.0 if late else ordinary * load.ready))
    waiting = (max(0.0, pod.queue_rows - ordinary) for pod in load.changes)
    return sum(waiting) / load.coverage


# A decision is a function of frozen values alone, so that a recorded one can be repeated.


def conclude(policy: ScalingPolicy, evidence: Evidence) -> ScalingDecision:
    """Choose a replica count within the policy's bounds, and say why."""
    need = needed(policy, evidence)
    cortex = policy.kind is PolicyKind.CONCURRENCY
    hold = _hold(policy, evidence, need)
    clamps: tuple[Clamp, ...]
    if hold is not None:
        # Stay, unless the user's bounds say otherwise, or rows wait for a first replica: those
        # need no measurement.
        desired, outside = _limited(policy, evidence, need, evidence.current, (first_replica,))
        recommended = steady = desired
        clamps = (hold, *outside)
        reason = _cause(hold)
    else:
        # What the demand calls for, and what of it is likely to be needed for good.
        limits = CORTEX_RECOMMENDED if cortex else RECOMMENDED
        recommended, before = _limited(policy, evidence, need, need.raw, limits)
        lasting, _ = _limited(policy, evidence, need, whole(need.lasting), ())
        steady = recommended if cortex else min(recommended, lasting)
        # How far to go towards it now.
        limits = CORTEX_STEP_LIMITS if cortex else STEP_LIMITS
        desired, after = _limited(
            policy, evidence, need, recommended, (*limits, to_zero, first_replica)
        )
        clamps = (*before, *after)
        reason = _reason(evidence, need, desired, clamps)
    if policy.paused:
        # What would be done stays in the record; not even the bounds move a paused API.
        paused = Clamp(ClampName.PAUSED, desired, evidence.current, "spec.paused is true")
        desired, reason, clamps = evidence.current, Cause.PAUSED, (*clamps, paused)
    return ScalingDecision(
        desired=desired,
        reason=reason,
        terms=_terms(evidence, need, recommended, steady),
        clamps=clamps,
        bound=clamps[-1].name.value if clamps else "",
    )


def _hold(policy: ScalingPolicy, evidence: Evidence, need: Need) -> Clamp | None:
    """Missing knowledge forbids every move; going to zero needs to know only that no rows come."""
    current = evidence.current
    if evidence.ready <= 0 and evidence.idle_for is None:
        detail = "no pod is ready"
        return Clamp(ClampName.NO_READY_PODS, current, current, detail)
    if evidence.arrival_now is None or evidence.coverage < policy.hold_coverage:
        pods = f"{evidence.ready} ready pods" if evidence.idle_for is None else "the ready pods"
        detail = (
            f"counters of {percent(evidence.coverage)} of {pods} could be "
            f"compared, {percent(policy.hold_coverage)} are needed"
        )
        return Clamp(ClampName.NO_METRICS, current, current, detail)
    unknown = policy.kind is PolicyKind.CAPACITY_SLO and evidence.service is None
    if unknown and not idle(evidence) and to_zero(policy, evidence, need, current) is None:
        detail = "too few batches were seen to know what one replica serves"
        return Clamp(ClampName.MODEL_UNKNOWN, current, current, detail)
    return None


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


def _reason(evidence: Evidence, need: Need, desired: int, clamps: tuple[Clamp, ...]) -> Cause:
    """The one thing a user should know first; the clamps have the rest."""
    if desired < evidence.current:
        return Cause.SCALE_DOWN
    reason = _cause(clamps[-1]) if clamps else need.reason
    passing = (
        Cause.PARTIAL_METRICS,
        Cause.SCALE_DOWN_STABILIZING,
        Cause.SCALE_UP_STABILIZING,
        Cause.BURSTS,
        Cause.SURGE_LIMITED,
    )
    if not need.feasible and reason not in passing:
        return Cause.LATENCY_TARGET_INFEASIBLE
    return reason


def _cause(clamp: Clamp) -> Cause:
    """The reason that a limit is; they have one name, but for the rate of scale-down."""
    if clamp.name is ClampName.SCALE_DOWN_RATE:
        return Cause.SCALE_DOWN_STABILIZING
    return Cause(clamp.name.value)


def _terms(evidence: Evidence, need: Need, recommended: int, steady: int) -> Terms:
    told = {field.name for field in fields(Terms)}
    known = {
        field.name: getattr(source, field.name)
        for source in (evidence, need)
        for field in fields(source)
        if field.name in told
    }
    return Terms(**known, recommended=recommended, steady=steady)


def learned(
    policy: ScalingPolicy,
    state: ScalingState,
    load: LoadWindow,
    decision: ScalingDecision,
    now: float,
) -> ScalingState:
    """The state after a decision that was made at `now` (seconds) from `load`."""
    state = _remembering(policy, state, decision, now)
    if decision.is_hold or policy.kind is PolicyKind.CONCURRENCY:
        return state
    # the error of the forecast for now, and the burst that a large one is
    terms = decision.terms
    hold = max(terms.start_up, policy.down.window(terms.start_up, policy.pace))
    foresight, error = state.foresight.looked(
        now,
        lead=terms.lead,
        base=terms.base,
        forecast=max(terms.forecast, terms.floor - terms.base),
    )
    bursts = bursts_of(
        state.bursts,
        now,
        error=error,
        base=terms.base,
        recent=state.foresight.highest_within(hold, now),
        least=LEAST_LOAD * terms.capacity,
        hold=hold,
    )
    state = replace(state, foresight=foresight, bursts=bursts)
    if load.wall is not None:
        least, expected = LEAST_LOAD * terms.capacity, terms.expected
        schedule = state.schedule.looked(
            load.wall, level=terms.base, least=least, expected=expected
        )
        state = replace(state, schedule=schedule)
    return _judged(policy, state, load, terms, now)


def _remembering(
    policy: ScalingPolicy, state: ScalingState, decision: ScalingDecision, now: float
) -> ScalingState:
    """With what was recommended.

    A hold for want of knowledge counts, going down, as a recommendation of what there is: time in
    which nothing was known does not count towards a scale-down. The first look of an operator is
    no such time, as there is nothing yet to compare with.
    """
    terms = decision.terms
    if decision.is_hold and state.opened == now:
        return state
    made = [Recommendation(terms.steady, now + policy.down.window(terms.start_up, policy.pace))]
    if terms.recommended > terms.steady:
        # what overload or a forecast asked for may prove unnecessary: it is held for less long
        made.append(Recommendation(terms.recommended, now + policy.pace * policy.passing_hold))
    high = standing_high(state.recommendations, made)
    hedge = state.hedge
    if terms.boost > 1.0:  # all of it is held as long: else it would go a replica at a time
        hedged = max(min(terms.recommended, decision.desired), terms.hedged)
        hedge = Recommendation(hedged, now + terms.start_up)
    stabilization = policy.up.window(terms.start_up, policy.pace)
    if decision.is_hold or stabilization <= 0:
        return replace(state, recommendations=high, hedge=hedge)
    low = [Recommendation(terms.recommended, now + stabilization)]
    return replace(state, recommendations=high, hedge=hedge, lows=standing_low(state.lows, low))


def _judged(
    policy: ScalingPolicy, state: ScalingState, load: LoadWindow, terms: Terms, now: float
) -> ScalingState:
    """With the trust that the waits of requests leave in the capacity."""
    if terms.base > terms.capacity * terms.ready or terms.ready < terms.current:
        return replace(state, overloaded=now)
    calm = state.overloaded is None or now - state.overloaded > CALM_SECONDS
    if not calm or load.latency is None or terms.service is None or terms.interval is None:
        return state
    expected = expected_latency(
        terms.service,
        terms.capacity_batch,
        batch_interval=policy.batch_interval,
        latency_target=latency_of(policy, terms.service),
        quantile=policy.quantile,
    )
    trust = trusted(state.trust, latency=load.latency, expected=expected, seconds=terms.interval)
    return replace(state, trust=trust)
