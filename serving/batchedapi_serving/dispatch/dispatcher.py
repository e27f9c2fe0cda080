"""The replica's desk: admits requests into their lines and owns the lanes that run them.

Decisions are core's (`Batcher`, `Admission`); here they are acted on. Runs on one event loop, so
nothing is locked. Every admitted request is answered exactly once: with its rows, with an error, or
at its deadline; a client that left is only counted.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from batchedapi_core.batching import Batch, Client, Lane, Request, Trial, process_lost
from batchedapi_serving.codecs import Decoded
from batchedapi_serving.dispatch.channel import ModelChannel
from batchedapi_serving.dispatch.deadlines import Clock, Deadlines
from batchedapi_serving.dispatch.desk import (
    CLIENT_LEFT,
    STOPPED,
    AnswerTo,
    Line,
    LinesOfDesk,
    Ticket,
)
from batchedapi_serving.dispatch.in_flight import InFlight
from batchedapi_serving.dispatch.jobs import Job
from batchedapi_serving.dispatch.lane_group import LaneGroup
from batchedapi_serving.dispatch.lanes import Channel, LaneConnection, Runner
from batchedapi_serving.dispatch.line import MethodLine
from batchedapi_serving.dispatch.receipts import receipt_book
from batchedapi_serving.errors import DrainingError
from batchedapi_serving.ipc.frames import Meta
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.oom import OomKills
from batchedapi_serving.predictor import MethodSpec, default_method
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)
_CANCEL_SECONDS: Final = 1.0
"""That a call gets to end after its clients have had their 504; see dispatch.channel."""


class Supervision(Protocol):
    """What the dispatcher tells the supervisor."""

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """The first model process is ready and serves these."""


class Dispatcher(LinesOfDesk[MethodLine]):
    """Owner of the lines, the lanes and the requests in flight; see desk.Desk."""

    def __init__(  # noqa: PLR0917 - the parts of a web process, put together in one place
        self,
        settings: ReplicaSettings,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        supervision: Supervision,
        now: Callable[[], float] = time.monotonic,
        oom_kills: OomKills | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._recorder = recorder
        self._supervision = supervision
        self._clock = Clock(loop, now)
        self._now = now
        self._oom = OomKills() if oom_kills is None else oom_kills
        self._jobs = InFlight(settings.timeout or math.inf)
        self._ids = itertools.count(1)
        self._deadlines = Deadlines(
            self._clock,
            self._jobs,
            lambda: [group.scheduler for group in self._groups],
            supervision,
        )
        self._receipts = receipt_book(settings.receipts)
        self._trial = Trial()
        self._sync = self._new_group()
        self._lanes: dict[int, list[LaneConnection]] = {}
        """By the process that opened them."""
        self._channels: dict[int, Channel] = {}
        self._calls: list[tuple[LaneGroup, int]] = []
        """Of each async method: calls that one process runs at once."""
        self._draining = False

    # ------------------------------------------------------------ the desk

    def submit(
        self,
        line: Line,
        decoded: Decoded,
        client: Client,
        asker: AnswerTo,
        timeout: float | None = None,
    ) -> Job:
        """See Desk."""
        if not isinstance(line, MethodLine):
            raise TypeError(f"expected a line of this desk, got {type(line).__name__}")
        now, jobs = self._now(), self._jobs
        rows = decoded.rows
        line.recorder.received(rows)
        sizes, method = decoded.sizes, line.method
        size = rows if sizes is None and method.counts_rows else method.size_of(rows, sizes)
        line.door.check(line.batcher, len(jobs), rows, size, now)
        hurried = timeout is not None and timeout < jobs.timeout
        deadline = now + (timeout if timeout is not None and hurried else jobs.timeout)
        request = Request(next(self._ids), line.name, rows, size, client, now, deadline)
        job = Job(line, request, decoded, asker, hurried=hurried)
        jobs.add(job)
        if deadline < self._deadlines.at:
            self._deadlines.look_at(deadline, now)
        if line.scheduler.arrive(request, now, sizes, decoded.shapes):
            line.group.decide(now)
        return job

    def cancel(self, ticket: Ticket, status: int = CLIENT_LEFT) -> None:
        """See Desk."""
        if isinstance(ticket, Job) and not ticket.done:
            self._jobs.left(ticket, status)
            if status == CLIENT_LEFT:
                self.disconnected(ticket.request.client)

    def disconnected(self, client: Client) -> None:
        """See Desk."""
        for group in self._groups:
            group.scheduler.disconnected(client)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """The replica is stopping: from now on nothing waits for a fuller batch."""
        self._draining = True
        for group in self._groups:
            group.scheduler.drain()
            group.decide(self._now())

    def abandon(self) -> None:
        """The time to stop is over: answer 503 to whoever is still waiting."""
        error = DrainingError(STOPPED)
        for job in self._jobs.jobs():
            self._jobs.fail(job, error, self._now(), "draining")

    def update_gauges(self) -> None:
        """Write the state into the metrics memory; called a few times a second."""
        in_flight = self._jobs.by_line()
        for line in self._lines.values():
            line.update_gauges(in_flight[line])

    # ------------------------------------------------------------ lanes and channels

    @property
    def _groups(self) -> list[LaneGroup]:
        return [self._sync, *(group for group, _ in self._calls)]

    def lane_ready(self, lane: LaneConnection, hello: Meta) -> None:
        """See RunnerOwner."""
        now = self._now()
        self._process_ready(hello)
        self._lanes.setdefault(lane.pid, []).append(lane)
        self._sync.lane_added(Lane(lane.pid), lane, now)
        self.update_gauges()
        self._sync.decide(now)

    def lane_lost(self, lane: LaneConnection) -> None:
        """See RunnerOwner."""
        self._process_lost(lane.pid)

    def channel_ready(self, transport: asyncio.Transport, hello: Meta) -> Channel:
        """See RunnerOwner."""
        now = self._now()
        self._process_ready(hello)
        channel = ModelChannel(self, transport, hello, self._now)
        self._channels[channel.pid] = channel
        for group, at_once in self._calls:
            group.lane_added(Lane(channel.pid, at_once, _CANCEL_SECONDS), channel, now)
            group.decide(now)
        self.update_gauges()
        return channel

    def channel_lost(self, channel: Channel) -> None:
        """See RunnerOwner."""
        self._process_lost(channel.pid)

    def run_finished(self, runner: Runner, batch: Batch, meta: Meta, payload: bytes) -> None:
        """See RunnerOwner."""
        self._lines[batch.method].group.finished(runner, batch, meta, payload)
        if batch.on_trial:  # the next on trial may be another group's
            for group in self._groups:
                group.decide(self._now())

    def asker_of(self, request: Request) -> AnswerTo | None:
        """See CallOwner."""
        job = self._jobs.get(request)
        return None if job is None else job.asker

    def _process_lost(self, pid: int) -> None:
        """One of its connections ended: so do all, before a batch is given to those that are left.

        They close one after the other when a process dies; one that is alive makes them anew.
        """
        lanes = self._lanes.pop(pid, [])
        channel = self._channels.pop(pid, None)
        if not lanes and channel is None:
            return
        now, killed = self._now(), self._oom.ended(pid)
        groups = self._groups
        schedulers = [group.scheduler for group in groups]
        lost = process_lost(schedulers, pid, now, out_of_memory=killed)
        for group in groups:
            group.lanes_removed(pid)
        for batch, verdict in lost:
            self._lines[batch.method].group.lost(batch, verdict, now, out_of_memory=killed)
        for lane in lanes:
            lane.close()
        if channel is not None:
            channel.close()
        self.update_gauges()
        for group in groups:
            group.decide(now)

    def _process_ready(self, hello: Meta) -> None:
        """A connection of a process; the first of each says what its warm-up took."""
        pid = hello["pid"]
        self._oom.started(pid)
        if not self._lines:
            self._open_lines(hello)
        if pid not in self._channels and pid not in self._lanes:
            for name, timings in hello.get("warm_up", {}).items():
                self._lines[name].warmed_up(timings)

    def _open_lines(self, hello: Meta) -> None:
        specs = [MethodSpec.from_json(value) for value in hello["methods"]]
        self._default = default_method(specs)
        for index, spec in enumerate(specs):
            self._lines[spec.name] = self._open_line(index, spec)
        self._recorder.ready()
        self._supervision.ready(specs, self._default)

    def _open_line(self, index: int, spec: MethodSpec) -> MethodLine:
        settings = self._settings
        group = self._call_group(spec) if spec.is_async else self._sync
        line = MethodLine(spec, settings, self._recorder.method(index), group)
        line.batcher.draining = self._draining
        line.recorder.sized(line.batcher.policy.max_batch_size)
        line.recorder.runs(one_by_one=spec.one_by_one)
        line.update_gauges(0)
        group.lines[spec.name] = line
        policy = line.batcher.policy
        size, interval = policy.max_batch_size, policy.batch_interval
        log.info(
            "ready",
            extra={
                "method": spec.name,
                "max_batch_size": size,
                "batch_interval": interval,
                "strategy": str(policy.strategy),
                "lanes": settings.processes * settings.threads,
                "start": f"delay=0, batch_size={size} batch_time={interval:g}",
            },
        )
        if spec.one_by_one:
            log.warning(
                "nothing is gained by batching this method: it is called once for each request",
                extra={
                    "method": spec.name,
                    "max_batch_size": size,
                    "remedy": "mark it with @batched to get many rows at once, or leave"
                    " maxBatchSize out",
                },
            )
        return line

    def _call_group(self, spec: MethodSpec) -> LaneGroup:
        settings = self._settings
        at_once = settings.threads if spec.batched else settings.max_concurrency
        group = self._new_group()
        self._calls.append((group, at_once))
        return group

    def _new_group(self) -> LaneGroup:
        return LaneGroup(self._clock, self._jobs, self._settings, self._receipts, self._trial)
