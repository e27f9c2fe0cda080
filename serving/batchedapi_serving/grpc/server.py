"""The gRPC server of a web process: beside uvicorn, on the same loop and the same engine.

Beside the calls of `service` it answers what tools ask of any server, `grpc.health.v1` and
reflection. Both have calls that go on for as long as the client wants; they end when the replica
stops, or a stop would wait for a page that somebody left open. Around all calls are traces, keys
and the access log; none is there where it is not asked for.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import HandlerCallDetails, RpcMethodHandler, StatusCode
from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import aio as reflection_aio

from batchedapi_core import contract
from batchedapi_serving.codecs import open_inference_pb2 as messages
from batchedapi_serving.codecs.open_inference_grpc import grpc_problem
from batchedapi_serving.errors import UnauthenticatedError
from batchedapi_serving.grpc.service import SERVICE, SPAN, Service, message, status_code
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import CLIENT_LEFT_ERROR, Form, Tracer
from batchedapi_serving.web.access import AccessLog, ApiKeys
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.parser import options_of

_ON_THE_WAY_SECONDS: Final = 0.2
"""For a call to come here, or for word of the end to come to its client."""
log = logging.getLogger(__name__)
_UNLIMITED: Final = -1
_PING_SECONDS: Final = 60
"""After so long without a byte from a client it is asked whether it is there: one whose machine is
gone never closes its connection, and what it asked for would stay queued."""
_PONG_SECONDS: Final = 20
"""How long it may take to say so."""


class GrpcServer:
    """Listens on `settings.grpc_port` from `start` to `stop`.

    Attributes:
        port: Where it listens; 0 before `start`. Another than asked for if that was 0.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        frontend: Frontend,
        connected: Callable[[], None],
    ) -> None:
        """What is told to whom.

        Args:
            settings: Of the replica.
            frontend: Where predictions are asked for, and those counted that are not taken.
            connected: Called with the first ModelInfer of every connection.
        """
        self._settings = settings
        self._connections = frontend.connection_limit.most
        self._service = Service(settings.name, frontend, connected)
        self._interceptors = interceptors_of(frontend)
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        """Listen and answer.

        Raises:
            OSError: the port is taken, or not ours to take.
            ValueError: the settings name no port.
        """
        port = self._settings.grpc_port
        if port is None:
            raise ValueError("grpc_port: expected a port, got None; nothing is to be served there")
        settings = self._settings
        options = [
            ("grpc.max_connection_idle_ms", int(settings.keep_alive * 1000)),
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.max_metadata_size", contract.MAX_HEADER_BYTES),
            ("grpc.absolute_max_metadata_size", contract.MAX_HEADER_BYTES),
            ("grpc.max_concurrent_streams", settings.max_concurrency),
            ("grpc.max_allowed_incoming_connections", self._connections),
            ("grpc.server_handshake_timeout_ms", int(contract.HEADER_ARRIVAL_SECONDS * 1000)),
            ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
            ("grpc.keepalive_timeout_ms", _PONG_SECONDS * 1000),
            # gRPC would share a port that is taken, and each of two servers get half the calls.
            ("grpc.so_reuseport", 0),
        ]
        # gRPC jitters the age of a connection itself, by a tenth. One that is too old takes no
        # further calls and answers those begun, each of which has an answer of some kind within
        # the timeout.
        if settings.max_connection_age is not None:
            age = max(1, int(settings.max_connection_age * 1000))
            options.append(("grpc.max_connection_age_ms", age))
            if settings.timeout is not None:
                grace = settings.timeout + contract.TERMINATION_MARGIN_SECONDS
                options.append(("grpc.max_connection_age_grace_ms", int(grace * 1000)))
        server = grpc.aio.server(interceptors=self._interceptors, options=options)
        server.add_generic_rpc_handlers((self._service.handler(),))
        add_introspection(server, SERVICE, self._service.ready, self._stopping)
        host = self._settings.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            await server.stop(None)
            raise OSError(f"cannot listen on {address} for gRPC: {error}") from error
        await server.start()
        self._server = server
        log.info("gRPC listening", extra={"host": host, "port": self.port})

    async def stop(self, grace: float | None) -> None:
        """Take no further calls; wait until those begun are answered, `grace` seconds at most.

        gRPC cancels a call that meets the stop on its way, and most clients ask anew as soon as
        they are answered. So nobody is answered until those on their way are here and the clients
        are told that the connection ends: their next call then takes another one.
        """
        if self._server is not None:
            self._stopping.set()
            async with self._service.answers_held():
                await asyncio.sleep(_ON_THE_WAY_SECONDS)
                stopping = asyncio.create_task(self._server.stop(grace))
                await asyncio.sleep(_ON_THE_WAY_SECONDS)
            await stopping
            self._server = None


