"""A web process: uvicorn on the replica's listening socket, what is behind it, and how it stops.

A program, started by the supervisor and not by hand. Its arguments: the runtime folder, which web
process this is (the queue is in number 0), and the descriptors of the listening socket and of the
control socket.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import uvicorn
import uvloop

from batchedapi_core import contract
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.engine import Engine
from batchedapi_serving.dispatch.engine_server import EngineServer
from batchedapi_serving.dispatch.lane_connection import LaneConnection
from batchedapi_serving.dispatch.remote import RemoteEngine
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder, WebRecorder
from batchedapi_serving.metrics.slots import Memory, map_memory
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import end_with_parent, essential, freeze_heap, may_open, nothing
from batchedapi_serving.settings import QueueSettings, ReplicaSettings
from batchedapi_serving.tracing import started_tracer
from batchedapi_serving.tracing.spans import Tracer
from batchedapi_serving.web.asgi import create_app
from batchedapi_serving.web.connection import protocol_of
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.limits import descriptors_wanted, most_connections
from batchedapi_serving.web.openapi import example_of
from batchedapi_serving.web.sockets import drain_backlog

log = logging.getLogger(__name__)


_SHOWN_EXAMPLE: Final = 2048
"""Characters; a longer example is not worth showing on a terminal."""
_BACKLOG = 4096
_LAST_SECONDS = 5.0
"""For whoever is let in last, or half of the timeout if that is less."""
_QUIET_SECONDS = 1.0
"""Without a new connection: who sends them here has learned that this process stops."""
_LOOK_SECONDS = 0.5
"""Between looks whether this process is to stop before it began."""
_MODELS_BACK_SECONDS = 5.0
"""For loaded models to connect to a new web process; mostly it takes 0.05."""


StopGrpc = Callable[[float | None], Coroutine[Any, Any, None]]
"""Waits so many seconds at most until calls that were begun are answered; None: however long."""


async def _at_once() -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Backend:
    """The queue behind a web process: itself in number 0, a line to it elsewhere.

    By default what the queue alone has to do, which process 0 does for all.
    """

    engine: Engine
    """Where requests are handed in."""
    answered: Callable[[int], None]
    """Counts a response by its code that the engine has not counted."""
    known: asyncio.Event
    """Set once the methods are known."""
    sweep: Callable[[], None] = nothing
    """Called twice a second."""
    drain: Callable[[], None] = nothing
    """The replica is stopping: nothing waits for a fuller batch any more."""
    abandon: Callable[[], None] = nothing
    """The time to stop is over: whoever still waits in the queue is answered 503."""
    emptied: Callable[[], Coroutine[Any, Any, None]] = _at_once
    """Wait until nobody needs this process any more, now that its connections are gone."""


class ControlLine:
    """To the supervisor, one JSON object a line; see dispatch's Supervision.

    `known` is set, and `on_ready` called, once the methods are known.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.known = asyncio.Event()
        self.on_ready: Callable[[], None] = nothing

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""
        self._say({"replace": pid})

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """The first model process is ready; the line has an example of the default method's row."""
        self.known.set()
        by_name = {method.name: method for method in methods}
        example = None if default is None else example_of(by_name[default])
        small = len(json.dumps(example)) <= _SHOWN_EXAMPLE
        self._say(
            {
                "ready": example if small else None,
                "methods": [[method.name, method.max_batch_size] for method in methods],
            }
        )
        self.on_ready()

    def closing(self) -> None:
        """This process lets nobody in any more."""
        self._say({"closing": os.getpid()})

    def _say(self, message: dict[str, object]) -> None:
        self._control.send(json.dumps(message).encode() + b"\n")


@contextlib.asynccontextmanager
async def _queue_elsewhere(settings: ReplicaSettings) -> AsyncIterator[Backend]:
    """The engine forwards to process 0."""
    known = asyncio.Event()
    engine = RemoteEngine(settings, known.set)
    running = essential("line to the queue", engine.run())
    try:
        yield Backend(engine, engine.answered, known)
    finally:
        running.cancel()


@contextlib.asynccontextmanager
async def queue_here(
    settings: ReplicaSettings, memory: Memory, line: ControlLine, tracer: Tracer | None = None
) -> AsyncIterator[Backend]:
    """The queue, with the sockets on which model processes and further web processes connect."""
    loop = asyncio.get_running_loop()
    recorder = Recorder(memory)
    dispatcher = Dispatcher(settings, recorder, loop, line, tracer=tracer)
    engine, close_engine = recorded(dispatcher, settings)
    further = EngineServer(engine, recorder.answered)
    line.on_ready = further.ready
    settings.lanes_path.unlink(missing_ok=True)
    settings.engine_path.unlink(missing_ok=True)
    lanes = str(settings.lanes_path)
    servers = [await loop.create_unix_server(lambda: LaneConnection(dispatcher), lanes)]
    if settings.web_processes > 1:
        servers.append(await loop.create_unix_server(further.protocol, str(settings.engine_path)))
    backend = Backend(
        engine, recorder.answered, line.known, dispatcher.update_gauges, dispatcher.drain,
        dispatcher.abandon, further.drained,
    )  # fmt: skip
    try:
        yield backend
    finally:
        for server in servers:
            server.close()
        backend.sweep()
        close_engine()


