"""A BatchedAPI: its metadata and its `spec`, with the rules between the spec's sections."""

import re
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, JsonValue, StringConstraints

from batchedapi_core.manifest.autoscaling import Autoscaling, ScalingMode
from batchedapi_core.manifest.batching import ServerSideBatching
from batchedapi_core.manifest.parts import Compute, Networking, Overload, UpdateStrategy
from batchedapi_core.manifest.pod import Pod
from batchedapi_core.manifest.predictor import Predictor
from batchedapi_core.manifest.rules import Flag, ManifestModel, Rule, Whole, worded
from batchedapi_core.manifest.spec_rules import ACROSS_METHODS, ACROSS_SECTIONS

_EMPTY: Final[dict[str, JsonValue]] = {"default": {}}
"""Objects below `spec` default to {}, so that the apiserver fills the defaults inside them."""


class BatchedAPISpec(ManifestModel):
    """What the user asks for."""

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
        description="Replicas in modes External and Off (target of /scale); not allowed in Native.",
    )
    paused: Flag = Field(
        False,
        description="true: the operator changes nothing of this API, neither its revision nor its"
        " replicas, in any mode; it goes on watching, and says what it would do.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.autoscaling.mode != 'Native' || !has(self.replicas)",
            check=lambda s: s.autoscaling.mode is not ScalingMode.NATIVE or s.replicas is None,
            message="spec.replicas cannot be set while spec.autoscaling.mode is Native (the"
            " operator decides): set mode External or Off, or minReplicas and maxReplicas instead",
            field_path=".replicas",
        ),
        Rule(
            cel="self.autoscaling.mode == 'Native' || has(self.replicas)",
            check=lambda s: s.autoscaling.mode is ScalingMode.NATIVE or s.replicas is not None,
            message="spec.replicas is required while spec.autoscaling.mode is External or Off",
            field_path=".replicas",
            reason="FieldValueRequired",
        ),
        *ACROSS_SECTIONS,
        *ACROSS_METHODS,
    )


MAX_NAME_LENGTH: Final = 45
"""Leaves room for `-<revision>` and the suffixes that Kubernetes adds to pod names."""
_SERVICE_NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""What Kubernetes takes as the name of a Service; other objects may have dots and begin with a
digit."""


class Metadata(ManifestModel):
    """What of an object's metadata we read; the rest belongs to Kubernetes."""

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

    def with_pod_defaults(self, defaults: Pod) -> Self:
        """The same with `defaults` under its settings of the pods."""
        pod = self.spec.pod.over(defaults)
        return self.model_copy(update={"spec": self.spec.model_copy(update={"pod": pod})})

    @property
    def endpoint(self) -> str:
        """Path of the prediction route."""
        return self.spec.networking.endpoint or f"/{self.metadata.name}"


JsonObject = dict[str, Any]
"""A JSON object at the edge: a manifest or a Kubernetes object before it is parsed."""