_LOOK_SECONDS: Final = 0.5
"""Between looks whether the health has changed, for those who watch it."""


def add_introspection(
    server: grpc.aio.Server, service: str, ready: Callable[[], bool], stopping: asyncio.Event
) -> None:
    """Let `server` say whether it is well and what it serves.

    Args:
        server: Not started yet.
        service: Full name of the service of predictions.
        ready: Whether predictions are answered now.
        stopping: Set when calls that go on are to end.
    """
    health_pb2_grpc.add_HealthServicer_to_server(Health(service, ready, stopping), server)
    names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(Reflection(names, stopping), server)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package is untyped
    """SERVING while predictions are answered; the server as a whole, and the service, are one."""

    def __init__(self, service: str, ready: Callable[[], bool], stopping: asyncio.Event) -> None:
        self._names = ("", service)
        self._ready = ready
        self._stopping = stopping

    async def Check(  # noqa: N802 - the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The health now; NOT_FOUND for a service that is not here."""
        if request.service not in self._names:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no service {request.service!r}; served is {self._names[1]}",
            )
        return self._now()

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, _: ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The health now and whenever it changes, until the replica stops."""
        if request.service not in self._names:  # it may come, says the protocol
            yield health_pb2.HealthCheckResponse(
                status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            )
            await self._stopping.wait()
            return
        told = None
        while not self._stopping.is_set():
            now = self._now()
            if now != told:
                yield now
                told = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stopping.wait()
        yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    def _now(self) -> health_pb2.HealthCheckResponse:
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self._ready() else status.NOT_SERVING)


class Reflection(reflection_aio.ReflectionServicer):  # type: ignore[misc]  # as above
    """Every message and method, for tools that have no proto file."""

    def __init__(self, names: tuple[str, ...], stopping: asyncio.Event) -> None:
        pool = DescriptorPool()  # our own messages are in no pool that others see
        for file in (messages, health_pb2, reflection_pb2):
            pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
        super().__init__(names, pool=pool)
        self._stopping = stopping

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: AsyncIterable[Any], context: ServicerContext
    ) -> AsyncIterator[Any]:
        """Answers to as many questions as there are, until the replica stops."""
        answers = super().ServerReflectionInfo(_until(self._stopping, request_iterator), context)
        async for answer in answers:
            yield answer


async def _until(event: asyncio.Event, source: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """What comes from `source` before the event."""
    iterator = aiter(source)
    ended = asyncio.create_task(event.wait())
    try:
        while not event.is_set():
            following = asyncio.ensure_future(anext(iterator, None))
            await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                return
            if (question := following.result()) is None:
                return
            yield question
    finally:
        ended.cancel()


Continuation = Callable[[HandlerCallDetails], Awaitable[RpcMethodHandler | None]]

_GUARDED: Final = tuple(
    f"/{SERVICE}/{call}" for call in ("ModelInfer", "ModelMetadata", "ModelReady", "ServerMetadata")
)
"""Health and reflection are open, as health and the documentation are over HTTP."""
_REQUEST_ID: Final = "x-request-id"
_INFER: Final = f"/{SERVICE}/ModelInfer"
_FORM: Final = Form(
    f"{SERVICE}/ModelInfer",
    server=True,
    constant=(("rpc.system.name", "grpc"), ("rpc.method", f"{SERVICE}/ModelInfer")),
)
"""Names as OpenTelemetry's conventions for RPC have them."""
_OUR_FAULTS: Final = frozenset(
    code.name
    for code in (
        StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS,
    )
)  # fmt: skip
"""After which a server's span failed, by the same conventions; others are the client's."""


