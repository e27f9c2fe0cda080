"""The first web process's side of `remote`: requests of further web processes join the queue."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from batchedapi_core.batching import Client
from batchedapi_serving.dispatch.engine import Engine, RequestHandle
from batchedapi_serving.dispatch.messages import pack_outcome, stand_in, told_of, unpack_rows
from batchedapi_serving.dispatch.outcomes import Outcome, Relayed
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc import BrokenFrameError, FrameProtocol, Meta
from batchedapi_serving.tracing.spans import Span


class EngineServer:
    """Owner of the connections of further web processes."""

    def __init__(self, engine: Engine, answered: Callable[[int], None]) -> None:
        """`answered` counts a response by its code that the engine has not counted."""
        self.engine = engine
        self.answered = answered
        self.connections: set[RemoteWeb] = set()
        self._gone = asyncio.Event()
        self._gone.set()

    def protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection, for `loop.create_unix_server`."""
        return RemoteWeb(self)

    def ready(self) -> None:
        """The engine's methods are known: tell them who connected before."""
        for connection in self.connections:
            connection.say_hello()

    def opened(self, connection: "RemoteWeb") -> None:
        """A web process connected."""
        self.connections.add(connection)
        self._gone.clear()

    def closed(self, connection: "RemoteWeb") -> None:
        """A web process is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._gone.set()

    async def drained(self) -> None:
        """Wait until every further web process is gone, and so has all its answers."""
        await self._gone.wait()


class RemoteWeb(FrameProtocol):
    """The connection of one further web process."""

    PEER = "a web process"

    def __init__(self, server: EngineServer) -> None:
        super().__init__()
        self._server = server
        self._engine = server.engine
        self._clients: dict[int, Client] = {}
        self._handles: dict[int, RequestHandle] = {}

    def connection_made(self, transport: Any) -> None:
        """It connected; it is told the methods once they are known."""
        super().connection_made(transport)
        self._server.opened(self)
        self.say_hello()

    def say_hello(self) -> None:
        """Tell the methods, if they are known."""
        methods = self._engine.methods
        if methods:
            specs = [spec.to_json() for spec in methods.values()]
            hello = {"methods": specs, "default": self._engine.default}
            self.say({"hello": hello})

    def take(self, meta: Meta, payload: bytes) -> None:
        """Take a request, or news of clients."""
        match meta:
            case {"request": int(number)}:
                self._submit(number, meta, payload)
            case {"cancel": int(number), "status": int(status)}:
                handle = self._handles.pop(number, None)
                if handle is not None:
                    self._engine.cancel(handle, status)
            case {"taken": int(number), "items": int(items)}:
                handle = self._handles.get(number)
                if handle is not None:
                    self._engine.taken(handle, items)
            case {"disconnected": int(number)}:
                client = self._clients.pop(number, None)
                if client is not None:
                    self._engine.disconnected(client)
            case {"answered": int(code), "times": int(times)}:
                for _ in range(times):
                    self._server.answered(code)
            case _:
                raise BrokenFrameError(f"frame with {', '.join(meta)}")

    def _submit(self, number: int, meta: Meta, payload: bytes) -> None:
        span = stand_in(meta)  # for the one over there, which is told what this one learns
        client = self._clients.get(meta["client"])
        if client is None:
            client = self._clients[meta["client"]] = Client()
        asked = Relayed(
            functools.partial(self._answer, number, span),
            span,
            on_item=functools.partial(self._item, number),
        )
        decoded = unpack_rows(meta, payload, asked)
        try:
            served = self._engine.served(meta["method"])
            handle = self._engine.submit(served, decoded, client, asked, meta["timeout"])
        except ServingError as error:
            self._server.answered(error.status)
            self._answer(number, span, error)
        else:
            if not handle.done:
                self._handles[number] = handle

    def _item(self, number: int, kind: str, body: bytes) -> None:
        self.say({"item": number, "kind": kind}, (body,))

    def _answer(self, number: int, span: Span | None, outcome: Outcome) -> None:
        self._handles.pop(number, None)
        meta, buffers = pack_outcome(outcome)
        self.say({**meta, "answer": number, **told_of(span)}, buffers)

    def connection_lost(self, exc: Exception | None) -> None:
        """The web process is gone, and with it all its clients."""
        super().connection_lost(exc)
        for handle in list(self._handles.values()):
            self._engine.cancel(handle)
        self._handles.clear()
        for client in self._clients.values():
            self._engine.disconnected(client)
        self._clients.clear()
        self._server.closed(self)
