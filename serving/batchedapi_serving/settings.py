"""What the processes of one replica are told, as one frozen value that crosses them as JSON."""

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any, Final

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

SETTINGS_FILE: Final = "settings.json"
METRICS_FILE: Final = "metrics"
LANES_SOCKET: Final = "lanes.sock"
DESK_SOCKET: Final = "engine.sock"


@dataclasses.dataclass(frozen=True, slots=True)
class BatchingSettings:
    """Of one method; durations in seconds."""

    max_batch_size: int | None = None
    """From the manifest; None: what the method declares."""
    batch_interval: float = 0.01
    strategy: Strategy = Strategy.WINDOW
    size_unit: SizeUnit = SizeUnit.ROWS
    max_latency: float | None = None
    preferred_batch_sizes: tuple[int, ...] = ()
    shape_policy: ShapePolicy = ShapePolicy.BUCKET
    queue_order: QueueOrder = QueueOrder.FIFO

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "BatchingSettings":
        """From the object that dataclasses.asdict made."""
        return cls(
            **{
                **value,
                "strategy": Strategy(value["strategy"]),
                "size_unit": SizeUnit(value["size_unit"]),
                "preferred_batch_sizes": tuple(value["preferred_batch_sizes"]),
                "shape_policy": ShapePolicy(value["shape_policy"]),
                "queue_order": QueueOrder(value["queue_order"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MethodSettings:
    """What the manifest says of one method; it beats what the decorator says."""

    name: str
    batched: bool | None
    """None: whether it has `@batched`."""
    batch_dim: tuple[int, int] | None
    """Of input and output; None: what the decorator says."""
    batching: BatchingSettings


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingSettings:
    """Where arrivals are recorded."""

    path: str
    """Absolute; the file is there."""
    started: float
    """When the recording began, in seconds on the machine's monotonic clock."""


class Role(enum.StrEnum):
    """Which part of a replica runs here."""

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
class TracingSettings:
    """Which requests have spans, and where these go."""

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

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TracingSettings":
        """From the object that dataclasses.asdict made."""
        return cls(**{**value, "variables": tuple(map(tuple, value["variables"]))})


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Effective values; durations in seconds, sizes in bytes."""

    name: str
    endpoint: str
    revision: str
    """Of the manifest and the code: the name of the revision in a cluster; empty on a laptop."""
    predictor_path: str
    search: tuple[str, ...]
    """Folders in which the predictor's module is looked for, first first."""
    config: dict[str, Any]
    model_uri: str | None
    """Where the model lies: a path, or a URI that model_source fetches."""
    model_sha256: str | None
    """Hexadecimal digest that the fetched file or folder must have."""
    model_path: str | None
    """Folder or file of the model once it is here; None until then."""
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
    """Of methods that `methods` does not name."""
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
    in_pod: bool = False
    """The cluster knows who ends, and sends new clients elsewhere if anybody else is ready."""

    def of_method(self, name: str) -> MethodSettings:
        """What the manifest says of the method `name`, or of the one whose batches have it."""
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
        value = json.loads(text)
        value["search"] = tuple(value["search"])
        value["gpus"] = tuple(value["gpus"])
        sizes = value["warm_up_sizes"]
        value["warm_up_sizes"] = None if sizes is None else tuple(sizes)
        value["batching"] = BatchingSettings.from_json(value["batching"])
        value["methods"] = tuple(
            MethodSettings(
                m["name"],
                m["batched"],
                None if m["batch_dim"] is None else (m["batch_dim"][0], m["batch_dim"][1]),
                BatchingSettings.from_json(m["batching"]),
            )
            for m in value["methods"]
        )
        value["lane_choice"] = LaneChoice(value["lane_choice"])
        value["item_errors"] = ItemErrorPolicy(value["item_errors"])
        value["receipts"] = Receipts(value["receipts"])
        value["cors_origins"] = tuple(value["cors_origins"])
        value["role"] = Role(value["role"])
        queue = value["queue"]
        value["queue"] = None if queue is None else QueueSettings(**queue)
        recording = value["recording"]
        value["recording"] = None if recording is None else RecordingSettings(**recording)
        tracing = value["tracing"]
        value["tracing"] = None if tracing is None else TracingSettings.from_json(tracing)
        return cls(**value)

    def write(self) -> None:
        """Put the settings where the processes of the replica read them."""
        self._file(SETTINGS_FILE).write_text(self.to_json())

    @classmethod
    def read(cls, runtime: str) -> "ReplicaSettings":
        """What `write` put into the folder `runtime`."""
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

    def failure_path(self, worker_index: int) -> Path:
        """Where a model process that cannot start leaves the reason."""
        return self._file(f"failure-{worker_index}.json")

    def _file(self, name: str) -> Path:
        return Path(self.runtime) / name
