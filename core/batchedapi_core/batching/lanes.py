"""The lanes of one replica: how many are free, when the next one will be, and which is next.

A lane runs one batch at a time, of whichever method; a channel of async methods is one that runs
many. The methods of a replica share its lanes, and so their Batchers share one `Lanes`.
"""

import random
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from batchedapi_core.batching.choices import LaneChoice

if TYPE_CHECKING:
    from batchedapi_core.batching.reruns import Batch


class Lanes:
    """Counted, not named: what a decision to wait goes by.

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


class Lane:
    """One that a model process opened; `at_once` batches run on it side by side.

    Attributes:
        process: Which of the processes; all of its lanes end with it.
        grace: Seconds that a batch has beyond the timeout before its process is said to hang.
        batches: Those that were given to it and are not back.
        answered: When the last of them came back, in seconds.
    """

    __slots__ = ("answered", "at_once", "batches", "grace", "process")

    def __init__(self, process: int, at_once: int = 1, grace: float = 0.0) -> None:
        self.process = process
        self.at_once = at_once
        self.grace = grace
        self.batches: dict[Batch, None] = {}
        self.answered = -inf


class LanePool:
    """The lanes by name, and which of those with room gets the next batch."""

    __slots__ = ("_lanes", "_least_loaded", "_random", "with_room")

    def __init__(self, choice: LaneChoice, random: random.Random) -> None:
        self._lanes: dict[Lane, None] = {}
        self.with_room: list[Lane] = []
        """Those that a batch can be given to, free for longest first; not to be changed."""
        self._least_loaded = choice is LaneChoice.LEAST_LOADED
        self._random = random

    def add(self, lane: Lane) -> None:
        """A lane more, which is free."""
        self._lanes[lane] = None
        self.with_room.append(lane)

    def remove(self, lane: Lane) -> None:
        """A lane less; batches that are on it are lost."""
        del self._lanes[lane]
        if lane in self.with_room:
            self.with_room.remove(lane)

    def of_process(self, process: int) -> list[Lane]:
        """All lanes of one."""
        return [lane for lane in self._lanes if lane.process == process]

    def take(self, batch: "Batch") -> Lane:
        """The lane that runs `batch`; there is one with room.

        A random one, as BentoML does it: batches get slightly larger than in turn. Under
        LeastLoaded one of the process that has the fewest batches; among equals the one that has
        been free for longest.
        """
        with_room = self.with_room
        at = 0
        if len(with_room) > 1:
            at = self._least() if self._least_loaded else self._random.randrange(len(with_room))
        lane = with_room[at]
        lane.batches[batch] = None
        if len(lane.batches) == lane.at_once:
            del with_room[at]
        return lane

    def release(self, batch: "Batch", lane: Lane, now: float) -> None:
        """The batch is back; its lane may be gone."""
        if len(lane.batches) == lane.at_once and lane in self._lanes:
            self.with_room.append(lane)
        del lane.batches[batch]
        lane.answered = now

    def hanging(self, now: float, timeout: float) -> set[int]:
        """Processes that have had one batch for the whole `timeout`, in seconds, and no answer.

        That every row in it is too late is not enough: in an overload rows are late when they are
        dispatched, and their process is as healthy as can be. Nor does a process hang that has
        answered another call since: a call may await what does not come, and is cancelled.
        """
        return {
            lane.process
            for lane, batch in self._running()
            if batch.started + timeout + lane.grace <= now and lane.answered <= batch.started
        }

    def next_hang(self, now: float, timeout: float) -> float:
        """When the next running batch will have had the whole `timeout`; inf: none will."""
        ends = (batch.started + timeout + lane.grace for lane, batch in self._running())
        return min((end for end in ends if now < end), default=inf)

    def _running(self) -> "Iterator[tuple[Lane, Batch]]":
        return ((lane, batch) for lane in self._lanes for batch in lane.batches)

    def _least(self) -> int:
        busy: Counter[int] = Counter()
        for lane in self._lanes:
            busy[lane.process] += len(lane.batches)
        with_room = self.with_room
        return min(range(len(with_room)), key=lambda i: busy[with_room[i].process])
