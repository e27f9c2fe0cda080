"""gRPC's connections as the kernel knows them.

gRPC tells neither which connections there are, nor how much of a message has come or of an answer
is taken, and closes none before its time. But its sockets are this process's: they are found among
its descriptors, and the kernel is asked.
"""

import contextlib
import functools
import os
import socket
import struct
import time
import urllib.parse
from collections.abc import Iterator
from typing import Final, NamedTuple

_SHARE: Final = 10
"""To look at all descriptors takes some 10 us for each, and at most one part in so many of the
time."""
_MOVED: Final = struct.Struct("=120xQQ")
"""`struct tcp_info` of linux/tcp.h, up to tcpi_bytes_acked and tcpi_bytes_received."""


class Peer(NamedTuple):
    """The other end of a connection."""

    address: str
    port: int


class Moved(NamedTuple):
    """Bytes of a connection since it began."""

    taken: int
    """By the client."""
    received: int


@functools.lru_cache(maxsize=4096)
def peer_of(text: str) -> Peer:
    """Read an address as gRPC writes it: `ipv4:10.0.0.1:5000`, `ipv6:%5B::1%5D:5000`."""
    address, _, port = urllib.parse.unquote(text).partition(":")[2].rpartition(":")
    return Peer(address.strip("[]"), int(port))


def lowest_free_descriptor() -> int:
    """As many are open at least, once there are so many that few of the lower ones are free."""
    descriptor = os.eventfd(0)
    os.close(descriptor)
    return descriptor


class Sockets:
    """The sockets of the connections to one port.

    Attributes:
        port: Theirs, once it is known.
    """

    def __init__(self) -> None:
        self.port = 0
        self._descriptors: dict[Peer, int] = {}
        self._rests_until = 0.0

    def peers(self) -> tuple[Peer, ...]:
        """The peers of all connections that there are."""
        self._look()
        return tuple(self._descriptors)

    def moved(self, peer: Peer) -> Moved | None:
        """None: the connection is closed, or not found yet, or this kernel does not count."""
        descriptor = self._descriptor(peer)
        if descriptor is None:
            return None
        with contextlib.suppress(OSError, struct.error), _borrowed(descriptor) as found:
            moved = Moved(*_MOVED.unpack(found.getsockopt(_TCP, socket.TCP_INFO, _MOVED.size)))
            return moved if moved.received else None
        return None

    def close(self, peer: Peer) -> None:
        """Have gRPC see the end of a connection, and cancel its calls."""
        descriptor = self._descriptor(peer)
        if descriptor is None:
            return
        # With one of our own nobody can close it in this moment, and open another one.
        with contextlib.suppress(OSError), _socket(os.dup(descriptor)) as ours:
            if self._peer(ours.fileno()) == peer:
                ours.shutdown(socket.SHUT_RDWR)

    def _descriptor(self, peer: Peer) -> int | None:
        found = self._descriptors.get(peer)
        if found is not None and self._peer(found) == peer:
            return found
        if time.monotonic() >= self._rests_until:
            self._look()
        return self._descriptors.get(peer)

    def _look(self) -> None:
        began = time.monotonic()
        found = (
            (self._peer(int(name)), int(name))
            for name in os.listdir("/proc/self/fd")  # noqa: PTH208 - numbers
        )
        self._descriptors = {peer: descriptor for peer, descriptor in found if peer is not None}
        ended = time.monotonic()
        self._rests_until = ended + _SHARE * (ended - began)

    def _peer(self, descriptor: int) -> Peer | None:
        """The peer of a descriptor; None: it is none of these."""
        # It may be closed by now, no socket, or one that listens.
        with contextlib.suppress(OSError), _borrowed(descriptor) as found:
            if found.getsockname()[1:2] == (self.port,):
                address, port = found.getpeername()[:2]
                return Peer(address.removeprefix("::ffff:"), port)
        return None


_TCP: Final = socket.IPPROTO_TCP


def _socket(descriptor: int) -> socket.socket:
    """Open a descriptor of either family: addresses of IPv6 are the longer ones."""
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, _TCP, descriptor)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket that stays open."""
    found = _socket(descriptor)
    try:
        yield found
    finally:
        found.detach()
