"""One HTTP/1.1 connection: the fast lane, the limits in time, and the hand-over of everything else.

A prediction is answered as soon as it is parsed: through ASGI, routing and a response object the
same request costs about ten times as much. Other requests run as ASGI tasks in uvicorn's own
request cycle. Requests of one connection are answered in order, one at a time; what a client
pipelines beyond that waits here, and nothing more is read meanwhile.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer
from batchedapi_serving.codecs.problems import problem_answer
from batchedapi_serving.dispatch.jobs import Job
from batchedapi_serving.errors import ServingError, TooSlowError
from batchedapi_serving.web.asgi import start_cycle
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.limits import ACTIVE, EXPIRY_GRACE, LAST_CALL
from batchedapi_serving.web.request import Request, request_id
from batchedapi_serving.web.request_parser import HEADERS, RequestParser
from batchedapi_serving.web.responses import CONTINUE, render


class Connection(asyncio.Protocol):
    """uvicorn's view of us: in `server_state.connections`, with `shutdown()`."""

    def __init__(self, gateway: Gateway, config: Config, state: ServerState) -> None:
        self._gateway = gateway
        self._config = config
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(gateway.limits, gateway.hot)
        self._client = Client()
        self._transport: Any = None
        self._flow: Any = None
        self._pending: deque[Request] = deque()
        self._busy = False  # a request is being answered
        self._keep_alive = True
        self._asked: list[tuple[bytes, bytes]] = []  # headers of the request being answered
        self._job: Job | None = None
        self._cycle: RequestResponseCycle | None = None
        self._refusal: ServingError | None = None  # to be told after the answers before it
        self._deaf = False  # nothing more is read
        self._fresh = True  # no request has come yet
        self._part: str | None = None  # of a request: what `_expires` is the limit of
        self._expires = 0.0  # seconds; when `check_time` acts; 0: never

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
        self._deaf = True
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
        if self._deaf:
            return
        parser = self._parser
        for request in parser.feed(data):
            if self._busy or self._pending or self._flow.write_paused:
                self._pending.append(request)
            else:
                self._begin(request)
        if self._pending:
            self._flow.pause_reading()
        if parser.error is not None:
            self._refuse(parser.error)
        elif parser.awaiting is not None:
            self._incomplete(parser.awaiting)

    def _incomplete(self, part: str) -> None:
        """A request has begun and not ended: its limits in time run."""
        self._fresh = False
        limits, now = self._gateway.limits, self._loop.time()
        if self._part != part:
            self._part = part
            self._expires = now + (
                limits.header_arrival if part == HEADERS else limits.body_arrival
            )
        if self._parser.wants_continue and not self._busy:
            self._parser.wants_continue = False
            self._transport.write(CONTINUE)

    def pause_writing(self) -> None:
        """The client reads too slowly: it is asked no more than it takes."""
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._flow.resume_writing()
        if not self._busy:
            self._go_on()

    def eof_received(self) -> bool:
        """The client closed: a close and a half-close look the same, and the first is the rule."""
        return False

    def check_time(self, now: float) -> None:
        """Act if a limit in time is over; called about every second."""
        if self._expires == 0.0 or now < self._expires:
            return
        if self._transport.is_closing():
            self._transport.abort()  # it does not read what it was answered
        elif self._part is not None and not self._deaf:
            self._refuse(TooSlowError(f"{self._part}: not sent in time"))
        elif not self._busy:
            self._close()

    def shutdown(self) -> None:
        """The server stops: answer what was begun, then close.

        Whoever was accepted or answered a moment ago has its next request mostly on the way, and
        was not told that the connection ends: it gets a moment to send it.
        """
        if self._cycle is not None and not self._cycle.response_started:
            self._cycle.keep_alive = False
        if self._busy or self._pending or self._part is not None:
            return
        now = self._loop.time()
        answered = self._expires - self._gateway.limits.idle
        if self._fresh or now - answered < ACTIVE:
            self._expires = min(self._expires, now + LAST_CALL)
        else:
            self._close()

    def _close(self) -> None:
        """Close once everything written is sent, or when the client has had time to read it."""
        self._deaf = True
        self._expires = self._loop.time() + EXPIRY_GRACE
        self._transport.close()

    # ------------------------------------------------------------ one request

    def _begin(self, request: Request) -> None:
        self._busy = True
        self._fresh = False
        if self._parser.awaiting is None:  # else the limit of what is still coming goes on
            self._part = None
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
        stays_open = self._stays_open()
        self._write(answer, keep_alive=stays_open)
        self._answered(stays_open=stays_open)

    def _write(self, answer: Answer, *, keep_alive: bool) -> None:
        date = self._gateway.date_line(self._state)
        self._transport.write(render(answer, date, keep_alive=keep_alive))

    def _stays_open(self) -> bool:
        """A drain ends the connection, but not before what was read of it is answered."""
        if not self._keep_alive:
            return False
        more = self._pending or self._part is not None or self._refusal is not None
        return bool(more) or not self._gateway.draining

    def _answered(self, *, stays_open: bool) -> None:
        """`stays_open` is what the client was told."""
        self._busy = False
        if self._transport.is_closing():
            return
        if not stays_open:
            self._close()
        elif self._pending or self._refusal is not None:
            self._go_on()
        elif self._part is None:
            gateway = self._gateway
            idle = LAST_CALL if gateway.draining else gateway.limits.idle
            self._expires = self._loop.time() + idle

    def _go_on(self) -> None:
        """The next pipelined request, once its client reads; after the last, the refusal."""
        if self._flow.write_paused:
            self._expires = self._loop.time() + self._gateway.limits.idle
        elif self._pending:
            request = self._pending.popleft()
            if not self._pending:
                self._flow.resume_reading()
            self._busy = True
            # Not from within the answer before: a thousand pipelined requests do not recurse.
            self._loop.call_soon(self._begin_later, request)
        elif self._refusal is not None:
            self._tell_refusal(self._refusal)

    def _begin_later(self, request: Request) -> None:
        if self._transport.is_closing():
            return
        begun = False
        try:
            self._begin(request)
            begun = True
        finally:
            if not begun:  # a bug of ours must not leave the client waiting
                self._transport.abort()

    def _refuse(self, error: ServingError) -> None:
        """Nothing more is read; answers that are due come first, then the error, then the end."""
        self._deaf = True
        self._refusal = error
        self._part = None
        self._gateway.recorder.answered(error.status)
        if not self._busy and not self._pending:
            self._tell_refusal(error)

    def _tell_refusal(self, error: ServingError) -> None:
        self._refusal = None
        self._expires = self._loop.time() + EXPIRY_GRACE
        self._write(problem_answer(error, request_id(self._parser.headers)), keep_alive=False)
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
        self._answered(stays_open=cycle is not None and cycle.keep_alive)
