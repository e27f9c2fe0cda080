"""How many connections a web process takes, and who leaves when one more comes: decisions only."""

import heapq
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from batchedapi_serving.web.limits import ACTIVE

MOST_CONNECTIONS: Final = 10_000
"""Open at once in a web process, of HTTP and of gRPC each; more if `maxReplicaConcurrency` wants
more. An idle one costs about 10 kB."""
RESERVED_DESCRIPTORS: Final = 512
"""Not for clients: lanes, channels, shared memory, files, and those who are being refused."""
MOST_REFUSED: Final = 128
"""Connections that are told that there is no room; above it they are dropped."""
_AT_ONCE: Final = 64
"""One of so many leaves when one more comes, so that not each that comes looks at all."""
_LOOK_SECONDS: Final = 0.1
"""After everybody was found busy, for so long nobody looks again."""


def descriptors_wanted(max_concurrency: int, *, grpc: bool) -> int:
    """How many descriptors a web process can make use of."""
    return _wanted(max_concurrency) * (2 if grpc else 1) + RESERVED_DESCRIPTORS


def most_connections(descriptors: int, max_concurrency: int, *, grpc: bool) -> int:
    """How many connections it takes of each kind, with so many descriptors."""
    left = max(descriptors - RESERVED_DESCRIPTORS, descriptors // 2)
    return min(_wanted(max_concurrency), left // (2 if grpc else 1))


def _wanted(max_concurrency: int) -> int:
    return max(MOST_CONNECTIONS, 2 * max_concurrency)


class Guest(Protocol):
    """What is asked of a connection."""

    def idle_since(self) -> float | None:
        """Since when it has nothing to do; None: it is busy."""


GuestT = TypeVar("GuestT", bound=Guest)


class Room:
    """Of one web process. Times are seconds on the loop's clock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._all_busy_until = 0.0

    def is_full(self, connections: int) -> bool:
        """Whether somebody has to leave before another one may stay."""
        return connections > self.most

    def who_leaves(self, connections: Iterable[GuestT], now: float) -> list[GuestT]:
        """Those that are idle for longest; nobody of whom a request may be on its way."""
        if now < self._all_busy_until:
            return []
        idle = [
            (since, number, connection)
            for number, connection in enumerate(connections)
            if (since := connection.idle_since()) is not None and now - since >= ACTIVE
        ]
        if not idle:
            self._all_busy_until = now + _LOOK_SECONDS
        leaving = heapq.nsmallest(max(1, self.most // _AT_ONCE), idle)
        return [connection for _, _, connection in leaving]
