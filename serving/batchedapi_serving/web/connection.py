"""One HTTP/1.1 connection: predictions, the limits in time, and the hand-over of everything else.

A prediction is answered as soon as it is parsed: through ASGI, routing and a response object the
same request costs about ten times as much. Other requests run as ASGI tasks in uvicorn's own
request cycle. Requests of one connection are answered in order, one at a time; what a client
pipelines beyond that waits here, and nothing more is read meanwhile.
"""

import asyncio
import functools
import random
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, Reply, RequestHead, Wire
from batchedapi_serving.dispatch.engine import CLIENT_LEFT, RequestHandle, ServedMethod
from batchedapi_serving.errors import NoRoomError, ServingError, TooSlowError, UnauthenticatedError
from batchedapi_serving.tracing.spans import CLIENT_LEFT_ERROR, Span
from batchedapi_serving.web.access import address_of, asks_for_key, owner_of
from batchedapi_serving.web.asgi import start_cycle
from batchedapi_serving.web.frontend import Frontend, Route, wire_of_path
from batchedapi_serving.web.large_bodies import is_large, unpacked_here
from batchedapi_serving.web.large_request import LargeBody
from batchedapi_serving.web.lifecycle import Action, Intake, Lifecycle
from batchedapi_serving.web.limits import (
    NOBODY,
    REQUEST_BYTES,
    SWEEP_SECONDS,
    UNCOUNTED_BYTES,
    UNCOUNTED_PART_BYTES,
    HeldBodies,
)
from batchedapi_serving.web.parser import ENCODING, HttpRequest, options_of
from batchedapi_serving.web.responses import (
    CLOSES,
    CONTINUE,
    ERROR,
    STAYS,
    StreamedAnswer,
    finished_error,
    new_request_id,
    problem_on,
    render,
)
from batchedapi_serving.web.sockets import is_gone, unread_bytes, unsent_bytes

_OPEN: Final = Intake.OPEN
_SERVER_ERROR: Final = 500
_NO_PAYLOAD: Final = b"null"
"""Body of a GET that asks for a stream."""
_FIRST_LOOK_SECONDS: Final = 0.002
"""Between asking whether a client is there and the first look at what came of it."""


