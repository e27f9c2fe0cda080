"""Methods that share lanes: does what the scheduler says, and tells it and the clients the rest."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Protocol, TypeAlias, assert_never

import orjson

from batchedapi_core.batching import (
    RETRY,
    Admission,
    Ahead,
    Batch,
    BatchEnd,
    BatchPolicy,
    Begins,
    Dispatch,
    Expired,
    Idle,
    ItemErrorPolicy,
    Lane,
    LanePool,
    Receipts,
    Request,
    Result,
    Scheduler,
    SizeUnit,
    Trial,
    WaitUntil,
    lengths_of,
    retry_after,
)
from batchedapi_serving.codecs import Answer, Codec, DecodedRequest, Receipt, Results, codec_for
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import ItemResults, error_object
from batchedapi_serving.dispatch.requests import Clock, InFlightRequest, InFlightRequests
from batchedapi_serving.dispatch.traced_batches import Riders, TracedBatches
from batchedapi_serving.errors import LateError, PredictorError, QueueFullError, ServingError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.metrics.recorder import MethodRecorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import Tracer

log = logging.getLogger(__name__)
OUT_OF_MEMORY: Final = (
    "ran out of memory on this input alone (RAM or the GPU's); send a smaller one, or give the"
    " replica more memory"
)
DIED: Final = "died on this input"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Runner(Protocol):
    """A model process's connection that runs batches: a lane one at a time, a channel many."""

    worker_index: int
    pid: int

    def run(self, batch: Batch, meta: Meta, payload: Sequence[bytes], done: "Done") -> None:
        """Send a batch; `done` is told its result, never from inside. A lane may have one ahead."""

    def close(self) -> None:
        """Give the connection up; its process is lost to the owner."""


Done: TypeAlias = Callable[[Runner, Batch, Meta, bytes], None]
"""Told that the model process answered the batch."""


class ReceiptBook:
    """Numbers batches, so that no two of a replica are ever called the same."""

    def __init__(
        self, replica: str | None = None, unix_time: Callable[[], float] = time.time
    ) -> None:
        """`replica` is what this one is called; None: its host name, a pod's own."""
        self._replica = socket.gethostname() if replica is None else replica
        # Milliseconds tell apart the web processes of one replica, of which one follows the other.
        self._start = base36(int(unix_time() * 1000))
        self._numbers = count(1)

    def number(self) -> str:
        """The next batch's."""
        return f"{self._start}-{base36(next(self._numbers))}"

    def receipt(self, batch: Batch, request: Request, worker_index: int, now: float) -> Receipt:
        """The receipt of one request of a batch that ran until `now`, in seconds."""
        return Receipt(
            batch=batch.number,
            rows=batch.rows,
            requests=len(batch.requests),
            my_rows=request.rows,
            queue_seconds=batch.started - request.arrived,
            exec_seconds=now - batch.started,
            reason=batch.reason,
            replica=self._replica,
            worker_index=worker_index,
        )


def receipt_book(mode: Receipts) -> ReceiptBook | None:
    """None: no answer carries a receipt, and none is made."""
    return None if mode is Receipts.OFF else ReceiptBook()


def base36(number: int) -> str:
    """Digits of a number >= 0, as int(text, 36) reads them."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


class MethodQueue:
    """See engine.ServedMethod; sizes are in the method's own unit."""

    def __init__(
        self,
        spec: MethodSpec,
        settings: ReplicaSettings,
        recorder: MethodRecorder,
        executor: "Executor",
    ) -> None:
        own, size = settings.of_method(spec.name), spec.max_batch_size
        self.spec = spec
        self.name: Final = spec.name
        self.codec: Codec = codec_for(spec, own, settings.name, settings.receipts)
        self.recorder = recorder
        self.executor = executor
        self.scheduler = executor.scheduler
        batching = own.batching
        target = batching.max_latency
        policy = BatchPolicy(
            max_batch_size=size,
            batch_interval=batching.batch_interval,
            strategy=batching.strategy,
            latency_target=target,
            queue_order=batching.queue_order,
            pads_to=self.codec.pads_to,
        )
        rows = batching.size_unit is SizeUnit.ROWS
        self.method = self.scheduler.add_method(spec.name, policy, counts_rows=rows)
        self.batcher = self.method.batcher
        self.admission = Admission(target) if target and not spec.streams else None
        """Refuses for `maxLatency`; None: none are. A stream takes as long as its reader."""

    def full(self, limit: int, rows: int) -> QueueFullError:
        """The error for a request of so many rows, as `limit` requests are in the replica."""
        self.recorder.rejected("queue_full", rows)
        return QueueFullError.of_replica(limit, retry_after(self.batcher))

    def check_latency(
        self, admission: Admission, decoded: DecodedRequest, size: int, now: float
    ) -> None:
        """Refuse a request that comes too late; asked once for each, before it is queued.

        Raises:
            LateError: it would miss `maxLatency`.
        """
        rows, _, _, sizes, shapes = decoded
        longest = self.batcher.longest(sizes, shapes)
        if not admission.accepts(self.batcher, size, now, rows, longest):
            self.recorder.rejected("latency", rows)
            raise LateError.expected(retry_after(self.batcher))

    def warmed_up(self, timings: Sequence[Sequence[float]]) -> None:
        """A model process was warmed up with batches; see WarmUpTime."""
        for rows, size, seconds, length in timings:
            of_policy = int(size if self.method.counts_rows else rows)
            self.batcher.warmed_up(of_policy, seconds, int(rows), int(length))

    def update_gauges(self, in_flight: int) -> None:
        """Write the state into the metrics memory; so many requests are not yet answered."""
        effective = self.batcher.policies.of(None)
        self.recorder.gauges(
            lanes=self.executor.at_once,
            queue_rows=self.scheduler.waiting_rows(self.name),
            in_flight=in_flight,
            max_batch_size=min(effective.max_batch_size, self.method.memory.limit_of(None)),
            batch_interval=effective.batch_interval,
        )
        self.recorder.learned(self.batcher.learned(self.recorder.mean_size))


