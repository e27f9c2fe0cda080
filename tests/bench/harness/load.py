"""A load of distinct ids whose answers are all checked, while something is done to the server."""

import asyncio
import collections
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from batchedapi_core import contract
from harness.connections import Ask, Fate, run_client
from harness.http_answers import request

_POLL_SECONDS: Final = 0.005
_RECOVERY_SECONDS: Final = 30.0


class IdLoad:
    """An exchange without end: every request carries one id that no other carries."""

    def __init__(
        self,
        body: bytes = b"%d",
        path: str = contract.PATH_PREDICT,
        ids: Iterator[int] | None = None,
    ) -> None:
        """`body` is what is asked of `path`, and what is to be answered, with the id in it.

        `ids`: shared with other loads; None: from 1 on.
        """
        self._body = body
        self._path = path
        self._ids = itertools.count(1) if ids is None else ids
        self._stopped = False
        self.right = 0
        self.wrong = 0
        """Answers with status 200 that are not the id asked, and bytes nobody asked for."""
        self.statuses: collections.Counter[int] = collections.Counter()
        """Statuses of answers other than 200."""
        self.fates: collections.Counter[Fate] = collections.Counter()
        self.latest = 0.0
        """Latest time at which a request was sent that has been answered rightly since."""
        self.slowest = 0.0
        """Seconds from a request to its right answer, at most."""

    @property
    def running(self) -> bool:
        """See Exchange."""
        return not self._stopped

    @property
    def failed(self) -> int:
        """Requests that were accepted and did not get a 200."""
        return sum(self.statuses.values()) + self.fates[Fate.LOST]

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopped = True

    def ask(self) -> Ask | None:
        """See Exchange."""
        if self._stopped:
            return None
        number = next(self._ids)
        data = request(self._path, contract.JSON, self._body % number)
        return Ask(data, range(number, number + 1), time.monotonic())

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """See Exchange."""
        if status != 200:
            self.statuses[status] += 1
        elif body != self._body % ask.ids[0]:
            self.wrong += 1
        else:
            self.right += 1
            self.took(time.monotonic() - ask.sent)
            self.latest = max(self.latest, ask.sent)

    def took(self, seconds: float) -> None:
        """A right answer came after so long."""
        self.slowest = max(self.slowest, seconds)

    def unanswered(self, ask: Ask, fate: Fate) -> None:  # noqa: ARG002 - whose it was makes no difference
        """See Exchange."""
        self.fates[fate] += 1

    def surplus(self, data: bytes) -> None:  # noqa: ARG002 - that it came is the finding
        """See Exchange."""
        self.wrong += 1


class RunningLoad:
    """Clients of an `IdLoad` while the `async with` block runs."""

    def __init__(self, port: int, connections: int) -> None:
        self.load = IdLoad()
        self._port = port
        self._connections = connections
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> IdLoad:
        self._clients = [
            asyncio.create_task(run_client(self._port, self.load)) for _ in range(self._connections)
        ]
        return self.load

    async def __aexit__(self, *_: object) -> None:
        self.load.stop()
        await finish(self._clients, 10.0)


class RunningLoads:
    """Clients of several servers while the `async with` block runs; no two ask for the same id."""

    def __init__(self, ports: Sequence[int], connections: int) -> None:
        """`connections` are of all ports together, each with as many."""
        ids = itertools.count(1)
        self.of_port = {port: IdLoad(ids=ids) for port in ports}
        self.hung = 0
        """Clients that still waited when the time to finish was over."""
        self._connections = connections
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        turns = itertools.cycle(self.of_port.items())
        self._clients = [
            asyncio.create_task(run_client(port, load))
            for port, load in itertools.islice(turns, self._connections)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for load in self.of_port.values():
            load.stop()
        self.hung = await finish(self._clients, 15.0)

    @property
    def right(self) -> int:
        """Answers that were right, of all."""
        return sum(load.right for load in self.of_port.values())

    def tally(self) -> dict[str, Any]:
        """Counts of all outcomes, once the block has ended."""
        loads = self.of_port.values()
        statuses = sum((load.statuses for load in loads), collections.Counter[int]())
        return {
            "right": self.right,
            "wrong": sum(load.wrong for load in loads),
            "refused": statuses.pop(503, 0),
            "statuses": dict(statuses),
            "lost": sum(load.fates[Fate.LOST] for load in loads) + self.hung,
            "unread": sum(load.fates[Fate.UNREAD] for load in loads),
            "slowest": max(load.slowest for load in loads),
        }


async def recovery(load: IdLoad, since: float) -> float:
    """Seconds from `since` until a request sent after it has been answered.

    Raises:
        TimeoutError: that took more than 30 s.
    """
    while load.latest <= since:
        if time.monotonic() > since + _RECOVERY_SECONDS:
            raise TimeoutError(f"no answer for {_RECOVERY_SECONDS:g} s after a fault")
        await asyncio.sleep(_POLL_SECONDS)
    return time.monotonic() - since


async def finish(clients: list["asyncio.Task[None]"], seconds: float) -> int:
    """Wait for clients to end by themselves; the number of those that had to be cancelled.

    Raises:
        Exception: whatever ended a client.
    """
    done, late = await asyncio.wait(clients, timeout=seconds)
    for client in late:
        client.cancel()
    for client in done:
        client.result()
    return len(late)
