"""What waits in one method and one shape, whose turn it is, and who is too late."""

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeAlias

from batchedapi_core.batching.choices import QueueOrder
from batchedapi_core.batching.entry import Entry, P, Taken

FEW_GONE = 16  # entries that left may stay in the middle up to this many before a sweep

Turn: TypeAlias = tuple[float, float]
"""Whose is less goes first: (deadline or 0, arrival) in seconds."""
NOBODY: Turn = (inf, inf)


class RequestQueue(Generic[P]):
    """Entries in order of arrival; the head is always live, sizes count live entries only."""

    __slots__ = ("_cancelled", "_entries", "rows", "size")

    def __init__(self) -> None:
        self.size = 0
        self.rows = 0
        self._entries: deque[Entry[P]] = deque()
        self._cancelled = 0  # entries in the middle that nobody waits for

    @property
    def oldest_arrival(self) -> float:
        """Arrival of the head in seconds; inf if empty."""
        return self._entries[0].arrived if self._entries else inf

    @property
    def turn(self) -> Turn:
        """Of the head."""
        return (0.0, self._entries[0].arrived) if self._entries else NOBODY

    def append(self, entry: Entry[P]) -> None:
        """Queue it last."""
        entry.queued = True
        self._entries.append(entry)
        self.size += entry.size
        self.rows += entry.rows

    def cancel(self, entry: Entry[P]) -> None:
        """Never hand it out; it stops counting at once. Twice, or after it left, is harmless.

        O(1) amortised: it stays in the middle until the head reaches it or half of all is such.
        """
        entry.cancelled = True
        if not entry.queued:
            return
        self._forget(entry)
        self._cancelled += 1
        self._drop_cancelled_heads()
        if self._cancelled > FEW_GONE and 2 * self._cancelled > len(self._entries):
            self._entries = deque(e for e in self._entries if not e.cancelled)
            self._cancelled = 0

    def take(self, size: int, now: float, shape: Hashable = None) -> Taken[P]:  # noqa: ARG002 - as Buckets
        """Hand out the first, at most `size` and none of them split, and all heads too late.

        A head that is larger than `size` > 0 is handed out alone: it cannot be smaller.
        """
        entries: list[Entry[P]] = []
        expired: list[Entry[P]] = []
        queue = self._entries
        while queue:
            entry = queue[0]
            if entry.deadline <= now:
                expired.append(entry)
            elif entry.size <= size or (size > 0 and not entries):
                entries.append(entry)
                size -= entry.size
            else:
                break
            queue.popleft()
            self._forget(entry)
            if self._cancelled:
                self._drop_cancelled_heads()
        return Taken(entries, expired)

    def _forget(self, entry: Entry[P]) -> None:
        entry.queued = False
        self.size -= entry.size
        self.rows -= entry.rows

    def _drop_cancelled_heads(self) -> None:
        queue = self._entries
        while queue and queue[0].cancelled:
            queue.popleft()
            self._cancelled -= 1


class DeadlineQueue(Generic[P]):
    """Entries in order of their deadlines, of arrival among equals; else as RequestQueue.

    O(log n) an entry. A second list in order of arrival knows the oldest. In both lists an entry
    that left stays until it is first or more than half of the list is such. `take` repeats the rule
    of the other queue: shared, it would be a call for every entry.
    """

    __slots__ = ("_arrivals", "_count", "_heap", "_live", "rows", "size")

    def __init__(self) -> None:
        self.size = 0
        self.rows = 0
        self._heap: list[tuple[float, int, Entry[P]]] = []  # (deadline, number, entry)
        self._arrivals: deque[Entry[P]] = deque()
        self._live = 0
        self._count = 0  # of all entries ever: their number, in order of arrival

    @property
    def oldest_arrival(self) -> float:
        """Earliest arrival of all that are queued, in seconds; inf if empty."""
        return self._arrivals[0].arrived if self._arrivals else inf

    @property
    def turn(self) -> Turn:
        """Of the head, whose deadline is the earliest."""
        if not self._heap:
            return NOBODY
        deadline, _, entry = self._heap[0]
        return deadline, entry.arrived

    def append(self, entry: Entry[P]) -> None:
        """Queue it behind those whose deadlines are not later."""
        entry.queued = True
        self._count += 1
        heappush(self._heap, (entry.deadline, self._count, entry))
        self._arrivals.append(entry)
        self.size += entry.size
        self.rows += entry.rows
        self._live += 1

    def cancel(self, entry: Entry[P]) -> None:
        """Never hand it out; it stops counting at once. Twice, or after it left, is harmless."""
        entry.cancelled = True
        if entry.queued:
            self._forget(entry)
            self._tidy()

    def take(self, size: int, now: float, shape: Hashable = None) -> Taken[P]:  # noqa: ARG002 - as Buckets
        """Hand out the first, at most `size` and none of them split, and all heads too late.

        A head that is larger than `size` > 0 is handed out alone: it cannot be smaller.
        """
        entries: list[Entry[P]] = []
        expired: list[Entry[P]] = []
        heap = self._heap
        while heap:
            entry = heap[0][2]
            if not entry.queued:
                heappop(heap)
                continue
            if entry.deadline <= now:
                expired.append(entry)
            elif entry.size <= size or (size > 0 and not entries):
                entries.append(entry)
                size -= entry.size
            else:
                break
            heappop(heap)
            self._forget(entry)
        self._tidy()
        return Taken(entries, expired)

    def _forget(self, entry: Entry[P]) -> None:
        entry.queued = False
        self.size -= entry.size
        self.rows -= entry.rows
        self._live -= 1

    def _tidy(self) -> None:
        """The first of both lists is live, and so is at least half of each."""
        heap, arrivals = self._heap, self._arrivals
        while heap and not heap[0][2].queued:
            heappop(heap)
        while arrivals and not arrivals[0].queued:
            arrivals.popleft()
        most = max(FEW_GONE, 2 * self._live)
        if len(heap) > most:
            self._heap = [item for item in heap if item[2].queued]
            heapify(self._heap)
        if len(arrivals) > most:
            self._arrivals = deque(entry for entry in arrivals if entry.queued)


OneShape: TypeAlias = RequestQueue[P] | DeadlineQueue[P]


def queue_in(order: QueueOrder) -> OneShape[P]:
    """An empty queue of one shape."""
    return RequestQueue() if order is QueueOrder.FIFO else DeadlineQueue()
