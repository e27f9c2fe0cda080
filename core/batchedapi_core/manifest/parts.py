"""The sections of `spec`. A field exists only if it works; its description is the reference."""

import enum
from typing import Annotated, ClassVar, Final

from pydantic import Field, JsonValue, StringConstraints

from batchedapi_core import contract
from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.manifest.rules import ManifestModel, Rule, not_negative_rule, quantity_rule
from batchedapi_core.manifest.units import Duration, Quantity, duration_field

RESERVED_ENDPOINTS: Final = ("/predict", "/docs", "/openapi.json")
_PERCENT: Final = r"^(0|[1-9][0-9]{0,2})%$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class ScalingMode(enum.StrEnum):
    """Who decides the number of replicas."""

    NATIVE = "Native"
    EXTERNAL = "External"
    OFF = "Off"


class LogLevel(enum.StrEnum):
    """Least severe log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class InImage(ManifestModel):
    """The predictor's code is in the image: in its working directory or importable."""


class Source(ManifestModel):
    """Where the predictor's code comes from; exactly one member."""

    config_map: Name | None = Field(
        None, description="ConfigMap in the same namespace whose keys are the source files."
    )
    in_image: InImage | None = Field(
        None, description="The code is in the image (FROM batchedapi-serving)."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.configMap) != has(self.inImage)",
            check=lambda s: (s.config_map is None) != (s.in_image is None),
            message="spec.predictor.source needs exactly one of configMap and inImage",
            field_path=".configMap",
        ),
    )


class EnvVar(ManifestModel):
    """One environment variable of the model processes."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=253)]
    value: Annotated[str, StringConstraints(max_length=32768)] = ""


class Predictor(ManifestModel):
    """The user's class and how many copies of it a replica runs."""

    path: Annotated[
        str,
        StringConstraints(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
            max_length=253,
        ),
    ] = Field(
        description="The predictor class as `module:Class`, or `file.py:Class`. Looked for in the"
        " manifest's folder, then in the working directory."
    )
    source: Source | None = Field(
        None, description="Where the code comes from. Absent: it is in the image."
    )
    config: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Handed to the predictor's constructor as it is.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=128,
        description="Environment variables of the model processes.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        None, description="Serving image. Absent: the operator's default."
    )
    processes_per_replica: int = Field(
        1, ge=1, le=64, description="Model processes per replica, each with its own model copy."
    )
    threads_per_process: int = Field(
        1,
        ge=1,
        le=1024,
        description="Batches that one model process runs at once (lanes); 1 for CPU-bound models.",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="Least severe log lines written.")


class ServerSideBatching(ManifestModel):
    """How requests of different clients are put into one call of the model."""

    max_batch_size: int | None = Field(
        None,
        ge=1,
        le=contract.MAX_BATCH_SIZE_LIMIT,
        description="Rows (or requests, see sizeUnit) of one batch at most; 1 turns batching off."
        " Absent: what @batched says, else 32 for a @batched method and 1 for one without.",
    )
    batch_interval: Duration = duration_field(
        "10ms",
        at_least="0s",
        at_most="60s",
        description="Window: the longest a request is held back while a lane is free, 0s = never."
        " Fixed: from the oldest request until a batch that is not full is released.",
    )
    strategy: Strategy = Field(
        Strategy.WINDOW,
        description="Window waits only while waiting is expected to help; Fixed waits until the"
        " batch is full or batchInterval is over.",
    )
    size_unit: SizeUnit = Field(
        SizeUnit.ROWS, description="What maxBatchSize counts: Rows or Requests."
    )
    max_latency: Duration | None = duration_field(
        None,
        at_least="1ms",
        at_most="1h",
        description="End-to-end latency target. A request that is expected to miss it is answered"
        " 429 at once; the autoscaler sizes replicas for it.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxLatency) || self.batchInterval < self.maxLatency",
            check=lambda b: b.max_latency is None or b.batch_interval < b.max_latency,
            message="spec.serverSideBatching.batchInterval must be below"
            " spec.serverSideBatching.maxLatency: waiting would use up the whole target",
            field_path=".batchInterval",
        ),
    )


