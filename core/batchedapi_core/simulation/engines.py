"""Two simulations of a replica of the fleet, which agree where both can run.

The exact one is a `VirtualReplica` of one method. The fast one knows the rule `Fixed`, one lane and
requests of one row; it takes a few microseconds a batch.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from operator import mul

from batchedapi_core import contract
from batchedapi_core.batching import Batch, QueueOrder, Request, SizeUnit, Strategy
from batchedapi_core.simulation.replica import RESTART, Answers, Counters, Durations, Service
from batchedapi_core.simulation.virtual_replica import End, Plan, Run, VirtualReplica

_METHOD = "predict"


class BatchingReplica:
    """See Replica. Its clients are strangers: nobody is known to come back after an answer."""

    __slots__ = (
        "_answered",
        "_durations",
        "_most_queued",
        "_replica",
        "_service",
        "answers",
        "counters",
    )

    def __init__(self, service: Service, durations: Durations, ready_at: float) -> None:
        self.counters = Counters()
        self.answers = Answers()
        self._answered = 0  # requests, with the batch that is being booked
        self._durations = durations
        self._service = service
        self._most_queued = service.most_queued
        plan = Plan(
            {_METHOD: service.batch_policy},
            counts_rows=service.size_unit is SizeUnit.ROWS,
            processes=service.lanes,
            timeout=service.timeout,
            max_in_flight=service.max_in_flight,
            restart=RESTART,
        )
        which_lane = random.Random(0)  # noqa: S311 - no cryptography, and all are alike
        self._replica = VirtualReplica(plan, self, self, which_lane, ready_at)
        if service.max_latency is not None:  # as a model process that is to meet one times its own
            for size in contract.batch_size_buckets(service.max_batch_size):
                self._replica.scheduler.methods[_METHOD].batcher.warmed_up(
                    size, service.time.seconds(size)
                )

    @property
    def queue_rows(self) -> int:
        """See Replica."""
        return self._replica.queue_rows

    @property
    def in_flight(self) -> int:
        """See Replica."""
        return self._replica.in_flight

    def drain(self, now: float) -> None:
        """See Replica."""
        self._replica.drain(now)

    def drained(self, now: float) -> bool:  # noqa: ARG002 - it was served up to now
        """See Replica."""
        return not self._replica.in_flight and not self._replica.running

    def serve(self, times: Sequence[float], rows: Sequence[int] | None, until: float) -> None:
        """See Replica."""
        replica, counters, most = self._replica, self.counters, self._most_queued
        i, count = 0, len(times)
        while True:
            at = times[i] if i < count else inf
            event = replica.next_event
            if at <= event and at < until:
                size = 1 if rows is None else rows[i]
                i += 1
                counters.received += size
                full = most < inf and size > most - replica.queue_rows
                if full or not isinstance(replica.arrive(_METHOD, size, at), Request):
                    counters.rejected += size
                    self._refuse()
            elif event >= until:
                return
            else:
                replica.step(event)

    def _refuse(self) -> None:
        self.answers.refused += 1
        self.counters.answered += 1

    # ------------------------------------------------------------ Model and Books

    def run(self, batch: Batch) -> Run:
        """See Model."""
        return Run(self._durations.next(batch.rows, batch.size, batch.started))

    def started(self, batch: Batch, now: float) -> None:
        """See Books."""
        self.counters.wait_seconds += sum([now - request.arrived for request in batch.requests])

    def ended(self, request: Request, how: End, now: float) -> None:  # noqa: ARG002 - `ran` says when
        """See Books."""
        if how is End.ANSWERED:
            self.answers.arrived.append(request.arrived)
            self._answered += 1
        else:
            self._refuse()

    def expired(self, rows: int) -> None:
        """See Books."""
        self.counters.rejected += rows

    def ran(self, batch: Batch, now: float) -> None:
        """See Books."""
        answers, counters = self.answers, self.counters
        answered, self._answered = self._answered, 0
        counters.answered += answered
        answers.ends.append(now)
        answers.rows.append(batch.rows)
        answers.requests.append(answered)
        full = batch.size >= self._service.max_batch_size
        seconds = now - batch.started
        counters.executed(batch.rows, batch.size, len(batch.requests), seconds, full=full)


# The fast simulation.
#
# What a batch waits for can be said at once: its start is the latest of the lane being free and the
# earlier of the batch being full and the oldest row's interval being over. So it costs per batch,
# not per request, and agrees exactly with `BatchingReplica` where that runs the same rule.


def is_fixed(service: Service) -> bool:
    """Whether this can simulate a service, if all requests have one row."""
    return (
        service.strategy is Strategy.FIXED
        and service.lanes == 1
        and service.max_latency is None
        and service.max_in_flight == service.timeout == inf
        and service.size_unit is SizeUnit.ROWS
        and service.queue_order is QueueOrder.FIFO
    )


class FixedReplica:
    """See Replica."""

    __slots__ = (
        "_durations",
        "_free_at",
        "_interval",
        "_limit",
        "_queue",
        "_running",
        "_size",
        "_until",
        "answers",
        "counters",
    )

    def __init__(self, service: Service, durations: Durations, ready_at: float) -> None:
        self.counters = Counters()
        self.answers = Answers()
        self._durations = durations
        self._free_at = ready_at
        self._interval = service.batch_interval
        self._limit = service.most_queued
        self._queue: list[float] = []  # arrivals
        self._running = 0
        self._size = service.max_batch_size
        self._until = ready_at

    @property
    def queue_rows(self) -> int:
        """See Replica."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """See Replica."""
        return len(self._queue) + (self._running if self._free_at >= self._until else 0)

    def drain(self, now: float) -> None:
        """See Replica."""
        self._interval = 0.0
        if self._free_at < now:  # nothing that waits can start in the past
            self._free_at, self._running = now, 0

    def drained(self, now: float) -> bool:  # noqa: ARG002 - it was served up to now
        """See Replica."""
        return not self.in_flight

    def serve(self, times: Sequence[float], rows: Sequence[int] | None, until: float) -> None:  # noqa: ARG002 - each has one
        """See Replica."""
        self.counters.received += len(times)
        queue, size, arrived = self._queue, self._size, self.answers.arrived
        ends: list[float] = []
        all_rows: list[int] = []
        all_seconds: list[float] = []
        waited, taken = 0.0, 0
        while (start := self._start(times, taken)) < until:
            stop = bisect_right(times, start, taken)
            if stop > taken:
                self._take(times[taken:stop])
                taken = stop
            waiting = len(queue)
            batch = min(size, waiting)
            seconds = self._durations.next(batch, batch, start)
            arrived.extend(queue[:batch])
            waited += max(0.0, batch * start - sum(queue[:batch]))
            del queue[:batch]
            self._free_at = start + seconds
            ends.append(self._free_at)
            all_rows.append(batch)
            all_seconds.append(seconds)
        if taken < len(times):
            self._take(times[taken:])
        self._until = until
        if ends:
            self._ran(ends, all_rows, all_seconds)
            self.counters.wait_seconds += waited

    def _start(self, times: Sequence[float], taken: int) -> float:
        """When the next batch starts, if nothing comes after `times`; inf without a request."""
        queue = self._queue
        if queue:
            oldest = queue[0]
        elif taken < len(times):
            oldest = times[taken]
        else:
            return inf
        earliest = max(self._free_at, oldest)
        release = oldest + self._interval
        if release <= earliest:
            return earliest
        last = taken + self._size - len(queue) - 1  # the arrival that makes the batch full
        if last < taken:
            return earliest
        return max(earliest, min(release, times[last])) if last < len(times) else release

    def _take(self, times: Sequence[float]) -> None:
        room = self._limit - len(self._queue)
        if len(times) > room:
            refused = len(times) - int(room)
            self.counters.rejected += refused
            self.answers.refused += refused
            self.counters.answered += refused
            times = times[: int(room)]
        self._queue.extend(times)

    def _ran(self, ends: list[float], rows: list[int], seconds: list[float]) -> None:
        """Book all batches of one call at once; one by one would take as long as simulating."""
        self._running = rows[-1]
        answers, counters = self.answers, self.counters
        answers.ends += ends
        answers.rows += rows
        answers.requests += rows
        total = sum(rows)
        counters.batches += len(rows)
        counters.rows += total
        counters.sizes += total
        counters.requests += total
        counters.answered += total
        counters.full_batches += rows.count(self._size)
        counters.rows_squared += sum(map(mul, rows, rows))
        counters.batch_seconds += sum(seconds)
        counters.row_seconds += sum(map(mul, rows, seconds))
