"""The replica's desk: admits requests into their lines and owns the lanes that run them.

Decisions are core's (`Batcher`, `Admission`); here they are acted on. Runs on one event loop, so
nothing is locked. Every admitted request is answered exactly once: with its rows, with an error, or
at its deadline; a client that left is only counted.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Decoded
from batchedapi_serving.dispatch.again import Trial, blamed
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
from batchedapi_serving.dispatch.lanes import Channel, Lane, Runner
from batchedapi_serving.dispatch.line import MethodLine
from batchedapi_serving.dispatch.pools import CallPool, LanePool, Pool
from batchedapi_serving.dispatch.receipts import receipt_book
from batchedapi_serving.errors import DrainingError
from batchedapi_serving.ipc.frames import Meta
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.oom import OomKills
from batchedapi_serving.predictor import MethodSpec, default_method
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)


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
        self._deadlines = Deadlines(
            self._clock, self._jobs, lambda: [group.pool for group in self._groups], supervision
        )
        self._receipts = receipt_book(settings.receipts)
        self._trial = Trial()
        self._lane_pool = LanePool(settings.lane_choice)
        self._sync = self._group_of(self._lane_pool)
        self._channels: dict[int, tuple[Channel, asyncio.Transport]] = {}
        self._calls: list[tuple[CallPool, LaneGroup]] = []
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
        size = rows if line.counts_rows and decoded.sizes is None else line.size_of(decoded)
        line.door.check(line.batcher, len(jobs), rows, size, now)
        job = Job(line, decoded, client, asker, now, now + jobs.timeout)
        if timeout is None or timeout >= jobs.timeout:
            jobs.add(job)
        else:
            jobs.add_hurried(job, timeout)
        if job.deadline < self._deadlines.at:
            self._deadlines.look_at(job.deadline, now)
        line.arrive(job, decoded, size, now)
        group = line.group
        if group.lanes.free > 0:
            group.arrived(line, now)
        return job

    def cancel(self, ticket: Ticket, status: int = CLIENT_LEFT) -> None:
        """See Desk."""
        if isinstance(ticket, Job) and not ticket.done:
            self._jobs.left(ticket, status)
            if status == CLIENT_LEFT:
                self.disconnected(ticket.client)

    def disconnected(self, client: Client) -> None:
        """See Desk."""
        for line in self._lines.values():
            line.batcher.disconnected(client)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """The replica is stopping: from now on nothing waits for a fuller batch."""
        self._draining = True
        for line in self._lines.values():
            line.batcher.draining = True
        for group in self._groups:
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
        return [self._sync, *(group for _, group in self._calls)]

    def lane_ready(self, lane: Lane, hello: Meta) -> None:
        """See RunnerOwner."""
        now = self._now()
        self._process_ready(hello)
        self._lane_pool.add(lane)
        self._sync.lanes.added(now)
        self.update_gauges()
        self._sync.decide(now)

    def lane_lost(self, lane: Lane) -> None:
        """See RunnerOwner."""
        self._process_lost(lane.pid)

    def channel_ready(self, transport: asyncio.Transport, hello: Meta) -> Channel:
        """See RunnerOwner."""
        now = self._now()
        self._process_ready(hello)
        channel = ModelChannel(self, transport, hello, self._now)
        self._channels[channel.pid] = (channel, transport)
        for pool, group in self._calls:
            pool.add(channel)
            for _ in range(pool.at_once):
                group.lanes.added(now)
            group.decide(now)
        self.update_gauges()
        return channel

    def channel_lost(self, channel: Channel) -> None:
        """See RunnerOwner."""
        self._process_lost(channel.pid)

    def run_finished(self, runner: Runner, meta: Meta, payload: bytes) -> None:
        """See RunnerOwner."""
        batch = runner.batch
        if batch is None:
            raise AssertionError("a result without a batch")
        batch.line.group.finished(runner, batch, meta, payload)
        if batch.deaths and batch.on_trial:  # the next on trial may be another group's
            for group in self._groups:
                group.decide(self._now())

    def _process_lost(self, pid: int) -> None:
        """One of its connections ended: so do all, before a batch is given to those that are left.

        They close one after the other when a process dies; one that is alive makes them anew.
        """
        now = self._now()
        lanes = self._lane_pool.of_process(pid)
        opened = self._channels.pop(pid, None)
        if not lanes and opened is None:
            return
        lost: list[tuple[LaneGroup, Runner]] = []
        for lane in lanes:
            self._lane_pool.remove(lane)
            self._sync.lanes.removed(was_free=lane.batch is None)
            lost.append((self._sync, lane))
        for pool, group in self._calls if opened is not None else ():
            calls = pool.remove_process(pid)
            for number in range(pool.at_once):
                group.lanes.removed(was_free=number >= len(calls))
            lost.extend((group, call) for call in calls)
        busy = [runner for _, runner in lost if runner.batch is not None]
        at_fault, killed = set(blamed(busy)), self._oom.ended(pid)
        for group, runner in lost:
            group.lost(
                runner,
                now,
                out_of_memory=killed,
                blamed=runner in at_fault,
                alone=len(busy) == 1,
            )
        for lane in lanes:
            lane.close()
        if opened is not None:
            opened[1].abort()
        self.update_gauges()
        for group in self._groups:
            group.decide(now)

    def _process_ready(self, hello: Meta) -> None:
        """A connection of a process; the first of each says what its warm-up took."""
        pid = hello["pid"]
        self._oom.started(pid)
        if not self._lines:
            self._open_lines(hello)
        if pid not in self._channels and not self._lane_pool.of_process(pid):
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
        line.recorder.sized(line.max_size)
        line.update_gauges(0)
        group.lines.append(line)
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
        return line

    def _call_group(self, spec: MethodSpec) -> LaneGroup:
        settings = self._settings
        at_once = settings.threads if spec.batched else settings.max_concurrency
        pool = CallPool(settings.lane_choice, at_once)
        group = self._group_of(pool)
        self._calls.append((pool, group))
        return group

    def _group_of(self, pool: Pool) -> LaneGroup:
        return LaneGroup(pool, self._clock, self._jobs, self._settings, self._receipts, self._trial)
