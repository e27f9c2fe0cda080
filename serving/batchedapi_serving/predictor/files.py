"""What predictors measure themselves, in files that outlive the processes that write them.

They are prometheus-client's own files for programs of several processes. Each model process writes
those with its number, and one that replaces it goes on where it ended, so that counters never fall;
the supervisor merges all of them for the page.
"""

import contextlib
import json
import logging
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from batchedapi_core import contract
from batchedapi_serving.predictor.metrics import Series

log = logging.getLogger(__name__)

_DROPPED: Final = contract.METRIC_PREDICTOR_UPDATES_DROPPED.removesuffix("_total")
_UNREADABLE: Final = (OSError, ValueError, KeyError, IndexError, RuntimeError, struct.error)
"""What a file raises that something else has written to."""


class PredictorFiles:
    """Of one model process; see predictor.metrics.Values."""

    def __init__(self, folder: Path, worker_index: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._worker_index = worker_index
        self._files: dict[str, MmapedDict] = {}
        self._keys: dict[Series, str] = {}

    def opened(self, kind: str) -> Iterable[Series]:
        """See Values."""
        try:
            return _series(kind, self._file(kind))
        except _UNREADABLE as error:
            log.warning("predictor's metrics begin anew", extra={"error": repr(error)})
            self._files.pop(kind, None)
            self._path(kind).unlink()
            return _series(kind, self._file(kind))

    def add(self, series: Series, amount: float) -> None:
        """See Values."""
        file, key = self._file(series.kind), self._key(series)
        value, _ = file.read_value(key)
        file.write_value(key, value + amount, time.time())

    def put(self, series: Series, value: float) -> None:
        """See Values."""
        self._file(series.kind).write_value(self._key(series), value, time.time())

    def _file(self, kind: str) -> MmapedDict:
        file = self._files.get(kind)
        if file is None:
            file = self._files[kind] = MmapedDict(str(self._path(kind)))
        return file

    def _path(self, kind: str) -> Path:
        # live: those of a process that is gone are not merged any more
        prefix = kind.replace("gauge_", "gauge_live")
        return self._folder / f"{prefix}_{self._worker_index}.db"

    def _key(self, series: Series) -> str:
        key = self._keys.get(series)
        if key is None:
            _, family, sample, labels, documentation = series
            names, values = [name for name, _ in labels], [value for _, value in labels]
            key = self._keys[series] = mmap_key(family, sample, names, values, documentation)
        return key


def _series(kind: str, file: MmapedDict) -> list[Series]:
    keys = (json.loads(key) for key, _, _ in file.read_all_values())
    return [
        Series(kind, family, sample, tuple(sorted(labels.items())), documentation)
        for family, sample, labels, documentation in keys
    ]


class Measured(NamedTuple):
    """What the predictors of a replica have measured."""

    families: Sequence[Metric] = ()
    dropped: float = 0.0
    """Updates for which there was no room."""


class MeasuredFiles:
    """The files of all model processes, as one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing = False

    def read(self) -> Measured:
        """What they say now; nothing if they cannot be read."""
        try:
            # one that was just made has nothing in it, not even how much that is
            files = sorted(str(path) for path in self._folder.glob("*.db") if path.stat().st_size)
            families = {family.name: family for family in MultiProcessCollector.merge(files)}
        except _UNREADABLE as error:
            if not self._failing:  # each time it begins, not for each page
                log.warning("predictor's metrics cannot be read", extra={"error": repr(error)})
            self._failing = True
            return Measured()
        self._failing = False
        dropped = families.pop(_DROPPED, None)
        count = 0.0 if dropped is None else sum(sample.value for sample in dropped.samples)
        return Measured(list(families.values()), count)


def forget_gauges(folder: Path, worker_index: int) -> None:
    """Of a process that has ended: what it had is no more."""
    with contextlib.suppress(OSError):
        mark_process_dead(worker_index, str(folder))
