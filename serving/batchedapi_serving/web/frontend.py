"""Everything that the connections of a web process share, and the paths there are."""

import asyncio
import math
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from uvicorn.server import ServerState

from batchedapi_core import contract
from batchedapi_serving.codecs import Wire
from batchedapi_serving.codecs.open_inference_metadata import (
    MODEL_VERSION,
    model_config,
    model_statistics,
)
from batchedapi_serving.dispatch.engine import CLIENT_LEFT, Engine, RequestHandle
from batchedapi_serving.metrics.slots import BYTES, Memory, method_block
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import Tracer
from batchedapi_serving.web.access import Guard, is_preflight, needs_no_key
from batchedapi_serving.web.large_bodies import LargeBodies
from batchedapi_serving.web.large_request import LargeRequest
from batchedapi_serving.web.limits import (
    MOST_CONNECTIONS,
    NOBODY,
    SWEEP_SECONDS,
    BodyBudget,
    ConnectionLimit,
    Limits,
)
from batchedapi_serving.web.parser import KnownHeads, RequestParser

METADATA_PATHS: Final = (
    "/",
    "/v1/models",
    "/v1/models/{model}",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/stats",
    "/v2/models/{model}",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/config",
    "/v2/models/{model}/stats",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready",
    "/v2/models/{model}/versions/{version}/config",
    "/v2/models/{model}/versions/{version}/stats",
)
"""Templates of the paths of metadata, of which GET is served."""


OPENAI_PATHS: Final = {"/v1/embeddings": Wire.EMBEDDINGS, "/v1/rerank": Wire.RERANK}
"""Each is of the method that has the language's name."""


class Route(NamedTuple):
    """The method and the language of a path that takes predictions."""

    method: str | None
    """None: the default method."""
    wire: Wire


class NamedModel(NamedTuple):
    """A method as protocols that know models, not methods, see it."""

    name: str
    method: str | None


def models(name: str, methods: Iterable[str]) -> tuple[NamedModel, ...]:
    """The replica's own name is its default method; further ones have theirs behind a dot."""
    public = (method for method in methods if not method.endswith(contract.METHOD_BATCH))
    return (NamedModel(name, None), *(NamedModel(f"{name}.{method}", method) for method in public))


def prediction_routes(settings: ReplicaSettings, methods: Iterable[str]) -> dict[str, Route]:
    """Every path that takes predictions, by the path as it is written without escapes.

    Where two routes have one path (an endpoint may be anything) the first of this order is served:
    `/predict`, `/<name>`, the endpoint, the protocols.
    """
    endpoint = settings.endpoint.rstrip("/")
    methods = [method for method in methods if not method.endswith(contract.METHOD_BATCH)]
    table = {path: Route(None, Wire.PLAIN) for path in default_paths(settings)}
    for method in methods:
        table.setdefault(f"{endpoint}/{method}", Route(method, Wire.PLAIN))
    for model, name in models(settings.name, methods):
        table.setdefault(f"/v1/models/{model}:predict", Route(name, Wire.V1))
        table.setdefault(f"/v2/models/{model}/infer", Route(name, Wire.V2))
        versioned = f"/v2/models/{model}/versions/{MODEL_VERSION}/infer"
        table.setdefault(versioned, Route(name, Wire.V2))
    for path, wire in OPENAI_PATHS.items():
        if wire.value in methods:
            table.setdefault(path, Route(wire.value, wire))
    return table


def default_paths(settings: ReplicaSettings) -> tuple[str, ...]:
    """Plain paths of the default method; two of them may be the same.

    The first two are what clients of other servers call: they are there whatever the endpoint is.
    """
    return contract.PATH_PREDICT, f"/{settings.name}", settings.endpoint


def wire_of_path(path: str) -> Wire:
    """The language in which an error is told before a route is known."""
    if path == "/v2" or path.startswith("/v2/"):
        return Wire.V2
    return OPENAI_PATHS.get(path) or (Wire.V1 if path.startswith("/v1/") else Wire.PLAIN)


class Routes:
    """The routes of predictions; those of named methods once the methods are known.

    Attributes:
        by_path: By path without escapes.
        known: Heads of predictions that were parsed before.
    """

    def __init__(self, settings: ReplicaSettings, engine: Engine, *, traced: bool) -> None:
        self._settings = settings
        self._engine = engine
        self._methods: tuple[str, ...] | None = None
        self.by_path: dict[bytes, Route] = {}
        self.known = KnownHeads(self.by_path, traced=traced)
        self._learn()

    def of(self, path: bytes) -> Route | None:
        """The route of a path that may have escapes, or a method that was not known before."""
        self._learn()
        return self.by_path.get(urllib.parse.unquote_to_bytes(path))

    def of_stream(self, path: bytes) -> Route | None:
        """The route of a path that is asked with GET: a browser's EventSource knows nothing else.

        Only of methods that stream; a GET of / asks whether the server lives.
        """
        route = None if path == b"/" else self.of(path)
        if route is None or route.wire is not Wire.PLAIN:
            return None
        name = self._engine.default if route.method is None else route.method
        spec = self._engine.methods.get(name or "")
        return route if spec is not None and spec.streams else None

    def _learn(self) -> None:
        """Build the table anew if the methods are not those it was built from."""
        methods = tuple(self._engine.methods)
        if methods != self._methods:
            self._methods = methods
            table = prediction_routes(self._settings, methods)
            self.by_path.clear()  # known heads have it
            self.by_path.update((path.encode(), route) for path, route in table.items())


