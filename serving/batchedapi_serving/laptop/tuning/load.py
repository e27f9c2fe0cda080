"""Requests at given times, whether or not earlier ones were answered, and closed-loop clients.

Runs beside the replica, so it is as little work as can be: one Protocol a connection, answers read
by httptools, bodies not looked at. Its own lateness is part of what it reports: a request counts
from the time it was due, and a load whose generator fell behind is marked.
"""

import asyncio
import contextlib
import random
import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import monotonic as now  # uvloop's counts whole milliseconds
from typing import Any, Final, TypeVar, cast

import httptools

from batchedapi_serving.processes import may_open

HOST: Final = "127.0.0.1"
_OK: Final = 200
_MOST_CONNECTIONS: Final = 4_000
"""Requests at once; what is beyond is not sent."""
_OTHER_FILES: Final = 200
"""Files that this process has open besides, with something to spare."""
_LOOK: Final = 0.02  # seconds between two looks whether all are answered
_FEW: Final = 50
"""Connections beside those: for arrivals that come close together."""
_IN_A_ROW: Final = 8
"""Requests that are due, between two looks at what came: each look is a call of the system."""
_PATIENCE: Final = 4.0
"""Targets for which an answer is waited for when a load is over; and at least a second."""
LATE: Final = 0.05
"""Share of the target: a generator later than that, at p99, disturbs its figures."""
LEAST_LATE: Final = 0.005
"""Seconds that are no lateness, whatever the target: timers of an event loop."""


@dataclass(slots=True)
class LoadOutcome:
    """Outcome of a load; seconds count from when a request was due."""

    rate: float  # requests/s that were to be sent
    seconds: float  # of sending
    target: float  # seconds
    sent: int = 0
    skipped: int = 0
    """Not sent, as too many waited for an answer already."""
    capped: bool = False
    """Fewer connections were allowed than the load may need."""
    refused: int = 0  # other answers than 200
    broken: int = 0  # no answer at all
    latencies: list[float] = field(default_factory=list)  # of answers with 200
    lags: list[float] = field(default_factory=list)  # from due to sent, or to not sent

    @property
    def due(self) -> int:
        """Requests that were to be sent."""
        return self.sent + self.skipped

    @property
    def in_time(self) -> int:
        """Answered with 200 within the target."""
        return sum(took <= self.target for took in self.latencies)

    @property
    def share_in_time(self) -> float:
        """Share of all that were due; 0 of none."""
        return self.in_time / self.due if self.due else 0.0

    @property
    def goodput(self) -> float:
        """Requests/s answered in time."""
        return self.in_time / self.seconds

    @property
    def late(self) -> bool:
        """Whether the generator itself was, so that the figures are its own."""
        if self.capped and self.skipped:
            return True
        return quantile(self.lags, 0.99) > max(LEAST_LATE, LATE * self.target)

    def p(self, share: float) -> float:
        """Latency that this share of the answers does not exceed; nan of none."""
        return quantile(self.latencies, share)


def quantile(values: Sequence[float], share: float) -> float:
    """Smallest of `values` that this share of them does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class _LoadConnection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._answered: Callable[[int | None], None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # what TCP gives

    def ask(self, request: bytes, answered: Callable[[int | None], None]) -> None:
        """Send it; `answered` is told its status, or None if the connection broke."""
        if self._transport is None or self._transport.is_closing():
            self.usable = False
            answered(None)
            return
        self._answered = answered
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """See httptools: an answer is whole."""
        self.usable = self._parser.should_keep_alive()
        self._tell(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is one
        self.usable = False
        self._tell(None)

    def close(self) -> None:
        """Whether or not an answer is on its way."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _tell(self, status: int | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status)


Value = TypeVar("Value")


def run_loop(work: Coroutine[Any, Any, Value]) -> Value:
    """Run it on uvloop where there is one, which sends half as much again."""
    with contextlib.suppress(ModuleNotFoundError):
        import uvloop  # noqa: PLC0415 - here alone

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    return asyncio.run(work)


async def _connected(port: int) -> _LoadConnection:
    _, connection = await asyncio.get_running_loop().create_connection(_LoadConnection, HOST, port)
    return connection


def clients_allowed() -> int:
    """At once, of one load: as many as wanted, or as this process may have files open."""
    return max(1, may_open(_MOST_CONNECTIONS + _OTHER_FILES) - _OTHER_FILES)


