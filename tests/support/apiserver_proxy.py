"""In front of an apiserver: numbers the calls of one client, makes one fail, or all silent.

The client speaks plain HTTP to it, which spares a certificate; what it asks is asked of the
apiserver with the certificate of the kubeconfig that the proxy was given.
"""

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import aiohttp
import yaml
from aiohttp import web

FAULTS: Final = ("401", "409", "429", "500", "503", "hang", "reset", "lost")
"""Statuses that are answered and not forwarded; no answer; a connection cut before the call was
forwarded, or after it."""
KILLS: Final = ("before", "after")
"""The client dies before the call was forwarded, or before it is answered."""
SLOW_SECONDS: Final = 4.0
"""Less than any write of the operator has."""
logging.getLogger("aiohttp.server").disabled = True  # it tells of every connection that is cut
_HOP: Final = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}


@dataclass
class Proxy:
    """Counts while it is told to."""

    upstream: str
    session: aiohttp.ClientSession
    die: Callable[[], None] = lambda: None
    """Kills the client."""
    port: int = 0
    counting: bool = False
    calls: list[str] = field(default_factory=list)
    at: int = -1
    how: str = ""
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The case has ended: what hangs is cut."""
    slow: str = ""
    """Calls with this in method and path are forwarded `SLOW_SECONDS` later; `fired` tells."""
    connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)
    silent: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)

    def arm(self, at: int, how: str) -> None:
        """Count from now on; that call is to fail, none with -1."""
        self.calls, self.at, self.how, self.counting = [], at, how, True
        self.fired, self.over = asyncio.Event(), asyncio.Event()

    def disarm(self) -> None:
        """The case has ended."""
        self.counting = False
        self.over.set()

    def silence(self) -> int:
        """On connections that are open now nothing comes any more, and none is closed; how many."""
        self.silent.update(self.connections)
        return len(self.silent)

    async def _hold_if_silent(self, request: web.Request) -> None:
        if request.transport in self.silent:
            await self.over.wait()
            raise ConnectionResetError

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        hit = False
        if request.transport is not None:
            self.connections.add(request.transport)
        await self._hold_if_silent(request)
        if self.slow and self.slow in f"{request.method} {request.path}":
            self.fired.set()
            await asyncio.sleep(SLOW_SECONDS)
        if self.counting:
            hit = len(self.calls) == self.at
            self.calls.append(f"{request.method} {request.path}")
        if not hit:
            return await self._forwarded(request)
        if self.how not in KILLS:
            self.fired.set()
        if self.how == "hang":
            await self.over.wait()
        if self.how in {"hang", "reset", "before"}:
            return self._cut(request)
        if self.how in {"lost", "after"}:
            with suppress(TimeoutError):  # a watch has no end
                async with asyncio.timeout(3.0), self._asked(request, await request.read()) as to:
                    await to.read()
            return self._cut(request)
        words = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "a fault"}
        after = {"Retry-After": "1"} if self.how == "429" else {}
        return web.json_response(
            {**words, "code": int(self.how)}, status=int(self.how), headers=after
        )

    def _cut(self, request: web.Request) -> web.StreamResponse:
        if self.how in KILLS:
            self.die()
            self.fired.set()
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError

    def _asked(self, request: web.Request, body: bytes) -> Any:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        url = f"{self.upstream}{request.raw_path}"
        # without data there is to be no type of it either, which the apiserver would refuse
        return self.session.request(request.method, url, headers=headers, data=body or None)

    async def _forwarded(self, request: web.Request) -> web.StreamResponse:
        async with self._asked(request, await request.read()) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            headers.pop("Content-Encoding", None)
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await self._hold_if_silent(request)
                await response.write(chunk)
            await self._hold_if_silent(request)
            await response.write_eof()
            return response


@asynccontextmanager
async def proxy(kubeconfig: str, folder: Path, name: str) -> AsyncIterator[tuple[Proxy, Path]]:
    """A proxy, and the kubeconfig of those who are to ask through it in place of the one given."""
    told = yaml.safe_load(kubeconfig)
    (cluster,), (user,) = told["clusters"], told["users"]
    context = _context(cluster["cluster"], user["user"], folder / f"{name}.pem")
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        made = Proxy(cluster["cluster"]["server"], session)
        app = web.Application(client_max_size=8 * 2**20)
        app.router.add_route("*", "/{path:.*}", made.answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (made.port,) = {address[1] for address in runner.addresses}
        cluster["cluster"] = {"server": f"http://127.0.0.1:{made.port}"}
        user["user"] = {"token": "none"}
        config = folder / f"{name}.kubeconfig"
        await asyncio.to_thread(config.write_text, yaml.safe_dump(told))
        try:
            yield made, config
        finally:
            made.disarm()
            await runner.cleanup()


def _context(cluster: dict[str, str], user: dict[str, str], pem: Path) -> ssl.SSLContext:
    def text(where: dict[str, str], name: str) -> str:
        if f"{name}-data" in where:
            return base64.b64decode(where[f"{name}-data"]).decode()
        return Path(where[name]).read_text()

    context = ssl.create_default_context(cadata=text(cluster, "certificate-authority"))
    pem.write_text(text(user, "client-certificate") + "\n" + text(user, "client-key"))
    context.load_cert_chain(pem)
    return context
