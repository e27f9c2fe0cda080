"""What the processes of one replica are told, as one frozen value that crosses them as JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from batchedapi_core.batching import SizeUnit, Strategy

SETTINGS_FILE: Final = "settings.json"
METRICS_FILE: Final = "metrics"
LANES_SOCKET: Final = "lanes.sock"


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Effective values; durations in seconds, sizes in bytes."""

    name: str
    endpoint: str
    predictor_path: str
    search: tuple[str, ...]
    """Folders in which the predictor's module is looked for, first first."""
    config: dict[str, Any]
    processes: int
    threads: int
    log_level: str
    max_batch_size: int | None
    """From the manifest; None: what the method declares."""
    batch_interval: float
    strategy: Strategy
    size_unit: SizeUnit
    max_latency: float | None
    timeout: float | None
    max_body_bytes: int
    max_concurrency: int
    drain_delay: float
    fast_lane: bool
    runtime: str
    """Folder of this replica's socket, metrics memory and settings."""

    def to_json(self) -> str:
        """Text that `from_json` takes back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ReplicaSettings":
        """The reverse of `to_json`."""
        value = json.loads(text)
        value["search"] = tuple(value["search"])
        value["strategy"] = Strategy(value["strategy"])
        value["size_unit"] = SizeUnit(value["size_unit"])
        return cls(**value)

    def write(self) -> None:
        """Put the settings where the processes of the replica read them."""
        self._file(SETTINGS_FILE).write_text(self.to_json())

    @classmethod
    def read(cls, runtime: str) -> "ReplicaSettings":
        """What `write` put into the folder `runtime`."""
        return cls.from_json((Path(runtime) / SETTINGS_FILE).read_text())

    @property
    def metrics_path(self) -> Path:
        """File of the shared metrics memory."""
        return self._file(METRICS_FILE)

    @property
    def lanes_path(self) -> Path:
        """Unix socket on which model processes connect their lanes."""
        return self._file(LANES_SOCKET)

    def failure_path(self, worker_index: int) -> Path:
        """Where a model process that cannot start leaves the reason."""
        return self._file(f"failure-{worker_index}.json")

    def _file(self, name: str) -> Path:
        return Path(self.runtime) / name
