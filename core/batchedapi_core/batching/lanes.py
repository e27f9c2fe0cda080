"""The lanes of one replica: how many there are, how many are free, and when the next one will be.

A lane runs one batch at a time, of whichever method. The methods of a replica share its lanes, and
so their Batchers share one `Lanes`.
"""

from bisect import insort
from math import inf


class Lanes:
    """Counted, not named: which lane runs which batch is the caller's.

    What becomes of the lanes themselves is told once, by `added` and `removed`. What happens to
    a batch is told to the Batcher of its method (`started`, `finished`, `lost`), which keeps
    this account; nobody else calls `taken`, `freed` and `batch_lost`.
    """

    __slots__ = ("_expected_ends", "free", "free_since", "total")

    def __init__(self) -> None:
        self.total = self.free = 0
        self.free_since = -inf  # seconds; when the first of the lanes now free became free
        self._expected_ends: list[float] = []  # seconds, ascending, one for each running batch

    @property
    def next_free(self) -> float:
        """When a busy lane is expected to be free, in seconds; may be past; inf: none is busy."""
        return self._expected_ends[0] if self._expected_ends else inf

    def added(self, now: float) -> None:
        """A free lane more: a model process is ready."""
        self.total += 1
        if self.free == 0:
            self.free_since = now
        self.free += 1

    def removed(self, *, was_free: bool) -> None:
        """A lane less; if it was busy its batch is to be reported lost to its Batcher."""
        self.total -= 1
        if was_free:
            self.free -= 1

    def taken(self, expected_end: float) -> None:
        """A free lane runs a batch that is expected to end then, in seconds."""
        self.free -= 1
        insort(self._expected_ends, expected_end)

    def freed(self, now: float) -> None:
        """A batch ended, its lane is free."""
        del self._expected_ends[:1]  # see batch_lost
        if self.free == 0:
            self.free_since = now
        self.free += 1

    def batch_lost(self) -> None:
        """A batch no longer runs and its lane is not back."""
        # Which of several batches it was is not asked: the one expected first is near enough.
        del self._expected_ends[:1]
