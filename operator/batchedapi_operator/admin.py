"""The operator's two ports: health and metrics for everybody; the rest on loopback alone."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from batchedapi_core import contract, ui
from batchedapi_operator.cluster import JsonObject, ObjectKey

# Whether the loops of the process go round; what liveness goes by.
#
# A loop that waits for an apiserver that does not answer goes round all the same: its requests
# end after a time. A restart would not help it, and would forget what was seen of every load.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loop:
    longest: float
    """Seconds that a round takes at most."""
    last: float


@dataclass(slots=True)
class Heartbeats:
    """Written by each loop, also of another thread; read by the admin port."""

    monotonic: Callable[[], float] = time.monotonic
    _loops: dict[str, _Loop] = field(default_factory=dict)

    def of(self, name: str, longest: float) -> Callable[[], None]:
        """What a loop is to call once a round, from now on; a round takes `longest` seconds."""
        loop = self._loops[name] = _Loop(longest, self.monotonic())

        def beat() -> None:
            loop.last = self.monotonic()

        return beat

    def all_live(self) -> bool:
        """Whether no loop is overdue; says which one is."""
        now = self.monotonic()
        stuck = [name for name, one in self._loops.items() if now - one.last > one.longest]
        if stuck:
            log.error("loops are stuck", extra={"loops": ", ".join(stuck)})
        return not stuck


DEFAULT_LAST: Final = 10
"""Decisions that are answered with where nobody says how many."""
MOST_LAST: Final = 1000
_DIGITS: Final = len(str(MOST_LAST))  # longer ones are no number: int() refuses thousands of digits

LOOPBACK: Final = "127.0.0.1"
"""Where a port-forward to the pod arrives, and nothing else from outside it."""

Decisions = Callable[[ObjectKey, int], list[JsonObject]]
"""At most so many decisions about an API, the newest first."""
Look = Callable[[str], Awaitable[JsonObject]]
"""All APIs, and the replicas of one: `Fleet.look`."""


@asynccontextmanager
async def admin_server(
    host: str,
    port: int,
    *,
    live: Callable[[], bool],
    ready: Callable[[], str],
    registry: CollectorRegistry,
) -> AsyncIterator[None]:
    """Serve health and metrics until the block ends.

    Args:
        host: To listen on; empty is every interface.
        port: To listen on.
        live: False: the process is stuck and is to be restarted.
        ready: What is missing: the apiserver does not answer, the watches are not open yet, another
            release is in the way. Empty: nothing.
        registry: What /metrics shows.
    """

    def health(trouble: str) -> web.Response:
        return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")

    async def on_live(_: web.Request) -> web.Response:
        return health("" if live() else "not ok")

    async def on_ready(_: web.Request) -> web.Response:
        return health(ready())

    async def on_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get(contract.PATH_LIVE, on_live)
    app.router.add_get(contract.PATH_READY, on_ready)
    app.router.add_get(contract.PATH_METRICS, on_metrics)
    async with _served(app, host or None, port):
        yield


@asynccontextmanager
async def decisions_server(port: int, decisions: Decisions, look: Look) -> AsyncIterator[None]:
    """Serve /decisions/NAMESPACE/NAME, and the page about all APIs, until the block ends.

    It tells of the load of every namespace and asks for no credentials, so it listens on loopback:
    the API server asks for them before it forwards anything there.
    """

    async def on_decisions(request: web.Request) -> web.Response:
        asked = request.query.get("last", str(DEFAULT_LAST))
        number = (
            int(asked) if asked.isascii() and asked.isdecimal() and len(asked) <= _DIGITS else 0
        )
        if not 1 <= number <= MOST_LAST:
            text = f"last: expected a number within 1..{MOST_LAST}, got {asked:.20}"
            return web.json_response({"error": text}, status=400)
        key = ObjectKey(request.match_info["namespace"], request.match_info["name"])
        found = decisions(key, number)
        if not found:
            text = (
                f"no decision about BatchedAPI {key} since this operator began to lead: it decides"
                " every few seconds in mode Native, once a replica is asked for"
            )
            return web.json_response({"error": text}, status=404)
        return web.json_response({"namespace": key.namespace, "name": key.name, "decisions": found})

    async def on_fleet(request: web.Request) -> web.Response:
        return web.json_response(await look(request.query.get("api", "")))

    async def on_page(request: web.Request) -> web.Response:
        found = ui.read(request.path, ui.Mode.FLEET)
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found[1], headers={"Content-Type": found[0]})

    app = web.Application()
    app.router.add_get(contract.PATH_FLEET, on_fleet)
    for path in ui.PATHS:
        app.router.add_get(path, on_page)
    app.router.add_get(f"{contract.PATH_DECISIONS}/{{namespace}}/{{name}}", on_decisions)
    async with _served(app, LOOPBACK, port):
        yield


@asynccontextmanager
async def _served(app: web.Application, host: str | None, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
