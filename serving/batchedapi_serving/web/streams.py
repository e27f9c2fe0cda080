"""The bytes of an answer that is a stream: server-sent events, or lines of JSON.

Which of them: what the client's Accept says. The head is written with the first item, so that an
error before it is an answer like others, with its status; one after it is the last event or line.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl

from batchedapi_serving.codecs.replies import item_text
from batchedapi_serving.web.parser import Request

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
"""Of a stream in the kernel that it has not sent yet. Unbounded it takes megabytes for a client
that does not read: 100 of those had a model work for seconds, for nobody."""
ENOUGH_ITEMS: Final = 16
ENOUGH_BYTES: Final = 64 * 1024
"""Of what was taken to say so; a small part of what may be untaken, see model.streams."""


def form_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The content type of the answer: that of lines only for who names it, and prefers it.

    Clients of OpenAI's API accept application/json and want events, as do curl and browsers, who
    accept anything.
    """
    chosen, best = EVENTS, 0.0
    for name, value in headers:
        if name != b"accept":
            continue
        for part in value.lower().split(b","):
            kind, *parameters = (word.strip() for word in part.split(b";"))
            weight = _weight(parameters)
            if (kind == EVENTS or kind in LINES) and weight > best:
                chosen, best = kind, weight
    return chosen


def _weight(parameters: Iterable[bytes]) -> float:
    """RFC 9110, 12.4.2; one that cannot be read is 1, as none is."""
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


class StreamedAnswer:
    """Of one request: writes what there is as fast as its client reads, and holds the rest."""

    __slots__ = (
        "_flow", "_form", "_held", "_taken_bytes", "_taken_items", "_transport",
        "begun", "chunked", "stays_open",
    )  # fmt: skip

    def __init__(self, request: Request, transport: Any, flow: FlowControl) -> None:
        """`flow` says whether the transport has room."""
        self._form = form_of(request.headers)
        self.chunked: Final = not request.old
        """HTTP/1.0 knows no chunks: there, that the connection closes is the end."""
        self._transport = transport
        self._flow = flow
        self.begun = False
        """The head was written."""
        self.stays_open = True
        """What the head says of the connection."""
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
        self._held.append(self._piece(self._text(kind, body)))
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
        """What makes a client that has left say so; nothing where it would be seen."""
        return self._piece(PROBE) if self._form == EVENTS else b""

    def _text(self, kind: str, body: bytes) -> bytes:
        """One item: text stays text in events, and is JSON in lines."""
        if self._form != EVENTS:
            return item_text(kind, body) + b"\n"
        if kind != "text":
            return b"data: %b\n\n" % body
        lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return b"".join([b"data: %b\n" % line for line in lines]) + b"\n"

    def _piece(self, data: bytes) -> bytes:
        if not data or not self.chunked:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)
