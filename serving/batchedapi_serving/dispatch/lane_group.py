"""Lines that share lanes: which batch is next, and what becomes of it."""

import asyncio
import logging
from typing import Final

from batchedapi_core.batching import (
    Action,
    Choice,
    Dispatch,
    ItemErrorPolicy,
    Lanes,
    WaitUntil,
    choose,
)
from batchedapi_serving.codecs import Results
from batchedapi_serving.dispatch.again import Again, Trial
from batchedapi_serving.dispatch.batch import RETRY, Batch, predictor_failed, raised_for_all
from batchedapi_serving.dispatch.deadlines import Clock
from batchedapi_serving.dispatch.in_flight import InFlight
from batchedapi_serving.dispatch.lanes import Runner
from batchedapi_serving.dispatch.line import MethodLine
from batchedapi_serving.dispatch.pools import Pool
from batchedapi_serving.dispatch.receipts import ReceiptBook
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc.frames import Meta
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)
OUT_OF_MEMORY: Final = (
    "ran out of memory on this input alone (RAM or the GPU's); send a smaller one, or give the"
    " replica more memory"
)
_DIED: Final = "died on this input"


class LaneGroup:
    """All lines of sync methods share the lanes of the replica; an async one has its own."""

    def __init__(  # noqa: PLR0917 - the parts of a dispatcher, put together in one place
        self,
        pool: Pool,
        clock: Clock,
        jobs: InFlight,
        settings: ReplicaSettings,
        receipts: ReceiptBook | None,
        trial: Trial,
    ) -> None:
        self.pool: Final = pool
        self.lanes: Final = Lanes()
        self.lines: list[MethodLine] = []
        self._timer: asyncio.TimerHandle | None = None
        self._standing: Choice | None = None
        self._clock = clock
        self._jobs = jobs
        self._most = settings.max_concurrency
        self._isolates = settings.item_errors is ItemErrorPolicy.ISOLATE
        self._receipts = receipts
        self._again = Again(trial)
        self._logs_batches = log.isEnabledFor(logging.DEBUG)

    @property
    def at_once(self) -> int:
        """Batches that can run at once; of calls there are never more than requests."""
        return min(self.lanes.total, self._most)

    # ------------------------------------------------------------ what is next

    def arrived(self, line: MethodLine, now: float) -> None:
        """Something was queued in `line`, and a lane is free."""
        if (
            self._timer is None
            or line.batcher.queued_size >= line.awaited
            or line.batcher.several_shapes
        ):
            self.decide(now, self._standing)

    def decide(self, now: float, standing: Choice | None = None) -> None:
        """Start what can start; arrange to be asked again if waiting is better.

        `standing` are the waits of the lines as they are: those that are not over go on.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lanes, lines, again = self.lanes, self.lines, self._again
        while lanes.free > 0 and lines:
            line, action = self._next(now, standing)
            queued = isinstance(action, Dispatch)
            if again.any and again.is_next(line if queued else None):
                wanted = again.next().still_wanted(now)
                if wanted is not None:
                    self._start(wanted, now)
                continue
            if isinstance(action, Dispatch):
                self._dispatch(line, action, now)
                if again.any:
                    again.served(line)
                continue
            if isinstance(action, WaitUntil):
                self._timer = self._clock.call_at(action.at, now, self._waited)
            return

    def _next(self, now: float, standing: Choice | None) -> tuple[MethodLine, Action]:
        lines = self.lines
        if len(lines) == 1:
            line = lines[0]
            action = line.batcher.next_action(now)
            if isinstance(action, WaitUntil):
                line.awaited = action.size
            return line, action
        batchers = [line.batcher for line in lines]
        choice = self._standing = choose(batchers, now, standing)
        for line, wait in zip(lines, choice.waits, strict=False):  # no waits: nobody waits
            line.awaited = 0 if wait is None else wait.size
        if choice.batcher is None:
            return lines[0], choice.action
        return lines[batchers.index(choice.batcher)], choice.action

    def _waited(self) -> None:
        self._timer = None
        self.decide(self._clock.now(), self._standing)

    def _dispatch(self, line: MethodLine, action: Dispatch, now: float) -> None:
        size, reason, shape = action
        least = line.least_seconds(size, self._jobs.patience)
        if line.limited:
            size = line.at_most(size, shape)
        entries, expired = line.batcher.take(size, now + least, shape)
        for late in expired:
            self._jobs.expire(late.payload.job, now, late.rows)
        if entries:
            self._start(Batch(line, entries, reason), now)

    def _start(self, batch: Batch, now: float) -> None:
        """What only counts is done while the model runs already."""
        line, entries = batch.line, batch.entries
        runner = self.pool.take()
        runner.batch = batch
        runner.started = now
        meta, buffers = line.codec.collate([entry.payload.payload for entry in entries])
        runner.run({"method": line.name, "rows": batch.rows, **meta}, buffers)
        line.batcher.started(batch.size, now)
        if batch.deaths and batch.on_trial:
            self._again.trial.runs = True
        if self._receipts is not None:
            batch.number = self._receipts.number()
        if self._logs_batches:
            _log_start(batch, now)
        first_time = batch.reason != RETRY  # a second wait would hold the first execution
        waits = [now - entry.arrived for entry in entries] if first_time else ()
        line.recorder.dispatched(batch.reason, waits)

    # ------------------------------------------------------------ what becomes of it

    def finished(self, runner: Runner, batch: Batch, meta: Meta, payload: bytes) -> None:
        """The next batch starts before this one's answers are written.

        If there is none they go first, and what there is to learn from this one is learned while
        they are on their way.
        """
        now, line = self._clock.now(), batch.line
        started = runner.started  # before the runner starts another
        runner.batch = None
        self.pool.release(runner, now)
        if batch.deaths and batch.on_trial:
            self._again.trial.runs = False
        seconds = now - started
        worker = runner.worker_index
        line.recorder.executed(batch.rows, batch.requests, batch.size, seconds)
        if meta["kind"] == "error":
            line.batcher.finished(batch.entries, None, now)
            if self._isolates and meta.get("of_a_row", False):
                self._look_for_row(batch, meta, worker, started, now)
            else:
                self._failed(batch, meta["error"], now, out_of_memory=meta.get("oom", False))
            self.decide(now)
            return
        if batch.pair is not None:
            line.halves_ran(batch.pair)
        learned: float | None = seconds
        if "raised" in meta:  # of one row, which is its answer; but nothing ran to its end
            learned = None
        else:
            line.recorder.succeeded(worker)
            if batch.search is not None or line.isolation.systemic:
                line.isolation.succeeded(batch.search)
        if self._waiting():
            line.batcher.finished(batch.entries, learned, now)
            self.decide(now)
            self._hand_out(batch, line.codec.results(meta, payload), worker, started, now)
            return
        try:
            self._hand_out(batch, line.codec.results(meta, payload), worker, started, now)
        finally:
            line.batcher.finished(batch.entries, learned, now)
        if self._waiting():
            self.decide(now)

    def _waiting(self) -> bool:
        """Whether anything could be the next batch."""
        for line in self.lines:
            if line.batcher.queued_size:
                return True
        return self._again.any

    def lost(
        self, runner: Runner, now: float, *, out_of_memory: bool, blamed: bool, alone: bool
    ) -> None:
        """The runner is gone, and so is what it ran: run that again, whole, then one by one.

        Halved at once if the kernel ended the process for memory: whole it would end the next.
        Unless it is `blamed`, it is run again as if nothing had happened.
        """
        batch = runner.batch
        if batch is None:
            return
        runner.batch = None
        batch.line.batcher.lost(batch.size)
        log.warning("lane lost", extra={"pid": runner.pid, "rows": batch.rows})
        if batch.on_trial:
            self._again.trial.runs = False
        if out_of_memory and batch.rows > 1:
            self._failed(batch, _DIED, now, out_of_memory=True)
            return
        again: list[Batch] = []
        if self._isolates:
            again = batch.after_death(alone=alone) if blamed else batch.after_anothers_death()
        self._again.add(again)
        if not again:
            self._fail(batch, OUT_OF_MEMORY if out_of_memory else _DIED, now)

    def _look_for_row(
        self, batch: Batch, meta: Meta, worker: int, started: float, now: float
    ) -> None:
        """An ItemError was raised for several rows: tell requests apart, then the rows of one."""
        again = batch.after_item_error()
        self._again.add(again)
        if not again:
            self._hand_out(batch, raised_for_all(batch, meta), worker, started, now)

    def _failed(self, batch: Batch, what: str, now: float, *, out_of_memory: bool) -> None:
        if out_of_memory:
            shape = batch.entries[0].shape
            if batch.rows == 1:
                what = OUT_OF_MEMORY
                batch.line.ran_out_of_memory_alone(shape)
            else:
                batch.line.ran_out_of_memory(shape, batch.size)
        again: list[Batch] = []
        if self._isolates and out_of_memory:
            again = batch.after_memory_error()
        elif self._isolates:
            again = batch.after_failure()
        self._again.add(again)
        if not again:
            self._fail(batch, what, now)

    def _fail(self, batch: Batch, what: str, now: float) -> None:
        for entry in batch.entries:
            self._jobs.fail(entry.payload.job, predictor_failed(what), now)

    def _hand_out(
        self, batch: Batch, results: Results, worker: int, started: float, now: float
    ) -> None:
        receipts, jobs, receipt = self._receipts, self._jobs, None
        start = 0
        for entry in batch.entries:
            stop = start + entry.rows
            part = entry.payload
            job = part.job
            if not job.done:
                if receipts is not None:
                    receipt = receipts.receipt(batch, entry, worker, started, now)
                try:
                    if not job.missing:
                        jobs.answer(job, job.reply.answer(results, start, stop, receipt), now)
                    else:
                        answer = job.part_answered(part.first, results, start, stop, receipt)
                        if answer is not None:
                            jobs.answer(job, answer, now)
                except ServingError as error:
                    jobs.fail(job, error, now)
            start = stop


def _log_start(batch: Batch, now: float) -> None:
    """`batch start: 2.001/2, 1/64`: waited / interval in seconds, size / most."""
    policy = batch.line.batcher.policy
    waited = round(now - batch.entries[0].arrived, 3)
    log.debug(
        "batch start: %g/%g, %d/%d",
        waited,
        policy.batch_interval,
        batch.size,
        policy.max_batch_size,
        extra={"method": batch.line.name, "reason": batch.reason, "requests": batch.requests},
    )
