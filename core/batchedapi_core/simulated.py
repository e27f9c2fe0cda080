"""Simulations of what a manifest says: a replica of it, and the demand that it had once more."""

import math
from collections.abc import Sequence
from dataclasses import replace

from batchedapi_core.manifest import BatchedAPI, InEffect, scaling_policy_of
from batchedapi_core.scaling.minutes import MINUTE, Minute
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.schedule import Schedule
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulation import (
    STARTUP,
    CapacityController,
    NoisyService,
    Outcome,
    replayed,
    simulate,
)
from batchedapi_core.simulation.controllers import REVISION


class NotReplayedError(ValueError):
    """What was recorded cannot be simulated with a manifest; says why, and what to do."""


def service_of(api: BatchedAPI, time: ServiceTime, policy: ScalingPolicy) -> NoisyService:
    """A replica that runs what the manifest says, as the autoscaler takes it to."""
    batching, overload = api.spec.server_side_batching, api.spec.overload
    return NoisyService(
        fixed=time.fixed,
        per_row=time.per_row,
        max_batch_size=policy.max_batch_size,
        batch_interval=policy.batch_interval,
        latency_target=policy.latency_target,
        strategy=batching.strategy,
        max_latency=batching.max_latency,
        max_in_flight=overload.max_replica_concurrency,
        timeout=overload.timeout or math.inf,
        lanes=policy.lanes,
        size_unit=batching.size_unit,
        queue_order=batching.queue_order,
    )


def startup_of(learned: ScalingState) -> tuple[float, float]:
    """Seconds, the least and the most that replicas took to start."""
    starts = learned.start_ups
    return (min(starts), max(starts)) if starts else STARTUP


def replay(
    api: BatchedAPI, said: InEffect, learned: ScalingState, minutes: Sequence[Minute]
) -> Outcome:
    """What the autoscaler would have done with that manifest under the demand of those minutes.

    Args:
        api: The manifest.
        said: What replicas say of themselves.
        learned: Of the API: its service time, its start-ups, and jumps of before the minutes.
        minutes: One or more, in a row.

    Raises:
        NotReplayedError: There may be no replica, or no service time was learned.
    """
    policy, scaling = scaling_policy_of(api, said), api.spec.autoscaling
    time = learned.in_use.service(policy)
    if time is None:
        raise NotReplayedError("it is not known yet how long a batch takes: that takes some load")
    if scaling.min_replicas < 1:
        raise NotReplayedError(
            "expected autoscaling.minReplicas of 1 or more, got 0: no request waits here for a"
            " first replica; add --set autoscaling.minReplicas=1"
        )
    begin = MINUTE * minutes[0].time
    jumps = learned.schedule.jumps.until(begin)
    known = ScalingState(
        model=replace(learned.in_use, revision=REVISION),
        former=None,
        start_ups=learned.start_ups,
        schedule=Schedule(learned.schedule.since, jumps),
    )
    return simulate(
        service_of(api, time, policy),
        replayed(minutes),
        CapacityController(policy, state=known, wall=begin),
        startup=startup_of(learned),
        replicas=min(scaling.max_replicas, max(1, minutes[0].most)),
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
    )
