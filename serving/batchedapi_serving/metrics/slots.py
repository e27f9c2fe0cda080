"""Where each figure lies in the shared memory: an array of float64, laid out here and nowhere else.

First the figures of the replica, then a block for every method. Each slot has one writer at a time,
so counters need no lock and go on where a replaced process left them: the supervisor writes those
named under "the supervisor's", each web process its own beat, CPU time and dropped spans, and the
first of them, which has the queue, everything else. With a queue elsewhere, the worker's own
process writes what is of lanes and batches, and that web process the rest.
"""

import mmap
import os
from pathlib import Path
from typing import Final, TypeAlias

from batchedapi_core import contract

SIZE_EDGES: Final = 18
"""Batch-size buckets at most: 1, 2, 4, ..., 65536 and the maximum itself."""


class _Layout:
    """Hands out slot numbers."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int = 1) -> int:
        first = self.size
        self.size += count
        return first


_replica = _Layout()

# The supervisor's
START_TIME: Final = _replica.take()
WEB_RESTARTS: Final = _replica.take()
MODEL_RESTARTS: Final = _replica.take()
MODEL_MEMORY: Final = _replica.take()
"""Resident bytes of the largest model process; 0: not known."""
STOPPING: Final = _replica.take()
"""1 once the whole replica stops; a process that is asked alone leaves the listener to others."""

PROCESS_CPU: Final = _replica.take()
"""CPU seconds of all processes, as of the last page."""

BEAT: Final = _replica.take(contract.MAX_WEB_PROCESSES)
"""When the loop of each web process last ran, in seconds on its monotonic clock."""
WEB_CPU: Final = _replica.take(contract.MAX_WEB_PROCESSES)
"""CPU seconds of each web process, those of the processes that it replaces too."""
SPANS_DROPPED: Final = _replica.take(contract.MAX_WEB_PROCESSES + 1)
"""Spans that each web process has not sent. The last is a worker's."""

# Of a worker, which has lanes and takes from a queue elsewhere
WORKER_BEAT: Final = _replica.take()
CONNECTED: Final = _replica.take()
"""1 while the worker reaches the queue."""

QUEUE_UNREADABLE: Final = _replica.take(2)
"""Entries of a queue elsewhere that could not be read: by the worker, by the first web process."""

# The first web process's
READY: Final = _replica.take()
"""1 once the first model process was ready; stays 1."""
ANSWERED: Final = _replica.take(contract.MAX_PROCESSES)
"""Batches that each model process ran without failure; what resets its restart back-off."""

REPLICA_SLOTS: Final = _replica.size

# Of one method, counted from the start of its block.
_block = _Layout()

# Gauges
LANES: Final = _block.take()
QUEUE_ROWS: Final = _block.take()
IN_FLIGHT: Final = _block.take()
MAX_BATCH_SIZE: Final = _block.take()
LENGTHS: Final = _block.take()
PADDED_LENGTHS: Final = _block.take()
BATCH_INTERVAL: Final = _block.take()
ONE_BY_ONE: Final = _block.take()
SERVICE_TIME: Final = _block.take(len(contract.SERVICE_TIME_TERMS))
QUEUE_OLDEST: Final = _block.take()
"""Seconds since the first of those came who wait in a queue elsewhere."""
QUEUE_REQUESTS: Final = _block.take()
"""Requests that wait in a queue elsewhere."""

# Counters
ROWS_RECEIVED: Final = _block.take()
REQUEST_SQUARES: Final = _block.take()
BATCH_SIZE: Final = _block.take()
ROWS_SQUARED: Final = _block.take()
ROW_SECONDS: Final = _block.take()
LANE_BUSY: Final = _block.take()
ROWS_RETAKEN: Final = _block.take()
BATCHES: Final = _block.take(len(contract.RELEASE_REASONS))
REQUESTS: Final = _block.take(len(contract.STATUS_CODES))
REJECTED: Final = _block.take(len(contract.REJECTION_REASONS))

# Histograms: one slot a bucket (not cumulative), +Inf last, then the sum
_LATENCY_SLOTS: Final = len(contract.LATENCY_BUCKETS) + 2
_SIZE_SLOTS: Final = SIZE_EDGES + 2
BATCH_ROWS: Final = _block.take(_SIZE_SLOTS)
BATCH_REQUESTS: Final = _block.take(_SIZE_SLOTS)
BATCH_SECONDS: Final = _block.take(_LATENCY_SLOTS)
QUEUE_WAIT: Final = _block.take(_LATENCY_SLOTS)
REQUEST_SECONDS: Final = _block.take(_LATENCY_SLOTS)

LATENCY_SUM: Final = _LATENCY_SLOTS - 1
"""Offset of the sum in a histogram of durations."""
SIZE_SUM: Final = _SIZE_SLOTS - 1
"""Offset of the sum in a histogram of sizes."""

METHOD_SLOTS: Final = _block.size
BYTES: Final = (REPLICA_SLOTS + contract.MAX_METHODS * METHOD_SLOTS) * 8
REASON_SLOT: Final = {reason: BATCHES + i for i, reason in enumerate(contract.RELEASE_REASONS)}
CODE_SLOT: Final = {code: REQUESTS + i for i, code in enumerate(contract.STATUS_CODES)}
REJECTION_SLOT: Final = {r: REJECTED + i for i, r in enumerate(contract.REJECTION_REASONS)}


Memory: TypeAlias = "memoryview[float]"
"""The slots; item i is slot i."""


def method_block(memory: Memory, method: int) -> Memory:
    """The slots of the method with that place in the order of declaration, from 0.

    Raises:
        ValueError: there are more methods than can be counted apart.
    """
    if not 0 <= method < contract.MAX_METHODS:
        raise ValueError(f"expected at most {contract.MAX_METHODS} methods, got {method + 1}")
    first = REPLICA_SLOTS + method * METHOD_SLOTS
    return memory[first : first + METHOD_SLOTS]


def create_memory(path: Path) -> None:
    """Make the file that the replica's processes map, all zero."""
    path.write_bytes(bytes(BYTES))


def map_memory(path: Path) -> Memory:
    """The slots, shared with every process that maps the same file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return memoryview(mmap.mmap(descriptor, BYTES)).cast("d")
    finally:
        os.close(descriptor)
