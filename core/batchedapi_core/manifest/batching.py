"""`serverSideBatching`: of all methods, its queue, and what one method has differently."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field, StringConstraints

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
from batchedapi_core.manifest.pod import DnsName
from batchedapi_core.manifest.rules import (
    Flag,
    ManifestModel,
    Rule,
    Whole,
    no_two_alike,
    quantity_rule,
    worded,
)
from batchedapi_core.manifest.units import Duration, Quantity, duration_field, parse_quantity

# `serverSideBatching.queue`: one queue for all replicas, on Redis, and the pods in front of it.

_QUEUE: Final = "spec.serverSideBatching.queue"
_WEB: Final = f"{_QUEUE}.web"
_HOST: Final = worded(
    r"^[A-Za-z0-9_.:-]+$", "expected a host name or an address, without scheme and port"
)
_PREFIX: Final = worded(r"^[A-Za-z0-9_.:/-]*$", "expected letters, digits and '_.:/-'")
_SECRET_KEY: Final = worded(r"^[-._A-Za-z0-9]+$", "expected letters, digits and '-._'")
_ONE_KEY: Final = "A Secret of the API's namespace and the key in it that has"


class SecretKey(ManifestModel):
    """One value of a Secret in the API's namespace."""

    name: DnsName = Field(description="Name of the Secret.")
    key: Annotated[str, StringConstraints(pattern=_SECRET_KEY, max_length=253)] = Field(
        description="Key in it."
    )


class Redis(ManifestModel):
    """Where Redis or Valkey is; what is not said here, the environment of the pods may say."""

    host: Annotated[str, StringConstraints(pattern=_HOST, max_length=253)] | None = Field(
        None,
        description=f"Host name or address. Absent: the environment's {contract.ENV_REDIS_HOST},"
        f" else {contract.DEFAULT_REDIS_HOST}.",
    )
    port: Whole | None = Field(
        None,
        ge=1,
        le=65535,
        description=f"Absent: the environment's {contract.ENV_REDIS_PORT}, else"
        f" {contract.DEFAULT_REDIS_PORT}.",
    )
    db: Whole | None = Field(
        None,
        ge=0,
        le=1023,
        description=f"Number of the database. Absent: the environment's {contract.ENV_REDIS_DB},"
        " else 0.",
    )
    tls: Flag = Field(False, description="Connect by TLS, and check Redis' certificate.")
    username_secret: SecretKey | None = Field(
        None,
        description=f"{_ONE_KEY} the user's name. Absent: the environment's"
        f" {contract.ENV_REDIS_USERNAME}, else Redis' default user.",
    )
    password_secret: SecretKey | None = Field(
        None,
        description=f"{_ONE_KEY} the password. Absent: the environment's"
        f" {contract.ENV_REDIS_PASSWORD}, else none.",
    )
    prefix: Annotated[str, StringConstraints(pattern=_PREFIX, max_length=128)] | None = Field(
        None,
        description="Before every key, so that APIs of one name keep apart on one Redis. Absent:"
        " NAMESPACE: in a cluster, nothing on a laptop.",
    )
    max_length: Whole = Field(
        65536,
        ge=1,
        le=16777216,
        description="Requests of one method in Redis at most, those that run too, however many rows"
        " each has; beyond it requests get 503.",
    )


class Web(ManifestModel):
    """The pods NAME-web, which read, check and answer requests: how many, and their resources."""

    min_replicas: Whole = Field(
        2, ge=2, le=1000, description="Fewest of them: two, so that one may go at any time."
    )
    max_replicas: Whole = Field(
        10, ge=2, le=1000, description="Most of them; between, they are scaled on their own CPU."
    )
    cpu: Quantity = Field("200m", description="CPU request of each, which they are scaled by.")
    cpu_limit: Quantity | None = Field(
        None, description="CPU limit of each, at least the request. Absent: none."
    )
    mem: Quantity | None = Field(
        None, description="Memory request and limit of each. Absent: no limit."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            check=lambda w: w.min_replicas <= w.max_replicas,
            message=f"{_WEB}.minReplicas must be <= {_WEB}.maxReplicas",
            field_path=".minReplicas",
        ),
        quantity_rule(f"{_WEB}.cpu", lambda w: w.cpu, "1m"),
        quantity_rule(f"{_WEB}.mem", lambda w: w.mem, "1"),
        Rule(
            cel="!has(self.cpuLimit) || quantity(string(self.cpuLimit))"
            ".compareTo(quantity(string(self.cpu))) >= 0",
            check=lambda w: (
                w.cpu_limit is None or parse_quantity(w.cpu_limit) >= parse_quantity(w.cpu)
            ),
            message=f"{_WEB}.cpuLimit must be at least {_WEB}.cpu: a container cannot be limited"
            " to less than it asks for",
            field_path=".cpuLimit",
        ),
    )


class Queue(ManifestModel):
    """One queue for all replicas: pods NAME-web put rows into it, the replicas take them out."""

    redis: Redis = Field(description=(Redis.__doc__ or ""))
    web: Web = Field(
        default_factory=Web, description=(Web.__doc__ or ""), json_schema_extra={"default": {}}
    )


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
