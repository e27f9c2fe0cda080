"""The open loop against servers that answer, refuse, or say nothing."""

import asyncio
import resource
import time
from collections.abc import Callable

from batchedapi_serving.laptop.tuning import load
from batchedapi_serving.laptop.tuning.load import LoadOutcome, OpenLoop
from ports import HOST, free_port

REQUEST = b"POST /api HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n[]"
FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers each request with what `answer` says; with nothing, it is not answered."""

    def __init__(self, answer: Callable[[], bytes], connected: list["Server"]) -> None:
        self.requests = 0
        self._answer = answer
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._connected.append(self)
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Requests are small: each comes whole."""
        assert data == REQUEST
        self.requests += 1
        answer = self._answer()
        self._transport.write(answer)
        if b"connection: close" in answer:
            self._transport.close()


def asked_before(connected: list[Server]) -> None:
    """Whoever reads counters before a load reads them before its first request."""
    assert not any(one.requests for one in connected)


async def loaded(
    answer: Callable[[], bytes], rate: float, target: float, allowed: int = 4_000
) -> tuple[LoadOutcome, list[Server]]:
    """Half a second of a load, and the connections of the server."""
    connected: list[Server] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(answer, connected), HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        generator = OpenLoop(port, [REQUEST], target, allowed=allowed, seed=1)
        return await generator.run(rate, 0.5, lambda: asked_before(connected)), connected
    finally:
        server.close()


async def test_each_request_is_answered_on_one_of_the_connections_opened_before() -> None:
    """As many as wait in the mean when answers take as long as they may: 100 for 250 ms of 400/s.

    To connect when a replica falls behind makes the generator late, and the figures its own.
    """
    answers, connected = await loaded(lambda: FINE, 400.0, 0.25)

    assert 100 <= len(connected)
    assert answers.due == answers.sent == len(answers.latencies) > 100
    assert (0, 0, 0) == (answers.refused, answers.broken, answers.skipped)
    assert answers.sent == sum(one.requests for one in connected) == len(answers.lags)


async def test_what_is_refused_is_not_in_time() -> None:
    """However fast it was."""
    answers, _ = await loaded(lambda: BUSY, 200.0, 1.0)

    assert (answers.sent, 0, 0) == (answers.refused, answers.broken, answers.in_time)


async def test_of_a_replica_that_says_nothing_no_more_is_asked_than_could_be_in_time() -> None:
    """Twice what waits in the mean, and some: what is beyond counts as not answered."""
    answers, connected = await loaded(lambda: b"", 2_000.0, 0.02)

    most = 2 * 40 + 50
    assert most == answers.sent == answers.broken == len(connected)
    assert answers.skipped > 0
    assert answers.due == len(answers.lags)
    assert 0.0 == answers.share_in_time


async def test_nobody_there_is_no_crash() -> None:
    """Its requests are broken, all of them."""
    answers = await OpenLoop(free_port(), [REQUEST], 0.1, allowed=99, seed=1).run(100.0, 0.3)

    assert answers.sent == answers.broken > 0


async def test_a_connection_that_the_server_closes_is_replaced() -> None:
    """One answer, and no more: `connection: close`."""
    last = FINE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    answers, connected = await loaded(lambda: last, 300.0, 0.1)

    assert answers.sent == len(answers.latencies) > 50
    assert all(one.requests <= 1 for one in connected)


async def test_a_generator_that_stalled_is_late() -> None:
    """Else the replica is blamed for it."""
    asyncio.get_running_loop().call_later(0.1, time.sleep, 0.3)
    answers, _ = await loaded(lambda: FINE, 1_000.0, 0.02)

    assert answers.late


async def test_a_load_for_which_the_system_allows_too_few_connections_is_the_generators() -> None:
    """Whoever answers within the target, and is not asked, is not full."""
    answers, connected = await loaded(lambda: b"", 400.0, 0.1, allowed=5)

    assert 5 == answers.sent == len(connected)
    assert answers.late


def test_more_files_are_opened_than_a_process_may_by_default() -> None:
    """As many as a load may need, as far as the system lets this process have them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
        assert 300 < load.clients_allowed() <= 4_000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