class Executor:
    """All sync methods share the lanes of the replica; an async one has its own."""

    def __init__(
        self,
        clock: Clock,
        in_flight: InFlightRequests,
        settings: ReplicaSettings,
        receipts: ReceiptBook | None,
        trial: Trial,
        *,
        trial_over: Callable[[], None],
        sends_ahead: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        """`trial_over` is called when a batch on trial has run: another executor's may be next.

        `sends_ahead`: see Scheduler. `tracer` begins spans of batches; None: nothing is traced.
        """
        self._isolates = settings.item_errors is ItemErrorPolicy.ISOLATE
        pool = LanePool(settings.lane_choice, random.Random())  # noqa: S311 - no cryptography
        self.scheduler: Final = Scheduler(
            pool, trial, isolates=self._isolates, sends_ahead=sends_ahead
        )
        self.queues: dict[str, MethodQueue] = {}
        self._runners: dict[Lane, Runner] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._clock = clock
        self._in_flight = in_flight
        self._trial_over = trial_over
        self._most = settings.max_concurrency
        self._receipts = receipts
        self._logs_batches = log.isEnabledFor(logging.DEBUG)
        self._traced = None if tracer is None else TracedBatches(tracer)

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
        while lanes.free > 0 or scheduler.has_work():  # the latter costs a lone row less
            decision = scheduler.next(now)
            match decision:
                case Dispatch(batch, expired):
                    self._send(batch)
                    self._begun(batch, now)
                    if expired:
                        self._expire(expired, now)
                case Idle():
                    return
                case Ahead(batch, expired):
                    self._send(batch)
                    self._expire(expired, now)
                case Begins(batch):
                    self._begun(batch, now)
                case Expired(expired):
                    self._expire(expired, now)
                case WaitUntil():
                    self._timer = self._clock.call_at(decision.at, now, self._waited)
                    return
                case _:
                    assert_never(decision)

    def _waited(self) -> None:
        self._timer = None
        self.decide(self._clock.now())

    def _send(self, batch: Batch) -> None:
        codec, by_id, payloads = self.queues[batch.method].codec, self._in_flight.by_id, []
        riders: Riders = {}
        for request in batch.requests:
            pending = by_id[request.id]
            payload = pending.payload
            if request.split is not None:
                payload = codec.part(payload, request.first, request.first + request.rows)
            payloads.append(payload)
            if pending.span is not None:
                riders[pending] = pending.span
        meta, buffers = codec.collate(payloads)
        frame = {"method": batch.method, "rows": batch.rows, **meta}
        if batch.size != batch.rows:
            frame["size"] = batch.size
        if self._traced is not None and riders:
            self._traced.sent(batch, riders, frame)
        self._runners[batch.lane].run(batch, frame, buffers, self._finished)

    def _begun(self, batch: Batch, now: float) -> None:
        """Count the batch, while the model runs already."""
        if self._receipts is not None:
            batch.number = self._receipts.number()
        if self._logs_batches:
            policy = self.queues[batch.method].batcher.policy
            log.debug(
                "batch start: %g/%g, %d/%d",  # waited / interval in seconds, size / most
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
        first_time = batch.reason != RETRY  # a second wait would hold the first execution
        waits = [now - request.arrived for request in batch.requests] if first_time else ()
        self.queues[batch.method].recorder.dispatched(batch.reason, waits)

    def _expire(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            self.queues[request.method].recorder.rejected("expired", request.rows)
            pending = self._in_flight.by_id.get(request.id)
            if pending is not None:
                self._in_flight.expire(pending, now)

    # ------------------------------------------------------------ what becomes of it

    def _finished(self, runner: Runner, batch: Batch, meta: Meta, payload: bytes) -> None:
        """The next batch starts before this one's answers are written.

        If there is none they go first, and what there is to learn from this one is learned while
        they are on their way.
        """
        now, queue, scheduler = self._clock.now(), self.queues[batch.method], self.scheduler
        worker = runner.worker_index
        failed = meta["kind"] == "error"
        if self._traced is not None:
            self._traced.over(batch, now, meta["error"] if failed else None, worker)
        if queue.spec.streams:
            self._stream_ended(batch, meta, payload, worker, now)
            return
        result = Result.ITEM_ERROR if failed or "raised" in meta else Result.SUCCEEDED
        queue.recorder.executed(
            batch.rows, len(batch.requests), batch.size, now - batch.started,
            worker if result is Result.SUCCEEDED else None,
        )  # fmt: skip
        if queue.batcher.surface is not None:
            queue.recorder.padded(*lengths_of(batch.requests))
        if failed:
            self._failed(batch, meta, worker, now)
            self.decide(now)
        elif scheduler.has_work():
            scheduler.finished(batch, result, now)
            self.decide(now)
            self._hand_out(batch, queue.codec.results(meta, payload), worker, now)
        else:
            try:
                self._hand_out(batch, queue.codec.results(meta, payload), worker, now)
            finally:
                scheduler.finished(batch, result, now)
            if self._in_flight.by_id and scheduler.has_work():
                self.decide(now)
        if batch.on_trial:
            self._trial_over()

    def _stream_ended(
        self, batch: Batch, meta: Meta, payload: bytes, worker: int, now: float
    ) -> None:
        """It is never run again, and nothing is learned from its time, which is its reader's."""
        queue, failed = self.queues[batch.method], meta["kind"] == "error"
        queue.recorder.executed(
            batch.rows, 1, batch.size, now - batch.started, None if failed else worker
        )
        self.scheduler.finished(batch, Result.ITEM_ERROR, now)
        if failed:
            self._fail(batch, OUT_OF_MEMORY if meta.get("oom") else meta["error"], now)
        else:
            self._hand_out(batch, queue.codec.results(meta, payload), worker, now)
        self.decide(now)
        if batch.on_trial:
            self._trial_over()

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

    def lost(self, batch: Batch, verdict: BatchEnd, now: float, *, out_of_memory: bool) -> None:
        """The process that ran it died."""
        log.warning("lane lost", extra={"pid": batch.lane.process, "rows": batch.rows})
        if self._traced is not None:
            self._traced.over(batch, now, DIED)
        self._log_limit(batch, verdict)
        if verdict.answered:
            alone = out_of_memory and batch.rows == 1
            self._fail(batch, OUT_OF_MEMORY if alone else DIED, now)

    def _fail(self, batch: Batch, what: str, now: float) -> None:
        for request in batch.requests:
            pending = self._in_flight.by_id.get(request.id)
            if pending is not None:
                self._in_flight.fail(pending, PredictorError.logged(what), now)

    def _hand_out(self, batch: Batch, results: Results, worker: int, now: float) -> None:
        receipts, in_flight, receipt = self._receipts, self._in_flight, None
        start, by_id = 0, in_flight.by_id
        answers: list[tuple[InFlightRequest, Answer]] = []
        for request in batch.requests:
            stop = start + request.rows
            pending = by_id.get(request.id)
            if pending is not None:
                if receipts is not None:
                    receipt = receipts.receipt(batch, request, worker, now)
                try:
                    if request.split is None:
                        answer = pending.reply.answer(results, start, stop, receipt)
                        answers.append((pending, answer))
                    else:
                        whole = pending.part_answered(request, results, start, stop, receipt)
                        if whole is not None:
                            answers.append((pending, whole))
                except ServingError as error:
                    in_flight.fail(pending, error, now)
            start = stop
        in_flight.answer(answers, now)

    # ------------------------------------------------------------ lanes

    def lane_added(self, lane: Lane, runner: Runner, now: float) -> None:
        """A model process opened a lane, or a channel for calls."""
        self._runners[lane] = runner
        self.scheduler.lane_added(lane, now)

    def lanes_removed(self, pid: int) -> None:
        """The lanes of a process that was lost."""
        for lane in [lane for lane in self._runners if lane.process == pid]:
            del self._runners[lane]
        if self._traced is not None:
            self._traced.lost_ahead(pid)

    # ------------------------------------------------------------ the log

    @staticmethod
    def _log_limit(batch: Batch, verdict: BatchEnd) -> None:
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


def raised_for_all(batch: Batch, meta: Meta) -> ItemResults:
    """Every row's answer where an ItemError was raised for them together, as `meta` says."""
    first = batch.requests[0].first
    together = f"raised for rows {first} to {first + batch.rows - 1}, which were not run one by one"
    text = orjson.dumps(error_object("item_failed", f"{meta['message']} ({together})"))
    return ItemResults([Item(meta["status"], "json", text)] * batch.rows)
