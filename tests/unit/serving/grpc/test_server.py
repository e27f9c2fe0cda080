"""The gRPC server over a real socket, in front of an engine that answers as each test says."""

import asyncio
import dataclasses
import gzip
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Codec, DecodedRequest
from batchedapi_serving.codecs import open_inference_pb2 as messages
from batchedapi_serving.dispatch.engine import Caller, ServedMethod
from batchedapi_serving.errors import (
    LateError,
    NoSuchRouteError,
    NotReadyError,
    PredictorError,
    QueueFullError,
    ServingError,
)
from batchedapi_serving.grpc.server import GrpcServer
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.frontend import Frontend
from dispatching import replica_settings
from protocols import IRIS, RECEIPT, array, codec_of, message, tensors, with_raw

SETTINGS = replica_settings(name="iris", grpc_port=0, max_body_bytes=100_000)
INFER = "/inference.GRPCInferenceService/ModelInfer"
ROW = array("FP32", [[1, 2, 3, 4]])


class _Line:
    def __init__(self, spec: MethodSpec) -> None:
        self.spec = spec
        self.codec: Codec = codec_of(spec)


class _Ticket:
    done = False


class FakeEngine:
    """Answers each request with the sum of its row, thrice, unless told to hold or to refuse."""

    def __init__(self) -> None:
        self.methods: Mapping[str, MethodSpec] = {
            "predict": IRIS,
            "embed": dataclasses.replace(IRIS, name="embed"),
        }
        self.default = "predict"
        self.refusal: ServingError | None = None
        self.broken: Exception | None = None
        self.holding = False
        self.held: list[Callable[[], None]] = []
        self.clients: list[Client] = []
        self.timeouts: list[float | None] = []
        self.request_ids: list[str | None] = []
        self.taken = asyncio.Event()
        self.cancelled = asyncio.Event()

    def served(self, method: str | None) -> ServedMethod:
        """See Engine."""
        if not self.methods:
            raise NotReadyError("still loading", 2)
        spec = self.methods.get(method or self.default)
        if spec is None:
            raise NoSuchRouteError(f"no method {method}")
        return _Line(spec)

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> _Ticket:
        """See Engine."""
        self.clients.append(client)
        self.timeouts.append(timeout)
        self.request_ids.append(caller.request_id())
        self.taken.set()
        if self.refusal is not None:
            raise self.refusal
        if self.broken is not None:
            raise self.broken

        def answer() -> None:
            rows = np.frombuffer(decoded.payload, "<f4").reshape(decoded.rows, -1)
            summed = np.repeat(rows.sum(axis=1, keepdims=True), 3, axis=1).astype("<f4")
            results = tensors(served.spec, output=summed)
            caller.deliver(decoded.reply.answer(results, 0, decoded.rows, RECEIPT))

        if self.holding:
            self.held.append(answer)
        else:
            answer()
        return _Ticket()

    def cancel(self, handle: Any, status: int = 499) -> None:  # noqa: ARG002 - there is one at a time
        """See Engine."""
        self.cancelled.set()

    def taken(self, handle: object, items: int) -> None:
        """See Engine."""
        raise AssertionError((handle, items))

    def disconnected(self, client: Client) -> None:
        """See Engine."""


class Recorder:
    """Counts what the engine does not."""

    def __init__(self, codes: list[int]) -> None:
        self.answered = codes.append


class World:
    """A server, its engine, and a connection to it."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.answered: list[int] = []
        self.connections = 0
        self.recorder = Recorder(self.answered)
        self.frontend = Frontend(SETTINGS, self.engine, self.recorder.answered)
        self.server = GrpcServer(SETTINGS, self.frontend, self._connected)

    def _connected(self) -> None:
        self.connections += 1

    async def start(self) -> None:
        """Listen on a free port."""
        await self.server.start()
        self.target = f"127.0.0.1:{self.server.port}"
        self.channel = grpc.aio.insecure_channel(self.target)

    def infer(self, body: bytes | None = None, **options: Any) -> Any:
        """One call of ModelInfer, with raw bytes as its message."""
        sent = iris().SerializeToString() if body is None else body
        return self.channel.unary_unary(INFER)(sent, **options)

    async def stop(self) -> None:
        """Close the connection and the server."""
        await self.channel.close()
        await self.server.stop(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Started, and stopped in the end."""
    world = World()
    await world.start()
    yield world
    await world.stop()


