"""The exact simulation: a replica of the fleet as a `VirtualReplica` of one method."""

import random
from collections.abc import Sequence
from math import inf

from batchedapi_core import contract
from batchedapi_core.batching import Batch, Request, SizeUnit
from batchedapi_core.simulation.replica import Answers, Counters, Durations
from batchedapi_core.simulation.service import RESTART, Service
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
