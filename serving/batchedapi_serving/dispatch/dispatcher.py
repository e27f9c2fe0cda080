"""The replica's one queue: admits requests, forms batches, gives them to lanes, hands out answers.

Decisions are core's (`Batcher`, `Admission`); here they are acted on. Runs on one event loop, so
nothing is locked. Every admitted request is answered exactly once: with its rows, with an error, or
at its deadline; a client that left is only counted.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Dispatch,
    Entry,
    SizeUnit,
    WaitUntil,
)
from batchedapi_serving.codecs import Codec, Decoded, codec_for
from batchedapi_serving.dispatch.door import Door
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.dispatch.in_flight import InFlight
from batchedapi_serving.dispatch.jobs import (
    AnswerTo,
    Batch,
    Job,
    Part,
    PartEntry,
    predictor_failed,
    split_job,
)
from batchedapi_serving.dispatch.lanes import Lane, LanePool
from batchedapi_serving.errors import (
    DeadlineExceededError,
    DrainingError,
    NotReadyError,
    ServingError,
)
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)
_TIMER_ROUNDING = 0.0005
"""Seconds. uvloop rounds timers to whole milliseconds; half of one more makes that rounding up, so
that a wait is over when its timer fires and is not asked for again and again."""
_NOT_READY = "the model is still being loaded; try again in a moment"


class Supervision(Protocol):
    """What the dispatcher tells the supervisor."""

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""

    def ready(self, method: MethodSpec) -> None:
        """The first model process is ready."""


class Dispatcher:
    """Owner of the queue, the lanes and the requests in flight."""

    def __init__(
        self,
        settings: ReplicaSettings,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        supervision: Supervision,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Not the loop's clock: uvloop's stands still within an iteration and counts whole
        # milliseconds, and clients that come back within one are what batches are formed of.
        self._settings = settings
        self._recorder = recorder
        self._loop = loop
        self._now = clock
        self._door = Door(settings, recorder)
        self._counts_rows = settings.size_unit is SizeUnit.ROWS
        self._supervision = supervision
        self._timeout = settings.timeout or math.inf
        self._max_size = 1
        self._batcher: Batcher[Part] | None = None
        self.method: MethodSpec | None = None
        self.codec: Codec | None = None
        self._lanes = LanePool()
        self._retries: deque[Batch] = deque()
        self._jobs = InFlight(recorder, self._cancel_entry)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited = 0  # size; while the timer runs, ask again only when so much is queued
        self._expiry: asyncio.TimerHandle | None = None
        self._draining = False

    # ------------------------------------------------------------ requests

    def submit(self, decoded: Decoded, client: Client, asker: AnswerTo) -> Job:
        """Queue a checked request; `asker.deliver` is called once it is answered.

        Raises:
            NotReadyError: no model process has been ready yet.
            QueueFullError: too many requests are in this replica.
            LateError: it would miss `maxLatency`.
        """
        now = self._now()
        batcher = self._ready_batcher()
        self._recorder.received(decoded.rows)
        size = decoded.rows if self._counts_rows else 1
        self._door.check(batcher, len(self._jobs), decoded.rows, size, now)
        job = Job(decoded, client, asker, now, now + self._timeout)
        self._jobs.add(job)
        if self._expiry is None and job.deadline < math.inf:
            self._expiry = self._call_at(job.deadline, now, self._expire)
        if size <= self._max_size:
            entry: PartEntry = Entry(
                Part(job, decoded.payload), decoded.rows, size, client, now, job.deadline
            )
            job.entries = (entry,)
            batcher.arrive(entry, now)
        else:
            split_job(job, decoded.payload, self.ready_codec(), self._max_size)
            batcher.arrive_parts(job.entries, now)
        if batcher.free_lanes and (self._timer is None or batcher.queued_size >= self._awaited):
            self._decide(batcher, now)
        return job

    def cancel(self, job: Job) -> None:
        """The client left: what is queued is not run, and nobody is told."""
        if not job.done:
            self._jobs.left(job)
            self.disconnected(job.client)

    def disconnected(self, client: Client) -> None:
        """A connection without a request in flight closed: its next request is not awaited."""
        if self._batcher is not None:
            self._batcher.disconnected(client)

    def _cancel_entry(self, entry: PartEntry) -> None:
        if self._batcher is not None:
            self._batcher.cancel(entry)

    def ready_codec(self) -> Codec:
        """The method's codec.

        Raises:
            NotReadyError: no model process has been ready yet.
        """
        if self.codec is None:
            raise NotReadyError(_NOT_READY)
        return self.codec

    def _ready_batcher(self) -> Batcher[Part]:
        if self._batcher is None:
            raise NotReadyError(_NOT_READY)
        return self._batcher

    # ------------------------------------------------------------ deadlines and the end

    def _expire(self) -> None:
        """Answer 504 to whoever is over the timeout; have processes replaced that hang."""
        self._expiry = None
        now = self._now()
        late, next_deadline = self._jobs.overdue(now)
        for job in late:
            self._jobs.fail(job, self._late(), now, "expired")
        for pid in self._lanes.hanging(now, self._timeout):
            log.warning("model process hangs", extra={"pid": pid, "timeout": self._timeout})
            self._supervision.replace(pid)
        # A batch that began late, or whose clients have all left, may hang as well.
        ends = [at for at in (next_deadline, self._lanes.next_hang(now, self._timeout)) if at]
        if ends:
            self._expiry = self._call_at(min(ends), now, self._expire)

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(f"no answer within {self._timeout:g} s (overload.timeout)")

    def _call_at(self, at: float, now: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, at - now) + _TIMER_ROUNDING, call)

    def drain(self) -> None:
        """The replica is stopping: from now on nothing waits for a fuller batch."""
        self._draining = True
        if self._batcher is not None:
            self._batcher.draining = True
            self._decide(self._batcher, self._now())

    def abandon(self) -> None:
        """The time to stop is over: answer 503 to whoever is still waiting."""
        error = DrainingError("the replica stopped before an answer was there")
        for job in self._jobs.jobs():
            self._jobs.fail(job, error, self._now(), "draining")

    def update_gauges(self) -> None:
        """Write the state into the metrics memory; called a few times a second."""
        batcher = self._batcher
        self._recorder.gauges(
            lanes=len(self._lanes),
            queue_rows=batcher.queued_rows if batcher else 0,
            in_flight=len(self._jobs),
        )

    # ------------------------------------------------------------ lanes

    def lane_ready(self, lane: Lane, hello: Meta) -> None:
        """See LaneOwner."""
        now = self._now()
        batcher = self._batcher or self._become_ready(MethodSpec.from_json(hello["method"]))
        self._lanes.add(lane)
        batcher.lane_added(now)
        self.update_gauges()
        self._decide(batcher, now)

    def _become_ready(self, method: MethodSpec) -> Batcher[Part]:
        settings = self._settings
        self._max_size = settings.max_batch_size or method.max_batch_size
        self._batcher = Batcher(
            BatchPolicy(
                self._max_size, settings.batch_interval, settings.strategy, settings.max_latency
            )
        )
        self._batcher.draining = self._draining
        self.method = method
        self.codec = codec_for(method)
        self._recorder.ready(self._max_size, settings.batch_interval)
        log.info(
            "ready",
            extra={
                "method": method.name,
                "max_batch_size": self._max_size,
                "batch_interval": settings.batch_interval,
                "strategy": str(settings.strategy),
                "lanes": settings.processes * settings.threads,
            },
        )
        self._supervision.ready(method)
        return self._batcher

    def lane_lost(self, lane: Lane) -> None:
        """See LaneOwner. The lane's batch is run again: whole, then each item alone."""
        batcher, batch, now = self._ready_batcher(), lane.batch, self._now()
        self._lanes.remove(lane)
        batcher.lane_removed(was_free=batch is None, now=now)
        self.update_gauges()
        if batch is None:
            return
        lane.batch = None
        batcher.lost(batch.size)
        log.warning("lane lost", extra={"pid": lane.pid, "rows": batch.rows})
        again = batch.after_death()
        self._retries.extend(again)
        if not again:
            for entry in batch.entries:
                self._jobs.fail(entry.payload.job, predictor_failed("died on this input"), now)
        self._decide(batcher, now)

    def lane_finished(self, lane: Lane, meta: Meta, payload: bytes) -> None:
        """See LaneOwner. The next batch starts before this one's answers are written."""
        batch, now = lane.batch, self._now()
        batcher, codec = self._batcher, self.codec
        if batch is None or batcher is None or codec is None:
            raise AssertionError("a result without a batch")
        lane.batch = None
        self._lanes.release(lane)
        seconds = now - lane.started
        self._recorder.executed(batch.rows, batch.requests, seconds, lane.worker_index)
        if meta["kind"] == "error":
            batcher.finished(batch.entries, None, now)
            self._run_halves(batch, meta["error"], now)
            self._decide(batcher, now)
            return
        batcher.finished(batch.entries, seconds, now)
        if batcher.queued_size or self._retries:
            self._decide(batcher, now)
        self._hand_out(batch, codec, meta, payload, now)

    def _run_halves(self, batch: Batch, what: str, now: float) -> None:
        halves = batch.after_failure()
        self._retries.extendleft(reversed(halves))
        if not halves:
            for entry in batch.entries:
                self._jobs.fail(entry.payload.job, predictor_failed(what), now)

    def _hand_out(self, batch: Batch, codec: Codec, meta: Meta, payload: bytes, now: float) -> None:
        results = codec.results(meta, payload)
        start = 0
        for entry in batch.entries:
            stop = start + entry.rows
            part = entry.payload
            job = part.job
            if not job.done:
                if not job.missing:
                    self._jobs.answer(job, results.answer(job.form, start, stop), now)
                else:
                    try:
                        answer = job.part_answered(part.index, results, start, stop)
                    except ServingError as error:
                        self._jobs.fail(job, error, now)
                    else:
                        if answer is not None:
                            self._jobs.answer(job, answer, now)
            start = stop

    # ------------------------------------------------------------ batches

    def _decide(self, batcher: Batcher[Part], now: float) -> None:
        """Start what can start; arrange to be asked again if waiting is better."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while batcher.free_lanes:
            if self._retries:
                batch = self._retries.popleft()
                if any(not entry.cancelled for entry in batch.entries):
                    self._start(batcher, batch, now)
                continue
            action = batcher.next_action(now)
            if isinstance(action, Dispatch):
                taken = batcher.take(action.size, now + self._least_seconds(batcher, action.size))
                for late in taken.expired:
                    self._recorder.rejected("expired", late.rows)
                    self._jobs.fail(late.payload.job, self._late(), now, "expired")
                if taken.entries:
                    self._start(batcher, Batch(taken.entries, action.reason), now)
                continue
            if isinstance(action, WaitUntil):
                self._awaited = action.size
                self._timer = self._call_at(action.at, now, self._waited)
            return

    def _least_seconds(self, batcher: Batcher[Part], size: int) -> float:
        """How long before its deadline a row must be dispatched to be worth running.

        In an overload the oldest rows, whose turn it is, are those about to expire: run too late
        they would be answered 504, and take the place of rows that could be answered. At most half
        of the timeout, so that an estimate that is wrong cannot refuse everything for ever.
        """
        return min(batcher.service.seconds(size), self._timeout / 2)

    def _waited(self) -> None:
        self._timer = None
        if self._batcher is not None:
            self._decide(self._batcher, self._now())

    def _start(self, batcher: Batcher[Part], batch: Batch, now: float) -> None:
        codec = self.ready_codec()
        lane = self._lanes.take()
        batcher.started(batch.size, now)
        lane.batch = batch
        lane.started = now
        entries = batch.entries
        lane.run({"rows": batch.rows}, codec.collate([e.payload.payload for e in entries]))
        first_time = batch.reason != "retry"  # a second wait would hold the first execution
        waits = [now - entry.arrived for entry in entries] if first_time else ()
        self._recorder.dispatched(batch.reason, waits)
