"""The calls of the Open Inference Protocol, answered from a replica's engine."""

import asyncio
import contextlib
import contextvars
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NoReturn

import grpc
from grpc import StatusCode
from grpc.aio import ServicerContext

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.codecs import open_inference_pb2 as messages
from batchedapi_serving.codecs.open_inference_grpc import (
    MESSAGE,
    GrpcHead,
    asked_of,
    grpc_problem,
    read_message,
)
from batchedapi_serving.codecs.open_inference_metadata import (
    method_of_model,
    model_metadata,
    model_name,
    server_metadata,
)
from batchedapi_serving.dispatch.engine import RequestHandle, ServedMethod
from batchedapi_serving.errors import NotReadyError, ServingError
from batchedapi_serving.tracing.spans import Span
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.large_bodies import INLINE_BYTES, is_large_beside
from batchedapi_serving.web.large_request import LargeBody
from batchedapi_serving.web.parser import options_of

SERVICE: Final = "inference.GRPCInferenceService"
_OK: Final = 200
_SHORTEST_TIMEOUT: Final = 0.001
"""Seconds; a call whose deadline is over by now is answered so, not refused as malformed."""
MOST_PEERS: Final = 4096
"""Connections remembered; a forgotten one that comes back counts as new, which costs a batch some
of its fill and nobody an answer."""
_SERVER_ERROR: Final = 500
_LONGEST_MESSAGE: Final = 2000
"""Characters. It travels in a header, of which clients take 8 KiB together."""
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    406: StatusCode.UNIMPLEMENTED,  # a method that streams has no unary call
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.ABORTED,
    410: StatusCode.NOT_FOUND,
    # gRPC's own code for a message above the limit
    413: StatusCode.RESOURCE_EXHAUSTED,
    415: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    431: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}

Metadata = Sequence[tuple[bytes, bytes]]
SPAN: Final = contextvars.ContextVar[Span | None]("span", default=None)
"""Span of the call that is being answered; None: it is not traced."""


