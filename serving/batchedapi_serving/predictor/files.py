"""Predictors' own metrics, in files that outlive the processes that write them.

They are prometheus-client's own files for programs of several processes. Each model process writes
those with its number, and one that replaces it goes on where it ended, so that counters never fall;
the supervisor merges all of them for the page.
"""

import contextlib
import json
import logging
import os
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from batchedapi_core import contract
from batchedapi_serving.predictor.metrics import RESERVED, KeptNumber

log = logging.getLogger(__name__)

_DROPPED: Final = contract.METRIC_PREDICTOR_UPDATES_DROPPED.removesuffix("_total")
_HEAD: Final = 8
_NUMBERS: Final = 16
"""Bytes of prometheus-client's files: before the first entry, and behind the key of each."""
_LENGTH: Final = struct.Struct("i")
_FIRST_SIZE: Final = 1 << 16


class _Allocated(MmapedDict):
    """The disk has its bytes before they are written: a write without them ends the process."""

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            size = os.fstat(file.fileno()).st_size or _FIRST_SIZE
            _allocate(file.fileno(), size)
        super().__init__(str(path))  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        most = self._used + _HEAD + len(key.encode()) + _HEAD + _NUMBERS
        capacity = self._capacity
        while capacity < most:
            capacity *= 2
        if capacity > self._capacity:
            _allocate(self._f.fileno(), capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # macOS has none
        os.posix_fallocate(descriptor, 0, size)


class PredictorFiles:
    """The files of one model process; see predictor.metrics.Values."""

    def __init__(self, folder: Path, worker_index: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._worker_index = worker_index
        self._files: dict[str, MmapedDict] = {}
        self._keys: dict[KeptNumber, str] = {}

    def opened(self, kind: str) -> Iterable[KeptNumber]:
        """See Values."""
        return _series(kind, self._file(kind))

    def add(self, series: KeptNumber, amount: float) -> None:
        """See Values."""
        file, key = self._file(series.kind), self._key(series)
        value, _ = file.read_value(key)
        file.write_value(key, value + amount, time.time())

    def put(self, series: KeptNumber, value: float) -> None:
        """See Values."""
        self._file(series.kind).write_value(self._key(series), value, time.time())

    def _file(self, kind: str) -> MmapedDict:
        file = self._files.get(kind)
        if file is None:
            path = self._path(kind)
            try:
                if path.exists():
                    _check_entries(path)
                    _series(kind, _Allocated(path))
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever others have written there
                log.warning("predictor's metrics begin anew", extra={"error": repr(error)})
                path.unlink()
            file = self._files[kind] = _Allocated(path)
        return file

    def _path(self, kind: str) -> Path:
        # live: those of a process that is gone are not merged any more
        prefix = kind.replace("gauge_", "gauge_live")
        return self._folder / f"{prefix}_{self._worker_index}.db"

    def _key(self, series: KeptNumber) -> str:
        key = self._keys.get(series)
        if key is None:
            _, family, sample, labels, documentation = series
            names, values = [name for name, _ in labels], [value for _, value in labels]
            key = self._keys[series] = mmap_key(family, sample, names, values, documentation)
        return key


def _check_entries(path: Path) -> None:
    """Check that the lengths in a file lead from its head to its end; the library would follow any.

    Raises:
        ValueError: they do not.
    """
    data = path.read_bytes()
    used = _LENGTH.unpack_from(data)[0] if len(data) >= _HEAD else 0
    at = _HEAD
    while at < used:
        length = _LENGTH.unpack_from(data, at)[0] if at + _LENGTH.size <= len(data) else -1
        start = at + _LENGTH.size
        at = start + length + 8 - (length + _LENGTH.size) % 8 + _NUMBERS
        if length < 0 or at > used:
            raise ValueError(f"{path.name}: the entry at byte {start} does not fit")
    if used > len(data):
        raise ValueError(f"{path.name}: expected {used} bytes, got {len(data)}")


def _series(kind: str, file: MmapedDict) -> list[KeptNumber]:
    keys = (json.loads(key) for key, _, _ in file.read_all_values())
    return [
        KeptNumber(kind, family, sample, tuple(sorted(labels.items())), documentation)
        for family, sample, labels, documentation in keys
    ]


class PredictorMetrics(NamedTuple):
    """The metrics that the predictors of a replica keep."""

    families: Sequence[Metric] = ()
    dropped: float = 0.0
    """Updates for which there was no room."""


class MeasuredFiles:
    """The files of all model processes, as one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing: set[str] = set()

    def read(self) -> PredictorMetrics:
        """Merge them; a file that cannot be read costs what is in it."""
        files = sorted(self._folder.glob("*.db"))
        for alone in (False, True):
            with contextlib.suppress(Exception):  # whatever others have written there
                return _measured(MultiProcessCollector.merge(self._readable(files, alone=alone)))
        return PredictorMetrics()

    def _readable(self, files: Sequence[Path], *, alone: bool) -> list[str]:
        """The files that lead from head to end; `alone`: and that make metrics, one by one."""
        readable = []
        for path in files:
            try:
                # one that was just made has nothing in it, not even how much that is
                if path.stat().st_size:
                    _check_entries(path)
                    if alone:
                        MultiProcessCollector.merge([str(path)])
                    readable.append(str(path))
                    self._failing.discard(path.name)
            except FileNotFoundError:  # of a process that has ended just now
                pass
            except Exception as error:  # noqa: BLE001 - whatever others have written there
                if path.name not in self._failing:  # each time it begins, not for each page
                    log.warning("predictor's metrics cannot be read", extra={"error": repr(error)})
                self._failing.add(path.name)
        return readable


def _measured(merged: Iterable[Metric]) -> PredictorMetrics:
    families = {family.name: family for family in merged}
    dropped = families.get(_DROPPED)
    return PredictorMetrics(
        [family for name, family in families.items() if not name.startswith(RESERVED)],
        sum(sample.value for sample in dropped.samples) if dropped is not None else 0.0,
    )


def forget_gauges(folder: Path, worker_index: int) -> None:
    """Remove the gauges of a process that has ended."""
    with contextlib.suppress(OSError):
        mark_process_dead(worker_index, str(folder))
