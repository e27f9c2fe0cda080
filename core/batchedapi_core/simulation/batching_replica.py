"""The exact engine: the serving image's own Batcher and Admission, driven in virtual time.

Every arrival, end of a batch and end of a wait is an event, in order of time. At the same moment an
arrival is before the end of a wait, so that it rides along.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from batchedapi_core import contract
from batchedapi_core.batching import (
    Admission,
    Batcher,
    Client,
    Dispatch,
    Entry,
    Lanes,
    SizeUnit,
    WaitUntil,
    split_rows,
)
from batchedapi_core.simulation.replica import Answers, Counters, Durations
from batchedapi_core.simulation.service import Service

Missing = list[int] | None
"""Parts of an oversize request that are not answered yet, as one cell that they share; None: it is
in one piece. 0 or less: it was given up."""
RunningBatch = tuple[float, int, float, list[Entry[Missing]]]
"""End in seconds, number, seconds that it takes, what is in it."""


class BatchingReplica:
    """See Replica. Its clients are strangers: nobody is known to come back after an answer."""

    __slots__ = (
        "_admission",
        "_awaited",
        "_batcher",
        "_client",
        "_durations",
        "_lanes",
        "_most_queued",
        "_number",
        "_requests",
        "_running",
        "_service",
        "_wait",
        "answers",
        "counters",
    )

    def __init__(self, service: Service, durations: Durations, ready_at: float) -> None:
        self.counters = Counters()
        self.answers = Answers()
        self._lanes = Lanes()
        for _ in range(service.lanes):
            self._lanes.added(ready_at)
        self._batcher: Batcher[Missing] = Batcher(service.batch_policy, self._lanes)
        self._admission = None if service.max_latency is None else Admission(service.max_latency)
        if service.max_latency is not None:  # as a model process that is to meet one times its own
            for size in contract.batch_size_buckets(service.max_batch_size):
                self._batcher.warmed_up(size, service.time.seconds(size))
        self._client = Client()
        self._durations = durations
        self._service = service
        self._most_queued = service.most_queued
        self._requests = 0  # in flight
        self._running: list[RunningBatch] = []  # a heap
        self._number = 0
        self._wait = inf  # when to ask again, in seconds
        self._awaited = 0  # ... or at which queued size

    @property
    def queue_rows(self) -> int:
        """See Replica."""
        return self._batcher.queued_rows

    @property
    def in_flight(self) -> int:
        """See Replica."""
        return self._requests

    def drain(self, now: float) -> None:
        """See Replica."""
        self._batcher.draining = True
        self._decide(now)

    def drained(self, now: float) -> bool:  # noqa: ARG002 - it was served up to now
        """See Replica."""
        return not self._requests and not self._running

    def serve(self, times: Sequence[float], rows: Sequence[int] | None, until: float) -> None:
        """See Replica."""
        running = self._running
        i, count = 0, len(times)
        while True:
            at = times[i] if i < count else inf
            end = running[0][0] if running else inf
            event = min(end, self._wait)
            if at <= event and at < until:
                self._arrive(1 if rows is None else rows[i], at)
                i += 1
            elif event >= until:
                return
            elif end <= event:
                self._finish(heappop(running))
            else:
                self._decide(event)

    # ------------------------------------------------------------ arrivals

    def _arrive(self, rows: int, now: float) -> None:
        service, batcher, counters = self._service, self._batcher, self.counters
        size = rows if service.size_unit is SizeUnit.ROWS else 1
        counters.received += rows
        if (
            self._requests >= service.max_in_flight
            or rows > self._most_queued - batcher.queued_rows
            or (self._admission is not None and not self._admission.accepts(batcher, size, now))
        ):
            counters.rejected += rows
            self._refuse()
            return
        self._requests += 1
        if size <= service.max_batch_size:
            entry: Entry[Missing] = Entry(
                None, rows, size, self._client, now, now + service.timeout
            )
            entry.returning = 0
            batcher.arrive(entry, now)
        else:
            self._arrive_parts(rows, now)
        if self._lanes.free > 0 and (self._wait == inf or batcher.queued_size >= self._awaited):
            self._decide(now)

    def _arrive_parts(self, rows: int, now: float) -> None:
        spans = split_rows(rows, self._service.max_batch_size)
        missing, deadline = [len(spans)], now + self._service.timeout
        parts: list[Entry[Missing]] = [
            Entry(missing, stop - start, stop - start, self._client, now, deadline)
            for start, stop in spans
        ]
        self._batcher.arrive_parts(parts, now)
        parts[-1].returning = 0

    # ------------------------------------------------------------ batches

    def _decide(self, now: float) -> None:
        batcher, lanes = self._batcher, self._lanes
        self._wait = inf
        while lanes.free > 0:
            action = batcher.next_action(now)
            if not isinstance(action, Dispatch):
                if isinstance(action, WaitUntil):
                    self._wait, self._awaited = action.at, action.size
                return
            taken = batcher.take(action.size, now, action.shape)
            for late in taken.expired:
                self._expire(late)
            if taken.entries:
                self._start(taken.entries, now)

    def _start(self, entries: list[Entry[Missing]], now: float) -> None:
        rows = size = 0
        for entry in entries:
            rows += entry.rows
            size += entry.size
            self.counters.wait_seconds += now - entry.arrived
        seconds = self._durations.next(rows)
        self._batcher.started(size, now)
        self._number += 1
        heappush(self._running, (now + seconds, self._number, seconds, entries))

    def _finish(self, batch: RunningBatch) -> None:
        end, _, seconds, entries = batch
        self._batcher.finished(entries, seconds, end)
        arrived = self.answers.arrived
        before, rows, size = len(arrived), 0, 0
        for entry in entries:
            rows += entry.rows
            size += entry.size
            missing = entry.payload
            if missing is not None:
                missing[0] -= 1
                if missing[0] != 0:
                    continue
            arrived.append(entry.arrived)
        answered = len(arrived) - before
        self._requests -= answered
        self.counters.answered += answered
        self.answers.ends.append(end)
        self.answers.rows.append(rows)
        self.answers.requests.append(answered)
        full = size >= self._service.max_batch_size
        self.counters.executed(rows, size, len(entries), seconds, full=full)
        self._decide(end)

    def _expire(self, entry: Entry[Missing]) -> None:
        """Its time was over before it ran; the whole request is given up with the first part."""
        self.counters.rejected += entry.rows
        missing = entry.payload
        if missing is not None:
            given_up, missing[0] = missing[0] <= 0, 0
            if given_up:
                return
        self._refuse()
        self._requests -= 1

    def _refuse(self) -> None:
        self.answers.refused += 1
        self.counters.answered += 1