class Service:
    """Every call of the protocol. Counts what the engine does not: calls it never took."""

    def __init__(self, api_name: str, frontend: Frontend, connected: Callable[[], None]) -> None:
        """See GrpcServer; health and metadata are asked for by probes too and make no client."""
        self._api_name = api_name
        self._frontend = frontend
        self._engine = frontend.engine
        self._answered = frontend.answered
        self._peers = Peers(connected, frontend.engine.disconnected)
        self._go = asyncio.Event()
        self._go.set()

    @contextlib.asynccontextmanager
    async def answers_held(self) -> AsyncIterator[None]:
        """Calls are taken and run meanwhile, and answered afterwards."""
        self._go.clear()
        try:
            yield
        finally:
            self._go.set()

    def ready(self) -> bool:
        """Whether predictions are answered now."""
        return bool(self._engine.methods) and not self._frontend.leaving

    async def server_live(
        self, _: messages.ServerLiveRequest, __: ServicerContext
    ) -> messages.ServerLiveResponse:
        """This process answers, so it lives."""
        return messages.ServerLiveResponse(live=True)

    async def server_ready(
        self, _: messages.ServerReadyRequest, __: ServicerContext
    ) -> messages.ServerReadyResponse:
        """Whether predictions are answered now."""
        return messages.ServerReadyResponse(ready=self.ready())

    async def model_ready(
        self, request: messages.ModelReadyRequest, context: ServicerContext
    ) -> messages.ModelReadyResponse:
        """The same for one method; NOT_FOUND if there is none of that name."""
        try:
            self._engine.served(method_of_model(self._api_name, request.name, request.version))
        except NotReadyError:
            return messages.ModelReadyResponse(ready=False)
        except ServingError as error:
            await fail(context, grpc_problem(error), options_of(metadata_of(context)).request_id)
        return messages.ModelReadyResponse(ready=not self._frontend.leaving)

    async def server_metadata(
        self, _: messages.ServerMetadataRequest, __: ServicerContext
    ) -> messages.ServerMetadataResponse:
        """The document of `GET /v2`."""
        return messages.ServerMetadataResponse(**server_metadata())

    async def model_metadata(
        self, request: messages.ModelMetadataRequest, context: ServicerContext
    ) -> messages.ModelMetadataResponse:
        """The document of `GET /v2/models/MODEL`."""
        served = await self._served(request.name, request.version, context)
        return messages.ModelMetadataResponse(**model_metadata(request.name, served.spec))

    async def model_config(
        self, request: messages.ModelConfigRequest, context: ServicerContext
    ) -> messages.ModelConfigResponse:
        """The document of `GET /v2/models/MODEL/config`."""
        served = await self._served(request.name, request.version, context)
        config = self._frontend.model_config(request.name, served.spec)
        return messages.ModelConfigResponse(config=config)

    async def model_statistics(
        self, request: messages.ModelStatisticsRequest, context: ServicerContext
    ) -> messages.ModelStatisticsResponse:
        """The document of `GET /v2/models/MODEL/stats`; without a name, of all."""
        if request.name:
            served = await self._served(request.name, request.version, context)
            asked = {request.name: served.spec}
        else:
            methods = self._engine.methods
            asked = {model_name(self._api_name, name): spec for name, spec in methods.items()}
        return messages.ModelStatisticsResponse(**self._frontend.model_statistics(asked))

    async def _served(self, model: str, version: str, context: ServicerContext) -> ServedMethod:
        """The method of a model; a name or version that there is not ends the call."""
        try:
            return self._engine.served(method_of_model(self._api_name, model, version))
        except ServingError as error:
            await fail(context, grpc_problem(error), options_of(metadata_of(context)).request_id)

    async def model_infer(self, body: bytes, context: ServicerContext) -> bytes:
        """One request of one or more rows; a serialized message in and out.

        Raises:
            ServingError: the engine does not take it.
        """
        metadata = metadata_of(context)
        request_id = options_of(metadata).request_id
        caller = _Asker(request_id)
        client = self._peers.client(context.peer())
        # What is left of the client's deadline, in seconds; None: it has none.
        left = context.time_remaining()
        timeout = None if left is None else max(left, _SHORTEST_TIMEOUT)
        handle = self._submit(body, metadata, client, caller, timeout)
        del body  # it is held by whoever takes it apart
        try:
            answer = await caller.answer
        except asyncio.CancelledError:  # the client left, its deadline passed, or see Call.end
            self._frontend.cancel(handle)
            raise
        if not self._go.is_set():
            left = context.time_remaining()
            with contextlib.suppress(TimeoutError):  # late is worse than during the stop
                await asyncio.wait_for(self._go.wait(), None if left is None else left / 2)
        if answer.status != _OK:
            await fail(context, answer, request_id)
        context.set_trailing_metadata(trailing_metadata(answer, request_id))
        return answer.body

    def _submit(
        self,
        body: bytes,
        metadata: Metadata,
        client: Client,
        caller: "_Asker",
        timeout: float | None,
    ) -> RequestHandle:
        engine, api = self._engine, self._api_name
        if len(body) > INLINE_BYTES:
            asked = asked_of(body)
            served = engine.served(method_of_model(api, asked.model, asked.version))
            if is_large_beside(served.spec, len(body), asked.raw):
                head = RequestHead(MESSAGE, b"", metadata)
                large = LargeBody(
                    served, Wire.GRPC, head, body, client, caller, timeout, grpc_problem
                )
                return self._frontend.large.submit(large)
        request = read_message(body)
        served = engine.served(method_of_model(api, request.model_name, request.model_version))
        decoded = served.codec.decode(Wire.GRPC, GrpcHead(request, metadata), body)
        return engine.submit(served, decoded, client, caller, timeout)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """The handlers of calls, by name."""
        return {
            "ServerLive": grpc.unary_unary_rpc_method_handler(
                self.server_live,
                messages.ServerLiveRequest.FromString,
                messages.ServerLiveResponse.SerializeToString,
            ),
            "ServerReady": grpc.unary_unary_rpc_method_handler(
                self.server_ready,
                messages.ServerReadyRequest.FromString,
                messages.ServerReadyResponse.SerializeToString,
            ),
            "ModelReady": grpc.unary_unary_rpc_method_handler(
                self.model_ready,
                messages.ModelReadyRequest.FromString,
                messages.ModelReadyResponse.SerializeToString,
            ),
            "ServerMetadata": grpc.unary_unary_rpc_method_handler(
                self.server_metadata,
                messages.ServerMetadataRequest.FromString,
                messages.ServerMetadataResponse.SerializeToString,
            ),
            "ModelMetadata": grpc.unary_unary_rpc_method_handler(
                self.model_metadata,
                messages.ModelMetadataRequest.FromString,
                messages.ModelMetadataResponse.SerializeToString,
            ),
            "ModelConfig": grpc.unary_unary_rpc_method_handler(
                self.model_config,
                messages.ModelConfigRequest.FromString,
                messages.ModelConfigResponse.SerializeToString,
            ),
            "ModelStatistics": grpc.unary_unary_rpc_method_handler(
                self.model_statistics,
                messages.ModelStatisticsRequest.FromString,
                messages.ModelStatisticsResponse.SerializeToString,
            ),
            # As bytes: gRPC would answer a message that is none with INTERNAL, as if the fault
            # were ours, and the codec writes the response as bytes.
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self.model_infer),
        }


