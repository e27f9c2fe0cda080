"""Connections over a wire that is no socket, in virtual time, in front of a real dispatcher."""

import asyncio
import re
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.web.connection import Connection
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.limits import Limits
from dispatching import World, replica_settings

LIMITS: Final = Limits(body=1000)


class Wire(asyncio.Transport):
    """The other side of a connection: what came, and whether it was closed."""

    def __init__(self, world: World, gateway: Gateway, state: ServerState) -> None:
        super().__init__()
        self._loop = world.loop
        self.gateway = gateway
        self.received = b""
        self.ended = False
        self.closed_at: float | None = None
        self.reading = True
        self.connection = Connection(gateway, Config(None), state)  # type: ignore[arg-type]  # hot routes only
        self.connection.connection_made(self)

    def send(self, data: bytes) -> None:
        """Bytes of the client; lost once the server has closed."""
        if not self.is_closing():
            self.connection.data_received(data)

    def write(self, data: Any) -> None:
        """Bytes of the server."""
        self.received += data

    def write_eof(self) -> None:
        """The server sends no more."""
        self.ended = True

    def close(self) -> None:
        """The server closes."""
        if self.closed_at is None:
            self.closed_at = self._loop.time()
            self._loop.call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        """The server closes, whatever was not sent."""
        self.close()

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self.closed_at is not None

    def pause_reading(self) -> None:
        """See asyncio.Transport."""
        self.reading = False

    def resume_reading(self) -> None:
        """See asyncio.Transport."""
        self.reading = True

    @property
    def statuses(self) -> list[int]:
        """Of the responses so far."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.received)]


class Server:
    """A gateway whose sweep runs."""

    def __init__(self, predict: Any = None, **settings: Any) -> None:
        self.world = World(predict, **settings) if predict else World(**settings)
        self.gateway = Gateway(
            replica_settings(max_body_bytes=LIMITS.body),
            self.world.dispatcher,
            Recorder(self.world.memory),
        )
        self._state = ServerState()
        self.sweep = asyncio.create_task(self.gateway.watch(self._state))

    def connect(self) -> Wire:
        """A client more."""
        return Wire(self.world, self.gateway, self._state)
