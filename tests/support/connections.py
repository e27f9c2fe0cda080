"""Connections over a wire that is no socket, in virtual time, in front of an engine of our own."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from uvicorn.config import Config
from uvicorn.server import ServerState

from batchedapi_core.batching import (
    Client,
)
from batchedapi_serving.codecs import Answer, DecodedRequest, Head, Wire
from batchedapi_serving.dispatch.engine import Caller, RequestHandle, ServedMethod
from batchedapi_serving.errors import (
    DeadlineExceededError,
    MalformedError,
    NoSuchRouteError,
    NotReadyError,
    PredictorError,
    ServingError,
    UnsupportedTypeError,
)
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.connection import Connection
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.limits import Limits
from batchedapi_serving.web.responses import problem_on
from plain_settings import plain_settings

LIMITS: Final = Limits(body=1000, idle=75.0, age=300.0)
SECONDS: Final = 0.010
"""What one row takes, unless a test says otherwise."""
PREDICT: Final = MethodSpec("predict", batched=True, max_batch_size=32)
TYPES: Final = (b"", b"application/json")


def web_settings(**changes: Any) -> ReplicaSettings:
    """The settings of a replica called `api`."""
    limits = {
        "max_body_bytes": LIMITS.body, "keep_alive": LIMITS.idle, "max_connection_age": LIMITS.age
    }  # fmt: skip
    return plain_settings(**{**limits, **changes})


class JsonReply:
    """Answers with the value of the one row; errors in the language of its route."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def answer(self, value: Any, headers: tuple[tuple[bytes, bytes], ...]) -> Answer:
        """Not Reply's: there are no Results here."""
        return Answer(200, b"application/json", orjson.dumps(value), 0, headers)

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """See Reply."""
        return problem_on(self.wire, error, request_id)


class JsonCodec:
    """One JSON value a request."""

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """See Codec.decode."""
        if head.content_type not in TYPES:
            raise UnsupportedTypeError(f"content type: expected JSON, got {head.content_type!r}")
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise MalformedError(f"body: {error}") from error
        return DecodedRequest(1, value, JsonReply(wire))  # type: ignore[arg-type]  # this engine's own


@dataclass(frozen=True)
class FakeMethod:
    """See ServedMethod."""

    spec: MethodSpec
    codec: Any = field(default_factory=JsonCodec)


@dataclass(eq=False)
class FakeHandle:
    """See RequestHandle."""

    decoded: DecodedRequest
    caller: Caller
    client: Client
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    done: bool = False


def echo(items: list[Any]) -> list[Any]:
    """Answers each item with itself."""
    return items


