"""The lanes of one replica and the batches on them: which lane is next, and when one is free.

A lane runs one batch at a time, of whichever method; a channel of async methods is one that runs
many. The methods of a replica share its lanes, and so their Batchers share one `Lanes`.
"""

import random
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from batchedapi_core.batching.policy import LaneChoice
from batchedapi_core.batching.request import Isolation, Parts, Request, Search

RETRY: Final = "retry"
_TRIAL: Final = 2  # deaths
_HALVES: Final = 2


class Lanes:
    """Counted, not named: what a decision to wait goes by.

    What becomes of the lanes themselves is told once, by `added` and `removed`. What happens to
    a batch is told to the Batcher of its method (`started`, `finished`, `lost`), which keeps
    this account; nobody else calls `taken`, `freed` and `batch_lost`.
    """

    __slots__ = ("_expected_ends", "ahead", "free", "free_since", "total")

    def __init__(self) -> None:
        self.total = self.free = 0
        self.ahead = 0.0
        """Seconds that the batch ahead is expected to take, on the lane that is free next; 0: there
        is none."""
        self.free_since = -inf  # seconds; when the first of the lanes now free became free
        self._expected_ends: list[float] = []  # seconds, ascending, one for each running batch

    @property
    def next_free(self) -> float:
        """When a busy lane is expected to be free, in seconds; may be past; inf: none is busy."""
        ends = self._expected_ends
        if not self.ahead or not ends:
            return ends[0] if ends else inf
        return min([ends[0] + self.ahead, *ends[1:2]])

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


class Halves:
    """The two halves of a batch that ran out of memory."""

    __slots__ = ("missing", "whole")

    def __init__(self, whole: "Batch") -> None:
        self.whole = whole
        self.missing = _HALVES
        """Halves that have not yet run with success."""


class Batch:
    """Requests of one method and one shape that run together.

    Attributes:
        reason: Why it was released, one of contract.RELEASE_REASONS.
        deaths: Model processes that died while they ran these requests.
        on_trial: Whether it is to run with no other such batch beside it.
        search: Of the failed batch that it is a part of.
        halves: What it is one half of, if that ran out of memory.
        number: What the caller calls it in receipts; empty without them.
        lane: To which it was sent; not before.
        started: When it began to run, in seconds; inf until then.
    """

    __slots__ = (
        "deaths",
        "halves",
        "lane",
        "method",
        "number",
        "on_trial",
        "reason",
        "requests",
        "rows",
        "search",
        "size",
        "started",
    )

    lane: Lane

    def __init__(
        self,
        method: str,
        requests: Sequence[Request],
        reason: str,
        deaths: int = 0,
        search: Search | None = None,
    ) -> None:
        self.method = method
        self.requests = requests
        self.reason = reason
        self.deaths = deaths
        self.on_trial = deaths > 1
        self.search = search
        self.halves: Halves | None = None
        self.number = ""
        self.started = inf
        rows = size = 0
        for request in requests:
            rows += request.rows
            size += request.size
        self.rows = rows
        self.size = size

    def after_failure(self, isolation: Isolation) -> "list[Batch]":
        """Runs that follow, so that in the end only the culprit fails; none if it is alone."""
        live = self._live()
        if len(live) <= 1:
            return [self._again(live)] if live and len(self.requests) > 1 else []
        search = self.search or Search(len(live))
        return [
            self._again(live[start:stop], search)
            for start, stop in isolation.apart(search, len(live))
        ]

    def after_item_error(self, isolation: Isolation) -> "list[Batch]":
        """Runs that follow a batch of which one row was refused; a lone request's row is found.

        Nothing if it is one row, or its request was halved as often as is allowed: its rows are one
        client's, and are not run one by one.
        """
        lone = self._lone()
        if lone is not None:
            parts = lone.splitting().search.halves(lone.rows)
            if parts:
                return self._rows_apart(lone, parts)
        return self.after_failure(isolation)

    def after_memory_error(self, isolation: Isolation) -> "list[Batch]":
        """Runs that follow, of a lone request its rows; none if it is one row.

        What is learned of the size waits for both halves.
        """
        lone = self._lone()
        if lone is None:
            again = self.after_failure(isolation)
        else:
            parts = isolation.apart(lone.splitting().search, lone.rows)
            again = self._rows_apart(lone, parts)
        if len(again) == _HALVES:
            halves = Halves(self)
            for half in again:
                half.halves = halves
        return again

    def after_death(self, *, alone: bool) -> "list[Batch]":
        """Runs that follow a death: all of it once, then each alone and on trial, then nothing.

        A lone request is not tried a third time if it was `alone` in the process that died.
        """
        live, deaths = self._live(), self.deaths + 1
        if deaths == 1 and live:
            return [Batch(self.method, live, RETRY, deaths, self.search)]
        if len(self.requests) > 1 or (deaths == _TRIAL and not alone):
            return [Batch(self.method, [request], RETRY, _TRIAL) for request in live]
        return []

    def after_anothers_death(self) -> "list[Batch]":
        """Runs that follow if the process died of something else: all of it, unblamed."""
        live = self._live()
        return [self._again(live, self.search)] if live else []

    def still_wanted(self, now: float) -> "Batch | None":
        """The batch without those nobody waits for any more; None if that is all of them."""
        wanted = [r for r in self.requests if not r.cancelled and r.deadline > now]
        if len(wanted) == len(self.requests):
            return self
        if not wanted:
            return None
        batch = Batch(self.method, wanted, self.reason, self.deaths, self.search)
        batch.halves = self.halves
        return batch

    def _lone(self) -> Request | None:
        """The only request that is left of it, if that has several rows."""
        live = self._live()
        return live[0] if len(live) == 1 and live[0].rows > 1 else None

    def _rows_apart(self, lone: Request, parts: Parts) -> "list[Batch]":
        search = lone.splitting().search
        return [self._again([part], search) for part in lone.divide(parts)]

    def _again(self, requests: Sequence[Request], search: Search | None = None) -> "Batch":
        return Batch(self.method, requests, RETRY, self.deaths, search)

    def _live(self) -> list[Request]:
        return [request for request in self.requests if not request.cancelled]


