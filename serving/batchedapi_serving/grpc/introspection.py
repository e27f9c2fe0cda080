"""What tools ask of any gRPC server: `grpc.health.v1` and reflection.

Both have calls that go on for as long as the client wants. They end when the replica stops, or a
stop would wait for a page that somebody left open.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Final

import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import aio as reflection_aio

from batchedapi_serving.codecs import open_inference_pb2 as messages

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
