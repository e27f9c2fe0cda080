"""Streams on one connection under the clock: what is written to who reads, and to who does not."""

import asyncio
from typing import Any

import pytest

from batchedapi_serving.codecs import Answer
from batchedapi_serving.dispatch.engine import Reader
from batchedapi_serving.errors import InvalidInputError, PredictorError
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.limits import EXPIRY_GRACE, SWEEP_SECONDS
from batchedapi_serving.web.responses import ENOUGH_BYTES, ENOUGH_ITEMS, form_of
from connections import LIMITS, Peer, Server

pytestmark = pytest.mark.looptime

STREAM = MethodSpec("predict", batched=False, is_async=True, streams=True)
HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n"
ASK = HEAD + b"\r\n1"
DONE = Answer(200, b"", b"")


class Streaming:
    """A connection on which a stream is answered by the test."""

    def __init__(self, request: bytes = ASK) -> None:
        self.server = Server(methods=(STREAM,), timeout=None, interval=1e6)
        self.wire: Peer = self.server.connect()
        self.wire.send(request)

    @property
    def reader(self) -> Any:
        """The reader of the latest request."""
        caller = self.server.engine.handles[-1].caller
        assert isinstance(caller, Reader)
        return caller

    def item(self, body: bytes, kind: str = "json") -> None:
        """The model made one."""
        self.reader.item(kind, body)

    def body(self) -> bytes:
        """The bytes behind the head."""
        return self.wire.received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ([], b"text/event-stream"),
        ([b"*/*"], b"text/event-stream"),
        ([b"application/json"], b"text/event-stream"),
        ([b"text/html,application/xhtml+xml,*/*;q=0.8"], b"text/event-stream"),
        ([b"Application/X-NDJSON"], b"application/x-ndjson"),
        ([b"application/jsonl; charset=utf-8, */*;q=0.1"], b"application/jsonl"),
        ([b"application/json, application/x-jsonlines"], b"application/x-jsonlines"),
        ([b"text/event-stream, application/x-ndjson"], b"text/event-stream"),
        ([b"text/event-stream;q=0.5", b"application/ndjson;q=0.9"], b"application/ndjson"),
        ([b"application/x-ndjson;q=0"], b"text/event-stream"),
        ([b"application/x-ndjson;q=many"], b"application/x-ndjson"),
        ([b",;q, ;;"], b"text/event-stream"),
    ],
)
async def test_lines_are_for_who_names_them_and_prefers_them(
    accept: list[bytes], kind: bytes
) -> None:
    """Clients of OpenAI's API say application/json, curl and browsers anything: all want events."""
    assert kind == form_of([(b"host", b"t"), *((b"accept", value) for value in accept)])


async def test_the_head_comes_with_the_first_item() -> None:
    """Until then an error has a status of its own."""
    streaming = Streaming(HEAD + b"x-request-id: mine\r\n\r\n1")
    before = streaming.wire.received
    streaming.item(b'{"a":1}')
    streaming.item(b" b\r\nc\rd", "text")
    streaming.reader.deliver(DONE)

    assert (b"", [200], ["chunked"], ["mine"]) == (
        before, streaming.wire.statuses, streaming.wire.header("transfer-encoding"),
        streaming.wire.header("x-request-id"),
    )  # fmt: skip
    first, second = b'data: {"a":1}\n\n', b"data:  b\ndata: c\ndata: d\n\n"
    end = b"event: end\ndata: [DONE]\n\n"
    chunks = [b"%x\r\n%b\r\n" % (len(text), text) for text in (first, second, end)]
    assert b"".join(chunks) + b"0\r\n\r\n" == streaming.body()


async def test_an_error_before_the_first_item_is_an_answer_like_others() -> None:
    """And the connection goes on."""
    streaming = Streaming()
    handle = streaming.server.engine.handles[-1]
    streaming.reader.deliver(handle.decoded.reply.problem(InvalidInputError("no"), "id"))
    streaming.wire.send(ASK)
    streaming.reader.deliver(DONE)

    assert [422, 200] == streaming.wire.statuses
    assert ["application/json", "text/event-stream; charset=utf-8"] == streaming.wire.header(
        "content-type"
    )


async def test_a_later_error_is_the_last_event() -> None:
    """With an id, as every error has one."""
    streaming = Streaming()
    streaming.item(b"1")
    handle = streaming.server.engine.handles[-1]
    request_id = streaming.reader.request_id()
    streaming.reader.deliver(handle.decoded.reply.problem(PredictorError("broke"), request_id))

    assert b'event: error\ndata: {"error":{"code":"predictor_failed"' in streaming.body()
    assert request_id.encode() in streaming.body()
    assert streaming.body().endswith(b"\n\n\r\n0\r\n\r\n")


