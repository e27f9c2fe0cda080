"""`serverSideBatching`: of all methods, its queue, and what one method has differently."""

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from batchedapi_core import contract
from batchedapi_core.batching import (
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    SizeUnit,
    Strategy,
)
from batchedapi_core.manifest.kubernetes import SecretKeySelector
from batchedapi_core.manifest.pod import DnsName, WebPod
from batchedapi_core.manifest.rules import (
    Flag,
    ManifestModel,
    Rule,
    Whole,
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
_ONE_KEY: Final = "A Secret of the API's namespace and the key in it that has"


class RedisSecret(SecretKeySelector):
    """One key of a Secret. Its name is checked here: a refused pod names no field of `queue`."""

    name: DnsName


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
    username_secret: RedisSecret | None = Field(
        None,
        description=f"{_ONE_KEY} the user's name. Absent: the environment's"
        f" {contract.ENV_REDIS_USERNAME}, else Redis' default user.",
    )
    password_secret: RedisSecret | None = Field(
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


class WebSpec(ManifestModel):
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
    pod: WebPod = Field(default_factory=WebPod, description=(WebPod.__doc__ or ""))

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


class QueueSpec(ManifestModel):
    """One queue for all replicas: pods NAME-web put rows into it, the replicas take them out."""

    redis: Redis = Field(description=(Redis.__doc__ or ""))
    web: WebSpec = Field(
        default_factory=WebSpec,
        description=(WebSpec.__doc__ or ""),
        json_schema_extra={"default": {}},
    )


PATH: Final = "spec.serverSideBatching"
SHORT_INTERVAL: Final = f"must be below {PATH}.maxLatency: waiting would use up the whole target"

Size = Annotated[Whole, Field(ge=1, le=contract.MAX_BATCH_SIZE_LIMIT)]


class ServerSideBatching(ManifestModel):
    """How requests of different clients are put into one call of the model."""

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
    queue: QueueSpec | None = Field(
        None, description=f"{QueueSpec.__doc__} Absent: each replica has a queue of its own."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxLatency) || self.batchInterval < self.maxLatency",
            check=lambda b: b.interval_fits,
            message=f"{PATH}.batchInterval {SHORT_INTERVAL}",
            field_path=".batchInterval",
        ),
        Rule(
            cel="self.strategy != 'Adaptive' || has(self.maxLatency)",
            check=lambda b: b.strategy is not Strategy.ADAPTIVE or b.max_latency is not None,
            message=f"{PATH}.strategy Adaptive needs {PATH}.maxLatency: it is what sizes and"
            " intervals are adapted to",
            field_path=".strategy",
        ),
        Rule(
            cel="!has(self.queue) || self.queueOrder != 'Deadline'",
            check=lambda b: b.queue is None or b.queue_order is not QueueOrder.DEADLINE,
            message=f"{PATH}.queueOrder Deadline cannot be beside {PATH}.queue: one queue for all"
            " replicas is in order of arrival; leave one of them out",
            field_path=".queueOrder",
        ),
    )

    @property
    def interval_fits(self) -> bool:
        """Whether waiting for a batch leaves some of the latency target."""
        return self.max_latency is None or self.batch_interval < self.max_latency


class MethodBatching(ManifestModel):
    """Settings of one method that differ from `spec.serverSideBatching`."""

    max_batch_size: Size | None = Field(None, description="As spec.serverSideBatching's.")
    batch_interval: Duration | None = duration_field(
        None, at_least="0s", at_most="60s", description="As spec.serverSideBatching's."
    )
    max_latency: Duration | None = duration_field(
        None,
        at_least="1ms",
        at_most="1h",
        description="As spec.serverSideBatching's, but replicas are sized for that one alone.",
    )

    def over(self, common: ServerSideBatching) -> ServerSideBatching:
        """The batching in effect: these settings over `common`."""
        written = {name: value for name, value in self if value is not None}
        return common.model_copy(update=written)