class _Asker:
    """Turns the engine's call-back into something to await; see Caller."""

    def __init__(self, request_id: str | None) -> None:
        self._request_id = request_id
        self.span = SPAN.get()
        """See Caller."""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def request_id(self) -> str | None:
        """See Caller."""
        return self._request_id

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        if not self.answer.done():
            self.answer.set_result(answer)


async def fail(context: ServicerContext, answer: Answer, request_id: str | None) -> NoReturn:
    """End a call with an error."""
    metadata = tuple(trailing_metadata(answer, request_id))
    await context.abort(status_code(answer.status), message(answer), metadata)
    raise AssertionError("the call was not ended")


def metadata_of(context: ServicerContext) -> Metadata:
    """The call's metadata as headers; values of `-bin` names are bytes already."""
    pairs = context.invocation_metadata() or ()
    return [
        (name.encode(), value.encode("latin-1", "replace") if isinstance(value, str) else value)
        for name, value in pairs
    ]


class Peers:
    """Clients by the address of their connection.

    gRPC does not say when a connection opens or closes: it is new with its first call, and those
    that were silent longest are forgotten.
    """

    def __init__(
        self,
        connected: Callable[[], None],
        disconnected: Callable[[Client], None],
        most: int = MOST_PEERS,
    ) -> None:
        """`connected` is called for each new connection, `disconnected` for each forgotten one."""
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._connected = connected
        self._disconnected = disconnected
        self._most = most

    def client(self, peer: str) -> Client:
        """The Client of the connection that gRPC calls `peer`."""
        client = self._clients.get(peer)
        if client is not None:
            self._clients.move_to_end(peer)
            return client
        if len(self._clients) >= self._most:
            _, silent = self._clients.popitem(last=False)
            self._disconnected(silent)
        self._connected()
        client = self._clients[peer] = Client()
        return client


def status_code(status: int) -> StatusCode:
    """The code of a call whose answer has the HTTP status `status`.

    A predictor may fail an item with any status from 400 to 599: those without a twin are the
    client's fault below 500, and ours from there on.
    """
    if status == _OK:
        return StatusCode.OK
    fallback = StatusCode.INTERNAL if status >= _SERVER_ERROR else StatusCode.INVALID_ARGUMENT
    return _CODES.get(status, fallback)


def message(answer: Answer) -> str:
    """The details of a call that failed."""
    return answer.body.decode("utf-8", "replace")[:_LONGEST_MESSAGE]


def trailing_metadata(answer: Answer, request_id: str | None) -> Sequence[tuple[str, str]]:
    """The response headers of HTTP: receipt, Retry-After in seconds, the request's id."""
    # gRPC refuses what is not ASCII, and the call with it.
    pairs = [
        (name.decode(), value.decode("latin-1").encode("ascii", "replace").decode())
        for name, value in answer.headers
    ]
    if answer.retry_after:
        pairs.append(("retry-after", str(answer.retry_after)))
    if request_id is not None:
        pairs.append(("x-request-id", request_id))
    return pairs
