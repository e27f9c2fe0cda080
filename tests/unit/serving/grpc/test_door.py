"""Checks of a call before it is answered, over real sockets: its key, its bytes, its time."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from batchedapi_core.batching import Client
from batchedapi_serving.grpc.door import OPEN, Door
from batchedapi_serving.grpc.server import GrpcServer
from batchedapi_serving.grpc.sockets import Sockets
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.limits import HeldBodies
from dispatching import replica_settings
from hostile_calls import Wire, message

CALL = "/tests.Service/Call"
LIMIT = 100_000
LONG = bytes(10_000_000)
"""More than gRPC sends to a client that reads nothing."""
SECONDS = 60.0
"""More than anything here takes on a busy machine."""
Answers = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


class NoEngine:
    """No model is here; no test asks for one."""

    methods: ClassVar[dict[str, Any]] = {}
    default = None

    def disconnected(self, client: Client) -> None:
        """See Engine."""


class World:
    """A server with one call, which `answers`, and a connection to it."""

    def __init__(self, answers: Answers, limits: dict[str, float]) -> None:
        settings = replica_settings(name="iris", max_body_bytes=LIMIT)
        self.answered: list[int] = []
        self.frontend = Frontend(settings, NoEngine(), self.answered.append)  # type: ignore[arg-type]  # no model
        self.frontend.limits = self.frontend.limits._replace(**limits)  # type: ignore[arg-type]  # of floats
        self.budget = self.frontend.bodies
        sockets = Sockets()
        door = Door(self.frontend, sockets)
        handler = grpc.unary_unary_rpc_method_handler(answers)
        door.add_registered_method_handlers("tests.Service", {"Call": handler})
        options = [("grpc.per_message_decompression", 0), ("grpc.http2.bdp_probe", 0)]
        self.server = grpc.aio.server(handlers=(door,), options=options)
        sockets.port = self.server.add_insecure_port("127.0.0.1:0")
        self.target = f"127.0.0.1:{sockets.port}"

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.target)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def call(self, body: bytes, **options: Any) -> Any:
        """One that sends all of its message."""
        return self.channel.unary_unary(CALL)(body, **options)

    def unfinished(self, path: str = CALL) -> Any:
        """One that has sent nothing of its message yet."""
        return self.channel.stream_unary(path)()

    async def holds(self, least: int, most: int) -> None:
        """Until so many bytes are held."""
        async with asyncio.timeout(SECONDS):
            while not least <= self.budget.held <= most:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    async def released(self) -> None:
        """Until nothing is held any more."""
        await self.holds(0, 0)


def world(answers: Answers, **limits: float) -> World:
    """See World."""
    return World(answers, limits)


async def echo(body: bytes, _: grpc.aio.ServicerContext) -> bytes:
    """Answer a message with itself."""
    return body


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


class Guarded(NamedTuple):
    """The server of a replica that asks for keys."""

    server: GrpcServer
    frontend: Frontend

    @property
    def target(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server.port}"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """Started, and stopped in the end."""
    (tmp_path / "key").write_text("right")
    settings = replica_settings(name="iris", grpc_port=0, api_keys=str(tmp_path))
    frontend = Frontend(settings, NoEngine(), lambda _: None)  # type: ignore[arg-type]  # no model
    server = GrpcServer(settings, frontend, lambda: None)
    await server.start()
    yield Guarded(server, frontend)
    await server.stop(0)


async def test_every_call_but_those_of_a_list_asks_for_a_key(guarded: Guarded) -> None:
    """Whatever is registered, also one day; before its message, of which nothing is sent here."""
    calls = [*guarded.server.door.calls, "/tests.Service/NoSuchCall", ""]

    async with grpc.aio.insecure_channel(guarded.target) as channel:
        needed = {
            path
            for path in calls
            if path not in OPEN
            and grpc.StatusCode.UNAUTHENTICATED
            is (await failure(channel.stream_unary(path)())).code()
        }
        live = await channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")
        key = (("x-api-key", "right"),)
        other = await failure(channel.unary_unary(calls[-2])(b"", metadata=key))

    assert set(calls) - OPEN == needed
    assert OPEN <= set(calls)
    assert {"/grpc.health.v1.Health/Watch", "/inference.GRPCInferenceService/ModelStatistics"} <= (
        needed
    )
    assert b"\x08\x01" == live
    assert grpc.StatusCode.UNIMPLEMENTED is other.code()


async def test_of_many_calls_without_a_key_the_last_are_told_later(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over HTTP, at the same pace."""
    keys = guarded.frontend.guard.keys
    assert keys is not None
    pauses: list[float] = []
    monkeypatch.setattr(keys, "pause", lambda _: pauses.append(0.001) or 0.001)
    service = "inference.GRPCInferenceService"

    async with grpc.aio.insecure_channel(guarded.target) as channel:
        refused = await failure(channel.unary_unary(f"/{service}/ModelInfer")(b""))
        await channel.unary_unary(f"/{service}/ServerLive")(b"")

    assert grpc.StatusCode.UNAUTHENTICATED is refused.code()
    assert [0.001] == pauses


async def test_no_call_is_open_that_is_not_served(guarded: Guarded) -> None:
    """A name that is written wrong would open nothing, and look as if it did."""
    assert OPEN <= set(guarded.server.door.calls)


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_packed_messages_are_answered(how: grpc.Compression) -> None:
    """GRPC's own clients do both; short ones they send as they are, which nothing says."""
    async with world(echo) as one:
        for body in (b"", b"\x0a\x01", b"\x0a" + b"a" * (LIMIT - 1)):
            assert body == await one.call(body, compression=how)
        await one.released()