class Overload(ManifestModel):
    """What a replica refuses, and when."""

    timeout: Duration = duration_field(
        "30s",
        at_least="0s",
        at_most="24h",
        description="A request not answered by then gets 504; 0s = no limit.",
    )
    max_body_size: Quantity = Field(
        "32Mi", description="Largest request body, at least 1Ki; above it 413."
    )
    max_replica_concurrency: int = Field(
        1024, ge=1, le=30000, description="Requests in one replica at once; above it 503."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        quantity_rule("spec.overload.maxBodySize", lambda o: o.max_body_size, "1Ki"),
    )


class Compute(ManifestModel):
    """Resources of one replica."""

    cpu: Quantity = Field("200m", description="CPU request.")
    mem: Quantity | None = Field(None, description="Memory request and limit. Absent: no limit.")
    gpu: int = Field(0, ge=0, le=16, description="GPUs, as limits['nvidia.com/gpu'].")

    rules: ClassVar[tuple[Rule, ...]] = (
        quantity_rule("spec.compute.cpu", lambda c: c.cpu, "1m"),
        quantity_rule("spec.compute.mem", lambda c: c.mem, "1"),
    )


class Autoscaling(ManifestModel):
    """How many replicas, and who decides."""

    mode: ScalingMode = Field(
        ScalingMode.NATIVE,
        description="Native: the operator decides from the batch histogram. External: an HPA, KEDA"
        " or kubectl scale writes spec.replicas. Off: spec.replicas, written by you.",
    )
    min_replicas: int = Field(1, ge=1, le=10000, description="Fewest replicas in mode Native.")
    max_replicas: int = Field(100, ge=1, le=10000, description="Most replicas in mode Native.")
    target_utilization_percent: int = Field(
        80, ge=10, le=100, description="Share of what a replica can serve that is to be used."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            check=lambda a: a.min_replicas <= a.max_replicas,
            message="spec.autoscaling.minReplicas must be <= spec.autoscaling.maxReplicas",
            field_path=".minReplicas",
        ),
    )


IntOrPercent = Annotated[
    Annotated[int, Field(strict=True)]  # Kubernetes takes a number in quotes for no number
    | Annotated[str, StringConstraints(pattern=_PERCENT, max_length=4)],
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _PERCENT,
            "maxLength": 4,
        }
    ),
]


class UpdateStrategy(ManifestModel):
    """How a new revision replaces the old one, and how a replica stops."""

    max_surge: IntOrPercent = Field("25%", description="Replicas above the count in an update.")
    max_unavailable: IntOrPercent = Field("25%", description="Replicas missing in an update.")
    drain_delay: Duration = duration_field(
        "5s",
        at_least="0s",
        at_most="10m",
        description="How long a stopping replica goes on accepting, until endpoints have settled.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        not_negative_rule("spec.updateStrategy.maxSurge", lambda u: u.max_surge),
        not_negative_rule("spec.updateStrategy.maxUnavailable", lambda u: u.max_unavailable),
        Rule(
            cel="!(string(self.maxSurge) in ['0', '0%']"
            " && string(self.maxUnavailable) in ['0', '0%'])",
            check=lambda u: not {str(u.max_surge), str(u.max_unavailable)} <= {"0", "0%"},
            message="spec.updateStrategy.maxSurge and spec.updateStrategy.maxUnavailable must not"
            " both be 0: an update could never begin",
            field_path=".maxSurge",
        ),
    )


class Networking(ManifestModel):
    """Where predictions are asked for."""

    endpoint: (
        Annotated[
            str,
            StringConstraints(pattern=r"^(/[A-Za-z0-9_.~-]+)+$", max_length=253),
        ]
        | None
    ) = Field(None, description="Path of the prediction route. Absent: /<name>.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.endpoint) || !(self.endpoint in ['/predict', '/docs', '/openapi.json'])",
            check=lambda n: n.endpoint not in RESERVED_ENDPOINTS,
            message="spec.networking.endpoint must not be /predict, /docs or /openapi.json:"
            " these routes exist already",
            field_path=".endpoint",
        ),
    )
