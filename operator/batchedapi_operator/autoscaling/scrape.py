"""Fetches the metrics pages of pods, side by side, trusting none of them."""

import asyncio
import heapq
import ipaddress
import itertools
import json
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

import aiohttp

from batchedapi_core import contract
from batchedapi_operator.autoscaling.metrics_page import (
    MAX_BYTES,
    Layout,
    MetricsPage,
    Table,
    WebPage,
    parse_page,
    parse_web_page,
)
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.views import PodView

SCRAPE_SECONDS: Final = 2.0
"""For everything: connection, headers and the whole body."""
LOOK_SECONDS: Final = 10.0
"""For all pods of one API; those that were not asked by then were not seen."""
AT_ONCE: Final = 512
"""Pods of all APIs; the time of one that waits for its turn does not count yet."""
AT_ONCE_EACH: Final = 64
"""Pods of one API: if all of them hang, others hardly wait for a turn."""
BYTES_A_POD: Final = 32768
"""Share of one API in a look, for each of its pods. A page has 5 KiB a method, and from
replicas that know no narrower one 12 KiB."""
BYTES_A_LOOK: Final = (4 * 2**20, 8 * 2**20)
"""Bounds for one API."""
LAYOUTS: Final = 4096
"""Revisions whose share in what is remembered is known."""
REMEMBERED_IN_ALL: Final = 8 * 2**20
"""Characters of lines; then what is remembered is found anew."""
BUFFER: Final = 32768
"""Bytes that a pod may send beyond a page's head before it is known to be too much."""
_CHUNK: Final = 65536

WAIT_SECONDS: Final = 20.0
"""For which a web pod of an API at zero is asked to wait for rows."""
WAITS_AT_ONCE: Final = 256
"""Connections; APIs beyond find their first row at the next look."""
_WAIT_BYTES: Final = 1024

Outcome = MetricsPage | MetricsUnavailableError
WebOutcome = WebPage | MetricsUnavailableError
Page = TypeVar("Page")


