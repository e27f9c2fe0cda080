"""The predictors that are measured, written once for every server.

Each workload is a batchedapi predictor; `mosec_app.py` calls the same objects. Rows are exact in
FP32 (multiples of 1/64), so an answer has one right value whatever batch it was computed in.
"""

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_serving import Tensor, batched

MAX_BATCH: Final = 64
BATCH_INTERVAL_MS: Final = 5
"""The longest wait for a batch, for every server."""
FIXED_SECONDS: Final = 0.010
ROW_SECONDS: Final = 0.0002
"""W3: what one batch and one row of it cost."""
PADDED_SECONDS: Final = 0.000_010
"""Of one number of a padded batch, beside a fixed 1 ms."""
WIDTH: Final = 64
MLP_WIDTH: Final = 256

Floats = np.ndarray[Any, np.dtype[np.float32]]


class W1:
    """Overhead: the sum of 64 numbers, so that everything but the model is measured."""

    def __init__(self, *_: object) -> None:
        """Takes no config."""

    @batched(inputs=Tensor("FP32", [WIDTH]), outputs=Tensor("FP32", []), max_batch_size=MAX_BATCH)
    def predict(self, rows: Floats) -> Floats:
        """float32 (n, 64) -> float32 (n,)."""
        return np.asarray(rows.sum(axis=1))


class W2:
    """A CPU model: an MLP 256-1024-1024-10 in numpy; start it with one BLAS thread."""

    def __init__(self, *_: object) -> None:
        """Takes no config."""
        random = np.random.default_rng(0)
        sizes = (MLP_WIDTH, 1024, 1024, 10)
        self._weights = [
            (random.standard_normal((n, m)) / n**0.5).astype(np.float32)
            for n, m in itertools.pairwise(sizes)
        ]

    @batched(
        inputs=Tensor("FP32", [MLP_WIDTH]), outputs=Tensor("FP32", [10]), max_batch_size=MAX_BATCH
    )
    def predict(self, rows: Floats) -> Floats:
        """float32 (n, 256) -> float32 (n, 10)."""
        first, second, last = self._weights
        hidden = np.maximum(np.maximum(rows @ first, 0) @ second, 0)
        return np.asarray(hidden @ last, dtype=np.float32)


class W3:
    """A device with a large fixed cost: 10 ms a batch and 0.2 ms a row, one batch at a time."""

    def __init__(self, *_: object) -> None:
        """Takes no config."""
        self._device = threading.Lock()

    @batched(inputs=Tensor("FP32", [WIDTH]), outputs=Tensor("FP32", []), max_batch_size=MAX_BATCH)
    def predict(self, rows: Floats) -> Floats:
        """float32 (n, 64) -> float32 (n,)."""
        with self._device:
            time.sleep(FIXED_SECONDS + ROW_SECONDS * len(rows))
        return np.asarray(rows.sum(axis=1))


