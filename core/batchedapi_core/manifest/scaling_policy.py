"""From a manifest, and what replicas say of themselves, to the scaling policy.

The operator decides by it and `batchedapi simulate` tries it out, so it is written once.
"""

from dataclasses import dataclass
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest.autoscaling import Autoscaling, ScalingRules
from batchedapi_core.manifest.spec import BatchedAPI
from batchedapi_core.manifest.units import parse_quantity
from batchedapi_core.placement import cpu_count
from batchedapi_core.scaling.policy import Behavior, ScalingPolicy, StepPolicy, default_behaviors

_MANY_CPUS: Final = 10**6
"""Stands in for the CPUs of a node, which are not known here; the request is less."""


@dataclass(frozen=True, slots=True)
class InEffect:
    """The most that any replica says of itself; None: none does, and the manifest decides."""

    lanes: int | None = None  # 0 while its processes start; of calls as many as are let in
    max_batch_size: int | None = None  # rows, requests or cost
    batch_interval: float | None = None  # seconds
    another: bool = False  # they run another revision than the manifest's


NOTHING_SAID: Final = InEffect()


def scaling_policy_of(api: BatchedAPI, said: InEffect = NOTHING_SAID) -> ScalingPolicy:
    """The user's targets, with the batching that is in effect on the replicas where they say so.

    `max_batch_size` is as replicas count it, not yet in rows: `scaling.in_rows`.
    """
    batching, scaling = api.spec.server_side_batching, api.spec.autoscaling
    threads = model_processes(api, said) * api.spec.predictor.threads_per_process
    if said.another and said.lanes and not _are_calls(api, said.lanes):
        threads = said.lanes
    lanes = said.lanes if said.lanes is not None and _are_calls(api, said.lanes) else threads
    size = said.max_batch_size
    if size is None:
        size = batching.max_batch_size or contract.DEFAULT_BATCHED_MAX_BATCH_SIZE
    up, down = behaviors_of(scaling)
    return ScalingPolicy(
        kind=scaling.policy,
        paused=api.spec.paused,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        max_batch_size=size,
        batch_interval=(
            batching.batch_interval if said.batch_interval is None else said.batch_interval
        ),
        latency_target=batching.max_latency if scaling.slo.latency is None else scaling.slo.latency,
        quantile=scaling.slo.percentile / 100,
        target_utilization=scaling.target_utilization_percent / 100,
        target_concurrency=_target_concurrency(scaling, size, lanes, threads),
        lanes=lanes,
        hedge=None if scaling.hedge is None else float(scaling.hedge),
        gpu=has_gpus(api),
        window=scaling.window,
        idle_timeout=scaling.idle_timeout,
        up=up,
        down=down,
    )


def has_gpus(api: BatchedAPI) -> bool:
    """Whether replicas ask for some; what a claim is of, the manifest does not say."""
    return api.spec.compute.gpu > 0 or bool(api.spec.pod.resource_claims)


def model_processes(api: BatchedAPI, said: InEffect = NOTHING_SAID) -> int:
    """Model processes of a replica; with `cpu_count` as many as the lanes of a replica tell.

    They do not tell where all methods are calls, of which as many run as requests are let in.
    """
    predictor, lanes = api.spec.predictor, said.lanes or 0
    if isinstance(predictor.processes_per_replica, int):
        return predictor.processes_per_replica
    started = predictor.threads_per_process <= lanes  # fewer: its processes are still starting
    if started and not _are_calls(api, lanes):
        return lanes // predictor.threads_per_process
    return cpu_count((), parse_quantity(api.spec.compute.cpu), _MANY_CPUS)


def _are_calls(api: BatchedAPI, lanes: int) -> bool:
    return lanes >= api.spec.overload.max_replica_concurrency


def _target_concurrency(
    scaling: Autoscaling, max_batch_size: int, lanes: int, threads: int
) -> float:
    """Requests in flight that a replica is to have: what is written, else what fills its lanes.

    Without batching those are its threads, also where calls occupy no lane: of them a replica may
    have as many as it lets in, and would then have to refuse the next before there is another.
    """
    if scaling.target_replica_concurrency is not None:
        return parse_quantity(scaling.target_replica_concurrency)
    return float(threads if max_batch_size == 1 else max_batch_size * lanes)


def behaviors_of(autoscaling: Autoscaling) -> tuple[Behavior, Behavior]:
    """(up, down): the defaults of the policy in use, and what is written over them."""
    up, down = default_behaviors(autoscaling.policy)
    written = autoscaling.behavior
    if written is None:
        return up, down
    return _over(up, written.scale_up), _over(down, written.scale_down)


def _over(default: Behavior, written: ScalingRules | None) -> Behavior:
    if written is None:
        return default
    window, steps = written.stabilization_window_seconds, written.policies
    policies = default.policies
    if steps is not None:
        policies = tuple(StepPolicy(s.type, s.value, float(s.period_seconds)) for s in steps)
    return Behavior(
        stabilization=default.stabilization if window is None else float(window),
        policies=policies,
        select=written.select_policy or default.select,
        tolerance=default.tolerance
        if written.tolerance is None
        else parse_quantity(written.tolerance),
    )
