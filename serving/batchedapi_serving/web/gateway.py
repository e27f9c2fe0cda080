"""What every connection of a web process shares."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from batchedapi_core import contract
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.limits import SWEEP_SECONDS, Limits


class Gateway:
    """Routes, limits and state of one web process; one owner for all its connections."""

    def __init__(
        self, settings: ReplicaSettings, dispatcher: Dispatcher, recorder: Recorder
    ) -> None:
        self.dispatcher = dispatcher
        self.recorder = recorder
        self.limits = Limits(body=settings.max_body_bytes)
        self.draining = False
        paths = prediction_paths(settings.endpoint) if settings.fast_lane else ()
        self.hot = frozenset(path.encode() for path in paths)
        """Paths whose POSTs are answered from the parser's callbacks."""
        self._date_source: list[tuple[bytes, bytes]] | None = None
        self._date = b""

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - uvicorn's signature
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """A connection's protocol, for uvicorn's `http` setting."""
        from batchedapi_serving.web.connection import Connection  # noqa: PLC0415 - it needs Gateway

        return Connection(self, config, server_state)

    def date_line(self, state: ServerState) -> bytes:
        """The `date` header as uvicorn renews it once a second."""
        if self._date_source is not state.default_headers:
            self._date_source = state.default_headers
            self._date = b"".join(
                b"%b: %b\r\n" % pair for pair in state.default_headers if pair[0] == b"date"
            )
        return self._date

    async def watch(self, state: ServerState) -> None:
        """Close connections that are over a time limit, keep the gauges fresh; until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS / 2)
            now = loop.time()
            for connection in list(state.connections):
                connection.check_time(now)  # type: ignore[union-attr]  # all are ours
            self.dispatcher.update_gauges()


def prediction_paths(endpoint: str) -> tuple[str, ...]:
    """Paths under which the method is asked for."""
    return (contract.PATH_PREDICT, endpoint, f"{endpoint}/predict")
