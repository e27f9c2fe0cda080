"""Requests to a Service at an even beat, every second one on a new connection.

A pooled connection is used as a client's library does: until an answer says that it ends, or it is
closed while nothing is asked. Whatever else than 200 with the right body comes of a request is a
loss, and its reason is kept; nothing is sent twice.
"""

import asyncio
import collections
import contextlib
import http
import itertools
import json
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import click

from batchedapi_core import contract
from harness.http_answers import HttpAnswer, read_answer, request

PATIENCE: Final = 45.0
"""Seconds: longer than the server's own timeout, so that its answer is seen."""
_TICK: Final = 0.004
_LOST_KEPT: Final = 200


def allow_connections() -> None:
    """As many open files as this process may have: each request that waits has a connection."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


@dataclass
class Counts:
    """Outcomes of requests."""

    sent: int = 0
    answered: int = 0
    lost: collections.Counter[str] = field(default_factory=collections.Counter)
    """By kind of connection and reason."""
    first_lost: list[tuple[float, str]] = field(default_factory=list)
    """(wall clock, reason) of the first of them, to be laid beside what the cluster did."""
    slowest: float = 0.0
    """Seconds from due to the answer."""

    def told(self) -> dict[str, Any]:
        """For a report; `asdict` alone would make of a Counter one that counts its pairs."""
        return {**asdict(self), "lost": dict(self.lost)}


class _Client(asyncio.Protocol):
    """One connection, with at most one request on it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.answer: asyncio.Future[HttpAnswer] | None = None
        self.ended = False
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, data: bytes) -> "asyncio.Future[HttpAnswer]":
        self._buffer = b""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.answer is not None and not self.answer.done():
            try:
                found = read_answer(self._buffer)
            except ValueError as error:
                self.answer.set_exception(error)
                return
            if found is not None:
                self.answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if self.answer is not None and not self.answer.done():
            begun = "in its answer" if self._buffer else "before its answer"
            word = "reset" if exc is not None else "closed"
            self.answer.set_exception(ConnectionError(f"{word} {begun}"))


class ServiceLoad:
    """Requests at a rate to one address until it is stopped."""

    def __init__(
        self, address: str, port: int, path: str, rate: float, *, host: str = "bench"
    ) -> None:
        self.counts = Counts()
        self._to = (address, port, path)
        self._host = host
        self._rate = rate
        self._ids = itertools.count(1)
        self._free: collections.deque[_Client] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = True

    async def run(self) -> None:
        """Send at an even beat, and never wait for an answer before the next."""
        allow_connections()
        due = time.monotonic()
        while self._running:
            now = time.monotonic()
            while due <= now:
                task = asyncio.create_task(self._one(next(self._ids), due))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                due += 1 / self._rate
            await asyncio.sleep(_TICK)
        await asyncio.gather(*self._tasks)
        for client in self._free:
            client.transport.close()

    def stop(self) -> None:
        """Ask nothing more; `run` ends when everything is answered."""
        self._running = False

    def row_of(self, number: int) -> Any:
        """What the request of that number asks; no two ask the same."""
        return {"id": number}

    def answer_of(self, number: int) -> Any:
        """The one right answer to it."""
        return {"id": number}

    async def _one(self, number: int, due: float) -> None:
        pooled = number % 2 == 0
        self.counts.sent += 1
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._exchange(number, pooled=pooled)
        except (OSError, ValueError, TimeoutError) as error:
            reason = str(error) if isinstance(error, ConnectionError) else repr(error)
            self._lost(reason if not isinstance(error, TimeoutError) else "no answer", pooled)
            return
        if answer.status != http.HTTPStatus.OK:
            self._lost(
                f"status {answer.status} {answer.body[:80].decode(errors='replace')}", pooled
            )
        elif json.loads(answer.body) != self.answer_of(number):
            self._lost(f"another's answer {answer.body[:80]!r}", pooled)
        else:
            self.counts.answered += 1
            self.counts.slowest = max(self.counts.slowest, time.monotonic() - due)

    def _lost(self, reason: str, pooled: bool) -> None:  # noqa: FBT001 - says of which
        words = f"{'pooled' if pooled else 'new'}: {reason}"
        self.counts.lost[words] += 1
        if len(self.counts.first_lost) < _LOST_KEPT:
            self.counts.first_lost.append((time.time(), words))

    async def _exchange(self, number: int, *, pooled: bool) -> HttpAnswer:
        with self._client(pooled=pooled) as found:
            client = found or await self._connected()
            body = json.dumps(self.row_of(number)).encode()
            try:
                answer = await client.ask(request(self._to[2], contract.JSON, body, self._host))
            except BaseException:
                client.transport.abort()
                raise
            if pooled and not answer.closes and not client.ended:
                self._free.append(client)
            else:
                client.transport.close()
            return answer

    @contextlib.contextmanager
    def _client(self, *, pooled: bool) -> Iterator[_Client | None]:
        """One that is free, the longest unused first, so that all of the pool are in use."""
        while pooled and self._free:
            client = self._free.popleft()
            if not client.ended and not client.transport.is_closing():
                yield client
                return
        yield None

    async def _connected(self) -> _Client:
        address, port, _ = self._to
        try:
            _, client = await asyncio.get_running_loop().create_connection(_Client, address, port)
        except OSError as error:
            raise ConnectionError(f"cannot connect: {error.strerror or error}") from error
        return client


async def through(
    load: ServiceLoad, steps: Iterable[tuple[str, Callable[[], None]]], requests: int
) -> dict[str, Any]:
    """Do all steps under load, in a thread, and then go on until so many requests were sent.

    Returns:
        `steps` with what was sent and lost meanwhile, `counts` of all, and `broken_off` with the
        reason where a step failed: what was seen is told all the same.
    """
    found: dict[str, Any] = {"steps": []}
    sending = asyncio.create_task(load.run())
    try:
        for name, step in steps:
            lost, began, sent = load.counts.lost.copy(), time.time(), load.counts.sent
            await asyncio.to_thread(step)
            found["steps"].append({
                "step": name, "began": began, "seconds": time.time() - began,
                "sent": load.counts.sent - sent, "lost": load.counts.lost - lost,
            })  # fmt: skip
            click.echo(json.dumps(found["steps"][-1]))
        while load.counts.sent < requests:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(1)
    except (AssertionError, OSError) as error:
        found["broken_off"] = str(error)
        click.echo(f"broken off: {error}")
    finally:
        load.stop()
        await sending
        found["counts"] = load.counts.told()
    return found


async def most(address: str, port: int, path: str, clients: int, seconds: float) -> float:
    """Requests a second that so many clients, each on a connection of its own, are answered."""
    load = ServiceLoad(address, port, path, 1.0)
    end = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < end:
            await load._one(2 * next(load._ids), time.monotonic())

    await asyncio.gather(*(client() for _ in range(clients)))
    load.stop()
    if load.counts.lost:
        raise RuntimeError(f"requests were lost while capacity was measured: {load.counts.lost}")
    return load.counts.answered / seconds
