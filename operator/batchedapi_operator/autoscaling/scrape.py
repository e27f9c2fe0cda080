"""Fetches the metrics pages of pods, side by side, trusting none of them."""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, Self

import aiohttp

from batchedapi_core import contract
from batchedapi_operator.autoscaling.metrics_page import MAX_BYTES, MetricsPage, parse_page
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.reconcile.views import PodView

SCRAPE_SECONDS: Final = 2.0
"""For everything: connection, headers and the whole body."""
AT_ONCE: Final = 64
_CHUNK: Final = 65536

Outcome = MetricsPage | MetricsUnavailableError


class Scrapes(Protocol):
    """Where the autoscaler gets its pages from."""

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """One outcome for each pod, in order."""


class Scraper:
    """One session, no proxies, no redirects, no decompression."""

    def __init__(self, session: aiohttp.ClientSession, port: int = contract.ADMIN_PORT) -> None:
        self._session = session
        self._port = port

    @classmethod
    @asynccontextmanager
    async def opened(cls, port: int = contract.ADMIN_PORT) -> AsyncIterator[Self]:
        """For as long as the block lasts; `port` is that of the pods."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=AT_ONCE),
            timeout=aiohttp.ClientTimeout(total=SCRAPE_SECONDS),
            headers={"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        ) as session:
            yield cls(session, port)

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """One outcome for each pod, in order, after at most SCRAPE_SECONDS and a little."""
        return await asyncio.gather(*map(self._one, pods))

    async def _one(self, pod: PodView) -> Outcome:
        try:
            address = ipaddress.ip_address(pod.ip)
        except ValueError:
            return MetricsUnavailableError("no_address", f"pod {pod.name} has no address yet")
        host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - IPv6
        try:
            text = await self._fetch(f"http://{host}:{self._port}{contract.PATH_METRICS}")
            return parse_page(text, pod.uid, time=time.monotonic(), unix_time=time.time())
        except MetricsUnavailableError as error:
            return error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return MetricsUnavailableError("unreachable", f"pod {pod.name}: {error!r}")

    async def _fetch(self, url: str) -> str:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:  # noqa: PLR2004 - HTTP: OK
                raise MetricsUnavailableError("refused", f"{url}: status {response.status}")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise MetricsUnavailableError("malformed", f"{url}: compressed unasked")
            received = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                received += chunk
                if len(received) > MAX_BYTES:
                    raise MetricsUnavailableError("too_large", f"{url}: over {MAX_BYTES} bytes")
        return received.decode("utf-8", errors="replace")
