"""Limits of one web process on its clients: sizes, times, connections, bytes of bodies.

A few bytes of a body that came as gzip may stand for gigabytes. So no more than one piece is
inflated before its size is compared with the limit.
"""

import asyncio
import heapq
import io
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from batchedapi_core import contract
from batchedapi_serving.errors import BodiesFullError, MalformedError, TooLargeError
from batchedapi_serving.processes import give_memory_back

AGE_JITTER: Final = 0.1
"""As gRPC does it: connections that were made together do not all leave together."""
SWEEP_SECONDS: Final = 1.0
"""How often connections are looked over; a limit in time is met this late at most."""
EXPIRY_GRACE: Final = 5.0
"""How long a connection that was refused may take to read its answer."""
LINGER_BYTES: Final = 256 * 1024
"""Bytes that a client may send after the answer that ends its connection, as in Go; more of them
reset it."""
ACTIVE: Final = 1.0
"""A client that was answered less than this ago is likely to ask again soon."""
LAST_CALL: Final = 1.0
"""How long a stopping server waits for the next request of a connection that is new or active."""
MOST_CONNECTIONS: Final = 10_000
"""Open at once in a web process, of HTTP and of gRPC each; more if `maxReplicaConcurrency` wants
more. An idle one costs about 10 kB."""
RESERVED_DESCRIPTORS: Final = 512
"""Not for clients: lanes, channels, shared memory, files, and those who are being refused."""
MOST_REFUSED: Final = 128
"""Connections that are told that there is no room, or a quarter of the most if that is less; above
it they are dropped."""
_AT_ONCE: Final = 64
"""One of so many leaves when one more comes, so that not each that comes looks at all."""
_LOOK_SECONDS: Final = 0.1
"""After everybody was found busy, for so long nobody looks again for the same owner."""
BODIES_BYTES: Final = 192 * 1024 * 1024
"""Held for all clients together, which with a process of 64 MiB makes 256; at least two bodies of
`overload.maxBodySize` whatever that is."""
UNCOUNTED_BYTES: Final = 16 * 1024
"""Shorter bodies are bounded by their number, and counting them costs each request something."""
UNCOUNTED_PART_BYTES: Final = 4096
"""The same of a request that has not come whole, of which each connection may have one."""
REQUEST_BYTES: Final = 1024
"""Memory of a request that waits for the one before, beside its own bytes."""
_WORTH_GIVING_BACK: Final = 4 * 1024 * 1024


class Limits(NamedTuple):
    """Limits of every connection; sizes in bytes, times in seconds."""

    body: int
    headers: int = contract.MAX_HEADER_BYTES
    header_arrival: float = contract.HEADER_ARRIVAL_SECONDS
    """From the first byte of a request, or the start of the connection, to its headers' end."""
    body_arrival: float = contract.BODY_ARRIVAL_SECONDS
    """From the end of the headers to the last byte of the body."""
    grace_period: float = 10.0
    """After this a body that is on its way, or an answer that is, must move at `least_rate`."""
    least_rate: int = 1024
    """Bytes a second, slower than any modem: who is slower holds a connection on purpose."""
    idle: float = math.inf
    """A kept-alive connection without a request is closed after this; so long that what stands in
    front closes first, as whoever closes does not send into a closed connection."""
    age: float = math.inf
    """A connection that is this old, give or take AGE_JITTER of it, is closed with an answer."""


def descriptors_wanted(max_concurrency: int, *, grpc: bool) -> int:
    """How many descriptors a web process can make use of."""
    return _wanted(max_concurrency) * (2 if grpc else 1) + RESERVED_DESCRIPTORS


