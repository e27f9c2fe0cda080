"""A web process: uvicorn on the replica's listening socket, the desk, gRPC, and how it stops."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import uvicorn
import uvloop

from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.slots import map_memory
from batchedapi_serving.processes import end_with_parent, essential, freeze_heap
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.app import create_app
from batchedapi_serving.web.connection import protocol_of
from batchedapi_serving.web.control import ControlLine
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.hosting import Host, hosted
from batchedapi_serving.web.listener import let_in_who_is_there, open_door
from batchedapi_serving.web.room import descriptors_wanted, most_connections

log = logging.getLogger(__name__)
_BACKLOG = 4096
_QUIET_SECONDS = 1.0
"""Without a new connection: who sends them here has learned that this process stops."""
_LOOK_SECONDS = 0.5
"""Between looks whether this process is to stop before it began."""
_MODELS_BACK_SECONDS = 5.0
"""For loaded models to connect to a new web process; mostly it takes 0.05."""


class Grpc(Protocol):
    """What stopping needs of the gRPC server."""

    def drain(self) -> None:
        """Say that the replica is stopping, and go on answering."""

    async def stop(self, grace: float | None) -> None:
        """Take no further calls; wait `grace` seconds at most until those begun are answered."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: here SIGTERM begins a drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let everybody in who is connected, stop listening, and end the connections."""
        for listener in sockets or ():
            await let_in_who_is_there(listener)
        await super().shutdown(sockets)


def run_web(
    settings: ReplicaSettings, listener: socket.socket, control: socket.socket, index: int
) -> None:
    """Serve until SIGTERM and the drain are over.

    Args:
        settings: Of the replica.
        listener: Bound and listening; shared with the supervisor.
        control: To the supervisor: one JSON object a line.
        index: Which web process this is; the queue is in number 0.
    """
    connections = _connections(settings, grpc=index == 0 and settings.grpc_port is not None)
    uvloop.run(_serve(settings, listener, control, index, connections))


def _connections(settings: ReplicaSettings, *, grpc: bool) -> int:
    """Most connections of a kind, with as many descriptors as this process is allowed to have."""
    some, all_of_them = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors_wanted(settings.max_concurrency, grpc=grpc)
    if some < wanted:
        some = wanted if all_of_them == resource.RLIM_INFINITY else min(wanted, all_of_them)
        resource.setrlimit(resource.RLIMIT_NOFILE, (some, all_of_them))
    return most_connections(some, settings.max_concurrency, grpc=grpc)


async def _serve(
    settings: ReplicaSettings,
    listener: socket.socket,
    control: socket.socket,
    index: int,
    connections: int,
) -> None:
    loop = asyncio.get_running_loop()
    memory = map_memory(settings.metrics_path)
    async with hosted(settings, memory, ControlLine(control), index) as host:
        gateway = Gateway(settings, host.desk, host.counter, connections)
        server = _Server(_config(gateway))
        end_with_parent(control, loop)
        grpc = await _start_grpc(settings, gateway) if index == 0 else None
        stop = _Stop(settings, gateway, host, server, grpc)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.begin)
        sweep = _sweep(memory, index, host)
        watch = essential("watch of connections", gateway.watch(server.server_state, sweep))
        open_door(listener)
        freeze_heap()
        if memory[slots.READY] or index > 0:
            await _methods_known(host, server, others_accept=index > 0 and not memory[slots.READY])
        await server.serve(sockets=[listener])
        await stop.grpc_ended()
        await host.emptied()
        await gateway.large.close()
        watch.cancel()


async def _methods_known(host: Host, server: uvicorn.Server, *, others_accept: bool) -> None:
    """Accept nobody before the methods are known: who asks meanwhile waits in the backlog.

    Unless this process replaces another, for which the models come back soon or never, the first
    web process accepts meanwhile, and says that the model is being loaded.
    """
    waited = 0.0
    while not server.should_exit and (others_accept or waited < _MODELS_BACK_SECONDS):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(host.known.wait(), _LOOK_SECONDS)
            return
        waited += _LOOK_SECONDS


def _config(gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(gateway),
        http=protocol_of(gateway),  # type: ignore[arg-type]  # a factory, as uvicorn calls it
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=_BACKLOG,
        server_header=False,
    )


def _sweep(memory: slots.Memory, index: int, host: Host) -> Callable[[], None]:
    replaced = memory[slots.WEB_CPU + index]

    def sweep() -> None:
        memory[slots.BEAT + index] = time.monotonic()  # this loop runs
        memory[slots.WEB_CPU + index] = replaced + time.process_time()
        host.sweep()

    return sweep


async def _start_grpc(settings: ReplicaSettings, gateway: Gateway) -> Grpc | None:
    if settings.grpc_port is None:
        return None
    loop = asyncio.get_running_loop()

    def connected() -> None:
        gateway.accepted_at = loop.time()

    from batchedapi_serving.grpc.server import GrpcServer  # noqa: PLC0415 - it starts threads

    grpc = GrpcServer(settings, gateway, connected)
    await grpc.start()
    return grpc


class _Stop:
    """How a web process ends.

    It goes on answering for `drain_delay`, each answer closing its connection, and then until
    nobody connects any more: on a busy node endpoints settle late, and whoever is in the backlog
    when the listener closes is reset. That takes at most as long again. A connection over gRPC
    counts with its first prediction, which is all that gRPC shows of it; later ones do not: nothing
    but the end of the listener sends a client away that stays connected. What was begun by then is
    answered; a request that takes longer than its timeout gets a 503.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        gateway: Gateway,
        host: Host,
        server: uvicorn.Server,
        grpc: Grpc | None,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._host = host
        self._server = server
        self._grpc = grpc
        self._grpc_stops: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """SIGTERM."""
        settings, loop = self._settings, asyncio.get_running_loop()
        if self._gateway.draining:
            return
        self._gateway.draining = True
        self._host.drain()
        if self._grpc is not None:
            self._grpc.drain()
        log.info("draining", extra={"drain_delay": settings.drain_delay})
        longer = settings.drain_delay
        if settings.timeout is not None:  # who comes last still gets half of it
            longer = min(longer, settings.timeout / 2)
        last = loop.time() + settings.drain_delay + longer
        loop.call_later(settings.drain_delay, self._stop_when_quiet, last)
        if settings.timeout is not None:
            loop.call_later(settings.drain_delay + settings.timeout, self._abandon)

    def _abandon(self) -> None:
        """Nobody is to wait longer, neither in the queue nor before it."""
        self._host.abandon()
        self._gateway.large.abandon()

    def _stop_when_quiet(self, last: float) -> None:
        """Look again until nobody has connected for a while; `last` is on the loop's clock."""
        loop = asyncio.get_running_loop()
        if loop.time() < min(last, self._gateway.accepted_at + _QUIET_SECONDS):
            loop.call_later(_QUIET_SECONDS / 4, self._stop_when_quiet, last)
        else:
            self._stop_accepting()

    def _stop_accepting(self) -> None:
        self._server.should_exit = True
        if self._grpc is not None:
            self._grpc_stops = asyncio.create_task(self._grpc.stop(self._settings.timeout))

    async def grpc_ended(self) -> None:
        """Wait until every call over gRPC is answered."""
        if self._grpc_stops is not None:
            await self._grpc_stops
