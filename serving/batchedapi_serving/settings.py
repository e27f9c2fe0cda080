"""Settings of a replica: one frozen value that crosses its processes as JSON."""

import dataclasses
import enum
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args, get_origin

from batchedapi_core import contract
from batchedapi_core.batching import (
    ItemErrorPolicy,
    LaneChoice,
    QueueOrder,
    Receipts,
    SizeUnit,
    Strategy,
)
from batchedapi_core.model_format import ModelFormat

SETTINGS_FILE: Final = "settings.json"
METRICS_FILE: Final = "metrics"
LANES_SOCKET: Final = "lanes.sock"
DESK_SOCKET: Final = "engine.sock"
Value = TypeVar("Value")


def built(kind: type[Value], value: Any) -> Value:
    """A dataclass of what `dataclasses.asdict` and JSON made of it, with all that is in it."""
    return cast("Value", _built(kind, value))


def _built(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, types.UnionType):  # with None
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
    if dataclasses.is_dataclass(kind):
        make = cast("Callable[..., Any]", kind)
        types_of = {field.name: field.type for field in dataclasses.fields(kind)}
        return make(**{name: _built(types_of[name], one) for name, one in value.items()})
    if get_origin(kind) is tuple:
        of_members = get_args(kind)[:1] * len(value)
        return tuple(map(_built, of_members, value))
    return kind(value) if isinstance(kind, type) and issubclass(kind, enum.Enum) else value


@dataclasses.dataclass(frozen=True, slots=True)
class BatchingSettings:
    """Batching of one method; durations in seconds."""

    max_batch_size: int | None = None
    """From the manifest; None: what the method declares."""
    batch_interval: float = 0.01
    strategy: Strategy = Strategy.WINDOW
    size_unit: SizeUnit = SizeUnit.ROWS
    max_latency: float | None = None
    pads: bool = False
    """By the removed shapePolicy Pad: every input with a named length is padded with zeros."""
    queue_order: QueueOrder = QueueOrder.FIFO


@dataclasses.dataclass(frozen=True, slots=True)
class MethodSettings:
    """The manifest's settings of one method; they beat the decorator's."""

    name: str
    batched: bool | None
    """None: whether it has `@batched`."""
    batch_dim: tuple[int, int] | None
    """Dimensions of input and output; None: as the decorator says."""
    batching: BatchingSettings


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model that is there before the predictor is made."""

    uri: str
    """Where it lies: a path, or a URI that model_source fetches."""
    sha256: str | None = None
    """Hexadecimal digest that the fetched file or folder must have."""
    cache: str | None = None
    """Folder that keeps what was fetched, for other replicas too; None: this replica's own."""
    format: ModelFormat | None = None
    """Of a model that is served as it is."""
    trusted: bool = False
    """Whether code that such a model brings may run."""
    path: str | None = None
    """Its file or folder once it is here; None until then."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingSettings:
    """Where arrivals are recorded."""

    path: str
    """Absolute; the file is there."""
    started: float
    """When the recording began, in seconds on the machine's monotonic clock."""


