"""Fetches the metrics pages of pods, side by side, trusting none of them."""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Final, Protocol, Self

import aiohttp

from batchedapi_core import contract
from batchedapi_operator.autoscaling.exposition import MAX_BYTES, Layout
from batchedapi_operator.autoscaling.metrics_page import MetricsPage, parse_page
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.reconcile.views import PodView

SCRAPE_SECONDS: Final = 2.0
"""For everything: connection, headers and the whole body."""
AT_ONCE: Final = 256
"""Pods of all APIs; the time of one that waits for its turn does not count yet."""
LAYOUTS: Final = 512
"""Revisions whose lines are remembered."""
_CHUNK: Final = 65536

Outcome = MetricsPage | MetricsUnavailableError


class Scrapes(Protocol):
    """Where the autoscaler gets its pages from."""

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """One outcome for each pod, in order."""


class Scraper:
    """One session, no proxies, no redirects, no decompression."""

    def __init__(self, session: aiohttp.ClientSession, port: int, seconds: float) -> None:
        self._session = session
        self._port = port
        self._seconds = seconds
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._layouts: OrderedDict[str, Layout] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, port: int = contract.ADMIN_PORT, *, seconds: float = SCRAPE_SECONDS
    ) -> AsyncIterator[Self]:
        """For as long as the block lasts; `port` is that of the pods, `seconds` for one of them."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # `_slots` limits them
            timeout=aiohttp.ClientTimeout(total=None),  # `_one` does that
            headers={"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        ) as session:
            yield cls(session, port, seconds)

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """One outcome for each pod, in order, after at most `seconds` and a little."""
        return await asyncio.gather(*map(self._one, pods))

    async def _one(self, pod: PodView) -> Outcome:
        try:
            url = _url(pod.ip, self._port)
        except ValueError:
            return MetricsUnavailableError("no_address", f"pod {pod.name} has no address yet")
        try:
            async with self._slots, asyncio.timeout(self._seconds):
                text = await self._fetch(url)
            return parse_page(
                text,
                pod.uid,
                time=time.monotonic(),
                unix_time=time.time(),
                layout=self._layout(pod.owner_uid),
                startup=pod.startup,
                revision=pod.revision,
            )
        except MetricsUnavailableError as error:
            return error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return MetricsUnavailableError("unreachable", f"pod {pod.name}: {error!r}")

    def _layout(self, replica_set: str) -> Layout:
        """Of the pods of one ReplicaSet; the one that was not asked for longest makes room."""
        layout = self._layouts.pop(replica_set, None) or Layout()
        self._layouts[replica_set] = layout
        if len(self._layouts) > LAYOUTS:
            self._layouts.popitem(last=False)
        return layout

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


@lru_cache(maxsize=4096)
def _url(ip: str, port: int) -> str:
    """Of a pod's page.

    Raises:
        ValueError: `ip` is no address.
    """
    address = ipaddress.ip_address(ip)
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - IPv6
    return f"http://{host}:{port}{contract.PATH_METRICS}"
