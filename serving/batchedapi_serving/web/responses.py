"""Response heads written by hand, errors as responses, and answers that come item by item.

An error is in the language of its route. A stream is server-sent events, or lines of JSON: what the
client's Accept says. Its head is written with the first item, so that an error before it is an
answer like others, with its status; one after it is the last event or line.
"""

import contextlib
import http
import logging
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, assert_never

from uvicorn.protocols.http.flow_control import FlowControl

from batchedapi_serving.codecs import Answer, Reply, Wire
from batchedapi_serving.codecs.open_inference import open_inference_problem
from batchedapi_serving.codecs.openai import openai_problem
from batchedapi_serving.codecs.replies import item_text, named, problem_answer
from batchedapi_serving.errors import ServingError
from batchedapi_serving.web.parser import HttpRequest

log = logging.getLogger(__name__)

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSES: Final = b"connection: close\r\n"
STAYS: Final = b"connection: keep-alive\r\n"
"""For clients that speak HTTP/1.0; to others it goes without saying."""


ERROR: Final = 400
"""Statuses from here on are errors."""
_SERVER_ERROR: Final = 500
_EXPECTED: Final = frozenset({503, 504})
"""An overload answers thousands a second of these, and the metrics count them."""
_SHOWN: Final = 500
"""Bytes of an error body that its log line shows."""


def render(answer: Answer, date: bytes, lines: bytes, request_id: str | None = None) -> bytes:
    """One whole HTTP/1.1 response.

    Args:
        answer: Status, type, body and headers of its own.
        date: A complete `date: ...` header line, or nothing.
        lines: What becomes of the connection, and its trace, as header lines, or nothing.
        request_id: Sent back, so that a client can tell its answers apart; printable ASCII.
    """
    status, content_type, body, retry_after, headers = answer
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    extra = lines
    if retry_after:
        extra += b"retry-after: %d\r\n" % retry_after
    if headers:
        extra += b"".join([b"%b: %b\r\n" % header for header in headers])
    if request_id:
        extra += b"x-request-id: %b\r\n" % request_id.encode("ascii")
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        line, content_type, len(body), date, extra, body,
    )  # fmt: skip


def problem_on(
    wire: Wire, error: ServingError, request_id: str | None, reply: Reply | None = None
) -> Answer:
    """The response that `error` is answered with.

    Args:
        request_id: For the body, where the language has a place for it.
        reply: Of the request, if it could be decoded: it knows best.
    """
    if reply is not None:
        return reply.problem(error, request_id)
    match wire:
        case Wire.PLAIN | Wire.V1:
            return problem_answer(error, request_id)
        case Wire.V2 | Wire.GRPC:
            return open_inference_problem(error)
        case Wire.EMBEDDINGS | Wire.RERANK:
            return openai_problem(error, request_id)
    assert_never(wire)


def new_request_id() -> str:
    """For a request that failed and whose client gave it none."""
    return os.urandom(16).hex()


def finished_error(answer: Answer, path: str, request_id: str) -> Answer:
    """An error as it goes out: with its id, which a line in the log has too if it is our fault."""
    answer = named(answer, request_id)
    if answer.status >= _SERVER_ERROR:
        level = logging.DEBUG if answer.status in _EXPECTED else logging.ERROR
        if log.isEnabledFor(level):
            facts = {
                "status": answer.status,
                "path": path,
                "request_id": request_id,
                "answer": answer.body[:_SHOWN].decode("utf-8", "replace"),
            }
            log.log(level, "request failed", extra=facts)
    return answer


EVENTS: Final = b"text/event-stream"
LINES: Final = (
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
    b"application/x-jsonlines",
)
"""The names that clients have for lines of JSON."""
PROBE: Final = b":\n\n"
"""A comment, which every reader of events skips; whoever has left answers it with a reset."""
END: Final = b"event: end\ndata: [DONE]\n\n"
"""The last event of a whole stream. EventSource would connect again and have it run once more, if
nobody told it to close; clients of OpenAI's API know the data."""
_HEADERS: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""Nobody keeps it, and nginx does not hold it back."""
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
UNSENT_BYTES: Final = 16 * 1024
"""Bytes of a stream that the kernel has not sent yet. Unbounded it takes megabytes for a client
that does not read: 100 of those had a model work for seconds, for nobody."""
ENOUGH_ITEMS: Final = 16
ENOUGH_BYTES: Final = 64 * 1024
"""Taken before it is told; a small part of what may be untaken, see model.streams."""


def form_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The content type of the answer: that of lines only for who names it, and prefers it.

    Clients of OpenAI's API accept application/json and want events, as do curl and browsers, who
    accept anything.
    """
    accepted = b",".join(value.lower() for name, value in headers if name == b"accept")
    chosen, best = EVENTS, 0.0
    for part in accepted.split(b","):
        kind, *parameters = (word.strip() for word in part.split(b";"))
        weight = _weight_of(parameters)
        if (kind == EVENTS or kind in LINES) and weight > best:
            chosen, best = kind, weight
    return chosen