@contextlib.asynccontextmanager
async def _shared_queue(
    settings: ReplicaSettings, memory: Memory, line: ControlLine, shared: QueueSettings
) -> AsyncIterator[Backend]:
    """The queue of all replicas, with the socket on which further web processes connect."""
    from batchedapi_serving.queue.broker import Broker  # noqa: PLC0415 - where there is one
    from batchedapi_serving.queue.engine import QueueEngine  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    recorder = Recorder(memory, WebRecorder)
    shared_engine = QueueEngine(settings, Broker(shared, settings.name), recorder, loop, line.ready)
    engine, close_engine = recorded(shared_engine, settings)
    further = EngineServer(engine, recorder.answered)
    line.on_ready = further.ready
    running = essential("line to the queue", shared_engine.run())
    servers = []
    if settings.web_processes > 1:
        settings.engine_path.unlink(missing_ok=True)
        servers.append(await loop.create_unix_server(further.protocol, str(settings.engine_path)))
    try:
        yield Backend(
            engine, recorder.answered, line.known,
            abandon=shared_engine.abandon, emptied=further.drained,
        )  # fmt: skip
    finally:
        for server in servers:
            server.close()
        running.cancel()
        await shared_engine.close()
        close_engine()


def recorded(engine: Engine, settings: ReplicaSettings) -> tuple[Engine, Callable[[], None]]:
    """The engine behind which arrivals are recorded, if they are to be, and how that ends."""
    if settings.recording is not None:
        from batchedapi_serving.dispatch.recording import recording_engine  # noqa: PLC0415 - seldom asked for

        recording = recording_engine(engine, settings.recording)
        if recording is not None:
            return recording, recording.close
    return engine, nothing


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: here SIGTERM begins a drain."""

    def __init__(self, frontend: Frontend, memory: slots.Memory) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(frontend),
                http=protocol_of(frontend),  # type: ignore[arg-type]  # a factory, as uvicorn calls it
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                backlog=_BACKLOG,
                server_header=False,
            )
        )
        self._memory = memory

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and end the connections; the last to listen lets in who is connected.

        Who waits at the listener while this process alone is replaced has the others, or the next.
        """
        if self._memory[slots.STOPPING]:
            for listener in sockets or ():
                await drain_backlog(listener)
        await super().shutdown(sockets)


def run_web(
    settings: ReplicaSettings, listener: socket.socket, control: socket.socket, index: int
) -> None:
    """Serve until SIGTERM and the drain are over.

    Args:
        listener: Bound and listening; shared with the supervisor.
        control: To the supervisor: one JSON object a line.
        index: Which web process this is; the queue is in number 0.
    """
    # As many descriptors as this process is allowed to have.
    grpc = index == 0 and settings.grpc_port is not None
    descriptors = may_open(descriptors_wanted(settings.max_concurrency, grpc=grpc))
    connections = most_connections(descriptors, settings.max_concurrency, grpc=grpc)
    uvloop.run(_serve(settings, listener, control, index, connections))


def _queue(
    settings: ReplicaSettings, memory: Memory, line: ControlLine, tracer: Tracer | None, index: int
) -> contextlib.AbstractAsyncContextManager[Backend]:
    if index > 0:
        return _queue_elsewhere(settings)
    if settings.queue is not None:
        return _shared_queue(settings, memory, line, settings.queue)
    return queue_here(settings, memory, line, tracer)


async def _serve(
    settings: ReplicaSettings,
    listener: socket.socket,
    control: socket.socket,
    index: int,
    connections: int,
) -> None:
    loop = asyncio.get_running_loop()
    memory = map_memory(settings.metrics_path)
    line = ControlLine(control)

    def dropped(spans: int) -> None:
        memory[slots.SPANS_DROPPED + index] += spans

    tracer, end_tracing = started_tracer(settings.tracing, dropped)
    async with _queue(settings, memory, line, tracer, index) as backend:
        frontend = Frontend(
            settings, backend.engine, backend.answered, connections, memory=memory, tracer=tracer
        )
        server = _Server(frontend, memory)
        end_with_parent(control, loop)
        stop_grpc = await _start_grpc(settings, frontend) if index == 0 else None
        stop = _Stop(frontend, backend, server, stop_grpc, line.closing, memory=memory)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.begin)
        replaced = memory[slots.WEB_CPU + index]  # what the one that this replaces had used

        def sweep() -> None:
            memory[slots.BEAT + index] = time.monotonic()  # this loop runs
            memory[slots.WEB_CPU + index] = replaced + time.process_time()
            backend.sweep()

        watch = essential("watch of connections", frontend.watch(server.server_state, sweep))
        freeze_heap()
        if memory[slots.READY] or index > 0:
            others_accept = index > 0 and not memory[slots.READY]
            await _methods_known(backend, server, others_accept=others_accept)
        await server.serve(sockets=[listener])
        await stop.grpc_ended()
        await backend.emptied()
        await frontend.large.close()
        watch.cancel()
    await end_tracing()


