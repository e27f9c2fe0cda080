"""One HTTP/1.1 connection: the fast lane, the limits, and the hand-over of everything else.

A prediction is answered straight from the parser's callbacks: through ASGI, routing and a response
object the same request costs about ten times as much. Other requests run as ASGI tasks in uvicorn's
own request cycle. Requests of one connection are answered in order, one at a time; what a client
pipelines beyond that waits here, unread beyond what has come already.
"""

import asyncio
import logging
from collections import deque
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer
from batchedapi_serving.codecs.problems import problem_answer
from batchedapi_serving.dispatch.jobs import Job
from batchedapi_serving.errors import (
    HeadersTooLargeError,
    MalformedError,
    ServingError,
    TooLargeError,
    TooSlowError,
)
from batchedapi_serving.web.asgi import start_cycle
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.limits import EXPIRY_GRACE, FRESH_GRACE
from batchedapi_serving.web.request import Repeat, Request, request_id
from batchedapi_serving.web.responses import CONTINUE, render

log = logging.getLogger("uvicorn.error")


class Connection(asyncio.Protocol):
    """uvicorn's view of us: in `server_state.connections`, with `shutdown()`."""

    def __init__(self, gateway: Gateway, config: Config, state: ServerState) -> None:
        self._gateway = gateway
        self._config = config
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._client = Client()
        self._transport: Any = None
        self._flow: Any = None
        self._pending: deque[Request] = deque()
        self._busy = False  # a request is being answered
        self._keep_alive = True
        self._refused = False  # answered with an error before its end; nothing more is read
        self._job: Job | None = None
        self._cycle: RequestResponseCycle | None = None
        self._fresh = True  # no request has come yet
        self._message = False  # a request has begun and is not complete
        self._in_headers = False
        self._raw_bytes = 0  # of the headers so far, when they come in pieces
        self._chunk = 0  # bytes of the piece that is being parsed
        self._expires = 0.0  # seconds; when `check_time` closes the connection
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._content_type = b""
        self._length = -1  # as the content-length says; -1: there is none
        self._expected_continue = False
        self._asked: list[tuple[bytes, bytes]] = []  # headers of the request being answered
        self._seen: list[Request] = []  # complete in the piece that is being parsed
        self._repeat: Repeat | None = None

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        self._transport = transport
        self._state.connections.add(self)  # type: ignore[arg-type]  # a protocol of our own
        self._flow = FlowControl(transport)
        self._expires = self._loop.time() + self._gateway.limits.header_arrival

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever the reason
        """The client left, or was sent away: nobody waits for what it asked."""
        self._state.connections.discard(self)
        self._pending.clear()
        self._flow.resume_writing()
        if self._job is not None:
            self._gateway.dispatcher.cancel(self._job)
            self._job = None
        else:
            self._gateway.dispatcher.disconnected(self._client)
        if self._cycle is not None:
            self._cycle.disconnected = True
            self._cycle.message_event.set()
            self._cycle = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        between = not (self._busy or self._message or self._refused)
        if between and self._repeat is not None and self._repeat.matches(data):
            self._begin(self._repeat.with_body_of(data))
            return
        if self._refused:
            return
        self._chunk = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._refuse(_refusal(error.__context__))
        except httptools.HttpParserError as error:
            self._refuse(MalformedError(f"expected an HTTP/1.1 request, got {error}"))
        if self._message and not self._refused:
            self._incomplete(len(data))
        elif between and len(self._seen) == 1:
            self._remember(data, self._seen[0])
        self._seen.clear()

    def _remember(self, data: bytes, request: Request) -> None:
        """`data` was one request and nothing else."""
        plain = self._length == len(request.body) and not self._expected_continue
        hot = request.path in self._gateway.hot
        self._repeat = Repeat(data, request) if plain and hot else None

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._flow.resume_writing()

    def eof_received(self) -> bool:
        """The client closed: a close and a half-close look the same, and the first is the rule."""
        return False

    def _incomplete(self, size: int) -> None:
        """The request has begun and not ended with these bytes: its limits start to count."""
        limits, now = self._gateway.limits, self._loop.time()
        if self._in_headers:
            if not self._raw_bytes:
                self._expires = now + limits.header_arrival
            self._raw_bytes += size
            if self._raw_bytes > limits.headers:
                self._refuse(self._headers_too_large())
        elif self._expires == 0.0:
            self._expires = now + limits.body_arrival

    def _headers_too_large(self) -> HeadersTooLargeError:
        limit = self._gateway.limits.headers
        return HeadersTooLargeError(f"headers: expected at most {limit} bytes, got more")

    def check_time(self, now: float) -> None:
        """Close the connection if a limit in time is over; called about every second."""
        if self._expires == 0.0 or now < self._expires or self._transport.is_closing():
            return
        if self._message and not self._refused and not self._busy:
            part = "headers" if self._in_headers else "body"
            self._refuse(TooSlowError(f"{part}: not sent in time"))
        elif not self._busy or self._refused:
            self._transport.close()

    def shutdown(self) -> None:
        """The server stops: answer what was begun, then close."""
        if self._busy or self._message:
            return
        if self._fresh:  # accepted a moment ago: its request is mostly on its way
            self._expires = min(self._expires, self._loop.time() + FRESH_GRACE)
        else:
            self._transport.close()

    # ------------------------------------------------------------ parser callbacks

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self._url, self._headers, self._body, self._body_bytes = b"", [], [], 0
        self._content_type = b""
        self._length = -1
        self._expected_continue = False
        self._message = self._in_headers = True
        self._fresh = False
        self._raw_bytes = 0

    def on_url(self, url: bytes) -> None:
        """The target, maybe in pieces."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Everything but the body: what can be refused is refused now."""
        self._in_headers = False
        self._expires = 0.0
        limits = self._gateway.limits
        if self._raw_bytes + self._chunk > limits.headers:  # at most so long; now exactly
            size = len(self._url) + sum(len(k) + len(v) + 4 for k, v in self._headers)
            if size > limits.headers:
                raise self._headers_too_large()
        if self._parser.should_upgrade():  # llhttp would take the body for the next request
            raise MalformedError("upgrade: this server speaks HTTP/1.1 only; leave the header out")
        for name, value in self._headers:
            if name == b"content-type":
                self._content_type = value
            elif name == b"content-length":
                self._length = int(value)
                if self._length > limits.body:
                    raise self._too_large()
            elif name == b"expect" and value.lower() == b"100-continue":
                self._expected_continue = True
                if not self._busy:
                    self._transport.write(CONTINUE)

    def _too_large(self) -> TooLargeError:
        limit = self._gateway.limits.body
        return TooLargeError(
            f"body: expected at most {limit} bytes (overload.maxBodySize), got more"
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._gateway.limits.body:
            raise self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Last byte of a request."""
        self._message = False
        parts = self._body
        path, _, query = self._url.partition(b"?")
        request = Request(
            self._parser.get_method(),
            path,
            query,
            self._headers,
            self._content_type,
            parts[0] if len(parts) == 1 else b"".join(parts),
            self._parser.should_keep_alive(),
        )
        self._seen.append(request)
        if self._busy:
            self._pending.append(request)
            self._flow.pause_reading()
        else:
            self._begin(request)

    # ------------------------------------------------------------ one request

    def _begin(self, request: Request) -> None:
        self._busy = True
        if not self._message:  # else the limit of what is still coming goes on
            self._expires = 0.0
        self._keep_alive = request.keep_alive
        self._asked = request.headers
        if request.path in self._gateway.hot and request.method == b"POST":
            self._predict(request)
        else:
            self._run_app(request)

    def _predict(self, request: Request) -> None:
        dispatcher = self._gateway.dispatcher
        try:
            decoded = dispatcher.ready_codec().decode(request, request.body)
            self._job = dispatcher.submit(decoded, self._client, self)
        except ServingError as error:
            self._gateway.recorder.answered(error.status)
            self.deliver(problem_answer(error, self.request_id()))

    def request_id(self) -> str | None:
        """See AnswerTo."""
        return request_id(self._asked)

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo: write the answer, then go on with what was pipelined."""
        self._job = None
        gateway = self._gateway
        keep_alive = self._keep_alive and not gateway.draining
        self._transport.write(render(answer, gateway.date_line(self._state), keep_alive=keep_alive))
        self._answered(keep_alive=keep_alive)

    def _answered(self, *, keep_alive: bool) -> None:
        self._busy = False
        if self._transport.is_closing():
            return
        if not keep_alive:
            # What is in the socket's buffer is still sent; further pipelined requests are not read.
            self._transport.close()
        elif self._pending:
            request = self._pending.popleft()
            if not self._pending:
                self._flow.resume_reading()
            self._loop.call_soon(self._begin_later, request)
            self._busy = True
        elif not self._message:
            self._expires = self._loop.time() + self._gateway.limits.idle

    def _begin_later(self, request: Request) -> None:
        """Not from within the answer before: a thousand pipelined requests do not recurse."""
        if not self._transport.is_closing():
            self._begin(request)

    def _refuse(self, error: ServingError) -> None:
        """Answer a request that is not read to its end, and close."""
        self._refused = True
        self._message = False
        self._gateway.recorder.answered(error.status)
        self._expires = self._loop.time() + EXPIRY_GRACE
        answering = self._job is not None or self._cycle is not None
        if self._busy and answering:  # that answer comes first; then the connection is closed
            self._keep_alive = False
            return
        answer = problem_answer(error, request_id(self._headers))
        self._transport.write(
            render(answer, self._gateway.date_line(self._state), keep_alive=False)
        )
        # Closing with unread bytes would reset the connection, and with it maybe the answer.
        self._transport.write_eof()

    # ------------------------------------------------------------ everything that is not hot

    def _run_app(self, request: Request) -> None:
        self._cycle = start_cycle(
            request,
            self._client,
            config=self._config,
            state=self._state,
            transport=self._transport,
            flow=self._flow,
            keep_alive=request.keep_alive and not self._gateway.draining,
            on_response=self._app_answered,
        )

    def _app_answered(self) -> None:
        cycle, self._cycle = self._cycle, None
        self._answered(keep_alive=cycle is not None and cycle.keep_alive)


def _refusal(cause: BaseException | None) -> ServingError:
    """What to answer when a callback raised."""
    if isinstance(cause, ServingError):
        return cause
    log.error("request failed", exc_info=cause)
    return ServingError("internal error; the server's log has the details")