async def test_it_is_told_now_and_then_how_much_was_taken() -> None:
    """Not for each token: by number, or sooner by bytes."""
    streaming = Streaming()
    for _ in range(2 * ENOUGH_ITEMS + 1):
        streaming.item(b"1")
    by_number = list(streaming.server.engine.items_taken)
    streaming.item(b"x" * ENOUGH_BYTES, "text")

    assert [ENOUGH_ITEMS] * 2 == by_number
    assert [*by_number, 2] == streaming.server.engine.items_taken


async def test_nothing_is_written_to_who_has_no_room_until_there_is() -> None:
    """And nothing of it counts as taken; the order stays."""
    streaming = Streaming()
    streaming.item(b"0")
    streaming.wire.connection.pause_writing()
    before = streaming.wire.received
    for i in range(1, ENOUGH_ITEMS + 1):
        streaming.item(b"%d" % i)
    held = streaming.wire.received
    taken = list(streaming.server.engine.items_taken)
    streaming.wire.connection.resume_writing()

    assert (before, []) == (held, taken)
    assert [ENOUGH_ITEMS + 1] == streaming.server.engine.items_taken
    assert [b"data: %d" % i for i in range(ENOUGH_ITEMS + 1)] == [
        line for line in streaming.body().split(b"\n") if line.startswith(b"data")
    ]


async def test_who_takes_nothing_is_told_why_and_closed() -> None:
    """The items for this client are dropped meanwhile, and its generator is told to end."""
    streaming = Streaming()
    streaming.item(b"0")
    streaming.wire.connection.pause_writing()
    streaming.wire.unread = 100_000
    streaming.item(b"1")
    await asyncio.sleep(LIMITS.grace_period + 2 * SWEEP_SECONDS)

    assert [408] == streaming.server.engine.cancelled_with
    assert b'event: error\ndata: {"error":{"code":"request_timeout"' in streaming.body()
    assert b"data: 1" not in streaming.body()
    assert (True, False) == (streaming.wire.is_closing(), streaming.wire.aborted)

    await asyncio.sleep(EXPIRY_GRACE + SWEEP_SECONDS)
    assert streaming.wire.aborted


async def test_who_reads_slowly_gets_all_of_it() -> None:
    """A bad line is no attack; being held up for a while is none either."""
    streaming = Streaming()
    for i in range(20):
        streaming.wire.connection.pause_writing()
        streaming.item(b"%d" % i)
        await asyncio.sleep(3)
        streaming.wire.connection.resume_writing()
    await asyncio.sleep(60)
    streaming.reader.deliver(DONE)

    assert [] == streaming.server.engine.cancelled
    assert streaming.body().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_who_leaves_is_cancelled() -> None:
    """In the middle, like any other request."""
    streaming = Streaming()
    streaming.item(b"1")
    streaming.wire.connection.connection_lost(None)
    streaming.item(b"2")

    assert [499] == streaming.server.engine.cancelled_with
    assert b"data: 2" not in streaming.body()


async def test_who_only_ended_its_side_still_gets_events() -> None:
    """A comment asks whether it is there: no interim answer may stand within an answer."""
    streaming = Streaming()
    streaming.item(b"1")
    kept = streaming.wire.connection.eof_received()
    streaming.item(b"2")
    streaming.reader.deliver(DONE)

    assert kept
    assert b"100 Continue" not in streaming.wire.received
    assert b"3\r\n:\n\n\r\n" in streaming.body()
    assert b"data: 2" in streaming.body()
    assert streaming.wire.is_closing()


async def test_a_stop_closes_the_connection_with_the_end_of_the_stream() -> None:
    """The head said that it stays, so what the client sends meanwhile is read and dropped."""
    streaming = Streaming()
    streaming.item(b"1")
    streaming.server.frontend.draining = True
    streaming.wire.connection.shutdown()
    streaming.item(b"2")
    open_until = not streaming.wire.ended
    streaming.reader.deliver(DONE)

    assert (True, True) == (open_until, streaming.wire.ended)
    assert b"data: 2" in streaming.body()


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n"])
async def test_http_1_0_ends_with_its_connection(more: bytes) -> None:
    """It knows no chunks, so nobody can keep the connection; and a GET has no body."""
    streaming = Streaming(b"GET /predict HTTP/1.0\r\n" + more + b"\r\n")
    streaming.item(b"1")
    streaming.reader.deliver(DONE)

    assert [None] == [handle.decoded.payload for handle in streaming.server.engine.handles]
    assert ([], ["close"]) == (
        streaming.wire.header("transfer-encoding"), streaming.wire.header("connection"),
    )  # fmt: skip
    assert b"data: 1\n\nevent: end\ndata: [DONE]\n\n" == streaming.body()
    assert streaming.wire.is_closing()