async def _methods_known(backend: Backend, server: uvicorn.Server, *, others_accept: bool) -> None:
    """Accept nobody before the methods are known: who asks meanwhile waits in the backlog.

    Unless this process replaces another, for which the models come back soon or never, the first
    web process accepts meanwhile, and says that the model is being loaded.
    """
    waited = 0.0
    while not server.should_exit and (others_accept or waited < _MODELS_BACK_SECONDS):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(backend.known.wait(), _LOOK_SECONDS)
            return
        waited += _LOOK_SECONDS


async def _start_grpc(settings: ReplicaSettings, frontend: Frontend) -> StopGrpc | None:
    """How the server that was started is stopped; None: gRPC is not asked for."""
    if settings.grpc_port is None:
        return None
    loop = asyncio.get_running_loop()

    def connected() -> None:
        frontend.accepted_at = loop.time()

    from batchedapi_serving.grpc.server import GrpcServer  # noqa: PLC0415 - it starts threads

    grpc = GrpcServer(settings, frontend, connected)
    await grpc.start()
    return grpc.stop


class _Stop:
    """How a web process ends.

    It goes on answering for `drain_delay`, each answer closing its connection, and then until
    nobody connects any more: on a busy node endpoints settle late, and whoever is in the backlog
    when the listener closes is reset. That takes at most as long again; in a pod nearly as long as
    the timeout, for there clients come only as long as no other replica is ready. A connection over
    gRPC counts with its first prediction, which is all that gRPC shows of it; later ones do not:
    nothing but the end of the listener sends a client away that stays connected. In a pod they
    count: such a client may have nowhere else to go. What was begun by then is answered; a request
    that takes longer than its timeout gets a 503.
    """

    def __init__(
        self,
        frontend: Frontend,
        backend: Backend,
        server: uvicorn.Server,
        stop_grpc: StopGrpc | None,
        closing: Callable[[], None],
        *,
        memory: Memory,
    ) -> None:
        self._counts = frontend.settings.in_pod and stop_grpc is not None
        self._memory = memory
        self._rows, self._asked_at = 0.0, -math.inf
        self._settings = frontend.settings
        self._frontend = frontend
        self._backend = backend
        self._server = server
        self._stop_grpc = stop_grpc
        self._closing = closing
        self._grpc_stops: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """SIGTERM."""
        settings, loop = self._settings, asyncio.get_running_loop()
        if self._frontend.draining:
            return
        self._frontend.draining = True
        self._backend.drain()
        log.info("draining", extra={"drain_delay": settings.drain_delay})
        first = loop.time() + settings.drain_delay
        self._stop_when_quiet(first, first + _longer(settings))
        if settings.timeout is not None:  # who still waits then, in the queue or before it, is told
            for abandon in (self._backend.abandon, self._frontend.large.abandon):
                loop.call_later(settings.drain_delay + settings.timeout, abandon)

    def _stop_when_quiet(self, first: float, last: float) -> None:
        """Look again until nobody has come for a while.

        Args:
            first: When it may stop, on the loop's clock.
            last: When it does, whoever comes.
        """
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        if self._counts and (rows := _rows_received(self._memory)) != self._rows:
            self._rows, self._asked_at = rows, now
        quiet = max(self._frontend.accepted_at, self._asked_at) + _QUIET_SECONDS
        until = max(first, min(last, quiet))
        if now < until:
            wait = min(_QUIET_SECONDS / 4, until - now)
            loop.call_later(wait, self._stop_when_quiet, first, last)
            return
        self._server.should_exit = self._frontend.closing = True
        self._closing()
        if self._stop_grpc is not None:
            self._grpc_stops = asyncio.create_task(self._stop_grpc(self._settings.timeout))

    async def grpc_ended(self) -> None:
        """Wait until every call over gRPC is answered."""
        if self._grpc_stops is not None:
            await self._grpc_stops


def _rows_received(memory: Memory) -> float:
    blocks = (slots.method_block(memory, method) for method in range(contract.MAX_METHODS))
    return math.fsum(block[slots.ROWS_RECEIVED] for block in blocks)


def _longer(settings: ReplicaSettings) -> float:
    """Seconds after `drain_delay` for which clients that still connect are let in."""
    timeout = settings.timeout or contract.UNLIMITED_REQUEST_SECONDS
    if settings.in_pod and settings.drain_delay > 0:
        return timeout - min(_LAST_SECONDS, timeout / 2)
    return min(settings.drain_delay, timeout / 2)  # who comes last still gets half of it


def main(runtime: str, index: str, listener: str, control: str) -> None:
    """Serve until told to stop."""
    settings = ReplicaSettings.read(runtime)
    warnings.simplefilter("ignore")  # whoever makes errors of them means code of their own
    configure_logging(settings.log_level, f"web-{index}" if settings.web_processes > 1 else "web")
    sockets = socket.socket(fileno=int(listener)), socket.socket(fileno=int(control))
    for ours in sockets:  # a process of our own that had them would keep the port open after us
        ours.set_inheritable(False)
    run_web(settings, *sockets, int(index))


if __name__ == "__main__":
    main(*sys.argv[1:])
