"""Closed-loop clients on raw keep-alive connections: one request, its answer, the next request.

What became of a request whose connection ended without an answer is read off the socket. Linux
resets a connection that is closed while bytes it received are unread, and answers bytes that arrive
after the close with a reset as well. So an end *without* a reset after the request was sent means
that the server had read the request: it was accepted, and its answer is lost. A request is one
segment, so it is read wholly or not at all.
"""

import asyncio
import enum
import socket
from typing import Any, Final, NamedTuple, Protocol

from harness.http_answers import read_answer
from harness.servers import HOST

_TCP_CLOSE: Final = 7
"""`tcpi_state` after a reset; after an end alone it is 8, CLOSE_WAIT."""
_RESET_SECONDS: Final = 0.05
"""A reset may come a little after the end that it belongs to."""
_RETRY_SECONDS: Final = 0.02


class Fate(enum.Enum):
    """The end of a request that got no answer."""

    UNREAD = "unread"
    """The server closed before it read a byte: the client may send it again."""
    LOST = "lost"
    """The server had read it, or had begun to answer."""


class Ask(NamedTuple):
    """One request."""

    data: bytes
    ids: range
    sent: float = 0.0
    """Monotonic seconds, where the exchange wants to know."""


class Exchange(Protocol):
    """Decides what connections ask, and is told what came of it."""

    @property
    def running(self) -> bool:
        """Whether a connection that ended is to be made again."""

    def ask(self) -> Ask | None:
        """The next request; None: nothing is left to ask."""

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """A whole answer came."""

    def unanswered(self, ask: Ask, fate: Fate) -> None:
        """None will come."""

    def surplus(self, data: bytes) -> None:
        """Bytes that nobody asked for."""


class Connection(asyncio.Protocol):
    """One client; `closed` is done when its connection is."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: Any = None
        self._asked: Ask | None = None
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        """Ask the first."""
        self._transport = transport
        self._next()

    def _next(self) -> None:
        self._asked = ask = self._exchange.ask()
        if ask is None:
            self._transport.close()
        else:
            self._transport.write(ask.data)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, one hopes."""
        ask = self._asked
        if ask is None:
            self._exchange.surplus(data)
            return
        answer = read_answer(self._buffer + data if self._buffer else data)
        if answer is None:
            self._buffer += data
            return
        self._buffer = b""
        self._asked = None
        if answer.rest:
            self._exchange.surplus(answer.rest)
        self._exchange.answered(ask, answer.status, answer.body)
        if answer.closes:
            self._transport.close()
        else:
            self._next()

    def eof_received(self) -> bool:
        """The server closed; whether with a reset is known a moment later."""
        if self._asked is None:
            return False
        self._loop.call_later(_RESET_SECONDS, self._ended)
        return True

    def _ended(self) -> None:
        if self._asked is None or self._transport.is_closing():
            return
        endpoint = self._transport.get_extra_info("socket")
        state = endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        self._settle(reset=state == _TCP_CLOSE)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by us, or reset."""
        self._settle(reset=exc is not None)
        if not self.closed.done():
            self.closed.set_result(None)

    def _settle(self, *, reset: bool) -> None:
        ask, self._asked = self._asked, None
        if ask is not None:
            unread = reset and not self._buffer
            self._exchange.unanswered(ask, Fate.UNREAD if unread else Fate.LOST)


async def run_client(port: int, exchange: Exchange) -> None:
    """One client after the other on the same seat, until the exchange no longer runs."""
    loop = asyncio.get_running_loop()
    while exchange.running:
        try:
            _, connection = await loop.create_connection(lambda: Connection(exchange), HOST, port)
        except OSError:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        await connection.closed
