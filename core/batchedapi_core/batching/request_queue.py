"""The FIFO of one method: what waits, how much of it, and who is too late."""

from collections import deque
from math import inf
from typing import Generic

from batchedapi_core.batching.entry import Entry, P, Taken

FEW_CANCELLED = 16  # cancelled entries that may stay in the middle before the queue is swept


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
        if self._cancelled > FEW_CANCELLED and 2 * self._cancelled > len(self._entries):
            self._entries = deque(e for e in self._entries if not e.cancelled)
            self._cancelled = 0

    def take(self, size: int, now: float) -> Taken[P]:
        """Hand out the oldest, at most `size` and none of them split, and all heads too late."""
        entries, expired = [], []
        queue = self._entries
        while queue:
            entry = queue[0]
            if entry.deadline <= now:
                expired.append(entry)
            elif entry.size <= size:
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
