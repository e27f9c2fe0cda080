"""The operator's admin port: liveness, readiness, metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from batchedapi_core import contract


@asynccontextmanager
async def admin_server(
    host: str,
    port: int,
    *,
    live: Callable[[], bool],
    ready: Callable[[], bool],
    registry: CollectorRegistry,
) -> AsyncIterator[None]:
    """Serve until the block ends.

    Args:
        host: To listen on; empty is every interface.
        port: To listen on.
        live: False: the process is stuck and is to be restarted.
        ready: False: the apiserver does not answer, or the watches are not open yet.
        registry: What /metrics shows.
    """

    async def health(check: Callable[[], bool]) -> web.Response:
        good = check()
        return web.Response(status=200 if good else 503, text="ok\n" if good else "not ok\n")

    async def on_live(_: web.Request) -> web.Response:
        return await health(live)

    async def on_ready(_: web.Request) -> web.Response:
        return await health(ready)

    async def on_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get(contract.PATH_LIVE, on_live)
    app.router.add_get(contract.PATH_READY, on_ready)
    app.router.add_get(contract.PATH_METRICS, on_metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()
