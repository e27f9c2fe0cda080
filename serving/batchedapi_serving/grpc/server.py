"""The gRPC server of a web process: beside uvicorn, on the same loop and the same engine."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import grpc.aio

from batchedapi_core import contract
from batchedapi_serving.grpc.interceptors import interceptors_of
from batchedapi_serving.grpc.introspection import add_introspection
from batchedapi_serving.grpc.service import SERVICE, Service
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.frontend import Frontend

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
        server = grpc.aio.server(interceptors=self._interceptors, options=self._options())
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

    def _options(self) -> list[tuple[str, int]]:
        """Limits; gRPC jitters the age of a connection itself, by a tenth.

        A connection that is too old takes no further calls and answers those begun, each of which
        has an answer of some kind within the timeout.
        """
        settings = self._settings
        ages = [("grpc.max_connection_idle_ms", int(settings.keep_alive * 1000))]
        if settings.max_connection_age is not None:
            age = max(1, int(settings.max_connection_age * 1000))
            ages.append(("grpc.max_connection_age_ms", age))
            if settings.timeout is not None:
                grace = settings.timeout + contract.TERMINATION_MARGIN_SECONDS
                ages.append(("grpc.max_connection_age_grace_ms", int(grace * 1000)))
        return [
            *ages,
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
