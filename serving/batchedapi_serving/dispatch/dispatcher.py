"""The replica's one queue: admits requests, forms batches, gives them to lanes, hands out answers.

Decisions are core's (`Batcher`, `Admission`); here they are acted on. Runs on one event loop, so
nothing is locked. Every admitted request is answered exactly once: with its rows, with an error, or
at its deadline; a client that left is only counted.
"""

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from batchedapi_core.batching import (
    Admission,
    Batcher,
    BatchPolicy,
    Client,
    Dispatch,
    Entry,
    SizeUnit,
    WaitUntil,
    retry_after,
    split_rows,
)
from batchedapi_serving.codecs import Answer, Codec, Decoded, codec_for
from batchedapi_serving.codecs.problems import problem_answer
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.dispatch.jobs import AnswerTo, Batch, Job, Part, PartEntry, predictor_failed
from batchedapi_serving.dispatch.lanes import Lane
from batchedapi_serving.errors import (
    DeadlineExceededError,
    DrainingError,
    LateError,
    NotReadyError,
    QueueFullError,
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
        self._max_jobs = settings.max_concurrency
        self._counts_rows = settings.size_unit is SizeUnit.ROWS
        self._supervision = supervision
        self._timeout = settings.timeout or math.inf
        self._max_size = 1
        self._admission = Admission(settings.max_latency) if settings.max_latency else None
        self._batcher: Batcher[Part] | None = None
        self.method: MethodSpec | None = None
        self.codec: Codec | None = None
        self._lanes: set[Lane] = set()
        self._free: list[Lane] = []
        self._retries: deque[Batch] = deque()
        self._jobs: dict[Job, None] = {}  # in order of arrival, which is that of deadlines
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
        if len(self._jobs) >= self._max_jobs or self._admission is not None:
            self._admit(batcher, decoded.rows, size, now)
        job = Job(decoded, client, asker, now, now + self._timeout)
        self._jobs[job] = None
        if self._expiry is None and job.deadline < math.inf:
            self._expiry = self._call_at(job.deadline, now, self._expire)
        if size <= self._max_size:
            entry: PartEntry = Entry(
                Part(job, decoded.payload), decoded.rows, size, client, now, job.deadline
            )
            job.entries = (entry,)
            batcher.arrive(entry, now)
        else:
            self._queue_parts(batcher, job, decoded)
        if batcher.free_lanes and (self._timer is None or batcher.queued_size >= self._awaited):
            self._decide(batcher, now)
        return job

    def cancel(self, job: Job) -> None:
        """The client left: what is queued is not run, and nobody is told."""
        if job.done:
            return
        self._recorder.rejected("disconnected", self._drop(job))
        self._recorder.answered(499)
        batcher = self._batcher
        if batcher is not None:
            batcher.disconnected(job.client)

    def disconnected(self, client: Client) -> None:
        """A connection without a request in flight closed: its next request is not awaited."""
        if self._batcher is not None:
            self._batcher.disconnected(client)

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

    def _admit(self, batcher: Batcher[Part], rows: int, size: int, now: float) -> None:
        limit = self._max_jobs
        if len(self._jobs) >= limit:
            self._recorder.rejected("queue_full", rows)
            raise QueueFullError(
                f"{limit} requests are in this replica (overload.maxReplicaConcurrency)",
                retry_after(batcher),
            )
        if self._admission is not None and not self._admission.accepts(batcher, size, now):
            self._recorder.rejected("latency", rows)
            raise LateError(
                "the answer is expected to take longer than serverSideBatching.maxLatency;"
                " relax it, or add replicas",
                retry_after(batcher),
            )

    def _queue_parts(self, batcher: Batcher[Part], job: Job, decoded: Decoded) -> None:
        codec = self.ready_codec()
        spans = split_rows(decoded.rows, self._max_size)
        job.missing = len(spans)
        job.slices = [None] * len(spans)
        job.entries = [
            Entry(
                Part(job, codec.part(decoded.payload, start, stop), index),
                stop - start,
                stop - start,
                job.client,
                job.arrived,
                job.deadline,
            )
            for index, (start, stop) in enumerate(spans)
        ]
        batcher.arrive_parts(job.entries, job.arrived)

    def _drop(self, job: Job) -> int:
        """Take a job out before it is answered; the rows of it that were still queued."""
        job.done = True
        self._jobs.pop(job, None)
        queued = 0
        for entry in job.entries:
            queued += entry.rows if entry.queued else 0
            if self._batcher is not None:
                self._batcher.cancel(entry)
        job.entries = ()  # breaks the cycle job -> entry -> part -> job: nothing is left to the GC
        return queued

    def _answer(self, job: Job, answer: Answer, now: float) -> None:
        if job.done:
            return
        job.done = True
        job.entries = ()
        del self._jobs[job]
        self._recorder.answered(answer.status, now - job.arrived)
        job.asker.deliver(answer)

    def _fail(self, job: Job, error: ServingError, now: float) -> None:
        if not job.done:
            self._drop(job)
            self._recorder.answered(error.status, now - job.arrived)
            job.asker.deliver(problem_answer(error))

    # ------------------------------------------------------------ deadlines and the end

    def _expire(self) -> None:
        """Answer 504 to whoever is over the timeout; have processes replaced that hang."""
        self._expiry = None
        now = self._now()
        expired = []
        for job in self._jobs:
            if job.deadline > now:
                self._expiry = self._call_at(job.deadline, now, self._expire)
                break
            expired.append(job)
        for job in expired:
            self._recorder.rejected("expired", sum(e.rows for e in job.entries if e.queued))
            self._fail(
                job,
                DeadlineExceededError(f"no answer within {self._timeout:g} s (overload.timeout)"),
                now,
            )
        for pid in {lane.pid for lane in self._lanes if self._hangs(lane, now)}:
            log.warning("model process hangs", extra={"pid": pid, "timeout": self._timeout})
            self._supervision.replace(pid)
        self._expect_hangs(now)

    def _expect_hangs(self, now: float) -> None:
        """Look again at batches whose clients have all left: their process may hang as well."""
        ends = [max(e.deadline for e in lane.batch.entries) for lane in self._lanes if lane.batch]
        ends = [end for end in ends if now < end < math.inf]
        if ends and self._expiry is None:
            self._expiry = self._call_at(min(ends), now, self._expire)

    def _call_at(self, at: float, now: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, at - now) + _TIMER_ROUNDING, call)

    def _hangs(self, lane: Lane, now: float) -> bool:
        batch = lane.batch
        return batch is not None and all(entry.deadline <= now for entry in batch.entries)

    def drain(self) -> None:
        """The replica is stopping: from now on nothing waits for a fuller batch."""
        self._draining = True
        if self._batcher is not None:
            self._batcher.draining = True
            self._decide(self._batcher, self._now())

    def abandon(self) -> None:
        """The time to stop is over: answer 503 to whoever is still waiting."""
        for job in list(self._jobs):
            self._recorder.rejected("draining", sum(e.rows for e in job.entries if e.queued))
            self._fail(
                job, DrainingError("the replica stopped before an answer was there"), self._now()
            )

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
        self._free.append(lane)
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
        self._lanes.discard(lane)
        if lane in self._free:
            self._free.remove(lane)
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
                self._fail(entry.payload.job, predictor_failed("died on this input"), now)
        self._decide(batcher, now)

    def lane_finished(self, lane: Lane, meta: Meta, payload: bytes) -> None:
        """See LaneOwner. The next batch starts before this one's answers are written."""
        batch, now = lane.batch, self._now()
        batcher, codec = self._batcher, self.codec
        if batch is None or batcher is None or codec is None:
            raise AssertionError("a result without a batch")
        lane.batch = None
        self._free.append(lane)
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
                self._fail(entry.payload.job, predictor_failed(what), now)

    def _hand_out(self, batch: Batch, codec: Codec, meta: Meta, payload: bytes, now: float) -> None:
        results = codec.results(meta, payload)
        start = 0
        for entry in batch.entries:
            stop = start + entry.rows
            part = entry.payload
            job = part.job
            if not job.done:
                if not job.missing:
                    self._answer(job, results.answer(job.form, start, stop), now)
                else:
                    try:
                        answer = job.part_answered(part.index, results, start, stop)
                    except ServingError as error:
                        self._fail(job, error, now)
                    else:
                        if answer is not None:
                            self._answer(job, answer, now)
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
                taken = batcher.take(action.size, now)
                for late in taken.expired:
                    self._fail_late(late, now)
                if taken.entries:
                    self._start(batcher, Batch(taken.entries, action.reason), now)
                continue
            if isinstance(action, WaitUntil):
                self._awaited = action.size
                self._timer = self._call_at(action.at, now, self._waited)
            return

    def _waited(self) -> None:
        self._timer = None
        if self._batcher is not None:
            self._decide(self._batcher, self._now())

    def _fail_late(self, entry: PartEntry, now: float) -> None:
        self._recorder.rejected("expired", entry.rows)
        self._fail(
            entry.payload.job,
            DeadlineExceededError(f"no answer within {self._timeout:g} s (overload.timeout)"),
            now,
        )

    def _start(self, batcher: Batcher[Part], batch: Batch, now: float) -> None:
        codec = self.ready_codec()
        free = self._free
        if len(free) > 1:  # a random lane, as BentoML does: batches get slightly larger
            chosen = random.randrange(len(free))  # noqa: S311 - no cryptography
            free[chosen], free[-1] = free[-1], free[chosen]
        lane = free.pop()
        batcher.started(batch.size, now)
        lane.batch = batch
        lane.started = now
        entries = batch.entries
        lane.run({"rows": batch.rows}, codec.collate([e.payload.payload for e in entries]))
        self._recorder.dispatched(batch.reason, [now - e.arrived for e in entries])