def iris(model: str = "iris", **members: Any) -> messages.ModelInferRequest:
    """A request of one row."""
    return with_raw(message(model, **members), ("input", "FP32", (1, 4), ROW))


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_a_client_that_others_wrote_gets_its_prediction(world: World) -> None:
    """Tritonclient over gRPC: health, metadata and inference."""
    async with triton.InferenceServerClient(world.target) as client:
        tensor = triton.InferInput("input", [1, 4], "FP32")
        tensor.set_data_from_numpy(ROW)

        result = await client.infer("iris", [tensor], request_id="42")

        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("iris.embed")
        assert "binary_tensor_data" in (await client.get_server_metadata()).extensions
        metadata = await client.get_model_metadata("iris")
        assert [-1, 4] == list(metadata.inputs[0].shape)
        config = (await client.get_model_config("iris.embed")).config
        assert ("iris.embed", [4]) == (config.name, list(config.input[0].dims))
        (statistics,) = (await client.get_inference_statistics("iris")).model_stats
        assert ("iris", 0) == (statistics.name, statistics.inference_count)
        everything = await client.get_inference_statistics()
        assert ["iris", "iris.embed"] == [model.name for model in everything.model_stats]
        assert [[10, 10, 10]] == result.as_numpy("output").tolist()
        assert ("42", "iris") == (result.get_response().id, result.get_response().model_name)
        assert 12 == result.get_response().parameters["batch_rows"].int64_param


async def test_a_connection_counts_with_its_first_prediction(world: World) -> None:
    """Calls are all that gRPC shows. A refused one counts; who asks for health may be a probe."""
    async with triton.InferenceServerClient(world.target) as probe:
        await probe.is_server_ready()
        assert 0 == world.connections

    for _ in range(3):
        await world.infer()
    assert 1 == world.connections

    own = [("grpc.use_local_subchannel_pool", 1)]  # else channels share a connection
    async with grpc.aio.insecure_channel(world.target, options=own) as channel:
        await failure(channel.unary_unary(INFER)(iris("other").SerializeToString()))
    assert 2 == world.connections


async def test_every_method_is_a_model(world: World) -> None:
    """N25: `iris.embed` is the method embed."""
    body = await world.infer(iris("iris.embed").SerializeToString())

    assert "iris.embed" == messages.ModelInferResponse.FromString(body).model_name
    assert (
        grpc.StatusCode.NOT_FOUND
        is (await failure(world.infer(iris("iris.other").SerializeToString()))).code()
    )
    assert (
        grpc.StatusCode.NOT_FOUND
        is (await failure(world.infer(iris("other").SerializeToString()))).code()
    )
    assert (
        grpc.StatusCode.NOT_FOUND
        is (await failure(world.infer(iris(model_version="7").SerializeToString()))).code()
    )


async def test_the_request_id_comes_back_with_answers_and_errors(world: World) -> None:
    """N21: in metadata, under the name it has over HTTP; bytes that could forge a log are gone."""
    call = world.infer(metadata=[("x-request-id", "my-id")])
    await call
    world.engine.refusal = QueueFullError("full", 3)

    error = await failure(world.infer(metadata=[("x-request-id", "my-id")]))

    assert "my-id" == dict(await call.trailing_metadata())["x-request-id"]
    assert "b-7" == dict(await call.trailing_metadata())["x-batchedapi-batch-id"]
    assert "my-id" == dict(error.trailing_metadata())["x-request-id"]
    assert ["my-id", "my-id"] == world.engine.request_ids


@pytest.mark.parametrize(
    ("refusal", "code", "retry_after"),
    [
        (QueueFullError("full", 3), grpc.StatusCode.UNAVAILABLE, "3"),
        (LateError("late", 2), grpc.StatusCode.RESOURCE_EXHAUSTED, "2"),
    ],
)
async def test_overload_says_when_to_come_back(
    world: World, refusal: ServingError, code: grpc.StatusCode, retry_after: str
) -> None:
    """B21: `retry-after` is in the trailing metadata; the refusal is counted here, once."""
    world.engine.refusal = refusal

    error = await failure(world.infer())

    assert (code, str(refusal)) == (error.code(), error.details())
    assert retry_after == dict(error.trailing_metadata())["retry-after"]
    assert [refusal.status] == world.answered


@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"", iris().SerializeToString()[:-1]], ids=["noise", "empty", "cut"]
)
async def test_wrong_messages_are_the_clients_fault(world: World, body: bytes) -> None:
    """Not INTERNAL, which would be retried and would page somebody."""
    error = await failure(world.infer(body))

    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert [] == world.engine.clients
    assert 1 == len(world.answered)


async def test_wrong_inputs_name_their_place(world: World) -> None:
    """The details are the message that HTTP has in `error`."""
    request = with_raw(message(), ("input", "FP32", (1, 3), ROW[:, :3]))

    error = await failure(world.infer(request.SerializeToString()))

    assert grpc.StatusCode.INVALID_ARGUMENT is error.code()
    assert "inputs" in error.details()
    assert [422] == world.answered


