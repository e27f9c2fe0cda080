"""The life of one codec process as the web process sees it: started, spoken with, ended."""

import asyncio
import contextlib
import logging
import signal
import socket
from typing import Any, Final, Protocol

from batchedapi_serving.dispatch.frames import BrokenFrameError, FrameReader, Meta
from batchedapi_serving.processes import Child

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 60.0
"""A codec process ends when nothing was asked of it for so long."""


class CodecUser(Protocol):
    """Who has it work."""

    @property
    def asked(self) -> int:
        """How many requests there have been."""

    @property
    def busy(self) -> bool:
        """Whether it has something to do, or is to write something later."""

    def connected(self, transport: Any) -> None:
        """It runs."""

    def take(self, meta: Meta, payload: bytes) -> None:
        """What it says.

        Raises:
            BrokenFrameError: it makes no sense.
        """

    def lost(self) -> None:
        """It ended, with everything that it had."""


async def live(user: CodecUser, runtime: str) -> None:
    """Run one until it dies, or `user` has not needed it for a while.

    Raises:
        OSError: there is no process, no descriptor or no memory for it.
    """
    child = Child("codec", "batchedapi_serving.web.codec_process")
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            child.start([runtime, str(theirs.fileno())], descriptors=(theirs.fileno(),))
    except OSError:
        ours.close()
        raise
    try:
        await _spoken_with(user, ours)
    finally:
        child.signal(signal.SIGKILL)
        await child.ended()


async def _spoken_with(user: CodecUser, ours: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    try:
        transport, connection = await loop.create_connection(lambda: _Connection(user), sock=ours)
    except OSError:
        ours.close()
        raise
    try:
        while not connection.closed.is_set():
            asked = user.asked
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.closed.wait(), IDLE_SECONDS)
            if asked == user.asked and not user.busy:
                break
    finally:
        user.lost()  # what comes from now on is for the next
        transport.abort()
        await connection.closed.wait()


class _Connection(asyncio.Protocol):
    """With the codec process."""

    def __init__(self, user: CodecUser) -> None:
        self._user = user
        self._reader = FrameReader()
        self._transport: Any = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._user.connected(transport)

    def data_received(self, data: bytes) -> None:
        try:
            for meta, payload in self._reader.feed(data):
                self._user.take(meta, payload)
        except BrokenFrameError as error:
            log.error("broken frame from the codec process", extra={"error": str(error)})  # noqa: TRY400 - the connection is the fact, not the stack
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        self._user.lost()
        self.closed.set()
