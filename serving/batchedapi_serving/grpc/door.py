"""Checks before a call is answered: the key, the budget, the time for its message.

gRPC hands a call over with its metadata, before anything of its message is read, if the handler
reads the messages itself. So each handler here does, whatever its kind, and a call without a key is
refused when it has cost no more than its metadata. Whatever is served is behind this one door, also
what is served one day.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import HandlerCallDetails, RpcMethodHandler, StatusCode
from grpc.aio import ServicerContext

from batchedapi_serving.codecs.open_inference_grpc import grpc_problem
from batchedapi_serving.errors import MalformedError, ServingError
from batchedapi_serving.grpc.observed import logged
from batchedapi_serving.grpc.service import SERVICE, fail, metadata_of
from batchedapi_serving.grpc.sockets import Sockets
from batchedapi_serving.grpc.transfers import WINDOW_BYTES, Call, Transfers
from batchedapi_serving.web.access import owner_of
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.limits import NOBODY
from batchedapi_serving.web.parser import options_of

OPEN: Final = frozenset(
    ("/grpc.health.v1.Health/Check", f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady")
)
"""All that needs no key: what probes and load balancers ask, none of which sends one. Whatever is
not in this list needs a key, also what is served one day, and what is not served."""


class Door(grpc.GenericRpcHandler):  # type: ignore[misc]  # the package is untyped
    """Has all calls. To generated code it is the server with which services register.

    Attributes:
        transfers: Of their messages.
    """

    def __init__(self, frontend: Frontend, sockets: Sockets) -> None:
        self._frontend = frontend
        self.transfers = Transfers(frontend.bodies, frontend.limits, sockets)
        self._handlers: dict[str, RpcMethodHandler] = {}
        self._other = self._handler("", grpc.stream_stream_rpc_method_handler(_no_such_call))

    @property
    def calls(self) -> tuple[str, ...]:
        """Full names of all that are served."""
        return tuple(self._handlers)

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """See grpc.Server; whoever has such handlers registers the same by name."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, RpcMethodHandler]
    ) -> None:
        """See grpc.Server."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            self._handlers[path] = self._handler(path, handler)

    def service(self, details: HandlerCallDetails) -> RpcMethodHandler:
        """See grpc.GenericRpcHandler."""
        return self._handlers.get(details.method, self._other)

    def _handler(self, path: str, handler: RpcMethodHandler) -> RpcMethodHandler:
        """One that reads its messages itself, once the call has passed."""
        answer = _stream if handler.response_streaming else _one
        of_kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )

        async def behavior(_: object, context: ServicerContext) -> Any:
            call = self.transfers.call(context)
            try:
                call.held.owned_by(self._owner(path, call))
                return await answer(handler, call, self.transfers)
            except ServingError as refused:
                # The exception is not kept: its traceback has the message, and would go in circles.
                problem = grpc_problem(refused)
            except EOFError:
                problem = grpc_problem(MalformedError("message: expected one, got none"))
            except asyncio.CancelledError:
                reason = call.reason()
                if reason is None:
                    raise
                problem = grpc_problem(reason)
            finally:
                self.transfers.ended(call)
            self._frontend.answered(problem.status)
            now = asyncio.get_running_loop().time()
            if pause := self._frontend.guard.pause(problem.status, now):
                await asyncio.sleep(pause)
            request_id = options_of(metadata_of(context)).request_id
            return await fail(context, problem, request_id)

        log = self._frontend.guard.log
        return of_kind(behavior if log is None else logged(log, path, behavior))

    def _owner(self, path: str, call: Call) -> str:
        """The owner of the budget that the call takes from.

        Raises:
            UnauthenticatedError: it needs a key, and brings none.
        """
        keys = self._frontend.guard.keys
        if keys is None:
            return _owner_of(call.connection.peer.address)
        return NOBODY if path in OPEN else keys.check(metadata_of(call.context))


async def _one(handler: RpcMethodHandler, call: Call, transfers: Transfers) -> bytes:
    # No name is kept here for the message, which is large.
    response = await handler.unary_unary(
        _read(handler, await transfers.receive(call)), call.context
    )
    answer: bytes = (handler.response_serializer or bytes)(response)
    transfers.send(call, len(answer))
    return answer


async def _stream(handler: RpcMethodHandler, call: Call, transfers: Transfers) -> None:
    call.least = WINDOW_BYTES  # so that the number of those that go on is bounded, too
    if handler.request_streaming:
        responses = handler.stream_stream(_messages(handler, call, transfers), call.context)
    else:
        request = _read(handler, await transfers.receive(call))
        responses = handler.unary_stream(request, call.context)
    async for response in responses:
        await call.context.write(handler.response_serializer(response))


async def _messages(
    handler: RpcMethodHandler, call: Call, transfers: Transfers
) -> AsyncIterator[Any]:
    with contextlib.suppress(EOFError):
        while True:
            yield _read(handler, await transfers.receive(call))


def _read(handler: RpcMethodHandler, body: bytes) -> Any:
    if handler.request_deserializer is None:
        return body
    try:
        return handler.request_deserializer(body)
    except DecodeError as error:
        raise MalformedError(f"message: expected another one, got {error}") from error


async def _no_such_call(_: object, context: ServicerContext) -> AsyncIterator[Any]:
    await context.abort(StatusCode.UNIMPLEMENTED, "no such call; reflection tells which there are")
    yield


_owner_of = functools.lru_cache(maxsize=4096)(owner_of)
