"""What every connection of a web process shares."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from uvicorn.server import ServerState

from batchedapi_serving.dispatch.desk import Desk, Ticket
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.large_bodies import LargeBodies
from batchedapi_serving.web.large_request import LargeRequest
from batchedapi_serving.web.limits import (
    MOST_CONNECTIONS,
    SWEEP_SECONDS,
    BodyBudget,
    ConnectionLimit,
    Limits,
)
from batchedapi_serving.web.routes import Route, prediction_routes


class Counter(Protocol):
    """Counts the responses that the desk has not counted."""

    def answered(self, code: int) -> None:
        """A request ended with that status, and never reached a queue."""


class Frontend:
    """Routes, limits and state of one web process; one owner for all its connections."""

    def __init__(
        self,
        settings: ReplicaSettings,
        desk: Desk,
        recorder: Counter,
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.connection_limit = ConnectionLimit(connections)
        self.settings = settings
        self.desk = desk
        self.recorder = recorder
        self.limits = Limits(
            body=settings.max_body_bytes,
            idle=settings.keep_alive,
            age=math.inf if settings.max_connection_age is None else settings.max_connection_age,
        )
        self.large = LargeBodies(settings, desk, recorder.answered)
        self.bodies = BodyBudget(settings.max_body_bytes)
        self.draining = False
        self.accepted_at = -math.inf
        """When the last client connected, over HTTP or gRPC, on the loop's clock."""
        self.routes: dict[str, Route] = {}
        """By path; those of named methods once the methods are known."""
        self.hot: dict[bytes, Route] = {}
        """The routes whose POSTs are answered from the parser's callbacks; grows in place."""
        self._known: tuple[str, ...] | None = None
        self._date_source: list[tuple[bytes, bytes]] | None = None
        self._date = b""
        self.learn_methods()

    def cancel(self, ticket: Ticket) -> None:
        """The client of a request left: what is not done is not begun, and nobody is told."""
        if isinstance(ticket, LargeRequest):
            self.large.cancel(ticket)
        else:
            self.desk.cancel(ticket)

    def learn_methods(self) -> bool:
        """Build the table of routes anew if the methods are not those it was built from."""
        methods = tuple(self.desk.methods)
        if methods == self._known:
            return False
        self._known = methods
        self.routes = prediction_routes(self.settings, methods)
        if self.settings.fast_lane:
            self.hot.clear()
            self.hot.update((path.encode(), route) for path, route in self.routes.items())
        return True

    def date_line(self, state: ServerState) -> bytes:
        """The `date` header as uvicorn renews it once a second."""
        if self._date_source is not state.default_headers:
            self._date_source = state.default_headers
            self._date = b"".join(
                b"%b: %b\r\n" % pair for pair in state.default_headers if pair[0] == b"date"
            )
        return self._date

    async def watch(self, state: ServerState, on_sweep: Callable[[], None]) -> None:
        """Close connections that are over a time limit, call `on_sweep`; until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS / 2)
            now = loop.time()
            for connection in list(state.connections):
                connection.check_time(now)  # type: ignore[union-attr]  # all are ours
            self.bodies.sweep()
            on_sweep()
