"""The access log and spans of calls; neither is there where it is not asked for."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from grpc import StatusCode
from grpc.aio import AbortError, ServicerContext

from batchedapi_serving.errors import ServingError
from batchedapi_serving.grpc.service import SERVICE, SPAN, metadata_of, status_code
from batchedapi_serving.tracing.spans import CLIENT_LEFT_ERROR, Tracer
from batchedapi_serving.web.access import AccessLog
from batchedapi_serving.web.parser import options_of

Behavior = Callable[[Any, ServicerContext], Awaitable[Any]]
"""Answers a call, given its message, or messages, and its context."""
_METHOD: Final = f"{SERVICE}/ModelInfer"
_OUR_FAULTS: Final = frozenset(
    code.name
    for code in (
        StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS,
    )
)  # fmt: skip
"""After which a server's span failed, by the same conventions; others are the client's."""


def logged(log: AccessLog, path: str, behavior: Behavior) -> Behavior:
    """`behavior`, with one line for each call when it ends, also for one that goes on."""

    async def call(messages: Any, context: ServicerContext) -> Any:
        started = time.monotonic()
        code = StatusCode.CANCELLED.name
        try:
            response = await behavior(messages, context)
            code = StatusCode.OK.name
        except AbortError:
            code = _name(context.code())
            raise
        finally:
            log.write(
                method="GRPC",
                path=path,
                status=code,
                seconds=time.monotonic() - started,
                client=context.peer(),
                request_id=options_of(metadata_of(context)).request_id,
            )
        return response

    return call


def traced(tracer: Tracer, behavior: Behavior) -> Behavior:
    """`behavior`, with a span for each call that is drawn; its answer says which trace that is in.

    Around what answers a message that is here.
    """

    async def call(message: Any, context: ServicerContext) -> Any:
        options = options_of(metadata_of(context))
        span = tracer.begins(options.traceparent, options.tracestate)
        if span is None:
            return await behavior(message, context)
        # Names as OpenTelemetry's conventions for RPC have them.
        span.name = _METHOD
        span.attributes.update({"rpc.system.name": "grpc", "rpc.method": _METHOD})
        SPAN.set(span)  # of the call's own task
        error: str | None = CLIENT_LEFT_ERROR
        code = StatusCode.CANCELLED.name
        try:
            await context.send_initial_metadata((("traceparent", span.context.header()),))
            response = await behavior(message, context)
            error, code = None, StatusCode.OK.name
        except AbortError:
            code = _name(context.code())
            error = code if code in _OUR_FAULTS else None
            raise
        except ServingError as refused:
            code = status_code(refused.status).name
            error = code if code in _OUR_FAULTS else None
            raise
        finally:
            span.attributes["rpc.response.status_code"] = code
            if options.request_id is not None:
                span.attributes["batchedapi.request_id"] = options.request_id
            tracer.ends(span, error)
        return response

    return call


def _name(code: Any) -> str:
    """The name of a code as a servicer's context has it: the number, or the member."""
    found = (member.name for member in StatusCode if code in (member, member.value[0]))
    return next(found, str(code))