_UNCOUNTED: Final = memoryview(bytes(BYTES)).cast("d")


class Frontend:
    """Routes, limits and state of one web process; one owner for all its connections.

    Attributes:
        draining: The replica stops.
        closing: Nobody is let in any more.
        accepted_at: Time of the last connection, over HTTP or gRPC, on the loop's clock.
        date: The `date` header line, made of `date_source`.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        engine: Engine,
        answered: Callable[[int], None],
        connections: int = MOST_CONNECTIONS,
        *,
        memory: Memory = _UNCOUNTED,
        tracer: Tracer | None = None,
    ) -> None:
        """`answered` counts a response by its code that the engine has not counted.

        `memory` has the figures of every method; without it, nothing was ever counted. `tracer`
        begins spans of requests; None: none has any.
        """
        self.tracer = tracer
        self._memory = memory
        self.connection_limit = ConnectionLimit(connections)
        self.settings = settings
        self.engine = engine
        self.answered = answered
        self.limits = Limits(
            body=settings.max_body_bytes,
            idle=settings.keep_alive,
            age=math.inf if settings.max_connection_age is None else settings.max_connection_age,
        )
        self.large = LargeBodies(settings, engine, answered)
        self.bodies = BodyBudget(settings.max_body_bytes)
        self.guard = Guard(settings)
        self.routes = Routes(settings, engine, traced=tracer is not None)
        self.draining = self.closing = False
        self.accepted_at = -math.inf
        self.date = b""
        self.date_source: list[tuple[bytes, bytes]] | None = None

    @property
    def leaving(self) -> bool:
        """Whether it says that it is not ready; in a pod it does as long as anybody is let in."""
        return self.closing or (self.draining and not self.settings.in_pod)

    def parser(self) -> RequestParser:
        """The parser of one connection."""
        admit = None if self.guard.keys is None else self._owner_of
        traced = self.tracer is not None
        return RequestParser(self.limits, self.routes.known, traced=traced, admit=admit)

    def _owner_of(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> str:
        keys, cors = self.guard.keys, self.guard.cors
        if keys is None or (cors is not None and is_preflight(method, headers)):
            return NOBODY
        path = target.partition(b"?")[0]
        # A stream may be read with GET, and an endpoint be called like one of the open pages.
        if needs_no_key(method, path, headers) and self.routes.of_stream(path) is None:
            return NOBODY
        return keys.check(headers)

    def cancel(self, handle: RequestHandle, status: int = CLIENT_LEFT) -> None:
        """The client of a request left: what is not done is not begun, and nobody is told."""
        if isinstance(handle, LargeRequest):
            self.large.cancel(handle, status)
        else:
            self.engine.cancel(handle, status)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """The client of a stream took so many more items."""
        inner = handle.handle if isinstance(handle, LargeRequest) else handle
        if inner is not None:
            self.engine.taken(inner, items)

    def model_config(self, model: str, method: MethodSpec) -> dict[str, Any]:
        """Triton's document of a model's configuration."""
        settings = self.settings
        lanes = settings.processes * settings.threads
        return model_config(model, method, settings.of_method(method.name), lanes)

    def model_statistics(self, served: Mapping[str, MethodSpec]) -> dict[str, Any]:
        """Triton's document of the statistics of these models."""
        places = {name: place for place, name in enumerate(self.engine.methods)}
        return {
            "model_stats": [
                model_statistics(model, method_block(self._memory, places[method.name]).tolist())
                for model, method in served.items()
            ]
        }

    def renew_date(self, state: ServerState) -> None:
        """Take over the headers that uvicorn makes anew once a second."""
        self.date_source = state.default_headers
        self.date = b"".join(
            b"%b: %b\r\n" % pair for pair in state.default_headers if pair[0] == b"date"
        )

    async def watch(self, state: ServerState, on_sweep: Callable[[], None]) -> None:
        """Close connections that are over a time limit, call `on_sweep`; until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS / 2)
            now = loop.time()
            for connection in list(state.connections):
                connection.check_time(now)  # type: ignore[union-attr]  # all are ours
            self.bodies.sweep()
            if self.guard.keys is not None:
                self.guard.keys.renew(now)
            on_sweep()
