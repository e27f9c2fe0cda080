"""`status` of a BatchedAPI: the reconciler's, and all from `effective` on the autoscaler's."""

import enum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from batchedapi_core.manifest.rules import ManifestModel

Text = Annotated[str, StringConstraints(max_length=1024)]
LongText = Annotated[str, StringConstraints(max_length=32768)]


class Phase(enum.StrEnum):
    """The state in one word, for the printer column."""

    PENDING = "Pending"
    UPDATING = "Updating"
    LIVE = "Live"
    DEGRADED = "Degraded"
    ERROR = "Error"
    PAUSED = "Paused"
    DELETING = "Deleting"


class ConditionType(enum.StrEnum):
    """The conditions a BatchedAPI has; the last two are there while they are True alone."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    SPEC_VALID = "SpecValid"
    MODEL_LOADED = "ModelLoaded"
    SCHEDULED = "Scheduled"
    COMPARED = "Compared"
    METRICS_AVAILABLE = "MetricsAvailable"
    AUTOSCALING_ACTIVE = "AutoscalingActive"
    SCALING_LIMITED = "ScalingLimited"
    SLO_MET = "SLOMet"
    BATCHING_EFFECTIVE = "BatchingEffective"
    SPEC_ADVICE = "SpecAdvice"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class StatusCondition(ManifestModel):
    """A `metav1.Condition`."""

    type: Text
    status: Literal["True", "False", "Unknown"]
    reason: Text
    message: LongText = ""
    last_transition_time: Annotated[
        str, Field(json_schema_extra={"format": "date-time", "maxLength": 64})
    ]
    observed_generation: int | None = Field(None, ge=0)


class WebStatus(ManifestModel):
    """The pods NAME-web of an API with a queue."""

    replicas: int | None = Field(None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(None, ge=0, description="Pods that answer.")
    desired_replicas: int | None = Field(None, ge=0, description="Pods asked for.")


class QueueStatus(ManifestModel):
    """The one queue of all replicas, as web pods told last."""

    rows: int | None = Field(None, ge=0, description="Rows that wait in Redis.")
    oldest_seconds: Text = Field("", description="How long the oldest of them has waited.")
    web_reason: LongText = Field("", description="Why as many web pods, in one sentence.")


class RevisionStatus(ManifestModel):
    """Source, slice and image that the replicas run."""

    current: Text = Field("", description="Name of the revision ConfigMap in use.")
    image: Text = Field("", description="Serving image pinned for this revision.")
    rolled_back: Text | None = Field(
        None, description="Name of the one that autoRollback, or its canary, has given up."
    )
    canary: Text | None = Field(None, description="Name of the one whose canary runs.")
    canary_since: Annotated[
        str | None, Field(json_schema_extra={"format": "date-time", "maxLength": 64})
    ] = Field(None, description="When that canary began.")


class EffectiveStatus(ManifestModel):
    """Values in effect in the pods, wherever they were set: manifest, environment or decorator."""

    processes_per_replica: int | None = Field(None, description="Model processes of a replica.")
    lanes: int | None = Field(None, description="Batches that a replica runs at once.")
    max_batch_size: int | None = Field(
        None, description="Largest of the methods', in rows, requests or the methods' own cost."
    )
    batch_interval: Text = Field("", description="Longest of the methods'.")


class BatchingStatus(ManifestModel):
    """The batch-size histogram over the last window."""

    mean_rows: Text = Field("", description="Mean rows of a batch.")
    fill_percent: int | None = Field(None, description="Mean batch / largest batch.")
    full_percent: int | None = Field(None, description="Share of batches released full.")
    max_batch_size: int | None = Field(
        None,
        description="Rows of a full batch, in effect in the pods; where requests or the cost of"
        " rows are limited, as many rows as batches of that size have at present.",
    )
    rows_per_second: Text = ""
    batches_per_second: Text = ""
    release_reasons: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Why batches were released, in percent of them, e.g. full: 31, window: 69.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    padding_percent: int | None = Field(
        None, description="Share of padding in batches of rows of different lengths."
    )
    busy_percent: int | None = Field(None, description="Share of time that lanes ran batches.")
    service_time: Text = Field("", description="Learned t(n), e.g. `10.0ms + 0.20ms/row`.")
    bottleneck: Text = Field("", description="What limits throughput at present, in one word.")
    advice: LongText = Field("", description="What to change about it, with the numbers.")


class RecommendationStatus(ManifestModel):
    """Values to write into spec.serverSideBatching; with `effect` alone, why there are none."""

    max_batch_size: int | None = Field(None, ge=1, description="In the unit of spec's.")
    batch_interval: Text = Field("", description="Never longer than the one in effect.")
    effect: LongText = Field("", description="What it brings, in one sentence with the figures.")
    time: Annotated[
        str | None, Field(json_schema_extra={"format": "date-time", "maxLength": 64})
    ] = Field(None, description="When it was said first, or said again, a day later.")


class DecisionStatus(ManifestModel):
    """The last scaling decision with everything needed to repeat it."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time", "maxLength": 64})]
    desired: int
    reason: Text
    text: LongText = Field("", description="Why this many replicas, in one sentence.")
    record: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Inputs, every term, and each clamp in the order applied.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class AutoscalingStatus(ManifestModel):
    """The autoscaler's last decision, and its memory for a restart."""

    policy: Text = Field("", description="What replicas are decided by.")
    last_decision: DecisionStatus | None = None
    last_scale_time: Annotated[
        str | None, Field(json_schema_extra={"format": "date-time", "maxLength": 64})
    ] = None
    learned: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="The service model, recent recommendations and jumps of ten days, compact.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class BatchedAPIStatus(ManifestModel):
    """The state that the operator sees."""

    observed_generation: int | None = Field(None, ge=0)
    phase: Phase | None = None
    message: Text = Field("", description="What is wrong, else how many replicas answer.")
    replicas: int | None = Field(None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(None, ge=0)
    updated_replicas: int | None = Field(None, ge=0, description="Pods of the current revision.")
    desired_replicas: int | None = Field(None, ge=0)
    selector: Text | None = Field(None, description="Label selector of the pods, for /scale.")
    web: WebStatus | None = None
    queue: QueueStatus | None = None
    url: Text | None = Field(None, description="Address of the prediction route in the cluster.")
    revision: RevisionStatus | None = None
    effective: EffectiveStatus | None = None
    batching: BatchingStatus | None = None
    recommendation: RecommendationStatus | None = None
    autoscaling: AutoscalingStatus | None = None
    conditions: list[StatusCondition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