def protocol_of(frontend: Frontend) -> Callable[..., asyncio.Protocol]:
    """The factory of connections' protocols, for uvicorn's `http` setting."""

    def protocol(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG001 - uvicorn's signature
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        return Connection(frontend, config, server_state)

    return protocol


class Exchange:
    """The request of a connection that is being answered; its values stay until the next one.

    Attributes:
        logged: Its method and start, for the access log.
        cors: Headers that a browser's page needs.
        keep_alive: Its client does not ask for the end of the connection.
        kept: The header line that says so, where it does not go without saying.
        path: Without the query.
        named: What its client calls it.
        request_id: The same, or an id of ours once one is needed.
        handle: Of the engine, as long as it has it.
        stream: Its answer, if that comes item by item.
        cycle: Its answer, if the ASGI application makes it.
    """

    __slots__ = (
        "cors", "cycle", "handle", "keep_alive", "kept", "logged", "named", "path", "request_id",
        "stream",
    )  # fmt: skip

    def __init__(self) -> None:
        self.logged: tuple[str, float] | None = None
        self.cors: tuple[tuple[bytes, bytes], ...] = ()
        self.keep_alive = True
        self.kept = self.path = b""
        self.named: str | None = None
        self.request_id: str | None = None
        self.handle: RequestHandle | None = None
        self.stream: StreamedAnswer | None = None
        self.cycle: RequestResponseCycle | None = None


class Connection(asyncio.Protocol):
    """uvicorn's view of us: in `server_state.connections`, with `shutdown()`."""

    def __init__(self, frontend: Frontend, config: Config, state: ServerState) -> None:
        self._frontend = frontend
        self._config = config
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._parser = frontend.parser()
        frontend.accepted_at = now = self._loop.time()
        self._life = Lifecycle(frontend.limits, now, random.random())  # noqa: S311 - no secret
        self._asked = Exchange()
        self._client = Client()
        self._held = HeldBodies(frontend.bodies, NOBODY)
        self.address = ""
        """The client's address, as budgets know it."""
        self._unread = 0  # bytes of an answer that does not fit on its way
        self._ahead = 0  # bytes of requests that wait for the one before
        self._transport: Any = None
        self._flow: Any = None
        self._pending: deque[HttpRequest] = deque()
        self.span: Span | None = None
        """See Caller."""

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        self._transport = transport
        self._state.connections.add(self)  # type: ignore[arg-type]  # a protocol of our own
        self._flow = FlowControl(transport)
        transport.set_write_buffer_limits(UNCOUNTED_BYTES)
        self.address = owner_of(address_of(transport))
        if self._frontend.guard.keys is None:
            self._held.owner = self.address
        self._held.leaves = self._leave
        limit, connections = self._frontend.connection_limit, self._state.connections
        if limit.is_full(len(connections)):
            # One too many: others leave that ask nothing, or else this one.
            others: Any = connections - {self}
            waiting = ((other.waits_since(), other.address, other) for other in others)
            leaving: list[Connection] = limit.who_leaves(waiting, self.address, self._loop.time())
            for connection in leaving:
                connection._close()  # noqa: SLF001 - one of us
            if not leaving and len(connections) > limit.most_open:
                transport.abort()
            elif not leaving:
                text = f"connections: {limit.most} are open and busy in this process; try another"
                self._parser.error = NoRoomError(text)

    def waits_since(self) -> float | None:
        """Since when no whole request is here; None: one is."""
        return None if self._pending else self._life.waits_since()

    def _leave(self) -> None:
        """Another client needs the room that this one has of the budget; see HeldBodies."""
        error, asked = self._frontend.bodies.error(), self._asked
        if self._unread or self._ahead or self._transport.is_closing():
            self._transport.abort()
        elif asked.handle is not None and (asked.stream is None or not asked.stream.begun):
            self._frontend.cancel(asked.handle, error.status)
            wire = wire_of_path(asked.path.decode("latin-1"))
            self.deliver(problem_on(wire, error, self.request_id()))
        elif self._parser.awaiting is not None and not self._life.busy:
            self._refuse(error)
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever the reason
        """The client left, or was sent away: nobody waits for what it asked."""
        self._state.connections.discard(self)
        self._life.becomes(Intake.CLOSED)
        self._parser.close()
        self._pending.clear()
        self._held.close()
        self._flow.resume_writing()
        if self._asked.handle is not None:
            self._frontend.cancel(self._asked.handle)
            self._asked.handle = self._asked.stream = None
            self._log_access(CLIENT_LEFT)
        else:
            self._frontend.engine.disconnected(self._client)
        if self.span is not None:
            self._end_span(CLIENT_LEFT)
        if self._asked.cycle is not None:
            self._asked.cycle.disconnected = True
            self._asked.cycle.message_event.set()
            self._asked.cycle = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        life, parser = self._life, self._parser
        if life.deaf:
            if life.dropped(len(data)) is Action.ABORT:  # it may not send without end
                self._transport.abort()
            return
        requests = parser.feed(data)
        if len(requests) == 1 and not (life.busy or self._pending or self._flow.write_paused):
            self._begin(requests[0])
        elif requests:
            self._pending.extend(requests)
            life.sends_ahead = True
            self._ahead += len(data) + REQUEST_BYTES * len(requests)
            self._held.waiting(self._unread + self._ahead)
            if not life.busy:
                self._go_on()
        if self._pending:
            self._flow.pause_reading()
        if parser.error is not None:
            self._refuse(parser.error)
        elif parser.awaiting is not None:
            self._incomplete(parser.awaiting)

    def _incomplete(self, part: str) -> None:
        """A request has begun and not ended: its limits in time run, and its bytes count."""
        size = self._parser.held_bytes()
        if size > UNCOUNTED_PART_BYTES:
            if self._parser.owner:
                self._held.owned_by(self._parser.owner)
            if not self._held.coming(size):
                self._refuse(self._frontend.bodies.error())
                return
        if self._parser.incoming.wants_continue:
            if self._life.busy:  # the client waits for us: it hears after the answers before it
                self._life.part_over()
                return
            self._parser.incoming.wants_continue = False
            self._transport.write(CONTINUE)
        self._life.part_awaited(part, self._loop.time())

    def pause_writing(self) -> None:
        """The client reads too slowly: it is asked no more than it takes."""
        self._flow.pause_writing()
        if self._asked.cycle is None:  # all read the same bytes of what the application answers
            self._stays_unread(self._transport.get_write_buffer_size())
        self._life.stuck(self._loop.time())

    def _stays_unread(self, size: int) -> None:
        self._unread = size
        self._held.waiting(size + self._ahead)

    def resume_writing(self) -> None:
        """It reads again."""
        self._flow.resume_writing()
        if self._unread:
            self._stays_unread(0)
        self._life.unstuck(self._loop.time())
        if self._asked.stream is not None:
            self._took(self._asked.stream.go_on())
        elif not self._life.busy:
            self._go_on()

    def eof_received(self) -> bool:
        """The client sends no more: it left, or waits for the answers to what it sent.

        Both look the same until something is sent to it: whoever left answers with a reset. The
        interim answer that asks is one that every client of HTTP/1.1 skips.
        """
        if not self._life.busy and not self._pending:
            return False
        self._life.half_closed()
        asked = self._asked
        if asked.stream is not None and asked.stream.begun:
            self._transport.write(asked.stream.probe())
            self._abort_if_gone(_FIRST_LOOK_SECONDS)
        elif not asked.kept and (asked.cycle is None or not asked.cycle.response_started):
            self._transport.write(CONTINUE)
            self._abort_if_gone(_FIRST_LOOK_SECONDS)
        return True

    def _abort_if_gone(self, seconds: float) -> None:
        """Look again and again, as long as somebody may wait for an answer."""
        if self._transport.is_closing():
            return
        if is_gone(self._transport):
            self._transport.abort()
        else:
            longer = min(2 * seconds, SWEEP_SECONDS)
            self._loop.call_later(seconds, self._abort_if_gone, longer)

    def check_time(self, now: float) -> None:
        """Act if a limit in time is over; called about every second."""
        unsent = functools.partial(unsent_bytes, self._transport)
        match self._life.look(now, self._parser.incoming.body_bytes, unsent):
            case Action.REFUSE:
                self._refuse(self._life.too_slow())
            case Action.CLOSE:
                self._close()
            case Action.ABORT if self._asked.stream is not None and self._asked.stream.begun:
                self._give_up(self._asked.stream)
            case Action.ABORT:
                self._transport.abort()

    def shutdown(self) -> None:
        """The server stops: answer what was begun, then close."""
        if self._asked.cycle is not None and not self._asked.cycle.response_started:
            self._asked.cycle.keep_alive = False
        if self._life.busy or self._more_to_come():
            return
        if self._life.may_stop(self._loop.time()):
            self._close()

    def _close(self) -> None:
        """Close once everything written is sent, or when the client has had time to read it."""
        self._life.closed(self._loop.time(), unsent_bytes(self._transport))
        self._transport.close()

    def _end(self) -> None:
        """Close after an answer that says so."""
        unread, unsent = unread_bytes(self._transport), unsent_bytes(self._transport)
        if self._life.end(self._loop.time(), unread, unsent) is Action.CLOSE:
            self._transport.close()
        else:
            self._flow.resume_reading()
            self._transport.write_eof()

    # ------------------------------------------------------------ one request

    def _begin(self, request: HttpRequest) -> None:
        # Cheaper than each by its name.
        asked = self._asked
        method, path, _, _, _, body, asked.keep_alive, options, old = request
        self._life.begun(more=self._parser.awaiting is not None)
        asked.kept = STAYS if old else b""
        asked.path = path
        asked.named = asked.request_id = options.request_id
        frontend = self._frontend
        if frontend.guard.sees_requests:
            self._look_at(request)
        if len(body) > UNCOUNTED_BYTES and not self._held.answering(len(body)):
            self._answer_error(frontend.bodies.error())
            return
        route: Route | None = None
        if method == b"POST":
            route = frontend.routes.by_path.get(path) or frontend.routes.of(path)
        if route is None:
            self._run_app(request)
            return
        if frontend.tracer is not None:
            self.span = frontend.tracer.begins(options.traceparent, options.tracestate)
            if self.span is not None:
                _name_span(self.span, path)
        if options.gzip and options.refusal is None:
            self._predict_packed(request, route)
        else:
            self._predict(request, route)

    def _look_at(self, request: HttpRequest) -> None:
        """Do for keys, the access log and CORS what a request needs that may go on."""
        guard = self._frontend.guard
        if self._parser.owner:
            self._held.owned_by(self._parser.owner)
        if guard.log is not None and self._asked.logged is None:
            self._asked.logged = request.method.decode("latin-1"), self._loop.time()
        if guard.cors is not None:
            self._asked.cors = guard.cors.headers(request.headers)

    def _run_app(self, request: HttpRequest) -> None:
        """Answer a request that is no POST of a prediction; a GET may ask for a stream."""
        route = self._frontend.routes.of_stream(request.path) if request.method == b"GET" else None
        if route is not None:
            body, options = request.body or _NO_PAYLOAD, request.options._replace(gzip=False)
            self._predict(request._replace(body=body, content_type=b"", options=options), route)
            return
        self._asked.logged = None
        self._asked.cycle = start_cycle(
            request,
            config=self._config,
            state=self._state,
            transport=self._transport,
            flow=self._flow,
            keep_alive=self._stays_open() and not request.old,
            on_response=self._app_answered,
        )

    def _end_span(self, status: int) -> None:
        """End the span of a request that is answered with `status`, or was left by its client."""
        span, tracer = self.span, self._frontend.tracer
        self.span = None
        if span is None or tracer is None:
            return
        if status == CLIENT_LEFT:
            tracer.ends(span, CLIENT_LEFT_ERROR)
            return
        span.attributes["http.response.status_code"] = status
        if self._asked.named is not None:
            span.attributes["batchedapi.request_id"] = self._asked.named
        tracer.ends(span, str(status) if status >= _SERVER_ERROR else None)

    def _predict_packed(self, request: HttpRequest, route: Route) -> None:
        """Inflate a short body here. A long one stays packed on its way to the codec process."""
        headers = [header for header in request.headers if header[0] != ENCODING]
        request = request._replace(headers=headers)
        try:
            body = unpacked_here(request.body, self._frontend.limits.body)
            if body is not None:
                if not self._held.answering(len(body)):
                    raise self._frontend.bodies.error()
                options = request.options._replace(gzip=False)
                request = request._replace(body=body, options=options)
        except ServingError as error:
            self._answer_error(error)
            return
        self._predict(request, route)

    def _answer_error(self, error: ServingError) -> None:
        """Answer an error from before the request's language is known but from its path."""
        self._frontend.answered(error.status)
        wire = wire_of_path(self._asked.path.decode("latin-1"))
        self.deliver(problem_on(wire, error, self.request_id()))

    def _log_access(self, status: int) -> None:
        """Log a request that is answered here; FastAPI's are logged around it."""
        log, asked = self._frontend.guard.log, self._asked.logged
        if log is not None and asked is not None:
            self._asked.logged = None
            log.write(
                method=asked[0],
                path=self._asked.path.decode("latin-1"),
                status=status,
                seconds=self._loop.time() - asked[1],
                client=address_of(self._transport),
                request_id=self._asked.request_id,
            )

    def _app_answered(self) -> None:
        """To a request that is no prediction."""
        cycle, self._asked.cycle = self._asked.cycle, None
        self._answered(stays_open=cycle is not None and cycle.keep_alive)

    def _predict(self, request: HttpRequest, route: Route) -> None:
        engine, options = self._frontend.engine, request.options
        reply: Reply | None = None
        try:
            if options.refusal is not None:
                raise options.refusal
            served = engine.served(route.method)
            if served.spec.streams:
                self._asked.stream = StreamedAnswer(request, self._transport, self._flow)
            if options.gzip or (self._held.bytes and is_large(served.spec, request, request.body)):
                self._predict_large(request, route, served)
                return
            decoded = served.codec.decode(route.wire, request, request.body)
            reply = decoded.reply
            handle = engine.submit(served, decoded, self._client, self, options.timeout)
        except ServingError as error:
            self._frontend.answered(error.status)
            self.deliver(problem_on(route.wire, error, self.request_id(), reply))
        else:
            self._asked.handle = None if handle.done else handle

    def _predict_large(self, request: HttpRequest, route: Route, served: ServedMethod) -> None:
        def problem_of(error: ServingError) -> Answer:
            return problem_on(route.wire, error, self.request_id())

        head = RequestHead(request.content_type, request.query, request.headers)
        options = request.options
        body = LargeBody(
            served, route.wire, head, request.body, self._client, self, options.timeout, problem_of,
            self._held, options.gzip,
        )  # fmt: skip
        self._asked.handle = self._frontend.large.submit(body)

    def request_id(self) -> str:
        """See Caller; asked for an error, which has an id whether the client gave one or not."""
        if self._asked.request_id is None:
            self._asked.request_id = new_request_id()
        return self._asked.request_id

    def deliver(self, answer: Answer) -> None:
        """See Caller: write the answer, then go on with what was pipelined."""
        asked = self._asked
        if asked.stream is not None:
            stream, asked.stream = asked.stream, None
            if stream.begun or answer.status < ERROR:
                self._end_stream(stream, answer)
                return
        asked.handle = None
        request_id = asked.named
        if answer.status >= ERROR:
            request_id = self.request_id()
            answer = finished_error(answer, asked.path.decode("latin-1"), request_id)
        frontend = self._frontend
        goes_on = asked.keep_alive and self._life.intake is _OPEN and not frontend.draining
        stays_open = goes_on or self._stays_open()
        if frontend.date_source is not self._state.default_headers:
            frontend.renew_date(self._state)
        lines = asked.kept if stays_open else CLOSES
        if self.span is not None:
            lines += b"traceparent: %b\r\n" % self.span.context.header().encode()
            self._end_span(answer.status)
        if asked.cors:
            answer = answer._replace(headers=(*answer.headers, *asked.cors))
        data = render(answer, frontend.date, lines, request_id)
        self._transport.write(data)
        if self._flow.write_paused:  # all of it is kept until its last byte is sent
            self._stays_unread(len(data))
        if asked.logged is not None:
            self._log_access(answer.status)
        self._answered(stays_open=stays_open)

    # ------------------------------------------------------------ streams

    def item(self, kind: str, body: bytes) -> None:
        """See Reader."""
        stream = self._asked.stream
        if stream is None:
            return
        if not stream.begun:
            self._begin_stream(stream)
        self._took(stream.item(kind, body))

    def _took(self, items: int) -> None:
        if items and self._asked.handle is not None:
            self._frontend.taken(self._asked.handle, items)

    def _begin_stream(self, stream: StreamedAnswer) -> None:
        frontend = self._frontend
        if frontend.date_source is not self._state.default_headers:
            frontend.renew_date(self._state)
        stream.stays_open = stream.chunked and self._stays_open()
        connection = self._asked.kept if stream.stays_open else CLOSES
        headers = self._asked.cors
        if self.span is not None:
            headers = (*headers, (b"traceparent", self.span.context.header().encode()))
        stream.begin(frontend.date, connection, self._asked.named, headers)

    def _end_stream(self, stream: StreamedAnswer, answer: Answer) -> None:
        """Write the rest and how it ended."""
        self._asked.handle, error = None, None
        if answer.status >= ERROR:
            path = self._asked.path.decode("latin-1")
            error = finished_error(answer, path, self.request_id()).body
        if not stream.begun:
            self._begin_stream(stream)
        stream.end(error)
        if self.span is not None:
            self._end_span(answer.status)
        if self._asked.logged is not None:
            self._log_access(answer.status)
        stays_open = stream.stays_open and self._stays_open()
        # Told that it stays, the client may have its next request on the way.
        if stream.stays_open and not stays_open:
            self._life.becomes(Intake.LEAVING)
        self._answered(stays_open=stays_open)

    def _give_up(self, stream: StreamedAnswer) -> None:
        """It does not read: what it has not taken is dropped, but for the reason."""
        error = TooSlowError(
            f"stream: expected its reader to take {self._frontend.limits.least_rate} bytes a second"
            " when more is there than fits on the way; read faster, or ask for less"
        )
        if self._asked.handle is not None:
            self._frontend.cancel(self._asked.handle, error.status)
        stream.drop()
        self._asked.stream, stream.stays_open = None, False
        self._end_stream(stream, problem_on(Wire.PLAIN, error, self.request_id()))

    def _stays_open(self) -> bool:
        """Whether it goes on: everything that was read of it is answered before it ends."""
        goes_on = self._life.intake is Intake.OPEN and not self._frontend.draining
        return self._asked.keep_alive and (goes_on or self._more_to_come())

    def _more_to_come(self) -> bool:
        """Whether there is something to answer after the present request."""
        sending = self._parser.awaiting is not None and not self._life.deaf
        return bool(self._pending) or sending or self._life.refusal is not None

    def _answered(self, *, stays_open: bool) -> None:
        """`stays_open` is what the client was told."""
        self._life.busy = False
        if self._held.bytes:
            self._held.released()
        if self._transport.is_closing():  # by uvicorn's cycle, maybe: reading has a limit then too
            self._life.closed(self._loop.time(), unsent_bytes(self._transport))
        elif not stays_open:
            self._end()
        elif self._pending or self._life.refusal is not None:
            self._go_on()
        elif self._life.deaf:
            self._close()
        else:
            if self._parser.awaiting is not None:
                self._incomplete(self._parser.awaiting)
            if not self._life.deaf:  # what is awaited may have been refused just now
                self._life.answered(self._loop.time(), draining=self._frontend.draining)

    def _go_on(self) -> None:
        """The next pipelined request, once its client reads; after the last, the refusal."""
        if self._flow.write_paused:
            self._life.stuck(self._loop.time())
        elif self._pending:
            request = self._pending.popleft()
            if not self._pending:
                self._ahead = 0
                self._held.waiting(self._unread)
                self._flow.resume_reading()
            self._life.busy = True
            # Not from within the answer before: a thousand pipelined requests do not recurse.
            self._loop.call_soon(self._later, self._begin, request)
        elif self._life.refusal is not None:
            self._refusal_due(self._life.refusal)

    def _later(self, step: Callable[..., None], *given: Any) -> None:
        if self._transport.is_closing():
            return
        done = False
        try:
            step(*given)
            done = True
        finally:
            if not done:  # a bug of ours must not leave the client waiting
                self._transport.abort()

    def _refuse(self, error: ServingError) -> None:
        """Nothing more is read; answers that are due come first, then the error, then the end."""
        self._life.refuses(error)
        self._held.coming(0)
        self._parser.incoming.take_body()
        self._frontend.answered(error.status)
        if not self._life.busy and not self._pending:
            self._refusal_due(error)

    def _refusal_due(self, error: ServingError) -> None:
        pause = self._frontend.guard.pause(error.status, self._loop.time())
        if pause:
            self._life.begun(more=False)
            self._flow.pause_reading()
            self._loop.call_later(pause, self._later, self._tell_refusal, error)
        else:
            self._tell_refusal(error)

    def _tell_refusal(self, error: ServingError) -> None:
        self._life.busy = False
        self._flow.resume_reading()
        # Of a body that nobody asked for not all is read.
        asks_key = isinstance(error, UnauthenticatedError)
        self._life.refused(self._loop.time(), lingers=asks_key)
        asked = self._parser.incoming
        headers = [] if self._parser.awaiting is None else asked.headers
        request_id = options_of(headers).request_id or new_request_id()
        wire = wire_of_path(asked.target.decode("latin-1").partition("?")[0])
        answer = problem_on(wire, error, request_id)
        method = b"-"
        if asks_key:
            answer, method = asks_for_key(answer), asked.method
        guard = self._frontend.guard
        if guard.cors is not None:
            added = guard.cors.headers(headers)
            answer = answer._replace(headers=(*answer.headers, *added))
        if guard.log is not None:
            self._asked.logged = method.decode("latin-1"), self._loop.time()
            self._asked.path, _, _ = asked.target.partition(b"?")
            self._asked.request_id = request_id
            self._log_access(error.status)
        self._frontend.renew_date(self._state)
        self._transport.write(render(answer, self._frontend.date, CLOSES, request_id))
        # Closing with unread bytes would reset the connection, and with it maybe the answer.
        self._transport.write_eof()


def _name_span(span: Span, path: bytes) -> None:
    """Say that it is of a prediction at `path`, in the names of OpenTelemetry's conventions."""
    text = path.decode("latin-1")
    route = urllib.parse.unquote(text)
    span.name = f"POST {route}"
    span.attributes["http.request.method"] = "POST"
    span.attributes["http.route"] = route
    span.attributes["url.path"] = text
    span.attributes["url.scheme"] = "http"
