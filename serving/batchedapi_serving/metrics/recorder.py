"""The web process's side of the metrics memory."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from batchedapi_core import contract
from batchedapi_serving.metrics import slots

_EDGES: Final = contract.LATENCY_BUCKETS


class Recorder:
    """Counts what happens to requests and batches; on the hot path, so plain additions."""

    __slots__ = ("_edges", "_slots")

    def __init__(self, memory: slots.Memory) -> None:
        self._slots = memory
        self._edges: tuple[int, ...] = ()
        for gauge in (slots.LANES, slots.QUEUE_ROWS, slots.IN_FLIGHT):
            memory[gauge] = 0.0  # of a web process that this one replaces

    def ready(self, max_batch_size: int, batch_interval: float) -> None:
        """The method is known; from now on the replica takes requests."""
        self._edges = contract.batch_size_buckets(max_batch_size)
        self._slots[slots.MAX_BATCH_SIZE] = max_batch_size
        self._slots[slots.BATCH_INTERVAL] = batch_interval
        self._slots[slots.READY] = 1.0

    def gauges(self, *, lanes: int, queue_rows: int, in_flight: int) -> None:
        """The state just now."""
        memory = self._slots
        memory[slots.LANES] = lanes
        memory[slots.QUEUE_ROWS] = queue_rows
        memory[slots.IN_FLIGHT] = in_flight

    def received(self, rows: int) -> None:
        """Rows asked for service, whatever becomes of them."""
        self._slots[slots.ROWS_RECEIVED] += rows

    def rejected(self, reason: str, rows: int) -> None:
        """Rows that were never, or too late, run."""
        self._slots[slots.REJECTION_SLOT[reason]] += rows

    def answered(self, code: int, seconds: float | None = None) -> None:
        """A request ended; `seconds` from its last byte to its answer."""
        memory = self._slots
        memory[slots.CODE_SLOT.get(code) or _class_slot(code)] += 1.0
        if seconds is not None:
            memory[slots.REQUEST_SECONDS + bisect_left(_EDGES, seconds)] += 1.0
            memory[slots.REQUEST_SECONDS + slots.LATENCY_SUM] += seconds

    def dispatched(self, reason: str, waits: Iterable[float]) -> None:
        """A batch left the queue; `waits` are the seconds each of its entries was queued."""
        memory = self._slots
        memory[slots.REASON_SLOT[reason]] += 1.0
        total = 0.0
        for wait in waits:
            memory[slots.QUEUE_WAIT + bisect_left(_EDGES, wait)] += 1.0
            total += wait
        memory[slots.QUEUE_WAIT + slots.LATENCY_SUM] += total

    def executed(self, rows: int, requests: int, seconds: float, worker_index: int) -> None:
        """A lane is done with a batch after `seconds`, whatever came of it."""
        memory, edges = self._slots, self._edges
        memory[slots.BATCH_ROWS + bisect_left(edges, rows)] += 1.0
        memory[slots.BATCH_ROWS + slots.SIZE_SUM] += rows
        memory[slots.BATCH_REQUESTS + bisect_left(edges, requests)] += 1.0
        memory[slots.BATCH_REQUESTS + slots.SIZE_SUM] += requests
        memory[slots.BATCH_SECONDS + bisect_left(_EDGES, seconds)] += 1.0
        memory[slots.BATCH_SECONDS + slots.LATENCY_SUM] += seconds
        memory[slots.ROWS_SQUARED] += rows * rows
        memory[slots.ROW_SECONDS] += rows * seconds
        memory[slots.LANE_BUSY] += seconds
        memory[slots.ANSWERED + worker_index] += 1.0


def _class_slot(code: int) -> int:
    """Where a code without a series counts (a redirect, an ItemError's own): with its class."""
    return slots.CODE_SLOT[200 if code < 400 else 400 if code < 500 else 500]  # noqa: PLR2004 - HTTP's classes
