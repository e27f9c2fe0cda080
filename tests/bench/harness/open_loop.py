"""Requests at given times, whether or not earlier ones have been answered."""

import asyncio
import collections
import http
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from harness.http_answers import read_answer
from harness.servers import HOST

_TICK_SECONDS: Final = 0.002
_MOST_CONNECTIONS: Final = 6000


@dataclass
class Answers:
    """The results of an open loop; seconds count from a request's due time to its whole answer."""

    due: int = 0
    late: int = 0
    """Sent more than 50 ms after they were due: the generator is too slow."""
    unanswered: int = 0
    seconds: dict[int, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    """By status."""
    good: list[tuple[float, float]] = field(default_factory=list)
    """When each request answered with 200 was due, and its seconds."""

    def quantile(self, status: int, q: float) -> float:
        """A quantile of the seconds of answers with that status; 0 if there are none."""
        found = sorted(self.seconds[status])
        return found[min(len(found) - 1, int(q * len(found)))] if found else 0.0


class _Client(asyncio.Protocol):
    def __init__(self, load: "OpenLoop") -> None:
        self._load = load
        self._transport: Any = None
        self._due: float | None = None
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, data: bytes, due: float) -> None:
        self._due = due
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        answer = read_answer(self._buffer + data)
        if answer is None:
            self._buffer += data
            return
        self._buffer = b""
        due, self._due = self._due, None
        if due is not None:
            self._load.answered(self, answer.status, due, closes=answer.closes)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is one
        if self._due is not None:
            self._load.answers.unanswered += 1
            self._due = None
        self._load.gone(self)


class OpenLoop:
    """Arrivals at `rate` requests a second, each on a connection that is free."""

    def __init__(
        self,
        port: int,
        rate: float,
        ask: Callable[[], bytes],
        *,
        seed: int = 0,
        even: bool = False,
    ) -> None:
        """`ask` gives the bytes of the next request; `even`: at a steady beat, else Poisson."""
        self.answers = Answers()
        self._port = port
        self._rate = rate
        self._ask = ask
        self._even = even
        self._random = random.Random(seed)
        self._free: list[_Client] = []
        self._all: set[_Client] = set()

    def answered(self, client: _Client, status: int, due: float, *, closes: bool) -> None:
        """An answer is whole."""
        answers = self.answers
        took = time.monotonic() - due
        answers.seconds[status].append(took)
        if status == http.HTTPStatus.OK:
            answers.good.append((due, took))
        if not closes:
            self._free.append(client)

    def gone(self, client: _Client) -> None:
        """Its connection ended."""
        self._all.discard(client)
        if client in self._free:
            self._free.remove(client)

    async def run(self, seconds: float) -> Answers:
        """Send for so long, then wait for what is still to be answered."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        end, due = now + seconds, now
        while due < end:
            now = time.monotonic()
            while due <= now and due < end:
                client = self._free.pop() if self._free else await self._connected(loop)
                self.answers.due += 1
                self.answers.late += time.monotonic() - due > 0.05
                client.send(self._ask(), due)
                due += 1 / self._rate if self._even else self._random.expovariate(self._rate)
            await asyncio.sleep(_TICK_SECONDS)
        patience = time.monotonic() + 40
        while self._waiting and time.monotonic() < patience:  # noqa: ASYNC110 - a look now and then
            await asyncio.sleep(0.05)
        for client in list(self._all):
            client._transport.close()
        return self.answers

    @property
    def _waiting(self) -> int:
        return len(self._all) - len(self._free)

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _Client:
        if len(self._all) >= _MOST_CONNECTIONS:
            raise RuntimeError(f"{_MOST_CONNECTIONS} requests wait for an answer at once")
        _, client = await loop.create_connection(lambda: _Client(self), HOST, self._port)
        self._all.add(client)
        return client
