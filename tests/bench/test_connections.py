"""Telling accepted requests from those no server read; with real sockets, as kernels decide."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop
from harness.connections import Ask, Fate, run_client

IDS = range(1, 2)
ASK = b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n1"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1"


class Once:
    """Asks a few times, and never again after a request without an answer."""

    def __init__(self, asks: int) -> None:
        self._left = asks
        self.answers: list[tuple[range, int, bytes]] = []
        self.fates: list[tuple[range, Fate]] = []
        self.extra = b""

    @property
    def running(self) -> bool:
        """See Exchange."""
        return self._left > 0

    def ask(self) -> Ask | None:
        """See Exchange."""
        self._left -= 1
        return Ask(ASK, IDS) if self._left >= 0 else None

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """See Exchange."""
        self.answers.append((ask.ids, status, body))

    def unanswered(self, ask: Ask, fate: Fate) -> None:
        """See Exchange."""
        self._left = 0
        self.fates.append((ask.ids, fate))

    def surplus(self, data: bytes) -> None:
        """See Exchange."""
        self.extra += data


def against(server: Callable[[socket.socket], None], asks: int = 1) -> Once:
    """A client's verdict on a server that treats one connection like this and closes it."""
    return uvloop.run(_against(server, Once(asks)))


async def _against(server: Callable[[socket.socket], None], exchange: Once) -> Once:

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            server(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.get_running_loop().run_in_executor(None, serve, listener)
        async with asyncio.timeout(5):
            await run_client(listener.getsockname()[1], exchange)
            await serving
    return exchange


def _read(connection: socket.socket) -> None:
    connection.recv(4096)


def _wait_without_reading(connection: socket.socket) -> None:
    connection.recv(4096, socket.MSG_PEEK)


def _close_at_once(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


def _half_an_answer(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(ANSWER[:20])


def _answer_and_go(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(ANSWER)
    connection.recv(4096, socket.MSG_PEEK)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        pytest.param(_read, Fate.LOST, id="read and closed"),
        pytest.param(_half_an_answer, Fate.LOST, id="answered in part"),
        pytest.param(_wait_without_reading, Fate.UNREAD, id="closed with the request unread"),
        pytest.param(_close_at_once, Fate.UNREAD, id="closed while the request was on its way"),
    ],
)
def test_a_request_is_lost_only_if_the_server_had_read_of_it(
    server: Callable[[socket.socket], None], expected: Fate
) -> None:
    """A stopping server must not lose what it accepted; the rest a client may send again."""
    exchange = against(server)

    assert [(IDS, expected)] == exchange.fates
    assert [] == exchange.answers


def test_the_second_request_of_a_connection_is_told_apart_too() -> None:
    """Keep-alive connections of a stopping server end between two requests."""
    exchange = against(_answer_and_go, asks=2)

    assert [(IDS, 200, b"1")] == exchange.answers
    assert [(IDS, Fate.UNREAD)] == exchange.fates


def test_a_second_answer_to_one_request_is_noticed() -> None:
    """Duplicated answers would otherwise be taken for those of the next request."""

    def answer_twice(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(ANSWER + ANSWER)
        connection.recv(4096)

    exchange = against(answer_twice)

    assert ANSWER == exchange.extra
    assert [(IDS, 200, b"1")] == exchange.answers
