"""What stands behind a web process's desk: the queue itself in number 0, a line to it elsewhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from batchedapi_serving.dispatch.desk import Desk
from batchedapi_serving.dispatch.desk_server import DeskServer
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.lanes import Lane
from batchedapi_serving.dispatch.remote import RemoteDesk
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.metrics.slots import Memory
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.processes import essential
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.control import ControlLine
from batchedapi_serving.web.gateway import Counter


class Host(Protocol):
    """A desk and what its web process does for it."""

    @property
    def desk(self) -> Desk:
        """Where requests are handed in."""

    @property
    def counter(self) -> Counter:
        """Counts the responses that the desk has not counted."""

    @property
    def known(self) -> asyncio.Event:
        """Set once the methods are known."""

    def sweep(self) -> None:
        """Called twice a second."""

    def drain(self) -> None:
        """The replica is stopping: nothing waits for a fuller batch any more."""

    def abandon(self) -> None:
        """The time to stop is over: whoever still waits in the queue is answered 503."""

    async def emptied(self) -> None:
        """Wait until nobody needs this process any more, now that its connections are gone."""


class QueueHost:
    """See Host; of web process 0."""

    def __init__(self, settings: ReplicaSettings, memory: Memory, line: ControlLine) -> None:
        self._line = line
        self.known = line.known
        self.counter = recorder = Recorder(memory)
        loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(settings, recorder, loop, self)
        self.desk, self.desk_closed = _maybe_recording(self.dispatcher, settings)
        self.server = DeskServer(self.desk, recorder.answered)
        self.sweep = self.dispatcher.update_gauges
        self.drain = self.dispatcher.drain
        self.abandon = self.dispatcher.abandon
        self.emptied = self.server.drained

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self._line.replace(pid)

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """See Supervision."""
        self._line.ready(methods, default)
        self.server.ready()


def _maybe_recording(desk: Desk, settings: ReplicaSettings) -> tuple[Desk, Callable[[], None]]:
    """The desk itself, unless arrivals are recorded; and what to call once nobody comes to it."""
    if settings.recording is None:
        return desk, lambda: None
    from batchedapi_serving.recording.desk import recording_desk  # noqa: PLC0415 - seldom asked for

    recording = recording_desk(desk, settings.recording)
    return (desk, lambda: None) if recording is None else (recording, recording.close)


class FarHost:
    """See Host; of web processes 1, 2, ...: the desk forwards to process 0."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self.known = asyncio.Event()
        self.desk = self.counter = RemoteDesk(settings, self.known.set)

    def sweep(self) -> None:
        """See Host; gauges are process 0's."""

    def drain(self) -> None:
        """See Host; the queue is process 0's."""

    def abandon(self) -> None:
        """See Host; process 0 answers for all."""

    async def emptied(self) -> None:
        """See Host."""


@contextlib.asynccontextmanager
async def hosted(
    settings: ReplicaSettings, memory: Memory, line: ControlLine, index: int
) -> AsyncIterator[Host]:
    """The host of web process `index`, with its sockets and tasks."""
    loop = asyncio.get_running_loop()
    if index > 0:
        far = FarHost(settings)
        running = essential("line to the queue", far.desk.run())
        try:
            yield far
        finally:
            running.cancel()
        return
    host = QueueHost(settings, memory, line)
    settings.lanes_path.unlink(missing_ok=True)
    settings.desk_path.unlink(missing_ok=True)
    servers = [
        await loop.create_unix_server(lambda: Lane(host.dispatcher), str(settings.lanes_path))
    ]
    if settings.web_processes > 1:
        servers.append(await loop.create_unix_server(host.server.protocol, str(settings.desk_path)))
    try:
        yield host
    finally:
        for server in servers:
            server.close()
        host.sweep()
        host.desk_closed()
