"""Traces, keys and the access log over gRPC. None is there where it is not asked for."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc.aio
from grpc import HandlerCallDetails, RpcMethodHandler, StatusCode
from grpc.aio import ServicerContext

from batchedapi_serving.codecs.open_inference_grpc import grpc_problem
from batchedapi_serving.errors import UnauthenticatedError
from batchedapi_serving.grpc.service import SERVICE, SPAN, message, status_code
from batchedapi_serving.tracing.spans import CLIENT_LEFT_ERROR, Form, Tracer
from batchedapi_serving.web.access import AccessLog, ApiKeys
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.parser import options_of

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
                return _refused(error)
        return await continuation(handler_call_details)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value


def _refused(error: UnauthenticatedError) -> RpcMethodHandler:
    answer = grpc_problem(error)

    async def refuse(_: bytes, context: ServicerContext) -> None:
        await context.abort(status_code(answer.status), message(answer))

    return grpc.unary_unary_rpc_method_handler(refuse)


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
        if not options.traceparent and not tracer.random() < tracer.ratio:
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
                await context.send_initial_metadata((("traceparent", span.context.traceparent),))
                response = await answer(request, context)
                error, code = None, StatusCode.OK.name
            except grpc.aio.AbortError:
                code = _name(context.code())
                error = code if code in _OUR_FAULTS else None
                raise
            finally:
                span.facts["rpc.response.status_code"] = code
                if options.request_id is not None:
                    span.facts["batchedapi.request_id"] = options.request_id
                tracer.ends(span, error)
            return response

        return grpc.unary_unary_rpc_method_handler(
            traced, handler.request_deserializer, handler.response_serializer
        )


def _name(code: Any) -> str:
    """Of a code as a servicer's context has it: the number, or the member."""
    found = (member.name for member in StatusCode if code in (member, member.value[0]))
    return next(found, str(code))
