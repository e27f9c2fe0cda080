"""`spec.autoscaling`: who decides the number of replicas, by which policy, and how fast."""

import enum
from typing import Annotated, ClassVar, Final

from pydantic import Field, JsonValue

from batchedapi_core.manifest.rules import ManifestModel, Rule, Whole, quantity_rule
from batchedapi_core.manifest.units import Duration, Quantity, duration_field
from batchedapi_core.scaling.policy import DEFAULT_TARGET, PolicyKind, Select, StepKind

_EMPTY: Final[dict[str, JsonValue]] = {"default": {}}
_PATH: Final = "spec.autoscaling"
WINDOW_STEP: Final = 10
"""Seconds; a window is a whole number of these."""


class ScalingMode(enum.StrEnum):
    """The owner of the number of replicas."""

    NATIVE = "Native"
    EXTERNAL = "External"
    OFF = "Off"


class Slo(ManifestModel):
    """The latency that replicas are sized for, and for how many of the requests."""

    percentile: Whole = Field(
        99, ge=50, le=99, description="Percent of the requests that are to be within the latency."
    )
    latency: Duration | None = duration_field(
        None,
        at_least="1ms",
        at_most="1h",
        description="End to end. Absent: spec.serverSideBatching.maxLatency; if that is absent,"
        " too, replicas are sized for full batches.",
    )


class ScalingStep(ManifestModel):
    """At most so much within one period."""

    type: StepKind = Field(description="Whether value counts Pods or Percent of the replicas.")
    value: Whole = Field(ge=1, le=100000, description="Replicas, or percent of them.")
    period_seconds: Whole = Field(ge=1, le=1800, description="Length of the period.")


class ScalingRules(ManifestModel):
    """One direction; what is absent is the policy's default."""

    stabilization_window_seconds: Whole | None = Field(
        None,
        ge=0,
        le=3600,
        description="Down only to the highest, up only to the lowest recommendation of this long.",
    )
    policies: Annotated[list[ScalingStep], Field(min_length=1, max_length=8)] | None = Field(
        None, description="Limits of one step; always one replica may come or go."
    )
    select_policy: Select | None = Field(
        None,
        description="Which of several policies counts: Max the one that allows most, Min the one"
        " that allows least; Disabled: no scaling in this direction.",
    )
    tolerance: Quantity | None = Field(
        None, description="Share of the replicas by which the need must differ, such as 0.05."
    )


class ScalingBehavior(ManifestModel):
    """How fast replicas come and go, as in a HorizontalPodAutoscaler; overrides only."""

    scale_up: ScalingRules | None = Field(
        None,
        description="Absent, CapacitySLO: at once, within 2 s at most 900 % or 4 pods, tolerance"
        " 0.05. Absent, Concurrency: window 60 s, 50 % in 10 s, tolerance 0.05.",
    )
    scale_down: ScalingRules | None = Field(
        None,
        description="Absent, CapacitySLO: window as long as replicas take to start, at least 60 s;"
        " 50 % in 60 s, no tolerance. Absent,"
        " Concurrency: window 300 s, 25 % in 10 s, tolerance 0.05.",
    )


class Autoscaling(ManifestModel):
    """How many replicas, and who decides."""

    mode: ScalingMode = Field(
        ScalingMode.NATIVE,
        description="Native: the operator decides from the batch histogram. External: an HPA, KEDA"
        " or kubectl scale writes spec.replicas. Off: spec.replicas, written by you.",
    )
    policy: PolicyKind = Field(
        PolicyKind.CAPACITY_SLO,
        description="What mode Native goes by. CapacitySLO: rows that arrive over what one replica"
        " serves within the latency target, learned from its batches. Concurrency: requests in"
        " flight over targetReplicaConcurrency, as Cortex does.",
    )
    min_replicas: Whole = Field(
        1,
        ge=0,
        le=10000,
        description="Fewest replicas in mode Native; 0, which a queue alone allows: none while"
        " there are no rows for idleTimeout.",
    )
    max_replicas: Whole = Field(100, ge=1, le=10000, description="Most replicas in mode Native.")
    idle_timeout: Duration = duration_field(
        "5m",
        at_least="1s",
        at_most="24h",
        description="With minReplicas 0: how long there have been no rows when the last replica"
        " goes.",
    )
    target_replica_concurrency: Quantity | None = Field(
        None,
        description="Requests in flight that one replica is to have, policy Concurrency. Absent:"
        " maxBatchSize times lanes with batching, else processes times threads.",
    )
    target_utilization_percent: Whole = Field(
        round(100 * DEFAULT_TARGET),
        ge=10,
        le=100,
        description="Share of what a replica can serve that is to be used, policy CapacitySLO.",
    )
    hedge: Whole | None = Field(
        None,
        ge=1,
        le=10,
        description="While ready replicas cannot keep up, at most so many times the need is"
        " ordered, policy CapacitySLO; 1: no more than the need. Absent: 1 with compute.gpu,"
        " pod.resourceClaims or where pods waited for a node within the last hour, else 3.",
    )
    slo: Slo = Field(default_factory=Slo, description=(Slo.__doc__ or ""), json_schema_extra=_EMPTY)
    window: Duration = duration_field(
        "60s",
        at_least="10s",
        at_most="1h",
        description="Batching, a slow trend of demand and, by policy Concurrency, requests in"
        " flight are measured over this long; a multiple of 10s.",
    )
    behavior: ScalingBehavior | None = Field(None, description=(ScalingBehavior.__doc__ or ""))

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            check=lambda a: a.min_replicas <= a.max_replicas,
            message=f"{_PATH}.minReplicas must be <= {_PATH}.maxReplicas",
            field_path=".minReplicas",
        ),
        Rule(
            # % 1000 whether getMilliseconds is all of the duration or what is left over seconds:
            # releases of CEL differ in that
            cel=f"self.window.getSeconds() % {WINDOW_STEP} == 0"
            " && self.window.getMilliseconds() % 1000 == 0",
            check=lambda a: int(1000 * a.window) % (1000 * WINDOW_STEP) == 0,
            message=f"{_PATH}.window must be a multiple of {WINDOW_STEP}s",
            field_path=".window",
        ),
        quantity_rule(
            f"{_PATH}.targetReplicaConcurrency", lambda a: a.target_replica_concurrency, "1m"
        ),
    )