def _weight_of(parameters: Iterable[bytes]) -> float:
    """A part's `q`: RFC 9110, 12.4.2; one that cannot be read is 1, as none is."""
    pairs = (parameter.partition(b"=") for parameter in parameters)
    said = next((text for key, _, text in pairs if key.strip() == b"q"), b"1")
    try:
        return float(said)
    except ValueError:
        return 1.0


class StreamedAnswer:
    """The answer to one request, written as fast as its client reads; the rest is held."""

    __slots__ = (
        "_flow", "_form", "_held", "_taken_bytes", "_taken_items", "_transport",
        "begun", "chunked", "stays_open",
    )  # fmt: skip

    def __init__(self, request: HttpRequest, transport: Any, flow: FlowControl) -> None:
        """`flow` says whether the transport has room."""
        self._form = form_of(request.headers)
        self.chunked: Final = not request.old
        """HTTP/1.0 knows no chunks: there, that the connection closes is the end."""
        self._transport = transport
        self._flow = flow
        self.begun = False
        """The head was written."""
        self.stays_open = True
        """Whether the head says that the connection stays."""
        self._held: deque[bytes] = deque()
        self._taken_items = 0
        self._taken_bytes = 0

    def begin(
        self,
        date: bytes,
        connection: bytes,
        request_id: str | None,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        """Write the head; see responses.render."""
        self.begun = True
        lines = [b"%b: %b\r\n" % header for header in headers]
        if request_id:
            lines.append(b"x-request-id: %b\r\n" % request_id.encode("ascii"))
        content_type = self._form + (b"; charset=utf-8" if self._form == EVENTS else b"")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b%b%b%b%b\r\n" % (
            content_type, _CHUNKED if self.chunked else b"", _HEADERS, date, connection,
            b"".join(lines),
        )  # fmt: skip
        self._transport.write(head)
        self._bound(UNSENT_BYTES)

    def item(self, kind: str, body: bytes) -> int:
        """Write one item, or hold it; see go_on."""
        if self._form != EVENTS:  # lines of JSON
            text = item_text(kind, body) + b"\n"
        elif kind != "text":
            text = b"data: %b\n\n" % body
        else:  # text stays text in events
            lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            text = b"".join([b"data: %b\n" % line for line in lines]) + b"\n"
        self._held.append(self._piece(text))
        return self.go_on()

    def go_on(self) -> int:
        """Write what is held, as far as there is room.

        Returns:
            How many items were taken since that was last told, if it is worth telling, else 0: who
            makes them waits for it only after more than that.
        """
        while self._held and not self._flow.write_paused:
            piece = self._held.popleft()
            self._transport.write(piece)
            self._taken_items += 1
            self._taken_bytes += len(piece)
        if self._taken_items < ENOUGH_ITEMS and self._taken_bytes < ENOUGH_BYTES:
            return 0
        items, self._taken_items, self._taken_bytes = self._taken_items, 0, 0
        return items

    def end(self, error: bytes | None) -> None:
        """Write the rest, whether there is room or not: it is little.

        `error` is an error body as JSON; None: the stream is whole.
        """
        events = self._form == EVENTS
        if error is not None:
            last = b"event: error\ndata: %b\n\n" % error if events else error + b"\n"
        else:
            last = END if events else b""
        end = b"0\r\n\r\n" if self.chunked else b""
        self._transport.write(b"".join(self._held) + self._piece(last) + end)
        self._held.clear()
        self._bound(0)  # as it was, for answers that come whole

    def _bound(self, unsent: int) -> None:
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):  # the client is gone
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)

    def drop(self) -> None:
        """The client does not read: what is held is not written any more."""
        self._held.clear()

    def probe(self) -> bytes:
        """Bytes that make a client that has left say so; none where they would be seen."""
        return self._piece(PROBE) if self._form == EVENTS else b""

    def _piece(self, data: bytes) -> bytes:
        if not data or not self.chunked:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)
