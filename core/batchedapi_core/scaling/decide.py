"""One step of the autoscaler: `observe` what happened, `decide` what to do about it."""

from dataclasses import replace

from batchedapi_core.scaling.conclude import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision, Terms
from batchedapi_core.scaling.memory import (
    Recommendation,
    at_begin,
    most_within,
    sizes_of,
    standing_high,
    standing_low,
    unexpired,
)
from batchedapi_core.scaling.need import whole
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState


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
    """Choose a replica count from a load that was observed at `now` (monotonic seconds)."""
    longest = max(policy.up.longest_period, policy.down.longest_period)
    state = replace(
        state,
        sizes=sizes_of(state.sizes, load.current, now, longest),
        recommendations=unexpired(state.recommendations, now),
        lows=unexpired(state.lows, now),
    )
    decision = conclude(policy, _evidence(policy, load, state, now))
    return decision, _remembering(policy, state, decision, now)


def _remembering(
    policy: ScalingPolicy, state: ScalingState, decision: ScalingDecision, now: float
) -> ScalingState:
    """The state with what was recommended.

    A hold for want of knowledge counts, going down, as a recommendation of what there is: time in
    which nothing was known does not count towards a scale-down. The first look of an operator is
    no such time, as there is nothing yet to compare with.
    """
    terms = decision.terms
    if decision.is_hold and state.opened == now:
        return state
    made = [Recommendation(terms.steady, now + policy.down.stabilization)]
    if terms.recommended > terms.steady:
        expires = now + _hold_seconds(policy, terms)
        made.append(Recommendation(terms.recommended, expires))
    high = standing_high(state.recommendations, made)
    if decision.is_hold or policy.up.stabilization <= 0:
        return replace(state, recommendations=high)
    low = [Recommendation(terms.recommended, now + policy.up.stabilization)]
    return replace(state, recommendations=high, lows=standing_low(state.lows, low))


def _hold_seconds(policy: ScalingPolicy, terms: Terms) -> float:
    """What overload or a forecast asked for may prove unnecessary: it is held for less long."""
    passing = (terms.boost > 1.0 or terms.forecast > 0.0) and terms.raw <= whole(terms.need)
    return policy.overload_hold if passing else policy.down.stabilization


def _evidence(policy: ScalingPolicy, load: LoadWindow, state: ScalingState, now: float) -> Evidence:
    demand, batching = load.demand, load.batching
    watched = now - (now if state.started is None else state.started)
    return Evidence(
        ready=load.ready,
        current=load.current,
        coverage=load.coverage,
        arrival_now=None if demand is None else demand.arrival_now,
        arrival_window=None if demand is None else demand.arrival_window,
        interval=None if demand is None else demand.interval,
        queue_rows=load.queue_rows,
        service=load.service,
        largest_mean_batch=load.largest_mean_batch,
        mean_batch=batching.mean_rows,
        fill=None if batching.fill_percent is None else batching.fill_percent / 100.0,
        full_share=batching.full_share,
        busy=batching.busy,
        saturated_ticks=load.saturated_ticks,
        held=max((one.replicas for one in state.recommendations), default=0),
        settled=watched >= policy.down.stabilization,
        shrunk_from=tuple(
            most_within(state.sizes, now, one.period) for one in policy.down.policies
        ),
        grown_from=tuple(at_begin(state.sizes, now, one.period) for one in policy.up.policies),
        lowest=min((one.replicas for one in state.lows), default=None),
        settled_up=watched >= policy.up.stabilization,
        trend=0.0 if demand is None else demand.trend,
        start_up=policy.start_up if state.start_up is None else state.start_up,
        imbalance=load.imbalance,
        rows_per_request=max(1.0, batching.rows_per_request or 1.0),
        in_flight=None if demand is None else demand.in_flight,
    )