class FakeEngine:
    """An engine whose every request is a batch of its own; see Engine.

    A row waits `interval` seconds, runs `seconds(rows)`, and is answered by `predict([row])`.
    """

    def __init__(
        self,
        predict: Callable[[list[Any]], list[Any]] = echo,
        *,
        seconds: Callable[[int], float] = lambda _: SECONDS,
        interval: float = 0.02,
        timeout: float | None = 30.0,
        methods: tuple[MethodSpec, ...] = (PREDICT,),
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.predict = predict
        self.seconds = seconds
        self.interval = interval
        self.timeout = timeout
        self.headers = headers
        self.methods_served = {method.name: FakeMethod(method) for method in methods}
        self.batches: list[list[Any]] = []
        self.asked: list[tuple[str, float | None]] = []
        """Method and the client's own timeout of every request."""
        self.left: list[Client] = []
        self.handles: list[FakeHandle] = []
        """Of every request."""
        self.items_taken: list[int] = []
        self.cancelled: list[FakeHandle] = []
        self.cancelled_with: list[int] = []
        self.refusal: ServingError | None = None
        self.codes: list[int] = []
        """Of responses that the engine has not counted."""

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """See Engine."""
        return {name: served.spec for name, served in self.methods_served.items()}

    @property
    def default(self) -> str | None:
        """See Engine."""
        if "predict" in self.methods_served:
            return "predict"
        return next(iter(self.methods_served)) if len(self.methods_served) == 1 else None

    def served(self, method: str | None) -> ServedMethod:
        """See Engine."""
        if not self.methods_served:
            raise NotReadyError("the model is still being loaded")
        name = self.default if method is None else method
        if name not in self.methods_served:
            raise NoSuchRouteError(f"no method {name}; served are {', '.join(self.methods_served)}")
        return self.methods_served[name]

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((served.spec.name, timeout))
        handle = FakeHandle(decoded, caller, client)
        self.handles.append(handle)
        limits = [limit for limit in (timeout, self.timeout) if limit is not None]
        later = self._loop.call_later
        handle.timers.append(later(self.interval, self._run, handle))
        if limits:
            handle.timers.append(later(min(limits), self._late, handle, min(limits)))
        return handle

    def cancel(self, handle: RequestHandle, status: int = 499) -> None:
        """See Engine."""
        assert isinstance(handle, FakeHandle)
        self.cancelled_with.append(status)
        self.cancelled.append(handle)
        self._end(handle)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        assert isinstance(handle, FakeHandle)
        self.items_taken.append(items)

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        self.left.append(client)

    def answered(self, code: int) -> None:
        """See Frontend."""
        self.codes.append(code)

    def _run(self, handle: FakeHandle) -> None:
        self.batches.append([handle.decoded.payload])
        handle.timers.append(self._loop.call_later(self.seconds(1), self._finish, handle))

    def _finish(self, handle: FakeHandle) -> None:
        reply: Any = handle.decoded.reply
        try:
            (value,) = self.predict([handle.decoded.payload])
        except ValueError:
            self._fail(handle, PredictorError("the predictor raised ValueError"))
        else:
            self._end(handle)
            handle.caller.deliver(reply.answer(value, self.headers))

    def _late(self, handle: FakeHandle, seconds: float) -> None:
        self._fail(handle, DeadlineExceededError(f"no answer within {seconds:g} s"))

    def _fail(self, handle: FakeHandle, error: ServingError) -> None:
        self._end(handle)
        caller = handle.caller
        caller.deliver(handle.decoded.reply.problem(error, caller.request_id()))

    @staticmethod
    def _end(handle: FakeHandle) -> None:
        handle.done = True
        for timer in handle.timers:
            timer.cancel()


class Peer(asyncio.Transport):
    """The other side of a connection: what came, and whether it was closed."""

    def __init__(self, frontend: Frontend, config: Config, state: ServerState) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.received = b""
        self.unread = 0
        """Bytes of answers that the client has not taken."""
        self.ended = False
        self.reset = False
        """The kernel knows that the client is gone."""
        self.closed_at: float | None = None
        self.aborted = False
        self.reading = True
        self.connection = Connection(frontend, config, state)
        self.connection.connection_made(self)

    def send(self, data: bytes) -> None:
        """Bytes of the client; lost once the server has closed."""
        if not self.is_closing():
            self.connection.data_received(data)

    def write(self, data: Any) -> None:
        """Bytes of the server."""
        self.received += data

    def write_eof(self) -> None:
        """The server sends no more."""
        self.ended = True

    def close(self) -> None:
        """The server closes, once everything is sent."""
        if self.closed_at is None:
            self.closed_at = self._loop.time()
            if not self.unread:
                self._loop.call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        """The server closes, whatever was not sent."""
        self.aborted = True
        self.unread = 0
        self.closed_at = None
        self.close()

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self.closed_at is not None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The socket of a client that reset the connection; of others nothing is known."""
        return _ResetSocket() if name == "socket" and self.reset else default

    def get_write_buffer_size(self) -> int:
        """See asyncio.Transport."""
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.Transport; tests say themselves when a client reads too slowly."""

    def pause_reading(self) -> None:
        """See asyncio.Transport."""
        self.reading = False

    def resume_reading(self) -> None:
        """See asyncio.Transport."""
        self.reading = True

    @property
    def statuses(self) -> list[int]:
        """The statuses of the responses so far."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.received)]

    def header(self, name: str) -> list[str]:
        """Values of a header in all responses so far."""
        pattern = rb"(?i)\r\n%b: ([^\r\n]*)" % name.encode()
        return [value.decode() for value in re.findall(pattern, self.received)]


class _ResetSocket:
    def getsockopt(self, *_: int) -> bytes:
        return b"\x07"


class Server:
    """A frontend in front of a FakeEngine, and its sweep."""

    def __init__(
        self,
        predict: Callable[[list[Any]], list[Any]] = echo,
        *,
        app: Callable[[Frontend], Any] | None = None,
        endpoint: str = "/api",
        name: str = "api",
        keys: Path | None = None,
        **engine: Any,
    ) -> None:
        self.engine = FakeEngine(predict, **engine)
        folder = None if keys is None else str(keys)
        settings = web_settings(endpoint=endpoint, name=name, api_keys=folder)
        self.frontend = Frontend(settings, self.engine, self.engine.answered)
        self._config = Config(app(self.frontend) if app else _no_app)
        self._config.load()
        self._state = ServerState()
        self.sweeps = 0
        self.sweep = asyncio.create_task(self.frontend.watch(self._state, self._swept))

    def connect(self) -> Peer:
        """A client more."""
        return Peer(self.frontend, self._config, self._state)

    def _swept(self) -> None:
        self.sweeps += 1


async def _no_app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's three
    raise AssertionError("this test asks for predictions only")
