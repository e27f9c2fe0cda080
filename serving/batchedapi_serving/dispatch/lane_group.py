"""Methods that share lanes: does what the scheduler says, and tells it and the clients the rest."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final, assert_never

from batchedapi_core.batching import (
    RETRY,
    Batch,
    Dispatch,
    Expired,
    Idle,
    ItemErrorPolicy,
    Lane,
    LanePool,
    Request,
    Result,
    Scheduler,
    Trial,
    Verdict,
    WaitUntil,
)
from batchedapi_serving.codecs import Results
from batchedapi_serving.dispatch.batch import (
    DIED,
    OUT_OF_MEMORY,
    raised_for_all,
)
from batchedapi_serving.dispatch.deadlines import Clock
from batchedapi_serving.dispatch.in_flight import InFlight
from batchedapi_serving.dispatch.lanes import Runner
from batchedapi_serving.dispatch.line import MethodLine
from batchedapi_serving.dispatch.receipts import ReceiptBook
from batchedapi_serving.errors import PredictorError, ServingError
from batchedapi_serving.ipc.frames import Meta
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)


class LaneGroup:
    """All sync methods share the lanes of the replica; an async one has its own."""

    def __init__(
        self,
        clock: Clock,
        jobs: InFlight,
        settings: ReplicaSettings,
        receipts: ReceiptBook | None,
        trial: Trial,
    ) -> None:
        self._isolates = settings.item_errors is ItemErrorPolicy.ISOLATE
        pool = LanePool(settings.lane_choice, random.Random())  # noqa: S311 - no cryptography
        self.scheduler: Final = Scheduler(pool, trial, isolates=self._isolates)
        self.lines: dict[str, MethodLine] = {}
        self._runners: dict[Lane, Runner] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._clock = clock
        self._jobs = jobs
        self._most = settings.max_concurrency
        self._receipts = receipts
        self._logs_batches = log.isEnabledFor(logging.DEBUG)

    @property
    def at_once(self) -> int:
        """Batches that can run at once; of calls there are never more than requests."""
        return min(self.scheduler.lanes.total, self._most)

    # ------------------------------------------------------------ what is next

    def decide(self, now: float) -> None:
        """Do what is to be done next; arrange to be asked again if waiting is better."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lanes, scheduler = self.scheduler.lanes, self.scheduler
        while lanes.free > 0:
            decision = scheduler.next(now)
            match decision:
                case Dispatch():
                    self._start(decision.lane, decision.batch, now)
                case Expired():
                    self._expire(decision.requests, now)
                case WaitUntil():
                    self._timer = self._clock.call_at(decision.at, now, self._waited)
                    return
                case Idle():
                    return
                case _:
                    assert_never(decision)

    def _waited(self) -> None:
        self._timer = None
        self.decide(self._clock.now())

    def _start(self, lane: Lane, batch: Batch, now: float) -> None:
        """What only counts is done while the model runs already."""
        line, requests = self.lines[batch.method], batch.requests
        meta, buffers = line.codec.collate(self._jobs.payloads(requests))
        frame = {"method": batch.method, "rows": batch.rows, **meta}
        self._runners[lane].run(batch, frame, buffers)
        self.scheduler.started(batch, now)
        if self._receipts is not None:
            batch.number = self._receipts.number()
        if self._logs_batches:
            self._log_start(batch, now)
        first_time = batch.reason != RETRY  # a second wait would hold the first execution
        waits = [now - request.arrived for request in requests] if first_time else ()
        line.recorder.dispatched(batch.reason, waits)

    def _expire(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            self.lines[request.method].recorder.rejected("expired", request.rows)
            job = self._jobs.get(request)
            if job is not None:
                self._jobs.expire(job, now)

    # ------------------------------------------------------------ what becomes of it

    def finished(self, runner: Runner, batch: Batch, meta: Meta, payload: bytes) -> None:
        """The next batch starts before this one's answers are written.

        If there is none they go first, and what there is to learn from this one is learned while
        they are on their way.
        """
        now, line, scheduler = self._clock.now(), self.lines[batch.method], self.scheduler
        worker = runner.worker_index
        seconds = now - batch.started
        line.recorder.executed(batch.rows, len(batch.requests), batch.size, seconds)
        if meta["kind"] == "error":
            self._failed(batch, meta, worker, now)
            self.decide(now)
            return
        result = Result.ITEM_ERROR if "raised" in meta else Result.SUCCEEDED
        if result is Result.SUCCEEDED:
            line.recorder.succeeded(worker)
        if scheduler.has_work():
            scheduler.finished(batch, result, now)
            self.decide(now)
            self._hand_out(batch, line.codec.results(meta, payload), worker, now)
            return
        try:
            self._hand_out(batch, line.codec.results(meta, payload), worker, now)
        finally:
            scheduler.finished(batch, result, now)
        if scheduler.has_work():
            self.decide(now)

    def _failed(self, batch: Batch, meta: Meta, worker: int, now: float) -> None:
        what, result = meta["error"], Result.FAILED
        if meta.get("oom", False):
            result = Result.OUT_OF_MEMORY
            what = OUT_OF_MEMORY if batch.rows == 1 else what
        elif meta.get("of_a_row", False):
            result = Result.ITEM_ERROR
        verdict = self.scheduler.finished(batch, result, now)
        self._log_limit(batch, verdict)
        if not verdict.answered:
            return
        if result is Result.ITEM_ERROR and self._isolates:
            self._hand_out(batch, raised_for_all(batch, meta), worker, now)
        else:
            self._fail(batch, what, now)

    def lost(self, batch: Batch, verdict: Verdict, now: float, *, out_of_memory: bool) -> None:
        """The process that ran it died."""
        log.warning("lane lost", extra={"pid": batch.lane.process, "rows": batch.rows})
        self._log_limit(batch, verdict)
        if verdict.answered:
            alone = out_of_memory and batch.rows == 1
            self._fail(batch, OUT_OF_MEMORY if alone else DIED, now)

    def _fail(self, batch: Batch, what: str, now: float) -> None:
        for request in batch.requests:
            job = self._jobs.get(request)
            if job is not None:
                self._jobs.fail(job, PredictorError.logged(what), now)

    def _hand_out(self, batch: Batch, results: Results, worker: int, now: float) -> None:
        receipts, jobs, receipt = self._receipts, self._jobs, None
        start, get = 0, jobs.get
        for request in batch.requests:
            stop = start + request.rows
            job = get(request)
            if job is not None:
                if receipts is not None:
                    receipt = receipts.receipt(batch, request, worker, now)
                try:
                    if request.split is None:
                        jobs.answer(job, job.reply.answer(results, start, stop, receipt), now)
                    else:
                        answer = job.part_answered(request, results, start, stop, receipt)
                        if answer is not None:
                            jobs.answer(job, answer, now)
                except ServingError as error:
                    jobs.fail(job, error, now)
            start = stop

    # ------------------------------------------------------------ lanes

    def lane_added(self, lane: Lane, runner: Runner, now: float) -> None:
        """A model process opened a lane, or a channel for calls."""
        self._runners[lane] = runner
        self.scheduler.lane_added(lane, now)

    def lanes_removed(self, pid: int) -> None:
        """The lanes of a process that was lost."""
        for lane in [lane for lane in self._runners if lane.process == pid]:
            del self._runners[lane]

    # ------------------------------------------------------------ the log

    def _log_start(self, batch: Batch, now: float) -> None:
        """`batch start: 2.001/2, 1/64`: waited / interval in seconds, size / most."""
        policy = self.lines[batch.method].batcher.policy
        log.debug(
            "batch start: %g/%g, %d/%d",
            round(now - batch.requests[0].arrived, 3),
            policy.batch_interval,
            batch.size,
            policy.max_batch_size,
            extra={
                "method": batch.method,
                "reason": batch.reason,
                "requests": len(batch.requests),
            },
        )

    @staticmethod
    def _log_limit(batch: Batch, verdict: Verdict) -> None:
        if verdict.limit is not None:
            log.warning(
                "batch ran out of memory",
                extra={
                    "method": batch.method,
                    "size": batch.size,
                    "max_batch_size": verdict.limit,
                    "shape": str(batch.requests[0].shape),
                },
            )
