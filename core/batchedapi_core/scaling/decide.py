"""One step of the autoscaler: `observe` what happened, `decide` what to do about it."""

import math
from collections.abc import Iterable
from dataclasses import replace

from batchedapi_core.scaling.conclude import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import Recommendation, ScalingState, Size


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

    A decision to hold for want of knowledge counts as a recommendation of what there is: time in
    which nothing was known does not count towards a scale-down.
    """
    sizes = _sizes(policy, state.sizes, load.current, now)
    standing = tuple(one for one in state.recommendations if one.expires > now)
    evidence = _evidence(
        policy,
        load,
        held=max((one.replicas for one in standing), default=0),
        largest_recent=max(size.replicas for size in sizes),
        watched=now - (now if state.started is None else state.started),
    )
    decision = conclude(policy, evidence)
    terms = decision.terms
    made = [Recommendation(terms.steady, now + policy.down_stabilization)]
    if terms.recommended > terms.steady:
        made.append(Recommendation(terms.recommended, now + _hold_seconds(policy, terms.boost)))
    return decision, replace(state, recommendations=_standing(standing, made), sizes=sizes)


def _hold_seconds(policy: ScalingPolicy, boost: float) -> float:
    """What may prove unnecessary is held for less long."""
    return policy.overload_hold if boost > 1.0 else policy.down_stabilization


def _evidence(
    policy: ScalingPolicy,
    load: LoadWindow,
    *,
    held: int,
    largest_recent: int,
    watched: float,
) -> Evidence:
    demand, batching = load.demand, load.batching
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
        held=held,
        largest_recent=largest_recent,
        settled=watched >= policy.down_stabilization,
    )


def _sizes(
    policy: ScalingPolicy, before: Iterable[Size], current: int, now: float
) -> tuple[Size, ...]:
    """Sizes of the last scale-down period that were larger than any later one."""
    larger = (
        size for size in before if now - size.time < policy.down_period and size.replicas > current
    )
    return (*larger, Size(now, current))


def _standing(
    before: Iterable[Recommendation], made: Iterable[Recommendation]
) -> tuple[Recommendation, ...]:
    """Recommendations that still matter: no other is as high and lasts as long."""
    kept: list[Recommendation] = []
    highest = -math.inf
    for one in sorted((*before, *made), key=lambda it: (-it.expires, -it.replicas)):
        if one.replicas > highest:
            kept.append(one)
            highest = one.replicas
    return tuple(kept)
