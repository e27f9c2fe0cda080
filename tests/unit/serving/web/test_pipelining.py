"""Requests that share a piece, a drain or a slow reader: each is answered, in order, or refused."""

import asyncio

import pytest

from batchedapi_serving.web.limits import EXPIRY_GRACE, SWEEP_SECONDS
from connections import LIMITS, Server

pytestmark = pytest.mark.looptime

HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\n"
CHUNKED = b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"


def bodies(received: bytes) -> list[bytes]:
    """The bodies of responses, of three bytes each."""
    return [part[:3] for part in received.split(b"\r\n\r\n")[1:]]


async def test_a_line_end_after_a_body_does_not_shift_the_next() -> None:
    """Some clients send one, and the parser skips it: the shortcut for equal heads must not."""
    wire = Server().connect()
    for number in (123, 124, 125):
        wire.send(HEAD + b"%d\r\n" % number)
        await asyncio.sleep(1)

    assert [b"123", b"124", b"125"] == bodies(wire.received)


async def test_a_line_end_before_a_request_does_not_shift_the_next() -> None:
    """The same, sent in front."""
    wire = Server().connect()
    for number in (123, 124):
        wire.send(b"\r\n" + HEAD + b"%d" % number)
        await asyncio.sleep(1)

    assert [b"123", b"124"] == bodies(wire.received)


async def test_many_requests_in_one_piece_are_no_large_head() -> None:
    """The limit of a head counts that head, not what came before it in the same piece."""
    wire = Server().connect()
    count = 2 * LIMITS.headers // len(HEAD)

    wire.send((HEAD + b"123") * count + HEAD[:20])
    await asyncio.sleep(9)
    wire.send(HEAD[20:] + b"124")
    await asyncio.sleep(200)

    assert [200] * (count + 1) == wire.statuses


async def test_what_was_read_before_a_refusal_is_answered_first() -> None:
    """Three good requests and nonsense: three answers, then the error, then the end."""
    wire = Server().connect()

    wire.send((HEAD + b"123") * 3 + b"NONSENSE\r\n\r\n")
    await asyncio.sleep(1)

    assert [200, 200, 200, 400] == wire.statuses
    assert wire.ended


async def test_a_drain_answers_every_pipelined_request_it_has_read() -> None:
    """Accepted is what was read, not what has begun to be answered; only the last one closes."""
    server = Server()
    wire = server.connect()
    wire.send((HEAD + b"123") * 3)

    server.frontend.draining = True
    wire.connection.shutdown()
    await asyncio.sleep(1)

    assert [200, 200, 200] == wire.statuses
    assert 1 == wire.received.count(b"connection: close")
    assert wire.ended


async def test_a_client_that_does_not_read_is_not_asked_for() -> None:
    """Its answers would fill our memory: its requests wait until it reads."""
    wire = Server().connect()
    wire.connection.pause_writing()
    for _ in range(10):
        wire.send(HEAD + b"123")
    await asyncio.sleep(1)
    before = wire.statuses

    wire.connection.resume_writing()
    await asyncio.sleep(1)

    assert ([], [200] * 10) == (before, wire.statuses)
    assert wire.reading


async def test_a_client_that_never_reads_is_cut_off() -> None:
    """Closing waits for what was written; who does not read it is not waited for."""
    wire = Server().connect()
    wire.send(HEAD + b"123")
    await asyncio.sleep(1.5)
    wire.unread = 100

    wire.connection.shutdown()
    await asyncio.sleep(EXPIRY_GRACE + SWEEP_SECONDS)

    assert wire.aborted


async def test_trailers_are_dropped() -> None:
    """A trailer could fake a header that a proxy strips from requests."""
    wire = Server().connect()
    wire.send(CHUNKED + b"1\r\n7\r\n0\r\nx-request-id: faked\r\n\r\n")
    await asyncio.sleep(1)

    assert [200] == wire.statuses
    assert [] == wire.header("x-request-id")


async def test_trailers_are_bounded() -> None:
    """They are headers like others, and come when nobody counts any more."""
    wire = Server().connect()
    wire.send(CHUNKED + b"1\r\n7\r\n0\r\n")
    for _ in range(2 * LIMITS.headers // 100):
        wire.send(b"x-trailer: " + b"a" * 87 + b"\r\n")

    assert [431] == wire.statuses