class LanePool:
    """The lanes by name, and which of those with room gets the next batch."""

    __slots__ = ("_lanes", "_least_loaded", "_random", "with_room")

    def __init__(self, choice: LaneChoice, random: random.Random) -> None:
        self._lanes: dict[Lane, None] = {}
        self.with_room: list[Lane] = []
        """Lanes that can take a batch, free for longest first; not to be changed."""
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

    def take(self, batch: Batch) -> Lane:
        """The lane that runs `batch`; there is one with room.

        A random one, as BentoML does it: batches get slightly larger than in turn. Under
        LeastLoaded one of the process that has the fewest batches; among equals the one that has
        been free for longest.
        """
        with_room = self.with_room
        at = 0
        if len(with_room) > 1:
            if self._least_loaded:
                busy: Counter[int] = Counter()
                for lane in self._lanes:
                    busy[lane.process] += len(lane.batches)
                at = min(range(len(with_room)), key=lambda i: busy[with_room[i].process])
            else:
                at = self._random.randrange(len(with_room))
        lane = with_room[at]
        lane.batches[batch] = None
        if len(lane.batches) == lane.at_once:
            del with_room[at]
        return lane

    def take_own(self, batch: Batch) -> None:
        """Its lane, which is free, runs `batch`."""
        self.with_room.remove(batch.lane)
        batch.lane.batches[batch] = None

    def release(self, batch: Batch, lane: Lane, now: float) -> None:
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
            for lane, batch in self.running()
            if batch.started + timeout + lane.grace <= now and lane.answered <= batch.started
        }

    def next_hang(self, now: float, timeout: float) -> float:
        """When the next running batch will have had the whole `timeout`; inf: none will."""
        ends = (batch.started + timeout + lane.grace for lane, batch in self.running())
        return min((end for end in ends if now < end), default=inf)

    def running(self) -> Iterator[tuple[Lane, Batch]]:
        """Every batch that runs, and on which lane."""
        return ((lane, batch) for lane in self._lanes for batch in lane.batches)
