"""The gRPC server of a web process: beside uvicorn, on the same loop and the same engine.

Beside the calls of `service` it answers what tools ask of any server, `grpc.health.v1` and
reflection. Both have calls that go on for as long as the client wants; they end when the replica
stops, or a stop would wait for a page that somebody left open. All are behind the `Door`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Final

import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import aio as reflection_aio

from batchedapi_core import contract
from batchedapi_serving.codecs import open_inference_pb2 as messages
from batchedapi_serving.grpc.door import Door
from batchedapi_serving.grpc.observed import traced
from batchedapi_serving.grpc.service import SERVICE, Service
from batchedapi_serving.grpc.sockets import Sockets, lowest_free_descriptor
from batchedapi_serving.processes import essential
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import Tracer
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.limits import NOBODY

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
        door: What has all calls.
    """

    def __init__(
        self, settings: ReplicaSettings, frontend: Frontend, connected: Callable[[], None]
    ) -> None:
        """Prepare to serve; `start` listens.

        Args:
            connected: Called with the first ModelInfer of every connection.
        """
        self._settings = settings
        self._connection_limit = frontend.connection_limit
        self._service = Service(settings.name, frontend, connected)
        self._sockets = Sockets()
        self.door = Door(frontend, self._sockets)
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self._health = Health(SERVICE, self._service.ready, self._stopping)
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        self._register(frontend.tracer)

    async def start(self) -> None:
        """Listen and answer.

        Raises:
            OSError: the port is taken, or not ours to take.
            ValueError: the settings name no port.
        """
        port = self._settings.grpc_port
        if port is None:
            raise ValueError("grpc_port: expected a port, got None; nothing is to be served there")
        server = grpc.aio.server(handlers=(self.door,), options=self._options())
        host = self._settings.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._sockets.port = server.add_insecure_port(address)
        except RuntimeError as error:
            await server.stop(None)
            raise OSError(f"cannot listen on {address} for gRPC: {error}") from error
        await server.start()
        self._server = server
        self._tasks = [
            essential("health for those who watch", self._health.look()),
            essential("room for connections", self._make_room()),
        ]
        log.info("gRPC listening", extra={"host": host, "port": self.port})

    def _options(self) -> list[tuple[str, int]]:
        settings = self._settings
        options: list[tuple[str, int]] = [
            ("grpc.max_connection_idle_ms", int(settings.keep_alive * 1000)),
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            # A few bytes stand for gigabytes, which gRPC inflates before it looks at their limit.
            ("grpc.per_message_decompression", 0),
            # It would let a fast client send megabytes to a call that nobody reads.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.max_metadata_size", contract.MAX_HEADER_BYTES),
            ("grpc.absolute_max_metadata_size", contract.MAX_HEADER_BYTES),
            ("grpc.max_concurrent_streams", settings.max_concurrency),
            ("grpc.max_allowed_incoming_connections", self._connection_limit.most),
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
        return options

    def _register(self, tracer: Tracer | None) -> None:
        handlers = self._service.handlers()
        if tracer is not None:
            infer = traced(tracer, self._service.model_infer)
            handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(infer)
        self.door.add_registered_method_handlers(SERVICE, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.door)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        asked = Reflection(names, self._stopping)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(asked, self.door)

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
            for task in self._tasks:
                task.cancel()

    async def _make_room(self) -> None:
        """Close idle connections of whoever has most, before there are as many as may be.

        gRPC closes the next one then, whose ever it is, and does not look at those that it has.
        """
        loop, limit = asyncio.get_running_loop(), self._connection_limit
        nearly = limit.most - limit.most // _ROOM
        while True:
            await asyncio.sleep(_ROOM_SECONDS)
            if lowest_free_descriptor() < nearly:
                continue
            peers = await asyncio.to_thread(self._sockets.peers)
            if len(peers) >= nearly:
                since = self.door.transfers.waits_since(peers)
                for peer in limit.who_leaves(since, NOBODY, loop.time()):
                    self._sockets.close(peer)


_ROOM: Final = 64
"""One part in so many of the connections there may be is kept free."""
_ROOM_SECONDS: Final = 0.25
"""Between looks whether it is free."""
_LOOK_SECONDS: Final = 0.5
"""Between looks whether the health has changed, for those who watch it."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package is untyped
    """SERVING while predictions are answered; the server as a whole, and the service, are one."""

    def __init__(self, service: str, ready: Callable[[], bool], stopping: asyncio.Event) -> None:
        self._names = ("", service)
        self._ready = ready
        self._stopping = stopping
        self._changed = asyncio.Event()

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
        while not self._stopping.is_set():
            changed = self._changed
            yield self._now()
            await changed.wait()
        yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    async def look(self) -> None:
        """Tell those who watch of changes, until the replica stops; one looks for all."""
        while not self._stopping.is_set():
            before = self._ready()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stopping.wait()
            if self._stopping.is_set() or self._ready() != before:
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

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
    """Items from `source` that come before the event."""
    iterator = aiter(source)
    tasks: set[asyncio.Future[Any]] = {asyncio.create_task(event.wait())}
    try:
        while not event.is_set():
            tasks.add(following := asyncio.ensure_future(anext(iterator, None)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            tasks.discard(following)
            if (question := following.result()) is None:
                return
            yield question
    finally:
        for task in tasks:
            task.cancel()
