"""The web process: uvicorn on the replica's listening socket, the dispatcher, and how it stops."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.lanes import Lane
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.metrics.slots import map_memory
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.processes import end_with_parent, freeze_heap
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.app import create_app
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.openapi import example_of

log = logging.getLogger(__name__)
_BACKLOG = 4096
_MODELS_BACK_SECONDS = 5.0
"""For loaded models to connect to a new web process; mostly it takes 0.05."""


_SHOWN_EXAMPLE = 2048
"""Characters; a longer example is not worth showing on a terminal."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: here SIGTERM begins a drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _ControlLine:
    """Messages to the supervisor, one JSON object a line; see supervisor.control."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.known = asyncio.Event()
        """A model process has been ready."""

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self._say({"replace": pid})

    def ready(self, method: MethodSpec) -> None:
        """See Supervision."""
        self.known.set()
        example = example_of(method)
        small = len(json.dumps(example)) <= _SHOWN_EXAMPLE
        self._say({"ready": example if small else None})

    def _say(self, message: dict[str, object]) -> None:
        self._control.send(json.dumps(message).encode() + b"\n")


def run_web(settings: ReplicaSettings, listener: socket.socket, control: socket.socket) -> None:
    """Serve until SIGTERM and the drain are over.

    Args:
        settings: Of the replica.
        listener: Bound and listening; shared with the supervisor.
        control: To the supervisor: one JSON object a line.
    """
    uvloop.run(_serve(settings, listener, control))


async def _serve(
    settings: ReplicaSettings, listener: socket.socket, control: socket.socket
) -> None:
    loop = asyncio.get_running_loop()
    memory = map_memory(settings.metrics_path)
    recorder, line = Recorder(memory), _ControlLine(control)
    dispatcher = Dispatcher(settings, recorder, loop, line)
    gateway = Gateway(settings, dispatcher, recorder)
    config = uvicorn.Config(
        create_app(settings, dispatcher, recorder),
        http=gateway.protocol,  # type: ignore[arg-type]  # a factory, as uvicorn calls it
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=_BACKLOG,
        server_header=False,
    )
    server = _Server(config)
    settings.lanes_path.unlink(missing_ok=True)
    lanes = await loop.create_unix_server(lambda: Lane(dispatcher), str(settings.lanes_path))
    end_with_parent(control, loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _begin_drain, settings, gateway, server)
    watch = asyncio.create_task(gateway.watch(server.server_state))
    freeze_heap()
    if memory[slots.READY]:  # it replaces another: who asks meanwhile waits in the backlog
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(line.known.wait(), _MODELS_BACK_SECONDS)
    await server.serve(sockets=[listener])
    watch.cancel()
    lanes.close()
    dispatcher.update_gauges()


def _begin_drain(settings: ReplicaSettings, gateway: Gateway, server: uvicorn.Server) -> None:
    """Go on answering for `drain_delay`, each answer closing its connection; then stop accepting.

    What was begun by then is answered; a request that takes longer than its timeout gets a 503.
    """
    if gateway.draining:
        return
    loop = asyncio.get_running_loop()
    gateway.draining = True
    gateway.dispatcher.drain()
    log.info("draining", extra={"drain_delay": settings.drain_delay})

    def stop_accepting() -> None:
        server.should_exit = True

    loop.call_later(settings.drain_delay, stop_accepting)
    if settings.timeout is not None:
        loop.call_later(settings.drain_delay + settings.timeout, gateway.dispatcher.abandon)
