"""`serverSideBatching`: of all methods, and what one method has differently."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from batchedapi_core import contract
from batchedapi_core.batching import (
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    ShapePolicy,
    SizeUnit,
    Strategy,
)
from batchedapi_core.manifest.queue import Queue
from batchedapi_core.manifest.rules import Flag, ManifestModel, Rule, Whole, no_two_alike
from batchedapi_core.manifest.units import Duration, duration_field

PATH: Final = "spec.serverSideBatching"

Size = Annotated[Whole, Field(ge=1, le=contract.MAX_BATCH_SIZE_LIMIT)]
Sizes = Annotated[
    list[Size],
    AfterValidator(no_two_alike),
    Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


class Tuning(enum.StrEnum):
    """Whether the operator says what to write into `serverSideBatching`."""

    OFF = "Off"
    RECOMMEND = "Recommend"


@dataclass(frozen=True, slots=True)
class Members:
    """How the fields of a batching object are reached in CEL."""

    has: Callable[[str], str]
    of: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class BatchingLaw:
    """A condition on the batching in effect for a method, in CEL and in Python."""

    member: str
    """Field that a violation is reported on."""
    cel: Callable[[Members], str]
    check: Callable[["ServerSideBatching"], bool]
    says: str
    """Behind the field's path."""

    def rule(self) -> Rule:
        """The law as a rule of `serverSideBatching` itself."""
        return Rule(
            cel=self.cel(Members(lambda name: f"has(self.{name})", lambda name: f"self.{name}")),
            check=self.check,
            message=f"{PATH}.{self.member} {self.says}",
            field_path=f".{self.member}",
        )


LAWS: Final = (
    BatchingLaw(
        "batchInterval",
        lambda m: f"!{m.has('maxLatency')} || {m.of('batchInterval')} < {m.of('maxLatency')}",
        lambda b: b.max_latency is None or b.batch_interval < b.max_latency,
        f"must be below {PATH}.maxLatency: waiting would use up the whole target",
    ),
    BatchingLaw(
        "strategy",
        lambda m: f"{m.of('strategy')} != 'Adaptive' || {m.has('maxLatency')}",
        lambda b: b.strategy is not Strategy.ADAPTIVE or b.max_latency is not None,
        f"Adaptive needs {PATH}.maxLatency: it is what sizes and intervals are adapted to",
    ),
    BatchingLaw(
        "preferredBatchSizes",
        lambda m: (
            f"!{m.has('preferredBatchSizes')} || !{m.has('maxBatchSize')}"
            f" || {m.of('preferredBatchSizes')}.all(size, size <= {m.of('maxBatchSize')})"
        ),
        lambda b: b.max_batch_size is None or max(b.preferred_batch_sizes, default=1)
        <= b.max_batch_size,
        f"must not be above {PATH}.maxBatchSize: such a batch can never form",
    ),
)  # fmt: skip


BY_DEADLINE: Final = (
    f"Deadline cannot be beside {PATH}.queue: one queue for all replicas is in order of arrival;"
    " leave one of them out"
)


def by_deadline_in_one_queue(batching: "ServerSideBatching") -> bool:
    """Whether rows that wait in Redis would have to be sorted."""
    return batching.queue is not None and batching.queue_order is QueueOrder.DEADLINE


class ServerSideBatching(ManifestModel):
    """How requests of different clients are put into one call of the model."""

    enabled: Flag = Field(
        True, description="false: no batching at all, as if every maxBatchSize were 1."
    )
    max_batch_size: Size | None = Field(
        None,
        description="Rows (or requests, see sizeUnit) of one batch at most; 1 turns batching off."
        f" Absent: the environment's {contract.ENV_BATCH_SIZE}, else what @batched says, else 32"
        " for a @batched method and 1 for one without.",
    )
    batch_interval: Duration = duration_field(
        "10ms",
        at_least="0s",
        at_most="60s",
        description="Window: the longest a request is held back while a lane is free, 0s = never."
        " Fixed: from the oldest request until a batch that is not full is released. Absent, on a"
        f" laptop: the environment's {contract.ENV_BATCH_TIME} in seconds.",
    )
    strategy: Strategy = Field(
        Strategy.WINDOW,
        description="Window waits only while waiting is expected to help; Fixed waits until the"
        " batch is full or batchInterval is over; Immediate never waits while a lane is free;"
        " Adaptive is Window with size and interval driven by what batches take and by maxLatency."
        f" Absent, on a laptop: Fixed where {contract.ENV_BATCH_SIZE} or {contract.ENV_BATCH_TIME}"
        " is in effect.",
    )
    tuning: Tuning = Field(
        Tuning.RECOMMEND,
        description="Recommend: status.recommendation says which maxBatchSize and batchInterval"
        " would serve more within the latency target, by what batches took; nothing is changed."
        " strategy Adaptive follows it by itself.",
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
    preferred_batch_sizes: Sizes = Field(
        default_factory=list,
        description="Sizes that a batch which is not full should have, such as those a model was"
        " compiled for.",
    )
    shape_policy: ShapePolicy = Field(
        ShapePolicy.BUCKET,
        description="Rows whose variable dimensions differ: Bucket batches each shape with its"
        " like, Pad fills them up with zeros, Reject refuses variable dimensions at start.",
    )
    dispatch: LaneChoice = Field(
        LaneChoice.RANDOM,
        description="Which free lane gets a batch: any, or one of the process with the fewest"
        " lanes busy.",
    )
    queue_order: QueueOrder = Field(
        QueueOrder.FIFO, description="Whose turn it is: the oldest, or the earliest deadline."
    )
    on_item_error: ItemErrorPolicy = Field(
        ItemErrorPolicy.ISOLATE,
        description="Of a batch that fails: Isolate runs it again in halves until only the culprit"
        " fails, FailBatch fails all of it and runs nothing twice.",
    )
    receipt: Receipts = Field(
        Receipts.OFF,
        description="Whether answers say which batch they rode in: in headers, or also in the"
        " parameters of the Open Inference Protocol.",
    )
    queue: Queue | None = Field(
        None,
        description=f"{Queue.__doc__} Absent: each replica has a queue of its own.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *(law.rule() for law in LAWS),
        Rule(
            cel="!has(self.queue) || self.queueOrder != 'Deadline'",
            check=lambda b: not by_deadline_in_one_queue(b),
            message=f"{PATH}.queueOrder {BY_DEADLINE}",
            field_path=".queueOrder",
        ),
    )


class MethodBatching(ManifestModel):
    """What one method has differently from `spec.serverSideBatching`."""

    max_batch_size: Size | None = Field(None, description="As spec.serverSideBatching's.")
    batch_interval: Duration | None = duration_field(
        None, at_least="0s", at_most="60s", description="As spec.serverSideBatching's."
    )
    strategy: Strategy | None = Field(None, description="As spec.serverSideBatching's.")
    size_unit: SizeUnit | None = Field(None, description="As spec.serverSideBatching's.")
    max_latency: Duration | None = duration_field(
        None,
        at_least="1ms",
        at_most="1h",
        description="As spec.serverSideBatching's, but replicas are sized for that one alone.",
    )
    preferred_batch_sizes: Sizes | None = Field(None, description="As spec.serverSideBatching's.")
    shape_policy: ShapePolicy | None = Field(None, description="As spec.serverSideBatching's.")
    queue_order: QueueOrder | None = Field(None, description="As spec.serverSideBatching's.")

    def over(self, common: ServerSideBatching) -> ServerSideBatching:
        """The batching in effect: `common`, and of it what is written here differently."""
        written = {name: value for name, value in self if value is not None}
        return common.model_copy(update=written)