class Role(enum.StrEnum):
    """Part of a replica that runs here."""

    REPLICA = contract.ROLE_REPLICA
    """All of it; with a queue, both of the others beside each other."""
    WEB = contract.ROLE_WEB
    """Web processes: they hand requests in, and no model is loaded."""
    WORKER = contract.ROLE_WORKER
    """Model processes, which take from the queue; nothing is listened to."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueSettings:
    """The Redis, or Valkey, in which requests of all replicas wait."""

    host: str = contract.DEFAULT_REDIS_HOST
    port: int = contract.DEFAULT_REDIS_PORT
    db: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = None
    prefix: str = ""
    """Before the names of all keys."""
    max_length: int = 65536
    """Rows of one method that may be in the queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompareSettings:
    """Comparison of this revision with the one before, and of the next with this one."""

    peers: str
    """Name of all pods of the API that are ready."""
    port: int
    """Admin port of each."""
    token: str
    """Known to the pods of the API alone."""
    revision: str
    """Revision of this pod, by the operator's name."""
    slower: float
    """Share by which batches may take longer: 0.3 is 30 %."""
    differ: float
    """Share of rows that may get another answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class TracingSettings:
    """Choice of the requests that have spans, and the place these go to."""

    endpoint: str
    """As it was written."""
    ratio: float
    """Share of requests that begin a trace here, 0 to 1."""
    follows_parent: bool
    """A request whose caller has decided has a span or none as that says."""
    most_queued: int
    """Spans that wait to be sent."""
    variables: tuple[tuple[str, str], ...]
    """Name and value of all that OpenTelemetry's SDK reads."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Effective values; durations in seconds, sizes in bytes."""

    name: str
    endpoint: str
    revision: str
    """Name of the revision in a cluster, from manifest and code; empty on a laptop."""
    predictor_path: str | None
    """`module:Class`; None: the model is served as it is."""
    search: tuple[str, ...]
    """Folders in which the predictor's module is looked for, first first."""
    config: dict[str, Any]
    processes: int
    threads: int
    web_processes: int
    gpus: tuple[str, ...]
    """Devices of this replica, as CUDA_VISIBLE_DEVICES names them."""
    gpu_assignment: str
    """How they are shared among model processes: a value of placement.GpuAssignment."""
    cpu_threads: int | None
    """Threads of numeric libraries in each model process; None: its share of the CPUs."""
    log_level: str
    warm_up_sizes: tuple[int, ...] | None
    """Batch sizes of the warm-up; None: 1, 2, 4, ... the maximum; (): no warm-up."""
    batching: BatchingSettings
    """Batching of methods that `methods` does not name."""
    methods: tuple[MethodSettings, ...]
    lane_choice: LaneChoice
    item_errors: ItemErrorPolicy
    receipts: Receipts
    timeout: float | None
    max_body_bytes: int
    max_concurrency: int
    drain_delay: float
    max_connection_age: float | None
    """Seconds; None: connections stay however old they are."""
    keep_alive: float
    """Seconds that a connection may be idle."""
    grpc_port: int | None
    """None: gRPC is not served."""
    host: str
    """Address that gRPC listens on."""
    runtime: str
    """Folder of this replica's sockets, metrics memory and settings."""
    startup_limit: float = 595.0
    """Until a model is fetched, imported, constructed and warmed up."""
    model: ModelSettings | None = None
    """None: the predictor asks for none, or is not run here."""
    recording: RecordingSettings | None = None
    """None: nothing is recorded."""
    api_keys: str | None = None
    """Folder with a file for each key; None: none is asked for."""
    cors_origins: tuple[str, ...] = ()
    """From which browsers may ask; (): they may not."""
    access_log: bool = False
    tracing: TracingSettings | None = None
    """None: no request has a span."""
    role: Role = Role.REPLICA
    queue: QueueSettings | None = None
    """None: requests wait in the replica itself."""
    compare: CompareSettings | None = None
    """None: no rows are kept, and no revision is compared."""
    in_pod: bool = False
    """The cluster knows who ends, and sends new clients elsewhere if anybody else is ready."""

    def of_method(self, name: str) -> MethodSettings:
        """Settings of the method `name`, or of the one whose batches have that name."""
        name = name.removesuffix(contract.METHOD_BATCH)
        for method in self.methods:
            if method.name == name:
                return method
        return MethodSettings(name, None, None, self.batching)

    def to_json(self) -> str:
        """Text that `from_json` takes back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ReplicaSettings":
        """The reverse of `to_json`."""
        return built(cls, json.loads(text))

    def write(self) -> None:
        """Put the settings where the processes of the replica read them."""
        self._file(SETTINGS_FILE).write_text(self.to_json())

    @classmethod
    def read(cls, runtime: str) -> "ReplicaSettings":
        """The settings that `write` put into the folder `runtime`."""
        return cls.from_json((Path(runtime) / SETTINGS_FILE).read_text())

    @property
    def runs_again(self) -> bool:
        """Rows may be run twice, as after the death of what ran them."""
        return self.item_errors is ItemErrorPolicy.ISOLATE

    @property
    def metrics_path(self) -> Path:
        """File of the shared metrics memory."""
        return self._file(METRICS_FILE)

    @property
    def predictor_metrics_path(self) -> Path:
        """Folder of what the predictor measures itself; there once it does."""
        return self._file("predictor-metrics")

    @property
    def lanes_path(self) -> Path:
        """Unix socket on which model processes connect their lanes and channels."""
        return self._file(LANES_SOCKET)

    @property
    def engine_path(self) -> Path:
        """Unix socket on which further web processes hand in their requests."""
        return self._file(DESK_SOCKET)

    @property
    def recent_path(self) -> Path:
        """Unix socket at which the first model process hands out recent rows."""
        return self._file("recent.sock")

    @property
    def served_path(self) -> Path:
        """File with the other revisions that have served, for a process that is replaced."""
        return self._file("served")

    def failure_path(self, worker_index: int) -> Path:
        """Where a model process that cannot start leaves the reason."""
        return self._file(f"failure-{worker_index}.json")

    def _file(self, name: str) -> Path:
        return Path(self.runtime) / name
