"""What a decision leaves behind for the next: recommendations, errors, bursts and trust. Pure."""

from dataclasses import replace

from batchedapi_core.scaling.bursts import LEAST_LOAD, bursts_of
from batchedapi_core.scaling.decision import ScalingDecision, Terms
from batchedapi_core.scaling.memory import Recommendation, standing_high, standing_low
from batchedapi_core.scaling.observe import LoadWindow
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.replica import latency_of
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.scaling.trust import CALM_SECONDS, expected_latency, trusted


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
    return _judged(policy, _foreseen(policy, state, decision.terms, now), load, decision.terms, now)


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
    made = [Recommendation(terms.steady, now + policy.down.window(terms.start_up))]
    if terms.recommended > terms.steady:
        # what overload or a forecast asked for may prove unnecessary: it is held for less long
        made.append(Recommendation(terms.recommended, now + policy.passing_hold))
    high = standing_high(state.recommendations, made)
    hedge = state.hedge
    if terms.boost > 1.0:  # all of it is held as long: else it would go a replica at a time
        hedged = max(min(terms.recommended, decision.desired), terms.hedged)
        hedge = Recommendation(hedged, now + terms.start_up)
    patience = policy.up.window(terms.start_up)
    if decision.is_hold or patience <= 0:
        return replace(state, recommendations=high, hedge=hedge)
    low = [Recommendation(terms.recommended, now + patience)]
    return replace(state, recommendations=high, hedge=hedge, lows=standing_low(state.lows, low))


def _foreseen(policy: ScalingPolicy, state: ScalingState, terms: Terms, now: float) -> ScalingState:
    """With the error of the forecast for now, and the burst that a large one is."""
    hold = max(terms.start_up, policy.down.window(terms.start_up))
    foresight, error = state.foresight.looked(
        now, lead=terms.start_up, base=terms.base, forecast=terms.forecast
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
    return replace(state, foresight=foresight, bursts=bursts)


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
        latency_target=latency_of(policy, terms.service, terms.largest_batch),
    )
    trust = trusted(state.trust, latency=load.latency, expected=expected, seconds=terms.interval)
    return replace(state, trust=trust)