async def test_any_message_reaches_the_client(world: World) -> None:
    """Predictors write their own: other letters, several lines, too long for a header."""
    said = "größer\n\tals 4 ✓ " + "x" * 100_000
    world.engine.refusal = PredictorError(said)

    error = await failure(world.infer())

    assert grpc.StatusCode.INTERNAL is error.code()
    assert said[:2000] == error.details()


async def test_the_clients_deadline_reaches_the_engine(world: World) -> None:
    """N05: rows that nobody waits for must not be run."""
    await world.infer(timeout=60)
    await world.infer()

    with_deadline, without = world.engine.timeouts
    assert with_deadline is not None
    assert 0 < with_deadline <= 61  # gRPC rounds it up on the wire
    assert without is None


async def test_a_client_that_leaves_is_cancelled(world: World) -> None:
    """B22: what is queued for it is not run."""
    world.engine.holding = True
    call = world.infer()
    await asyncio.wait_for(world.engine.taken.wait(), 60)

    call.cancel()

    await asyncio.wait_for(world.engine.cancelled.wait(), 60)


async def test_a_deadline_that_passes_is_cancelled(world: World) -> None:
    """The client has its DEADLINE_EXCEEDED; the engine need not keep the request."""
    world.engine.holding = True

    for seconds in (0.2, 2, 20):  # where it passes before the call is there, nobody is asked
        error = await failure(world.infer(timeout=seconds))
        assert grpc.StatusCode.DEADLINE_EXCEEDED is error.code()
        if world.engine.taken.is_set():
            break

    await asyncio.wait_for(world.engine.cancelled.wait(), 60)


async def test_a_call_that_fails_by_our_fault_gives_its_bytes_back(world: World) -> None:
    """The budget is everybody's, and would never come back."""
    world.engine.broken = TypeError("a bug")

    await failure(world.infer())

    assert 0 == world.frontend.bodies.held


async def test_an_answered_call_is_not_cancelled(world: World) -> None:
    """Otherwise the test above could not fail."""
    await world.infer()

    assert not world.engine.cancelled.is_set()


async def test_each_connection_is_one_client(world: World) -> None:
    """The batching policy learns how a connection comes back."""
    await world.infer()
    await world.infer()
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(world.target, options=options) as other:
        await other.unary_unary(INFER)(iris().SerializeToString())

    first, again, elsewhere = world.engine.clients
    assert first is again
    assert first is not elsewhere


async def test_a_message_above_the_limit_is_refused(world: World) -> None:
    """overload.maxBodySize holds on every wire, packed or not."""
    big = iris(id="x" * 200_000).SerializeToString()

    plain = await failure(world.infer(big))
    packed = await failure(world.infer(big, compression=grpc.Compression.Gzip))

    assert len(gzip.compress(big)) < SETTINGS.max_body_bytes
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is plain.code()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is packed.code()
    assert [] == world.engine.clients


async def test_nothing_is_ready_before_a_model_process_is(world: World) -> None:
    """N11: live is not ready."""
    world.engine.methods = {}

    async with triton.InferenceServerClient(world.target) as client:
        assert await client.is_server_live()
        assert not await client.is_server_ready()
        assert not await client.is_model_ready("iris")
    error = await failure(world.infer())

    assert grpc.StatusCode.UNAVAILABLE is error.code()
    assert "2" == dict(error.trailing_metadata())["retry-after"]


async def test_a_draining_server_is_not_ready_and_answers(world: World) -> None:
    """A request that comes before the endpoints have dropped this pod is still served."""
    world.frontend.draining = True

    async with triton.InferenceServerClient(world.target) as client:
        assert not await client.is_server_ready()
        assert not await client.is_model_ready("iris")
    assert await world.infer()


async def test_stopping_waits_for_what_was_begun(world: World) -> None:
    """B20: no request that was taken is lost by a stop."""
    world.engine.holding = True
    call = world.infer()
    await asyncio.wait_for(world.engine.taken.wait(), 60)

    stopping = asyncio.ensure_future(world.server.stop(60))
    await asyncio.sleep(0.05)
    begun = stopping.done()
    world.engine.held[0]()

    assert not begun
    assert messages.ModelInferResponse.FromString(await call).outputs
    await asyncio.wait_for(stopping, 60)


async def test_a_port_that_is_taken_is_an_error(world: World) -> None:
    """Two servers that silently share a port answer for each other."""
    taken = dataclasses.replace(SETTINGS, grpc_port=world.server.port)

    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{world.server.port} for gRPC"):
        await GrpcServer(taken, Frontend(taken, world.engine, world.recorder), lambda: None).start()


async def test_a_server_without_a_port_is_not_started() -> None:
    """Whoever owns the web process asks before."""
    settings = dataclasses.replace(SETTINGS, grpc_port=None)

    with pytest.raises(ValueError, match="expected a port, got None"):
        await GrpcServer(settings, Frontend(settings, FakeEngine(), Recorder([])), print).start()