class OpenLoop:
    """Poisson arrivals, each on a connection that is free; no task for each, which takes long."""

    def __init__(
        self, port: int, requests: Sequence[bytes], target: float, *, allowed: int, seed: int
    ) -> None:
        """`requests` go out in random order; `target` in seconds; `allowed` clients at once."""
        self._port = port
        self._allowed = allowed
        self._requests = requests
        self._target = target
        self._random = random.Random(seed)  # noqa: S311 - no cryptography
        self._free: list[_LoadConnection] = []
        self._asked: set[_LoadConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(
        self, rate: float, seconds: float, begins: Callable[[], None] = lambda: None
    ) -> LoadOutcome:
        """Send `rate` requests/s for so long, then wait a little for the last answers.

        `begins` is called when the connections are open, before the first request.
        """
        loop = asyncio.get_running_loop()
        answers = LoadOutcome(rate, seconds, self._target)
        at_once = rate * self._target  # in the mean, when each answer takes as long as it may
        wanted = int(2.0 * at_once) + _FEW
        most, answers.capped = min(wanted, self._allowed), wanted > self._allowed
        # Beforehand: when a replica falls behind is no time to make its clients.
        with contextlib.suppress(OSError):
            for _ in range(min(most, int(at_once))):
                self._free.append(await _connected(self._port))
        begins()
        due, gap, in_a_row = now(), self._random.expovariate, 0
        end = due + seconds
        while (due := due + gap(rate)) < end:
            early, in_a_row = due - now(), in_a_row + 1
            if early > 0.0 or in_a_row >= _IN_A_ROW:
                # So that a generator that is behind reads answers, too.
                in_a_row = 0
                await asyncio.sleep(max(0.0, early))
            if len(self._asked) + len(self._connecting) >= most:
                answers.skipped += 1
                answers.lags.append(now() - due)
                continue
            answers.sent += 1
            while self._free and not self._free[-1].usable:
                self._free.pop()
            if self._free:  # the last one that was answered: no more clients than it takes
                self._send(answers, self._free.pop(), due)
            else:
                task = loop.create_task(self._connect(answers, due))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
        await self._last_answers()
        answers.broken = answers.sent - len(answers.latencies) - answers.refused
        # The replica need not answer what nobody waits for.
        for connection in (*self._free, *self._asked):
            connection.close()
        return answers

    async def _last_answers(self) -> None:
        end = now() + max(1.0, _PATIENCE * self._target)
        while (self._asked or self._connecting) and now() < end:  # noqa: ASYNC110 - a look now and then
            await asyncio.sleep(_LOOK)
        for task in self._connecting:
            task.cancel()

    async def _connect(self, answers: LoadOutcome, due: float) -> None:
        with contextlib.suppress(OSError):
            self._send(answers, await _connected(self._port), due)

    def _send(self, answers: LoadOutcome, connection: _LoadConnection, due: float) -> None:
        self._asked.add(connection)
        sent = now()
        due = min(due, sent)  # timers count whole milliseconds, and some are early
        answers.lags.append(sent - due)

        def answered(status: int | None) -> None:
            self._asked.discard(connection)
            if status == _OK:
                answers.latencies.append(now() - due)
            elif status is not None:
                answers.refused += 1
            if connection.usable:
                self._free.append(connection)
            else:
                connection.close()

        connection.ask(self._random.choice(self._requests), answered)


@dataclass(frozen=True, slots=True)
class Closed:
    """Statuses and latency of clients that ask one request after the other."""

    statuses: tuple[int, ...]  # other than 200; each once
    latency: float  # seconds, the median


async def closed_loop(
    port: int, request: bytes, clients: int, *, runs: int, seconds: float
) -> Closed:
    """So many clients, each `runs` times at least and until `seconds` are over.

    Raises:
        OSError: a connection broke.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    latencies: list[float] = []
    statuses: set[int] = set()

    async def client() -> None:
        connection = await _connected(port)
        answer: asyncio.Future[int | None] = loop.create_future()
        done = 0

        def answered(status: int | None) -> None:
            if not answer.done():  # Ctrl-C
                answer.set_result(status)

        try:
            while not statuses and (done < runs or loop.time() < end):
                began = loop.time()
                answer = loop.create_future()
                connection.ask(request, answered)
                status = await answer
                if status is None:
                    raise ConnectionResetError("closed before the answer")
                latencies.append(loop.time() - began)
                if status != _OK:
                    statuses.add(status)
                done += 1
                if not connection.usable:
                    connection.close()
                    connection = await _connected(port)
        finally:
            connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return Closed(tuple(sorted(statuses)), statistics.median(latencies))
