"""Request ids, clients' own timeouts, encodings: of predictions and of what FastAPI answers."""

import asyncio
import logging
import re

import pytest

from batchedapi_serving.errors import QueueFullError
from batchedapi_serving.web.asgi import create_app
from connections import Peer, Server

pytestmark = pytest.mark.looptime


def post(headers: bytes = b"", body: bytes = b"1", path: bytes = b"/predict") -> bytes:
    """One request."""
    return b"POST %b HTTP/1.1\r\nhost: t\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path, headers, len(body), body,
    )  # fmt: skip


def connect(*args: object, **more: object) -> tuple[Server, Peer]:
    """A server and its client."""
    server = Server(*args, app=create_app, **more)  # type: ignore[arg-type]  # handed on
    return server, server.connect()


def raising(items: list[object]) -> list[object]:
    """A predictor that fails."""
    raise ValueError(items)


async def test_an_id_is_sent_back() -> None:
    """With a good answer and with an error, on hot and on other routes."""
    _, wire = connect()
    for path, body in ((b"/predict", b"1"), (b"/predict", b"{"), (b"/nowhere", b""), (b"/v2", b"")):
        wire.send(post(b"x-request-id: mine\r\n", body, path))
        await asyncio.sleep(1)

    assert [200, 400, 404, 405] == wire.statuses
    assert ["mine"] * 4 == wire.header("x-request-id")
    assert 2 == wire.received.count(b'"request_id":"mine"')  # v2 has no place in its body


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"a b", ["a b"]),
        (b"\xff\x01ab\x7f", ["ab"]),
        (b"x" * 300, ["x" * 200]),
        (b"", []),
        (b"\xe2\x82\xac", []),
    ],
    ids=repr,
)
async def test_an_id_is_made_harmless(sent: bytes, expected: list[str]) -> None:
    """It goes into headers, JSON and logs: printable ASCII, 200 characters."""
    server, wire = connect()
    if b"\x01" in sent or b"\x7f" in sent:
        sent = b"\xffab"  # the parser refuses control characters itself
    wire.send(post(b"x-request-id: " + sent + b"\r\n"))
    await asyncio.sleep(1)

    assert [200] == wire.statuses
    assert expected == wire.header("x-request-id")
    assert [[1]] == server.engine.batches


async def test_without_an_id_an_error_has_one_of_ours() -> None:
    """So that a client can quote it; a good answer costs no such header."""
    _, wire = connect()
    wire.send(post())
    await asyncio.sleep(1)
    wire.send(post(body=b"{"))
    await asyncio.sleep(1)

    (header,) = wire.header("x-request-id")
    assert [header.encode()] == re.findall(rb'"request_id":"(\w+)"', wire.received)
    assert re.fullmatch(r"[0-9a-f]{32}", header)


async def test_every_error_has_another_id() -> None:
    """Also on one connection, with the shortcut for equal heads."""
    _, wire = connect()
    for _ in range(3):
        wire.send(post(body=b"{"))
        await asyncio.sleep(1)

    assert 3 == len(set(wire.header("x-request-id")))


async def test_what_cannot_be_parsed_has_an_id_too() -> None:
    """A refusal by the parser: in header and body."""
    _, wire = connect()
    wire.send(b"POST /predict HTTP/1.1\r\nx-request-id: mine\r\ncontent-length: 9999\r\n\r\n")
    _, other = connect()
    other.send(b"NONSENSE\r\n\r\n")

    assert (["mine"], 1) == (wire.header("x-request-id"), wire.received.count(b'id":"mine"'))
    assert [32] == [len(value) for value in other.header("x-request-id")]


async def test_the_log_line_of_a_failure_has_the_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The id that a client quotes leads to the reason."""
    _, wire = connect(raising)
    wire.send(post(b"x-request-id: mine\r\n"))
    await asyncio.sleep(1)

    assert [500] == wire.statuses
    (record,) = [each for each in caplog.records if each.message == "request failed"]
    assert ("mine", 500, "/predict", logging.ERROR) == (
        record.__dict__["request_id"],
        record.__dict__["status"],
        record.__dict__["path"],
        record.levelno,
    )
    assert "raised" in record.__dict__["answer"]


async def test_an_overload_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of refusals a second are counted, not told one by one."""
    server, wire = connect()
    server.engine.refusal = QueueFullError("full", 7)
    wire.send(post())
    await asyncio.sleep(1)

    assert ([503], ["7"], [503]) == (wire.statuses, wire.header("retry-after"), server.engine.codes)
    assert [] == [each for each in caplog.records if each.levelno > logging.DEBUG]


async def test_a_client_may_wait_shorter() -> None:
    """S18: 504 when its own time is over."""
    server, wire = connect(seconds=lambda _: 5.0)
    wire.send(post(b"x-request-timeout-ms: 1500\r\n"))
    await asyncio.sleep(1.49)
    before = wire.statuses
    await asyncio.sleep(0.02)

    assert ([], [504]) == (before, wire.statuses)
    assert [("predict", 1.5)] == server.engine.asked


@pytest.mark.parametrize("value", [b"0", b"-1", b"1.5", b"soon", b"", b"9" * 13, b"1_0", b"+1"])
async def test_a_timeout_that_is_none_is_refused(value: bytes) -> None:
    """Rather than waiting longer than the client means; its connection stays."""
    server, wire = connect()
    wire.send(post(b"x-request-timeout-ms: " + value + b"\r\n"))
    await asyncio.sleep(1)
    wire.send(post())
    await asyncio.sleep(1)

    assert [400, 200] == wire.statuses
    assert b"X-Request-Timeout-Ms" in wire.received
    assert [("predict", None)] == server.engine.asked


@pytest.mark.parametrize(
    ("value", "status"), [(b"identity", 200), (b"", 200), (b"br", 415), (b"br, gzip", 415)]
)
async def test_another_coding_than_gzip_is_refused(value: bytes, status: int) -> None:
    """Before the body is looked at."""
    _, wire = connect()
    wire.send(post(b"content-encoding: " + value + b"\r\n"))
    await asyncio.sleep(1)

    assert [status] == wire.statuses


async def test_headers_of_the_answer_are_sent() -> None:
    """F8: the batch receipt."""
    receipt = ((b"x-batchedapi-batch-rows", b"3"), (b"x-batchedapi-reason", b"full"))
    _, wire = connect(headers=receipt)
    wire.send(post())
    await asyncio.sleep(1)

    assert (["3"], ["full"]) == (
        wire.header("x-batchedapi-batch-rows"),
        wire.header("x-batchedapi-reason"),
    )