class Scraper:
    """One session, no proxies, no redirects, no decompression."""

    def __init__(self, session: aiohttp.ClientSession, port: int, seconds: float) -> None:
        self._session = session
        self._port = port
        self._seconds = seconds
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waits = asyncio.Semaphore(WAITS_AT_ONCE)
        self._turns = Turns()
        self._table = Table()
        self._layouts: OrderedDict[str, Layout] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, port: int = contract.ADMIN_PORT, *, seconds: float = SCRAPE_SECONDS
    ) -> AsyncIterator[Self]:
        """For as long as the block lasts; `port` is that of the pods, `seconds` for one of them."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # `_slots` limits them
                socket_factory=_small_socket,
            ),
            read_bufsize=BUFFER,
            timeout=aiohttp.ClientTimeout(total=None),  # `_one` does that
            headers={"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        ) as session:
            yield cls(session, port, seconds)

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """One outcome for each pod of one API, in order, after at most `LOOK_SECONDS`."""
        share = _Share(len(pods))

        def page(text: str, pod: PodView, now: float, unix_time: float) -> MetricsPage:
            if self._table.characters > REMEMBERED_IN_ALL:
                self._table = Table()
                self._layouts.clear()
            # of the pods of one ReplicaSet; the one that was not asked for longest makes room
            layout = self._layouts.pop(pod.owner_uid, None) or Layout(self._table)
            self._layouts[pod.owner_uid] = layout
            if len(self._layouts) > LAYOUTS:
                self._layouts.popitem(last=False)
            return parse_page(
                text,
                pod.uid,
                time=now,
                unix_time=unix_time,
                layout=layout,
                startup=pod.startup,
                placement=pod.placement,
                revision=pod.revision,
            )

        return await asyncio.gather(*(self._one(pod, share, page) for pod in pods))

    async def scrape_web(self, pods: Sequence[PodView]) -> list[WebOutcome]:
        """The same of web pods."""
        share = _Share(len(pods))

        def page(text: str, pod: PodView, now: float, unix_time: float) -> WebPage:
            return parse_web_page(text, pod.uid, time=now, unix_time=unix_time)

        return await asyncio.gather(*(self._one(pod, share, page) for pod in pods))

    async def rows_come(self, pod: PodView) -> bool:
        """Whether rows are in the queue, by that web pod, after at most `WAIT_SECONDS`.

        Of what it says no more is believed than that it is worth a look.
        """
        if self._waits.locked():
            return False
        try:
            url = f"{_base(pod.ip, self._port)}{contract.PATH_QUEUE}?wait={WAIT_SECONDS:g}"
            async with (
                self._waits,
                asyncio.timeout(WAIT_SECONDS + self._seconds),
                self._session.get(url, allow_redirects=False) as response,
            ):
                said = json.loads(await response.content.read(_WAIT_BYTES))
                return response.status == 200 and said["rows"] > 0  # noqa: PLR2004 - HTTP: well
        except (
            aiohttp.ClientError,
            OSError,
            EOFError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):
            return False  # TimeoutError is an OSError

    async def whole_pages(self, pods: Sequence[PodView]) -> list[str | None]:
        """The text of each pod of one API, for people; None: it was not had in time."""
        share = _Share(len(pods))

        async def text(pod: PodView) -> str | None:
            try:
                url = _url(pod.ip, self._port).partition("?")[0]
                async with asyncio.timeout_at(share.end), share.slots, self._slots:
                    share.check()
                    async with asyncio.timeout(self._seconds):
                        return await self._fetch(url, share)
            except (MetricsUnavailableError, aiohttp.ClientError, OSError, ValueError):
                return None  # TimeoutError is an OSError

        return await asyncio.gather(*map(text, pods))

    async def _one(
        self,
        pod: PodView,
        share: "_Share",
        page: Callable[[str, PodView, float, float], Page],
    ) -> Page | MetricsUnavailableError:
        try:
            url = _url(pod.ip, self._port)
        except ValueError:
            return MetricsUnavailableError("no_address", f"pod {pod.name} has no address yet")
        try:
            async with asyncio.timeout_at(share.end), share.slots, self._slots:
                share.check()
                async with asyncio.timeout(self._seconds):
                    text = await self._fetch(url, share)
            now, unix_time = time.monotonic(), time.time()
            # one page after the other, and between two the loop keeps everybody's time limits
            async with self._turns.of(len(text)):
                await asyncio.sleep(0)
                return page(text, pod, now, unix_time)
        except MetricsUnavailableError as error:
            return error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return MetricsUnavailableError("unreachable", f"pod {pod.name}: {error!r}")

    async def _fetch(self, url: str, share: "_Share") -> str:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:  # noqa: PLR2004 - HTTP: OK
                raise MetricsUnavailableError("refused", f"{url}: status {response.status}")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise MetricsUnavailableError("malformed", f"{url}: compressed unasked")
            # what is announced is set aside before it is read, so that a share for some of many
            # large pages is some pages and not a piece of each
            paid = response.content_length or 0
            if paid > MAX_BYTES:
                raise MetricsUnavailableError("too_large", f"{url}: over {MAX_BYTES} bytes")
            share.spend(paid)
            received = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                received += chunk
                share.spend(max(0, len(received) - paid))
                paid = max(paid, len(received))
                if len(received) > MAX_BYTES:
                    raise MetricsUnavailableError("too_large", f"{url}: over {MAX_BYTES} bytes")
        return received.decode("utf-8", errors="replace")


class _Share:
    """Budget of bytes and seconds that the pods of one API share in a look."""

    __slots__ = ("_bytes", "_spent", "end", "slots")

    def __init__(self, pods: int) -> None:
        least, most = BYTES_A_LOOK
        self._bytes = min(most, max(least, pods * BYTES_A_POD))
        self._spent = False
        self.slots = asyncio.Semaphore(AT_ONCE_EACH)
        self.end = asyncio.get_running_loop().time() + LOOK_SECONDS

    def check(self) -> None:
        """Before a pod is asked.

        Raises:
            MetricsUnavailableError: Others of the API sent more than it has.
        """
        if self._spent:
            raise MetricsUnavailableError("too_large", "the API's pods sent too much at one look")

    def spend(self, received: int) -> None:
        """Count bytes.

        Raises:
            MetricsUnavailableError: They are more than the API has.
        """
        if received > self._bytes:
            self._spent = True
            self.check()
        self._bytes -= received


class Turns:
    """Turns at the parser: the smallest page that waits is next.

    Honest ones are small, so the large ones of one API keep another's waiting for one of them.
    """

    __slots__ = ("_busy", "_numbers", "_waiting")

    def __init__(self) -> None:
        self._busy = False
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Hold the turn, once it has come, until the block ends."""
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (size, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False


def _small_socket(address: tuple[Any, ...]) -> socket.socket:
    """With a buffer that a page fits in, and no megabyte of somebody who sends one."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    return made


@lru_cache(maxsize=4096)
def _url(ip: str, port: int) -> str:
    """URL of a pod's page.

    Raises:
        ValueError: `ip` is no address.
    """
    return f"{_base(ip, port)}{contract.PATH_METRICS}?{contract.QUERY_SCALING}"


def _base(ip: str, port: int) -> str:
    """URL of a pod's admin port.

    Raises:
        ValueError: `ip` is no address.
    """
    address = ipaddress.ip_address(ip)
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - IPv6
    return f"http://{host}:{port}"