async def test_a_bomb_is_refused_at_the_limit() -> None:
    """A few bytes that stand for more than a body may be."""
    bomb = gzip.compress(bytes(LIMIT + 1))

    async with world(echo) as one:
        error = await failure(one.call(bomb))
        await one.released()

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()
    assert "once inflated" in (error.details() or "")
    assert [413] == one.answered


async def test_what_is_no_gzip_is_the_clients_fault() -> None:
    """It begins like one."""
    async with world(echo) as one:
        error = await failure(one.call(b"\x1f\x8b" + b"a" * 100))

    assert grpc.StatusCode.INVALID_ARGUMENT is error.code()


async def test_a_message_has_its_time() -> None:
    """One that never ends is not awaited for ever, and nothing of it is kept."""
    async with world(echo, body_arrival=0.05) as one:
        error = await failure(one.unfinished())
        await one.released()

    assert grpc.StatusCode.DEADLINE_EXCEEDED is error.code()
    assert [408] == one.answered


async def test_a_message_that_hardly_moves_is_given_up() -> None:
    """Bytes that come one by one would hold a place as long as all of it may take."""
    async with world(echo, grace_period=0.05, least_rate=10_000_000) as one:
        error = await failure(one.unfinished())

    assert grpc.StatusCode.DEADLINE_EXCEEDED is error.code()


async def test_a_message_that_is_awaited_counts() -> None:
    """GRPC takes its first bytes before it is read."""
    async with world(echo) as one:
        call = one.unfinished()
        await one.holds(1, LIMIT)
        call.cancel()
        await one.released()


async def test_a_call_without_a_message_is_the_clients_fault() -> None:
    """It ends before it began."""
    async with world(echo) as one:
        call = one.unfinished()
        await call.done_writing()
        error = await failure(call)

    assert (grpc.StatusCode.INVALID_ARGUMENT, "message: expected one, got none") == (
        error.code(),
        error.details(),
    )


async def test_a_message_beyond_the_budget_is_told_when_to_come_back() -> None:
    """The budget is one for all protocols: what HTTP holds is not free here."""
    async with world(echo) as one:
        others = HeldBodies(one.budget, "others")
        others.answering(one.budget.most)

        error = await failure(one.call(b"\x0a" * LIMIT))
        others.released()

        assert b"\x0a" * LIMIT == await one.call(b"\x0a" * LIMIT)
        await one.released()
    assert grpc.StatusCode.UNAVAILABLE is error.code()
    assert "1" == dict(error.trailing_metadata() or ())["retry-after"]


async def test_an_answer_beyond_the_budget_is_not_kept() -> None:
    """It would wait for its client with nobody counting it."""
    async with world(answers_long) as one:
        others = HeldBodies(one.budget, "others")
        others.answering(one.budget.most)

        error = await failure(one.call(b""))

        assert one.budget.most == one.budget.held
    assert grpc.StatusCode.UNAVAILABLE is error.code()


async def answers_long(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
    """An answer that does not fit into buffers."""
    return LONG


async def test_an_answer_that_nobody_reads_counts_and_leaves_for_others() -> None:
    """Closing its connection, in favour of a client that holds less, frees its bytes in gRPC."""
    async with world(answers_long, grace_period=0.1) as one:
        call = one.channel.unary_stream(CALL)(b"")  # nothing is read
        await one.holds(len(LONG), one.budget.most)
        fullest, other = HeldBodies(one.budget, "fullest"), HeldBodies(one.budget, "other")
        fullest.answering(one.budget.most - one.budget.held)

        assert other.answering(len(LONG) // 2)
        other.released()
        fullest.released()
        await one.released()
        call.cancel()


async def test_a_short_answer_that_nobody_reads_counts_in_the_end() -> None:
    """So many of them are as long as a long one."""
    async with world(echo, grace_period=0.1) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(one.target[10:]))
        wire = Wire(reader, writer, window=0)
        await wire.send(wire.call(CALL), message(b"\x0a\x01"), ends=True, seconds=1)

        await one.holds(1, LIMIT)
        writer.transport.abort()
        await one.released()


async def test_a_watch_without_a_message_is_the_clients_fault(guarded: Guarded) -> None:
    """Not UNKNOWN, which would be ours."""
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        watch = channel.stream_stream("/grpc.health.v1.Health/Watch")(
            metadata=(("x-api-key", "right"),)
        )
        await watch.done_writing()

        assert grpc.StatusCode.INVALID_ARGUMENT is await watch.code()


async def test_a_call_that_goes_on_counts(guarded: Guarded) -> None:
    """So that the number of those who watch is bounded."""
    request = health_pb2.HealthCheckRequest().SerializeToString()

    async with grpc.aio.insecure_channel(guarded.target) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(
            request, metadata=(("x-api-key", "right"),)
        )
        await watch.read()

        assert guarded.frontend.bodies.held > 0
        watch.cancel()


async def test_a_message_that_is_none_is_the_clients_fault(guarded: Guarded) -> None:
    """Not UNKNOWN, which would be ours."""
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        error = await failure(channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff"))

    assert grpc.StatusCode.INVALID_ARGUMENT is error.code()
