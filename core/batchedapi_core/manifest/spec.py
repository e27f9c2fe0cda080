"""A BatchedAPI: its metadata and its `spec`, with the rules between the spec's sections."""

import re
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, JsonValue, PrivateAttr, StringConstraints

from batchedapi_core.batching import SizeUnit
from batchedapi_core.manifest.autoscaling import Autoscaling, ScalingMode
from batchedapi_core.manifest.batching import PATH, SHORT_INTERVAL, ServerSideBatching
from batchedapi_core.manifest.parts import Compute, Networking, Overload, UpdateStrategy
from batchedapi_core.manifest.pod import ChildMetadata, Pod
from batchedapi_core.manifest.predictor import Predictor
from batchedapi_core.manifest.removed import Mapped, Place
from batchedapi_core.manifest.rules import Flag, ManifestModel, Rule, Whole, worded
from batchedapi_core.placement import GpuAssignment

_METHODS: Final = "spec.predictor.methods[].serverSideBatching"
_OVERRIDES: Final = "m.serverSideBatching"


def _has(name: str) -> str:
    """Whether the method `m` of the spec `self` has that field of the batching in effect."""
    return (
        f"((has({_OVERRIDES}) && has({_OVERRIDES}.{name})) || has(self.serverSideBatching.{name}))"
    )


def _of(name: str) -> str:
    """Its value."""
    return (
        f"(has({_OVERRIDES}) && has({_OVERRIDES}.{name})"
        f" ? {_OVERRIDES}.{name} : self.serverSideBatching.{name})"
    )


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
    Rule(
        cel="!self.updateStrategy.autoRollback || !has(self.serverSideBatching.queue)",
        check=lambda s: not s.update_strategy.auto_rollback or s.server_side_batching.queue is None,
        message="spec.updateStrategy.autoRollback cannot be true with"
        " spec.serverSideBatching.queue, whose rollouts have no deadline; go back with kubectl"
        " batchedapi rollback",
        field_path=".updateStrategy.autoRollback",
    ),
    Rule(
        cel="!has(self.updateStrategy.canary) || !has(self.serverSideBatching.queue)",
        check=lambda s: s.update_strategy.canary is None or s.server_side_batching.queue is None,
        message="spec.updateStrategy.canary cannot be set with spec.serverSideBatching.queue:"
        " workers take rows from one queue, so none of a new revision could answer for it alone;"
        " leave it out, or set compare",
        field_path=".updateStrategy.canary",
    ),
)


def _for_methods(cel: str, check: Any, message: str) -> Rule:
    """`check(spec, batching)` holds for the batching in effect of every method."""

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
    _for_methods(
        f"!{_has('maxLatency')} || {_of('batchInterval')} < {_of('maxLatency')}",
        lambda _, batching: batching.interval_fits,
        f"{_METHODS}.batchInterval {SHORT_INTERVAL.replace(PATH + '.', 'its ')}",
    ),
    _for_methods(
        f"self.serverSideBatching.sizeUnit != 'Requests' || !{_has('maxBatchSize')}"
        f" || self.overload.maxReplicaConcurrency >= {_of('maxBatchSize')}",
        _batches_fit,
        f"{_METHODS}.maxBatchSize is above spec.overload.maxReplicaConcurrency: a batch of that"
        " size can never form",
    ),
    _for_methods(
        "self.overload.timeout == duration('0s')"
        f" || self.overload.timeout > {_of('batchInterval')}",
        _outlasts,
        f"{_METHODS}.batchInterval must be below spec.overload.timeout: requests would expire"
        " while a batch forms",
    ),
)
"""Where a method has no batching of its own, the rules of the sections say it."""


_EMPTY: Final[dict[str, JsonValue]] = {"default": {}}
"""Objects below `spec` default to {}, so that the apiserver fills the defaults inside them."""


