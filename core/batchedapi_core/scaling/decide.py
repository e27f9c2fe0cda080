"""One step of the autoscaler: `observe` what happened, `decide` what to do about it."""

from dataclasses import replace

from batchedapi_core.scaling.bursts import recurrences
from batchedapi_core.scaling.conclude import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision
from batchedapi_core.scaling.hedge import NODE_MEMORY
from batchedapi_core.scaling.learn import learned
from batchedapi_core.scaling.memory import at_begin, most_within, sizes_of, unexpired
from batchedapi_core.scaling.observe import LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.replica import latency_of, replica_capacity, trusted_batch
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.startup import late_after, start_up_of
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
    rows_per_request = max(1.0, batching.rows_per_request or 1.0)
    return Evidence(
        ready=load.ready,
        current=load.current,
        coverage=load.coverage,
        arrival_now=None if demand is None else demand.arrival_now,
        arrival_window=None if demand is None else demand.arrival_window,
        level=None if demand is None else demand.level,
        interval=None if demand is None else demand.interval,
        queue_rows=load.queue_rows,
        waiting_rows=_waiting_rows(policy, load, rows_per_request),
        service=load.service,
        largest_mean_batch=load.largest_mean_batch,
        mean_batch=batching.mean_rows,
        fill=None if batching.fill_percent is None else batching.fill_percent / 100.0,
        full_share=batching.full_share,
        busy=batching.busy,
        saturated=load.saturated,
        held=max((one.replicas for one in state.recommendations), default=0),
        settled=watched >= policy.down.window(start_up),
        shrunk_from=tuple(
            most_within(state.ready_sizes, now, one.period) for one in policy.down.policies
        ),
        grown_from=tuple(at_begin(state.sizes, now, one.period) for one in policy.up.policies),
        lowest=min((one.replicas for one in state.lows), default=None),
        settled_up=watched >= policy.up.window(start_up),
        trend=0.0 if demand is None else demand.trend,
        margin_share=state.foresight.margin,
        highest=state.foresight.highest,
        recurring=recurrences(state.bursts, now),
        slowdown=load.slowdown,
        trust=state.trust,
        start_up=start_up,
        unschedulable=load.unready.unschedulable,
        failing=load.unready.failing,
        oldest_start=load.unready.oldest,
        late_after=late_after(state.start_ups),
        waited_for_node=state.node_wait is not None and now - state.node_wait < NODE_MEMORY,
        hedged=0 if state.hedge is None else state.hedge.replicas,
        seasoned=state.in_use.sums.batches >= policy.hedge_batches,
        imbalance=load.imbalance,
        rows_per_request=rows_per_request,
        in_flight=None if demand is None else demand.in_flight,
    )


def _waiting_rows(policy: ScalingPolicy, load: LoadWindow, rows_per_request: float) -> float:
    """Rows in queue beyond the ordinary, pod by pod: what waits in one is not served by others.

    What a replica serves in half of the latency target waits in the ordinary course.
    """
    if load.service is None or load.coverage <= 0.0:
        return 0.0
    largest = trusted_batch(policy, load.largest_mean_batch)
    replica = replica_capacity(
        policy,
        load.service,
        largest_batch=largest,
        rows_per_request=rows_per_request,
        slowdown=load.slowdown,
    )
    ordinary = 0.5 * latency_of(policy, load.service, largest) * replica.rows_per_second
    return sum(max(0.0, queue - ordinary) for queue in load.queues) / load.coverage
