"""The replica's engine: admits requests into their queues and owns the lanes that run them.

Decisions are core's (`Batcher`, `Admission`); here they are acted on. Runs on one event loop, so
nothing is locked. Every admitted request is answered exactly once: with its rows, with an error, or
at its deadline; a client that left is only counted.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from batchedapi_core.batching import Client, Lane, Request, Trial, process_lost
from batchedapi_serving.codecs import DecodedRequest
from batchedapi_serving.dispatch.channel import ModelChannel
from batchedapi_serving.dispatch.engine import (
    CLIENT_LEFT,
    STOPPED,
    Caller,
    MethodTable,
    RequestHandle,
    ServedMethod,
)
from batchedapi_serving.dispatch.executor import Executor, MethodQueue, Runner, receipt_book
from batchedapi_serving.dispatch.requests import Clock, Deadlines, InFlightRequest, InFlightRequests
from batchedapi_serving.errors import DrainingError, PredictorError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.oom import OomKills
from batchedapi_serving.predictor import MethodSpec, default_method
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import Tracer

log = logging.getLogger(__name__)
_CANCEL_SECONDS: Final = 1.0
"""Given to a call to end after its clients have had their 504; see dispatch.channel."""
_CLOSE_SECONDS: Final = 10.0
"""The same of a stream: a generator that is no coroutine is closed at its next item. Others stream
from its process, so one that is slow should not be taken for one that hangs."""
_BROKEN: Final = "died while it streamed"


class Supervision(Protocol):
    """The supervisor, as the dispatcher sees it."""

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """The first model process is ready and serves these."""


class Dispatcher(MethodTable[MethodQueue]):
    """Owner of the queues, the lanes and the requests in flight; see engine.Engine."""

    def __init__(  # noqa: PLR0917 - the parts of a web process, put together in one place
        self,
        settings: ReplicaSettings,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        supervision: Supervision,
        now: Callable[[], float] = time.monotonic,
        oom_kills: OomKills | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`tracer`: for batches of traced requests; None: no request is traced."""
        super().__init__()
        self._tracer = tracer
        self._settings = settings
        self._recorder = recorder
        self._supervision = supervision
        self._clock = Clock(loop, now)
        self._oom = OomKills() if oom_kills is None else oom_kills
        self._in_flight = InFlightRequests(settings.timeout or math.inf, traces=tracer is not None)
        self._deadlines = Deadlines(
            self._clock,
            self._in_flight,
            lambda: [executor.scheduler for executor in self._executors],
            supervision.replace,
        )
        self._new_executor = partial(
            Executor,
            self._clock,
            self._in_flight,
            settings,
            receipt_book(settings.receipts),
            Trial(),
            trial_over=self._decide,
            tracer=tracer,
        )
        self._sync = self._new_executor(sends_ahead=True)
        self._lanes: dict[int, list[Runner]] = {}
        """By the process that opened them."""
        self._channels: dict[int, ModelChannel] = {}
        self._calls: list[tuple[Executor, int, float]] = []
        """For each async method: calls that one process runs at once, and a lane's grace."""
        self._draining = False

    # ------------------------------------------------------------ the engine

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> InFlightRequest:
        """See Engine."""
        if not isinstance(served, MethodQueue):
            raise TypeError(f"expected a method of this engine, got {type(served).__name__}")
        now, in_flight, method = self._clock.now(), self._in_flight, served.method
        rows, _, _, sizes, shapes = decoded
        served.recorder.received(rows)
        size = rows if sizes is None and method.counts_rows else method.size_of(rows, sizes)
        if len(in_flight.by_id) >= self._settings.max_concurrency:
            raise served.full(self._settings.max_concurrency, rows)
        if served.admission is not None:
            served.check_latency(served.admission, decoded, size, now)
        hurried = timeout is not None and timeout < in_flight.timeout
        deadline = now + (timeout if timeout is not None and hurried else in_flight.timeout)
        request = Request(next(in_flight.ids), served.name, rows, size, client, now, deadline)
        pending = InFlightRequest(served, request, decoded, caller, hurried=hurried)
        in_flight.add(pending)
        if deadline < self._deadlines.at:
            self._deadlines.look_at(deadline, now)
        if served.scheduler.arrive(request, now, sizes, shapes):
            served.executor.decide(now)
        return pending

    def take(  # noqa: PLR0917 - as submit
        self,
        served: MethodQueue,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        waited: float,
        timeout: float | None,
    ) -> InFlightRequest:
        """Queue what another process admitted `waited` seconds ago; nothing begins before `decide`.

        `timeout`: seconds that are left of its own; None: it has none.
        """
        now, rows, method = self._clock.now(), decoded.rows, served.method
        deadline = math.inf if timeout is None else now + timeout
        size = method.size_of(rows, decoded.sizes)
        arrived = now - waited
        request = Request(
            next(self._in_flight.ids), served.name, rows, size, client, arrived, deadline
        )
        # Its deadline is not the latest of all, as that of a request which just came.
        pending = InFlightRequest(served, request, decoded, caller, hurried=True)
        self._in_flight.add(pending)
        if deadline < self._deadlines.at:
            self._deadlines.look_at(deadline, now)
        served.scheduler.arrive(request, now, decoded.sizes, decoded.shapes)
        return pending

    def decide(self) -> None:
        """Begin what may begin of everything that was taken."""
        self._decide()

    @property
    def executors(self) -> "Sequence[Executor]":
        """One for the sync methods, and one for each async one."""
        return self._executors

    def cancel(self, handle: RequestHandle, status: int = CLIENT_LEFT) -> None:
        """See Engine."""
        if isinstance(handle, InFlightRequest) and not handle.done:
            self._in_flight.left(handle, status)
            if status == CLIENT_LEFT:
                self.disconnected(handle.request.client)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        if isinstance(handle, InFlightRequest) and not handle.done:
            for channel in self._channels.values():
                channel.taken(handle.request, items)

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        for executor in self._executors:
            executor.scheduler.disconnected(client)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """The replica is stopping: from now on nothing waits for a fuller batch."""
        self._draining = True
        for executor in self._executors:
            executor.scheduler.drain()
        self._decide()

    def abandon(self) -> None:
        """The time to stop is over: answer 503 to whoever is still waiting."""
        error = DrainingError(STOPPED)
        for pending in list(self._in_flight.by_id.values()):
            self._in_flight.fail(pending, error, self._clock.now(), "draining")

    def update_gauges(self) -> None:
        """Write the state into the metrics memory; called a few times a second."""
        in_flight = self._in_flight.by_queue()
        for queue in self._served.values():
            queue.update_gauges(in_flight[queue])

    # ------------------------------------------------------------ lanes and channels

    @property
    def _executors(self) -> list[Executor]:
        return [self._sync, *(executor for executor, _, _ in self._calls)]

    def lane_ready(self, lane: Runner, hello: Meta) -> None:
        """The model is loaded and warm; the lane can take batches."""
        now = self._clock.now()
        self._process_ready(hello)
        self._lanes.setdefault(lane.pid, []).append(lane)
        self._sync.lane_added(Lane(lane.pid), lane, now)
        self.update_gauges()
        self._sync.decide(now)

    def lane_lost(self, lane: Runner) -> None:
        """The lane is gone; what it ran is not answered."""
        self._process_lost(lane.pid)

    def channel_ready(self, transport: asyncio.Transport, hello: Meta) -> ModelChannel:
        """The model is loaded and warm; the channel can take calls."""
        now = self._clock.now()
        self._process_ready(hello)
        channel = ModelChannel(
            self, self._caller_of, transport, hello, clock=self._clock.now, tracer=self._tracer
        )
        self._channels[channel.pid] = channel
        for executor, at_once, grace in self._calls:
            executor.lane_added(Lane(channel.pid, at_once, grace), channel, now)
            executor.decide(now)
        self.update_gauges()
        return channel

    def channel_lost(self, channel: ModelChannel) -> None:
        """The channel is gone; none of what ran on it is answered."""
        self._process_lost(channel.pid)

    def _decide(self) -> None:
        """Every executor: the next batch on trial may be any one's."""
        for executor in self._executors:
            executor.decide(self._clock.now())

    def _caller_of(self, request: Request) -> Caller | None:
        pending = self._in_flight.by_id.get(request.id)
        return None if pending is None else pending.caller

    def _process_lost(self, pid: int) -> None:
        """One of its connections ended: so do all, before a batch is given to those that are left.

        They close one after the other when a process dies; one that is alive makes them anew.
        """
        lanes = self._lanes.pop(pid, [])
        channel = self._channels.pop(pid, None)
        if not lanes and channel is None:
            return
        now, killed = self._clock.now(), self._oom.ended(pid)
        for request in () if channel is None else channel.begun():
            # What a client has of a stream is not sent to it again, as the whole would be.
            pending = self._in_flight.by_id.get(request.id)
            if pending is not None:
                self._in_flight.fail(pending, PredictorError.logged(_BROKEN), now)
        executors = self._executors
        schedulers = [executor.scheduler for executor in executors]
        lost = process_lost(schedulers, pid, now, out_of_memory=killed)
        for executor in executors:
            executor.lanes_removed(pid)
        for batch, verdict in lost:
            self._served[batch.method].executor.lost(batch, verdict, now, out_of_memory=killed)
        for lane in lanes:
            lane.close()
        if channel is not None:
            channel.close()
        self.update_gauges()
        for executor in executors:
            executor.decide(now)

    def _process_ready(self, hello: Meta) -> None:
        """A connection of a process; the first of each says what its warm-up took."""
        pid = hello["pid"]
        self._oom.started(pid)
        if not self._served:
            specs = [MethodSpec.from_json(value) for value in hello["methods"]]
            self._default = default_method(specs)
            for index, spec in enumerate(specs):
                self._served[spec.name] = self._open_queue(index, spec)
            self._recorder.ready()
            self._supervision.ready(specs, self._default)
        if pid not in self._channels and pid not in self._lanes:
            for name, timings in hello.get("warm_up", {}).items():
                self._served[name].warmed_up(timings)

    def _open_queue(self, index: int, spec: MethodSpec) -> MethodQueue:
        settings, executor = self._settings, self._sync
        if spec.is_async:
            executor = self._new_executor(sends_ahead=False)
            at_once = settings.threads if spec.batched else settings.max_concurrency
            grace = _CLOSE_SECONDS if spec.streams else _CANCEL_SECONDS
            self._calls.append((executor, at_once, grace))
        queue = MethodQueue(spec, settings, self._recorder.method(index), executor)
        queue.batcher.draining = self._draining
        queue.recorder.sized(queue.batcher.policy.max_batch_size)
        queue.recorder.runs(one_by_one=spec.one_by_one)
        queue.update_gauges(0)
        executor.queues[spec.name] = queue
        policy = queue.batcher.policy
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
        return queue
