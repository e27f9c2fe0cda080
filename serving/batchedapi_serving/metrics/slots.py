"""Where each figure lies in the shared memory: an array of float64, laid out here and nowhere else.

The web process writes every slot but those named under "the supervisor's"; each slot has one
writer at a time, so counters need no lock and go on where a replaced process left them.
"""

import mmap
import os
from pathlib import Path
from typing import Final, TypeAlias

from batchedapi_core import contract

MAX_PROCESSES: Final = 64
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


_layout = _Layout()

# The supervisor's
START_TIME: Final = _layout.take()
WEB_RESTARTS: Final = _layout.take()
MODEL_RESTARTS: Final = _layout.take()

# Gauges
READY: Final = _layout.take()
"""1 once the first model process was ready; stays 1."""
LANES: Final = _layout.take()
QUEUE_ROWS: Final = _layout.take()
IN_FLIGHT: Final = _layout.take()
MAX_BATCH_SIZE: Final = _layout.take()
BATCH_INTERVAL: Final = _layout.take()

# Counters
ROWS_RECEIVED: Final = _layout.take()
ROWS_SQUARED: Final = _layout.take()
ROW_SECONDS: Final = _layout.take()
LANE_BUSY: Final = _layout.take()
BATCHES: Final = _layout.take(len(contract.RELEASE_REASONS))
REQUESTS: Final = _layout.take(len(contract.STATUS_CODES))
REJECTED: Final = _layout.take(len(contract.REJECTION_REASONS))
ANSWERED: Final = _layout.take(MAX_PROCESSES)
"""Batches that each model process has answered; what resets its restart back-off."""

# Histograms: one slot a bucket (not cumulative), +Inf last, then the sum
_LATENCY_SLOTS: Final = len(contract.LATENCY_BUCKETS) + 2
_SIZE_SLOTS: Final = SIZE_EDGES + 2
BATCH_ROWS: Final = _layout.take(_SIZE_SLOTS)
BATCH_REQUESTS: Final = _layout.take(_SIZE_SLOTS)
BATCH_SECONDS: Final = _layout.take(_LATENCY_SLOTS)
QUEUE_WAIT: Final = _layout.take(_LATENCY_SLOTS)
REQUEST_SECONDS: Final = _layout.take(_LATENCY_SLOTS)

LATENCY_SUM: Final = _LATENCY_SLOTS - 1
"""Offset of the sum in a histogram of durations."""
SIZE_SUM: Final = _SIZE_SLOTS - 1
"""Offset of the sum in a histogram of sizes."""

BYTES: Final = _layout.size * 8
REASON_SLOT: Final = {reason: BATCHES + i for i, reason in enumerate(contract.RELEASE_REASONS)}
CODE_SLOT: Final = {code: REQUESTS + i for i, code in enumerate(contract.STATUS_CODES)}
REJECTION_SLOT: Final = {r: REJECTED + i for i, r in enumerate(contract.REJECTION_REASONS)}


Memory: TypeAlias = "memoryview[float]"
"""The slots; item i is slot i."""


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