def most_connections(descriptors: int, max_concurrency: int, *, grpc: bool) -> int:
    """How many connections it takes of each kind, with so many descriptors."""
    left = max(descriptors - RESERVED_DESCRIPTORS, descriptors // 2)
    return min(_wanted(max_concurrency), left // (2 if grpc else 1))


def _wanted(max_concurrency: int) -> int:
    return max(MOST_CONNECTIONS, 2 * max_concurrency)


T = TypeVar("T")
ANYBODY: Final = ""
"""An owner without connections was turned away: others may have no more than it."""


class ConnectionLimit:
    """The limit of one web process. Times are seconds on the loop's clock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_open = most + max(1, min(MOST_REFUSED, most // 4))
        """With those who are being told that there is no room."""
        self._turned_away: set[str] = set()  # owners for whom nobody left
        self._looks_again = 0.0  # when they are forgotten

    def is_full(self, connections: int) -> bool:
        """Whether somebody has to leave before another one may stay."""
        return connections > self.most

    def who_leaves(
        self, connections: Iterable[tuple[float | None, str, T]], owner: str, now: float
    ) -> list[T]:
        """Choose, of the owner with most, connections that wait for a request for longest.

        Where the one who comes has as many, a request of those who were new, or answered, a moment
        ago is likely to be on its way, and they stay.

        Args:
            connections: Each with the time since when no whole request of it is here, None: one is;
                and its owner.
        """
        if now >= self._looks_again:
            self._turned_away.clear()
        elif owner in self._turned_away or ANYBODY in self._turned_away:
            return []
        owned: dict[str, list[tuple[float, int, T]]] = {}
        for number, (since, whose, connection) in enumerate(connections):
            if since is not None:
                owned.setdefault(whose, []).append((since, number, connection))
        own = len(owned.get(owner, ()))
        leaving = _leaving(owned.values(), own, now)
        if leaving:
            chosen = heapq.nsmallest(max(1, self.most // _AT_ONCE), leaving)
            return [connection for _, _, connection in chosen]
        if not self._turned_away:
            self._looks_again = now + _LOOK_SECONDS
        self._turned_away.add(owner if own else ANYBODY)
        return []


def _leaving(
    owned: Iterable[list[tuple[float, int, T]]], own: int, now: float
) -> list[tuple[float, int, T]]:
    """Connections that may leave, of the first owner with at least `own` who has any."""
    for found in sorted(owned, key=len, reverse=True):
        if len(found) < own:
            break
        leaving = [one for one in found if len(found) > own + 1 or now - one[0] >= ACTIVE]
        if leaving:
            return leaving
    return []


NOBODY: Final = ""
"""Owner of what comes without a key so far, where keys are asked for."""


class _Owned:
    """The bytes of one owner, and its holdings, the oldest first."""

    __slots__ = ("bytes", "holdings")

    def __init__(self) -> None:
        self.bytes = 0
        self.holdings: dict[HeldBodies, None] = {}


class BodyBudget:
    """Bytes that one web process holds for its clients.

    One owner, who is a key or else an address, may have all of it while no other wants any. Once
    it is full, the owner who holds most gives back what another one needs who holds less.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.most: Final = max(BODIES_BYTES, 2 * max_body_bytes)
        self.held = 0
        self._owners: dict[str, _Owned] = {}
        self._freed = 0  # bytes since memory was given back
        self._wanted: list[Callable[[], None]] = []

    def when_freed(self, call: Callable[[], None]) -> None:
        """Call soon after anybody has given bytes back; once."""
        self._wanted.append(call)

    def changed(self, holding: "HeldBodies", size: int) -> None:
        """`holding` is to have `size` bytes."""
        more = size - holding.bytes
        if more == 0:
            return
        owned = self._owners.get(holding.owner)
        if owned is None:
            owned = self._owners[holding.owner] = _Owned()
        self.held += more
        self._freed -= min(0, more)
        if more < 0 and self._wanted:
            wanted, self._wanted = self._wanted, []
            for call in wanted:
                asyncio.get_running_loop().call_soon(call)
        owned.bytes += more
        if size == 0:
            del owned.holdings[holding]
        else:
            owned.holdings[holding] = None
        if not owned.holdings:
            del self._owners[holding.owner]
        holding.bytes = size

    def has_room(self, holding: "HeldBodies", more: int) -> bool:
        """Whether `holding` may have so many more bytes, once others have left for it."""
        while more > 0 and self.held + more > self.most:
            leaving = self._who_leaves(holding, more)
            if leaving is None:
                return False
            leaving.leave()
        return True

    def _who_leaves(self, holding: "HeldBodies", more: int) -> "HeldBodies | None":
        """The oldest of the holdings worth least, of the fullest owner.

        Among one's own only those leave whose client does not read, or has shown no key.
        """
        own = self._owners.get(holding.owner, _NONE)
        fuller: list[_Owned] = []
        if holding.owner != NOBODY:
            least = own.bytes + more
            fuller = [owned for owned in self._owners.values() if owned.bytes > least]
            fuller.sort(key=lambda owned: owned.bytes, reverse=True)
            fuller.insert(0, self._owners.get(NOBODY, _NONE))
        for owned in (*fuller, own):
            any_of_them = owned is not own or holding.owner == NOBODY
            leaving = [
                one
                for one in owned.holdings
                if one.leaves is not None and one is not holding and (one.waits or any_of_them)
            ]
            if leaving:
                return min(leaving, key=lambda one: one.worth)
        return None

    def sweep(self) -> None:
        """Called about twice a second: give the system back what bodies took."""
        if self._freed >= _WORTH_GIVING_BACK:
            self._freed = 0
            give_memory_back()

    def error(self) -> BodiesFullError:
        """The error for a client that would take it beyond."""
        return BodiesFullError(
            f"body: this process holds {self.held} bytes of bodies, of at most {self.most}; send it"
            " again in a moment"
        )


class HeldBodies:
    """The share of one connection, or one call, in the budget.

    Attributes:
        bytes: Of the bodies that are coming and being answered, and of what waits.
        owner: A key, or where none is asked for an address; NOBODY until the key is known. See
            `owned_by`.
        leaves: Called when others need its room, which is theirs already: nothing more is to be
            held for it. None: it cannot leave before its end.
    """

    __slots__ = ("_answering", "_budget", "_coming", "_waiting", "bytes", "leaves", "owner")

    def __init__(
        self, budget: BodyBudget, owner: str, leaves: Callable[[], None] | None = None
    ) -> None:
        self._budget = budget
        self.owner = owner
        self.leaves = leaves
        self._coming = self._answering = self._waiting = self.bytes = 0

    def owned_by(self, owner: str) -> None:
        """From now on all of it is this owner's."""
        if owner != self.owner:
            self._budget.changed(self, 0)
            self.owner = owner
            self._count()

    def coming(self, size: int) -> bool:
        """So many bytes of a request are here; False, and as before, if there is no room."""
        if not self._budget.has_room(self, size - self._coming):
            return False
        self._coming = size
        self._count()
        return True

    def answering(self, size: int) -> bool:
        """A body of this length is complete; False, and as before, if there is no room."""
        if not self._budget.has_room(self, size - self._coming - self._answering):
            return False
        self._coming, self._answering = 0, size
        self._count()
        return True

    def waiting(self, size: int) -> None:
        """So many bytes wait for the client: answers that it does not read, or has yet to.

        The newest is never refused: others who wait leave for it.
        """
        self._budget.has_room(self, size - self._waiting)
        self._waiting = size
        self._count()

    def released(self) -> None:
        """It is answered, or gone; of a next one that is coming the next piece counts again."""
        self._coming = self._answering = 0
        self._count()

    def leave(self) -> None:
        """Others need the room."""
        self._coming = self._answering = self._waiting = 0
        self._count()
        if self.leaves is not None:
            self.leaves()

    def close(self) -> None:
        """Its client is gone."""
        self.leaves = None  # which knows the connection, as that knows this
        self.leave()

    def when_freed(self, call: Callable[[], None]) -> None:
        """See BodyBudget.when_freed."""
        self._budget.when_freed(call)

    def error(self) -> BodiesFullError:
        """See BodyBudget.error."""
        return self._budget.error()

    @property
    def waits(self) -> bool:
        """Whether its client is the one who is waited for."""
        return self._waiting > 0

    @property
    def worth(self) -> int:
        """Rank of the work done for it; of what waits for its client nothing more is to be done."""
        return 0 if self._waiting else 2 if self._answering else 1

    def _count(self) -> None:
        self._budget.changed(self, self._coming + self._answering + self._waiting)


_NONE: Final = _Owned()


PIECE_BYTES: Final = 256 * 1024
"""Inflated at once, which takes about a millisecond."""
_FED_BYTES: Final = 64 * 1024
"""Given to zlib at once: what it does not take is copied every time."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""zlib's number for gzip's own head and checksum."""


class Inflater:
    """One body.

    Attributes:
        size: Bytes inflated so far, at most the limit.
    """

    def __init__(self, packed: bytes, most: int, wbits: int = _GZIP) -> None:
        """`most` bytes may come of `packed`; `wbits` is zlib's number for what it may be."""
        self.size = 0
        self._rest = memoryview(packed)
        self._fed = b""
        self._most = most
        self._zlib = zlib.decompressobj(wbits=wbits)
        self._body = io.BytesIO()

    def step(self) -> bool:
        """Inflate one piece; whether the body is whole.

        Raises:
            MalformedError: this is no gzip, or not one whole member of it.
            TooLargeError: more than the limit comes of it.
        """
        if not self._fed:
            self._fed, self._rest = bytes(self._rest[:_FED_BYTES]), self._rest[_FED_BYTES:]
        # One byte above the limit tells that it is too much.
        room = min(PIECE_BYTES, self._most - self.size + 1)
        try:
            piece = self._zlib.decompress(self._fed, room)
        except zlib.error as error:
            raise MalformedError(
                f"body: expected gzip, as Content-Encoding says, got {error}"
            ) from error
        more_fed = bool(self._fed)
        self._fed = self._zlib.unconsumed_tail
        self.size += len(piece)
        if self.size > self._most:
            self.size = self._most
            raise TooLargeError(
                f"body: expected at most {self._most} bytes (overload.maxBodySize) once inflated,"
                " got more"
            )
        self._body.write(piece)
        if self._zlib.eof:
            if self._zlib.unused_data or self._rest:
                raise MalformedError("body: expected one member of gzip, got something after it")
            return True
        if not (piece or more_fed or self._rest):
            raise MalformedError("body: expected gzip, as Content-Encoding says, got a part of it")
        return False

    def body(self) -> bytes:
        """The whole body, once it is."""
        return self._body.getvalue()


def inflated(packed: bytes, most: int) -> bytes:
    """The whole of a gzip body of at most `most` bytes. See Inflater.step for errors."""
    inflater = Inflater(packed, most)
    while not inflater.step():
        pass
    return inflater.body()