class Echo:
    """Answers each id with itself, after `milliseconds` a batch and `row_milliseconds` a row."""

    def __init__(self, config: Mapping[str, Any], *_: object) -> None:
        """Takes both; 0 unless said otherwise."""
        self._seconds = float(config.get("milliseconds", 0)) / 1000
        self._row_seconds = float(config.get("row_milliseconds", 0)) / 1000

    @batched(inputs=Tensor("INT64", []), outputs=Tensor("INT64", []), max_batch_size=MAX_BATCH)
    def predict(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """int64 (n,) -> int64 (n,)."""
        if seconds := self._seconds + self._row_seconds * len(ids):
            time.sleep(seconds)
        return ids


class PaddedEcho:
    """Answers each row, an id so many times, with the id; a batch takes the time of its padding."""

    def __init__(self, *_: object) -> None:
        """Takes no config."""

    @batched(
        inputs=Tensor("INT64", ["n"], pad=0), outputs=Tensor("INT64", []), max_batch_size=MAX_BATCH
    )
    def predict(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """int64 (n, longest) -> int64 (n,); 0 fills rows up, and is no id."""
        time.sleep(0.001 + PADDED_SECONDS * ids.size)
        found: np.ndarray[Any, Any] = ids.max(axis=1)
        return found


class Sleepy:
    """JSON items, 10 ms a batch and 0.2 ms a row; counts items that nobody waits for any more.

    An item `{"until": seconds}` says until when on the machine's monotonic clock, which all
    processes share; `{"report": ...}` is answered with the count.
    """

    def __init__(self, *_: object) -> None:
        """Takes no config."""
        self._too_late = 0

    @batched(example={"n": 0})
    def predict(self, items: list[Any]) -> list[Any]:
        """Each item, or the report."""
        now = time.monotonic()
        self._too_late += sum(item.get("until", now) < now for item in items)
        time.sleep(FIXED_SECONDS + ROW_SECONDS * len(items))
        return [{"too_late": self._too_late} if "report" in item else item for item in items]


class Faulty:
    """Answers each id with itself, but for those that are multiples of a configured number.

    `poison`: raises; `deadly`: ends the process; `hang`: sleeps for an hour, holding the GIL or
    not. 0: never. `load_seconds` is how long the model takes to load.
    """

    def __init__(self, config: Mapping[str, Any], *_: object) -> None:
        """Takes poison, deadly, hang, gil, milliseconds, load_seconds."""
        self._config = config
        time.sleep(float(config.get("load_seconds", 0)))

    @batched(inputs=Tensor("INT64", []), outputs=Tensor("INT64", []), max_batch_size=MAX_BATCH)
    def predict(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """int64 (n,) -> int64 (n,)."""
        if self._hits("hang", ids):
            if self._config.get("gil"):
                ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL
            time.sleep(3600)
        if self._hits("deadly", ids):
            os._exit(7)
        if self._hits("poison", ids):
            raise ValueError("poison")
        time.sleep(float(self._config.get("milliseconds", 0)) / 1000)
        return ids

    def _hits(self, fault: str, ids: np.ndarray[Any, Any]) -> bool:
        every = int(self._config.get(fault, 0))
        return bool(every and ((ids % every == 0) & (ids > 0)).any())


@dataclass(frozen=True, slots=True)
class Workload:
    """A predictor class and the length of its rows."""

    predictor: type[W1] | type[W2] | type[W3]
    width: int


WORKLOADS: Final[Mapping[str, Workload]] = {
    "W1": Workload(W1, WIDTH),
    "W2": Workload(W2, MLP_WIDTH),
    "W3": Workload(W3, WIDTH),
}


def rows_of(width: int, clients: int) -> Floats:
    """A different row for each client, float32 (clients, width), all multiples of 1/64."""
    steps = np.arange(width, dtype=np.float32) / 64
    return np.asarray(np.arange(clients, dtype=np.float32)[:, None] + steps, dtype=np.float32)


def bodies_of(rows: Floats) -> list[bytes]:
    """The request body of each row: a bare JSON array."""
    return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]


def answers_to(workload: Workload, rows: Floats) -> list[bytes]:
    """The right answer to each row, as JSON."""
    answers = workload.predictor({}, None).predict(rows)
    return [orjson.dumps(answer) for answer in answers.tolist()]


def bare_bound(clients: int) -> float:
    """Requests/s of W3 with nothing around it and full batches: n / t(n), n = min(clients, 64)."""
    rows = min(clients, MAX_BATCH)
    return rows / (FIXED_SECONDS + ROW_SECONDS * rows)


def bare_called(clients: int, seconds: float) -> float:
    """Requests/s of W3 called in a loop for that long; below the bound, as sleeps end late."""
    predictor, rows = W3({}, None), rows_of(WIDTH, min(clients, MAX_BATCH))
    began, calls, took = time.perf_counter(), 0, 0.0
    while took < seconds:
        predictor.predict(rows)
        calls += 1
        took = time.perf_counter() - began
    return calls * len(rows) / took


def batch_of(rows: Sequence[Sequence[float]]) -> Floats:
    """DecodedRequest JSON rows as the array that `predict` takes."""
    return np.asarray(rows, dtype=np.float32)