def interceptors_of(frontend: Frontend) -> Sequence[grpc.aio.ServerInterceptor]:
    """What the server is started with; the log is around the keys, and both around the traces."""
    found: list[grpc.aio.ServerInterceptor] = []
    if frontend.access_log is not None:
        found.append(_Logged(frontend.access_log))
    if frontend.keys is not None:
        found.append(_Guarded(frontend.keys, frontend.answered))
    if frontend.tracer is not None:
        found.append(_Traced(frontend.tracer))
    return found


class _Guarded(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the package is untyped
    """UNAUTHENTICATED to calls without a key."""

    def __init__(self, keys: ApiKeys, answered: Callable[[int], None]) -> None:
        self._keys = keys
        self._answered = answered

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """See grpc.aio.ServerInterceptor."""
        if handler_call_details.method in _GUARDED:
            pairs = handler_call_details.invocation_metadata or ()
            headers = ((name.encode(), _bytes(value)) for name, value in pairs)
            try:
                self._keys.check(headers)
            except UnauthenticatedError as error:
                self._answered(error.status)
                answer = grpc_problem(error)

                async def refuse(_: bytes, context: ServicerContext) -> None:
                    await context.abort(status_code(answer.status), message(answer))

                return grpc.unary_unary_rpc_method_handler(refuse)
        return await continuation(handler_call_details)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value


class _Logged(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """One line for each call that has one answer; those that go on have no time to tell."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        answer, path = handler.unary_unary, handler_call_details.method
        pairs = handler_call_details.invocation_metadata or ()
        request_id = next((value for name, value in pairs if name == _REQUEST_ID), None)

        async def logged(request: Any, context: ServicerContext) -> Any:
            started = time.monotonic()
            code = StatusCode.CANCELLED.name
            try:
                response = await answer(request, context)
                code = StatusCode.OK.name
            except grpc.aio.AbortError:
                code = _name(context.code())
                raise
            finally:
                self._log.write(
                    method="GRPC",
                    path=path,
                    status=code,
                    seconds=time.monotonic() - started,
                    client=context.peer(),
                    request_id=request_id,
                )
            return response

        return grpc.unary_unary_rpc_method_handler(
            logged, handler.request_deserializer, handler.response_serializer
        )


class _Traced(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """A span for each prediction that is drawn; its answer says which trace that is in."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: HandlerCallDetails
    ) -> RpcMethodHandler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method != _INFER:
            return handler
        pairs = handler_call_details.invocation_metadata or ()
        options = options_of((name.encode(), _bytes(value)) for name, value in pairs)
        tracer = self._tracer
        tracer.undrawn -= 1
        if tracer.undrawn >= 0 and not options.traceparent:
            return handler
        span = tracer.begins(_FORM, options.traceparent, options.tracestate)
        if span is None:
            return handler
        answer = handler.unary_unary

        async def traced(request: Any, context: ServicerContext) -> Any:
            SPAN.set(span)  # of the call's own task
            error: str | None = CLIENT_LEFT_ERROR
            code = StatusCode.CANCELLED.name
            try:
                await context.send_initial_metadata((("traceparent", span.traceparent),))
                response = await answer(request, context)
                error, code = None, StatusCode.OK.name
            except grpc.aio.AbortError:
                code = _name(context.code())
                error = code if code in _OUR_FAULTS else None
                raise
            finally:
                span.add_attribute("rpc.response.status_code", code)
                if options.request_id is not None:
                    span.add_attribute("batchedapi.request_id", options.request_id)
                tracer.ends(span, error)
            return response

        return grpc.unary_unary_rpc_method_handler(
            traced, handler.request_deserializer, handler.response_serializer
        )


def _name(code: Any) -> str:
    """Of a code as a servicer's context has it: the number, or the member."""
    found = (member.name for member in StatusCode if code in (member, member.value[0]))
    return next(found, str(code))
