"""The first web process's side of the metrics memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from typing import Final

from batchedapi_core import contract
from batchedapi_serving.metrics import slots

_EDGES: Final = (*contract.LATENCY_BUCKETS, inf)


class MethodRecorder:
    """Counts what happens to the requests and batches of one method.

    It is on the hot path, so these are plain additions.
    """

    __slots__ = ("_edges", "_replica", "_slots")

    def __init__(self, replica: slots.Memory, block: slots.Memory) -> None:
        self._replica = replica
        self._slots = block
        self._edges: tuple[int, ...] = ()

    def sized(self, max_batch_size: int) -> None:
        """The edges of the size histograms follow from the configured size, and never move."""
        self._edges = contract.batch_size_buckets(max_batch_size)

    def runs(self, *, one_by_one: bool) -> None:
        """Whether batches are run request by request."""
        self._slots[slots.ONE_BY_ONE] = float(one_by_one)

    def gauges(
        self,
        *,
        lanes: int,
        queue_rows: int,
        in_flight: int,
        max_batch_size: int,
        batch_interval: float,
    ) -> None:
        """The state just now; size and interval (in seconds) in effect."""
        memory = self._slots
        memory[slots.LANES] = lanes
        memory[slots.QUEUE_ROWS] = queue_rows
        memory[slots.IN_FLIGHT] = in_flight
        memory[slots.MAX_BATCH_SIZE] = max_batch_size
        memory[slots.BATCH_INTERVAL] = batch_interval

    @property
    def mean_size(self) -> float:
        """Of a row in batches, in the unit of maxBatchSize; 1 before there was any."""
        rows = self._slots[slots.BATCH_ROWS + slots.SIZE_SUM]
        return self._slots[slots.BATCH_SIZE] / rows if rows else 1.0

    def learned(self, terms: Sequence[float]) -> None:
        """Seconds, as contract.SERVICE_TIME_TERMS."""
        for slot, seconds in enumerate(terms, slots.SERVICE_TIME):
            self._slots[slot] = seconds

    def queued(self, requests: int, rows: int, oldest: float, in_flight: int) -> None:
        """The state of a queue elsewhere, `oldest` in seconds, and requests not answered here."""
        memory = self._slots
        memory[slots.QUEUE_REQUESTS] = requests
        memory[slots.QUEUE_ROWS] = rows
        memory[slots.QUEUE_OLDEST] = oldest
        memory[slots.IN_FLIGHT] = in_flight

    def retaken(self, rows: int) -> None:
        """Rows were taken from the queue that a worker had which died."""
        self._slots[slots.ROWS_RETAKEN] += rows

    def forget_state(self) -> None:
        """Clear the gauges of a web process that this one replaces."""
        for gauge in (slots.LANES, slots.QUEUE_ROWS, slots.IN_FLIGHT):
            self._slots[gauge] = 0.0

    def received(self, rows: int) -> None:
        """A request asks for service, whatever becomes of its rows."""
        memory = self._slots
        memory[slots.ROWS_RECEIVED] += rows
        memory[slots.REQUEST_SQUARES] += rows * rows

    def rejected(self, reason: str, rows: int) -> None:
        """Rows that were never, or too late, run."""
        self._slots[slots.REJECTION_SLOT[reason]] += rows

    def answered(self, code: int, seconds: Sequence[float] | None = None) -> None:
        """Requests ended alike; `seconds` of each from its last byte to its answer.

        None: one request, of which nobody knows that.
        """
        slot = slots.CODE_SLOT.get(code)
        if slot is None:  # no series of its own (a redirect, an ItemError's): it counts with others
            slot = slots.CODE_SLOT[200 if code < 400 else 400 if code < 500 else 500]  # noqa: PLR2004 - HTTP's classes
        if seconds is None:
            self._slots[slot] += 1.0
        else:
            self._slots[slot] += len(seconds)
            self._observe(slots.REQUEST_SECONDS, seconds)

    def dispatched(self, reason: str, waits: Sequence[float]) -> None:
        """A batch left the queue; `waits` are the seconds each of its entries was queued."""
        self._slots[slots.REASON_SLOT[reason]] += 1.0
        self._observe(slots.QUEUE_WAIT, waits)

    def _observe(self, histogram: int, seconds: Sequence[float]) -> None:
        """Add durations, most of which are in one bucket: of a batch, they are counted by those."""
        memory = self._slots
        memory[histogram + slots.LATENCY_SUM] += sum(seconds)
        ordered, start = sorted(seconds), 0
        while start < len(ordered):
            bucket = bisect_left(_EDGES, ordered[start])
            stop = bisect_right(ordered, _EDGES[bucket], start)
            memory[histogram + bucket] += stop - start
            start = stop

    def executed(
        self, rows: int, requests: int, size: int, seconds: float, succeeded: int | None = None
    ) -> None:
        """A lane is done with a batch after `seconds`, whatever came of it.

        `size` is in the unit of maxBatchSize: rows, requests or cost. `succeeded` is the number of
        the model process if it ran the batch without failure.
        """
        memory, edges = self._slots, self._edges
        memory[slots.BATCH_ROWS + bisect_left(edges, rows)] += 1.0
        memory[slots.BATCH_ROWS + slots.SIZE_SUM] += rows
        memory[slots.BATCH_REQUESTS + bisect_left(edges, requests)] += 1.0
        memory[slots.BATCH_REQUESTS + slots.SIZE_SUM] += requests
        memory[slots.BATCH_SECONDS + bisect_left(_EDGES, seconds)] += 1.0
        memory[slots.BATCH_SECONDS + slots.LATENCY_SUM] += seconds
        memory[slots.BATCH_SIZE] += size
        memory[slots.ROWS_SQUARED] += rows * rows
        memory[slots.ROW_SECONDS] += rows * seconds
        memory[slots.LANE_BUSY] += seconds
        if succeeded is not None:
            self._replica[slots.ANSWERED + succeeded] += 1.0

    def padded(self, rows: int, longest: int, own: int) -> None:
        """It was of rows that have lengths: the longest, and their sum."""
        self._slots[slots.LENGTHS] += own
        self._slots[slots.PADDED_LENGTHS] += rows * longest


class WebRecorder(MethodRecorder):
    """Counts for a web process whose queue is elsewhere: requests alone, no batches."""

    __slots__ = ()

    def forget_state(self) -> None:
        """See MethodRecorder."""
        self.queued(0, 0, 0.0, 0)


class WorkerRecorder(MethodRecorder):
    """Counts for a worker: lanes and batches alone; web processes count the requests."""

    __slots__ = ()

    def gauges(
        self,
        *,
        lanes: int,
        queue_rows: int,  # noqa: ARG002 - the queue is elsewhere
        in_flight: int,  # noqa: ARG002 - so are those who wait
        max_batch_size: int,
        batch_interval: float,
    ) -> None:
        """See MethodRecorder."""
        memory = self._slots
        memory[slots.LANES] = lanes
        memory[slots.MAX_BATCH_SIZE] = max_batch_size
        memory[slots.BATCH_INTERVAL] = batch_interval

    def forget_state(self) -> None:
        """See MethodRecorder."""
        self._slots[slots.LANES] = 0.0

    def received(self, rows: int) -> None:
        """Counted where it came."""

    def rejected(self, reason: str, rows: int) -> None:
        """Counted where it came."""

    def answered(self, code: int, seconds: Sequence[float] | None = None) -> None:
        """Counted where it came."""


class Recorder:
    """Counts for the whole replica; requests that came to no method count under the first."""

    __slots__ = ("_memory", "_methods", "_unreadable")

    def __init__(
        self, memory: slots.Memory, of_method: type[MethodRecorder] = MethodRecorder
    ) -> None:
        self._memory = memory
        self._unreadable = slots.QUEUE_UNREADABLE + (0 if of_method is WorkerRecorder else 1)
        self._methods = [
            of_method(memory, slots.method_block(memory, method))
            for method in range(contract.MAX_METHODS)
        ]
        for method in self._methods:
            method.forget_state()

    def method(self, index: int) -> MethodRecorder:
        """The counters of the method with that place in the order of declaration.

        Raises:
            IndexError: there are more methods than can be counted apart.
        """
        return self._methods[index]

    def ready(self) -> None:
        """The methods are known; from now on the replica takes requests."""
        self._memory[slots.READY] = 1.0

    def unreadable(self, times: int) -> None:
        """So much came from a queue elsewhere that could not be read."""
        self._memory[self._unreadable] += times

    def answered(self, code: int) -> None:
        """A request ended that came to no method."""
        self._methods[0].answered(code)
