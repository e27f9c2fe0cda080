"""Rules between sections of `spec`, and those that hold for each method with its own batching."""

from typing import Any, Final

from batchedapi_core.batching import SizeUnit
from batchedapi_core.manifest.batching import (
    BY_DEADLINE,
    LAWS,
    PATH,
    Members,
    ServerSideBatching,
    by_deadline_in_one_queue,
)
from batchedapi_core.manifest.rules import Rule
from batchedapi_core.placement import GpuAssignment

_METHODS: Final = "spec.predictor.methods[].serverSideBatching"
_OVERRIDES: Final = "m.serverSideBatching"
_IN_EFFECT: Final = Members(
    has=lambda name: (
        f"((has({_OVERRIDES}) && has({_OVERRIDES}.{name})) || has(self.serverSideBatching.{name}))"
    ),
    of=lambda name: (
        f"(has({_OVERRIDES}) && has({_OVERRIDES}.{name})"
        f" ? {_OVERRIDES}.{name} : self.serverSideBatching.{name})"
    ),
)
"""Fields of the batching in effect for the method `m` of the spec `self`."""


def _batches_fit(spec: Any, batching: ServerSideBatching) -> bool:
    return (
        batching.size_unit is not SizeUnit.REQUESTS
        or batching.max_batch_size is None
        or spec.overload.max_replica_concurrency >= batching.max_batch_size
    )


def _outlasts(spec: Any, batching: ServerSideBatching) -> bool:
    return spec.overload.timeout == 0 or bool(spec.overload.timeout > batching.batch_interval)


def _exclusive_devices(spec: Any) -> bool:
    processes, gpus = spec.predictor.processes_per_replica, spec.compute.gpu
    return (
        spec.predictor.gpu_assignment is not GpuAssignment.EXCLUSIVE
        or isinstance(processes, str)
        or gpus % processes == 0
    )


ACROSS_SECTIONS: Final = (
    Rule(
        cel="self.serverSideBatching.sizeUnit != 'Requests'"
        " || !has(self.serverSideBatching.maxBatchSize)"
        " || self.overload.maxReplicaConcurrency >= self.serverSideBatching.maxBatchSize",
        check=lambda s: _batches_fit(s, s.server_side_batching),
        message="spec.overload.maxReplicaConcurrency is below"
        " spec.serverSideBatching.maxBatchSize: a batch of that size can never form",
        field_path=".overload.maxReplicaConcurrency",
    ),
    Rule(
        cel="self.overload.timeout == duration('0s')"
        " || self.overload.timeout > self.serverSideBatching.batchInterval",
        check=lambda s: _outlasts(s, s.server_side_batching),
        message="spec.overload.timeout must be 0s (no limit) or above"
        " spec.serverSideBatching.batchInterval: requests would expire while a batch forms",
        field_path=".overload.timeout",
    ),
    Rule(
        cel="self.predictor.gpuAssignment != 'Exclusive'"
        " || type(self.predictor.processesPerReplica) == string"
        " || self.compute.gpu % int(self.predictor.processesPerReplica) == 0",
        check=_exclusive_devices,
        message="spec.predictor.gpuAssignment Exclusive needs spec.compute.gpu to be a multiple of"
        " spec.predictor.processesPerReplica; RoundRobin shares GPUs",
        field_path=".predictor.gpuAssignment",
    ),
    Rule(
        cel="self.autoscaling.minReplicas >= 1 || has(self.serverSideBatching.queue)",
        check=lambda s: s.autoscaling.min_replicas >= 1 or s.server_side_batching.queue is not None,
        message="spec.autoscaling.minReplicas 0 needs spec.serverSideBatching.queue: without it"
        " nothing holds a request while there is no replica; set 1, or a queue",
        field_path=".autoscaling.minReplicas",
    ),
)


def _for_methods(cel: str, check: Any, message: str) -> Rule:
    """That `check(spec, batching)` holds for the batching in effect of every method."""

    def holds(spec: Any) -> bool:
        return all(
            check(spec, method.server_side_batching.over(spec.server_side_batching))
            for method in spec.predictor.methods
            if method.server_side_batching is not None
        )

    return Rule(
        cel=f"!has(self.predictor.methods) || self.predictor.methods.all(m, {cel})",
        check=holds,
        message=message,
        field_path=".predictor.methods",
    )


ACROSS_METHODS: Final = (
    *(
        _for_methods(
            law.cel(_IN_EFFECT),
            lambda _, batching, law=law: law.check(batching),
            f"{_METHODS}.{law.member} {law.says.replace(PATH + '.', 'its ')}",
        )
        for law in LAWS
    ),
    _for_methods(
        f"{_IN_EFFECT.of('sizeUnit')} != 'Requests' || !{_IN_EFFECT.has('maxBatchSize')}"
        f" || self.overload.maxReplicaConcurrency >= {_IN_EFFECT.of('maxBatchSize')}",
        _batches_fit,
        f"{_METHODS}.maxBatchSize is above spec.overload.maxReplicaConcurrency: a batch of that"
        " size can never form",
    ),
    _for_methods(
        "self.overload.timeout == duration('0s')"
        f" || self.overload.timeout > {_IN_EFFECT.of('batchInterval')}",
        _outlasts,
        f"{_METHODS}.batchInterval must be below spec.overload.timeout: requests would expire"
        " while a batch forms",
    ),
    _for_methods(
        f"!has(self.serverSideBatching.queue) || {_IN_EFFECT.of('queueOrder')} != 'Deadline'",
        lambda _, batching: not by_deadline_in_one_queue(batching),
        f"{_METHODS}.queueOrder {BY_DEADLINE}",
    ),
)
"""Where a method has no batching of its own, the rules of the sections say it."""