class BatchedAPISpec(ManifestModel):
    """The spec that a user writes."""

    predictor: Predictor = Field(description=(Predictor.__doc__ or ""))
    server_side_batching: ServerSideBatching = Field(
        default_factory=ServerSideBatching,
        description=(ServerSideBatching.__doc__ or ""),
        json_schema_extra=_EMPTY,
    )
    overload: Overload = Field(
        default_factory=Overload, description=(Overload.__doc__ or ""), json_schema_extra=_EMPTY
    )
    compute: Compute = Field(
        default_factory=Compute, description=(Compute.__doc__ or ""), json_schema_extra=_EMPTY
    )
    pod: Pod = Field(default_factory=Pod, description=(Pod.__doc__ or ""))
    child_metadata: ChildMetadata = Field(
        default_factory=ChildMetadata, description=(ChildMetadata.__doc__ or "")
    )
    autoscaling: Autoscaling = Field(
        default_factory=Autoscaling,
        description=(Autoscaling.__doc__ or ""),
        json_schema_extra=_EMPTY,
    )
    update_strategy: UpdateStrategy = Field(
        default_factory=UpdateStrategy,
        description=(UpdateStrategy.__doc__ or ""),
        json_schema_extra=_EMPTY,
    )
    networking: Networking = Field(
        default_factory=Networking, description=(Networking.__doc__ or ""), json_schema_extra=_EMPTY
    )
    replicas: Whole | None = Field(
        None,
        ge=0,
        le=10000,
        description="Replicas in modes External and Off, behind /scale. Absent: as many as there"
        " are, which the operator writes here once. Not to be set in Native, which ignores what an"
        " HPA has left here.",
    )
    paused: Flag = Field(
        False,
        description="true: the operator changes nothing of this API, neither its revision nor its"
        " replicas, in any mode; it goes on watching, and says what it would do.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # an HPA owns the field once it wrote it: nobody's apply takes it away again
            cel="self.autoscaling.mode != 'Native' || !has(self.replicas)"
            " || (oldSelf.hasValue() && has(oldSelf.value().replicas)"
            " && oldSelf.value().replicas == self.replicas)",
            check=lambda s: s.autoscaling.mode is not ScalingMode.NATIVE or s.replicas is None,
            message="spec.replicas cannot be set while spec.autoscaling.mode is Native (the"
            " operator decides): set mode External or Off, or minReplicas and maxReplicas instead",
            field_path=".replicas",
            new_only=True,
            knows_old=True,
        ),
        *ACROSS_SECTIONS,
        *ACROSS_METHODS,
    )


MAX_NAME_LENGTH: Final = 45
"""Leaves room for `-<revision>` and the suffixes that Kubernetes adds to pod names."""
_SERVICE_NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Names that Kubernetes takes for a Service; other objects may have dots and begin with a
digit."""


class Metadata(ManifestModel):
    """The fields of an object's metadata that we read; the rest belongs to Kubernetes."""

    name: Annotated[
        str,
        StringConstraints(
            pattern=worded(
                r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
                "expected lower-case letters, digits, '-' and '.', with a letter or digit at both"
                " ends",
            ),
            max_length=253,
        ),
    ]
    namespace: str = "default"
    uid: str = ""
    generation: Whole = 0


class BatchedAPI(ManifestModel):
    """One model served over HTTP in batches, with as many replicas as its traffic needs."""

    metadata: Metadata
    spec: BatchedAPISpec
    _warnings: tuple[str, ...] = PrivateAttr(())
    _before: tuple[tuple[Place, Any], ...] = PrivateAttr(())

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
            check=lambda api: len(api.metadata.name) <= MAX_NAME_LENGTH,
            message=f"metadata.name must have {MAX_NAME_LENGTH} characters at most, so that the"
            " names of its children fit",
            field_path=".metadata.name",
        ),
        Rule(
            cel=f"self.metadata.name.matches('{_SERVICE_NAME}')",
            check=lambda api: re.fullmatch(_SERVICE_NAME, api.metadata.name) is not None,
            message="metadata.name must begin with a letter and have only a-z, 0-9 and -: it is"
            " also the name of a Service",
            field_path=".metadata.name",
        ),
    )

    def with_image_mounted(self) -> Self:
        """The same API; its model's image is mounted, see ModelSpec.with_image_mounted."""
        predictor = self.spec.predictor
        if predictor.model is None:
            return self
        mounted = predictor.model_copy(update={"model": predictor.model.with_image_mounted()})
        return self.model_copy(update={"spec": self.spec.model_copy(update={"predictor": mounted})})

    def with_pod_defaults(self, defaults: Pod) -> Self:
        """The same with `defaults` under its settings of the pods."""
        pod = self.spec.pod.over(defaults)
        return self.model_copy(update={"spec": self.spec.model_copy(update={"pod": pod})})

    def mapped(self, mapped: Mapped) -> Self:
        """The same, read from a manifest that had removed fields."""
        self._warnings, self._before = mapped.warnings, mapped.before
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """One for each removed field that the manifest has."""
        return self._warnings

    @property
    def before(self) -> tuple[tuple[Place, Any], ...]:
        """The values that a removed field changed, by their places below `spec`."""
        return self._before

    def pads(self, *method: str | int) -> bool:
        """Whether the removed `shapePolicy` was Pad: of the API, or of the method at that place."""
        written = dict(self._before)
        common = written.get(("serverSideBatching", "shapePolicy"))
        own = written.get((*method, "serverSideBatching", "shapePolicy"))
        return (common if own is None else own) == "Pad"

    @property
    def endpoint(self) -> str:
        """Path of the prediction route."""
        return self.spec.networking.endpoint or f"/{self.metadata.name}"


JsonObject = dict[str, Any]
"""A JSON object at the edge: a manifest or a Kubernetes object before it is parsed."""
