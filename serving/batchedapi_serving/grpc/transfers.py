"""Messages on their way over gRPC, in and out: how long they may take, how many bytes they count.

gRPC takes no more of a message than the 64 KiB that a stream may send unasked, until the stream is
read. From then on all of the message may come, and gRPC does not tell how much of it is here. The
kernel knows what has come over the connection; what is not of messages that were read whole is of
those that are awaited. It is looked at a hundred times a second, so that a body of any length can
be counted before much of the next one has come.

gRPC would inflate a message at once, however much comes of it. Here that is done in pieces.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import grpc.aio
from grpc.aio import ServicerContext

from batchedapi_serving.errors import ServingError, TooSlowError
from batchedapi_serving.grpc.sockets import Peer, Sockets, peer_of
from batchedapi_serving.web.access import owner_of
from batchedapi_serving.web.limits import (
    NOBODY,
    PIECE_BYTES,
    UNCOUNTED_BYTES,
    BodyBudget,
    HeldBodies,
    Inflater,
    Limits,
)

WINDOW_BYTES: Final = 64 * 1024
"""Bytes that gRPC takes from a stream unasked."""
MOST_CONNECTIONS: Final = 4096
"""Remembered; of one that was forgotten too much seems to be on its way."""
_LOOK_SECONDS: Final = 0.01
"""Between looks at messages that are awaited. One that came with its head is read before that."""
_UNKNOWN_SECONDS: Final = 1.0
"""After which a socket was found, if it can be."""
_SHARE: Final = 10
"""Looking takes at most one part in so many of the time."""
_LEAST_OF_CALL: Final = 32
"""Bytes of the frames around the shortest message."""
_PACKED: Final = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""How messages in gzip and in gRPC's `deflate`, which is zlib, begin; gRPC does not say which are.
No other message begins so: protobuf has no such type of field, and none of ours has a field 15."""
_ANY_HEAD: Final = 32 + zlib.MAX_WBITS
"""zlib's number for either."""


class CallConnection:
    """One from which calls have come.

    Attributes:
        read: Bytes of the messages that were read whole, or are awaited no more.
        calls: So many are being answered.
        used: When one began or ended last, in seconds on the loop's clock.
    """

    __slots__ = ("calls", "peer", "read", "used")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.read = self.calls = 0
        self.used = 0.0


class Call:
    """One call, which may be ended from here: its time is over, or others need its room."""

    __slots__ = (
        "_budget", "_error", "_sockets", "_task", "came", "connection", "context", "held", "least",
        "sending", "since", "taken",
    )  # fmt: skip

    def __init__(
        self,
        context: ServicerContext,
        connection: CallConnection,
        budget: BodyBudget,
        sockets: Sockets,
    ) -> None:
        """Make the call of the running task."""
        self.context = context
        self.connection = connection
        self.held = HeldBodies(budget, NOBODY, self._leaves)
        self.least = 0
        """Bytes that it counts for at least, once its first message is here."""
        self.since = 0.0
        """When the message began that is on its way, or when its answer was looked at last."""
        self.came = 0
        """Bytes of that message."""
        self.sending = 0
        """Bytes of the answer that is on its way; 0: none is."""
        self.taken: int | None = None
        """By the client over this connection, when its answer was looked at last."""
        self._budget = budget
        self._sockets = sockets
        self._task = asyncio.current_task()
        self._error: ServingError | None = None

    def end(self, error: ServingError) -> None:
        """Have the task cancelled, for this reason."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def reason(self) -> ServingError | None:
        """Why the task was just cancelled; None: that did not come from here."""
        if self._error is None or self._task is None or self._task.uncancel() > 0:
            return None
        return self._error

    def drop(self) -> None:
        """End the connection: without it gRPC gives back nothing that it was given to send."""
        self._sockets.close(self.connection.peer)

    def _leaves(self) -> None:
        if self.sending:
            self.drop()
        else:
            self.end(self._budget.error())


class Transfers:
    """All messages that a web process waits for; times are seconds on the loop's clock."""

    def __init__(self, budget: BodyBudget, limits: Limits, sockets: Sockets) -> None:
        self._budget = budget
        self._limits = limits
        self._sockets = sockets
        self._connections: OrderedDict[str, CallConnection] = OrderedDict()
        self._awaited: dict[Call, None] = {}  # the oldest first
        self._sent: dict[Call, None] = {}
        self._inflating = asyncio.Lock()
        """One at a time: each in turn with all others would leave no time for anybody else."""
        self._look: asyncio.TimerHandle | None = None
        self._look_at_sent: asyncio.TimerHandle | None = None

    def call(self, context: ServicerContext) -> Call:
        """The call of the running task."""
        name = context.peer()
        connection = self._connections.get(name)
        if connection is not None:
            self._connections.move_to_end(name)
        else:
            connection = self._connections[name] = CallConnection(peer_of(name))
            if len(self._connections) > MOST_CONNECTIONS:
                self._connections.popitem(last=False)
        connection.calls += 1
        return Call(context, connection, self._budget, self._sockets)

    def ended(self, call: Call) -> None:
        """It was answered, or failed; an answer that is being sent counts on."""
        call.connection.calls -= 1
        call.connection.used = asyncio.get_running_loop().time()
        if not call.sending:
            call.held.released()

    def waits_since(self, peers: Iterable[Peer]) -> Iterator[tuple[float | None, str, Peer]]:
        """Since when no call of each is answered, None: one is; and whose it is."""
        known = {connection.peer: connection for connection in self._connections.values()}
        for peer in peers:
            connection = known.get(peer)
            if connection is None:
                since: float | None = 0.0  # it never called, or long ago
            else:
                since = None if connection.calls else connection.used
            yield since, owner_of(peer.address), peer

    async def receive(self, call: Call) -> bytes:
        """The next message of a call, inflated; it is held for the call from then on.

        Raises:
            EOFError: there is none.
            MalformedError: it begins like one that is packed, and is not.
            TooLargeError: more than the limit comes of it.
            BodiesFullError: there is no room for it.
            CancelledError: see Call.reason.
        """
        loop = asyncio.get_running_loop()
        call.since, call.came = loop.time(), 0
        self._awaited[call] = None
        if self._look is None:
            self._look = loop.call_later(_LOOK_SECONDS, self._look_at_awaited)
        try:
            body: bytes = await call.context.read()
            call.came = len(body) + _LEAST_OF_CALL
        finally:
            call.connection.read += call.came
            del self._awaited[call]
        if body is grpc.aio.EOF:
            raise EOFError
        if body.startswith(_PACKED):
            body = await self._inflated(body, call)
        size = max(len(body), call.least)
        if not call.held.answering(size if size > UNCOUNTED_BYTES else 0):
            raise self._budget.error()
        return body

    async def _inflated(self, packed: bytes, call: Call) -> bytes:
        inflater = Inflater(packed, self._limits.body, _ANY_HEAD)
        self._holds(call, len(packed) + PIECE_BYTES)
        if inflater.step():
            return inflater.body()
        async with self._inflating:
            whole = False
            while not whole:
                self._holds(call, len(packed) + inflater.size + PIECE_BYTES)
                whole = inflater.step()
                await asyncio.sleep(0)  # others are served between two pieces
        return inflater.body()

    def _holds(self, call: Call, size: int) -> None:
        if not call.held.coming(size):
            raise self._budget.error()

    def _look_at_awaited(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        slow: dict[CallConnection, list[Call]] = {}
        for call in self._awaited:
            if now - call.since < _LOOK_SECONDS / 2:
                break
            slow.setdefault(call.connection, []).append(call)
        for connection, calls in slow.items():
            moved = self._sockets.moved(connection.peer)
            for call in calls:
                if moved is not None:
                    came = max(0, moved.received - connection.read) // len(calls)
                    call.came = min(came, self._limits.body)
                elif now - call.since >= _UNKNOWN_SECONDS:
                    call.came = self._limits.body  # the longest there may be
                self._judge(call, now)
        self._look = None
        if self._awaited:
            pause = max(_LOOK_SECONDS, _SHARE * (loop.time() - now))
            self._look = loop.call_later(pause, self._look_at_awaited)

    def _judge(self, call: Call, now: float) -> None:
        """End a call whose message takes too long, or more than there is."""
        limits, waited = self._limits, now - call.since
        late = waited >= limits.grace_period and call.came < limits.least_rate * waited
        if late or waited >= limits.body_arrival:
            call.end(
                TooSlowError(
                    f"message: expected all of it within {limits.body_arrival:g} s, and"
                    f" {limits.least_rate} bytes a second after {limits.grace_period:g} s"
                )
            )
        elif not call.held.coming(call.came + WINDOW_BYTES):
            call.end(self._budget.error())

    def send(self, call: Call, size: int) -> None:
        """The answer of a call, of `size` bytes, is written; it counts until it is taken.

        Raises:
            BodiesFullError: there is no room for it.
        """
        if size <= UNCOUNTED_BYTES:
            call.held.released()
        elif not call.held.answering(2 * size):  # gRPC has a copy of its own
            raise self._budget.error()
        loop = asyncio.get_running_loop()
        call.sending, call.since = max(2 * size, WINDOW_BYTES), loop.time()
        self._sent[call] = None
        call.context.add_done_callback(lambda _: self._is_taken(call))
        if self._look_at_sent is None:
            self._look_at_sent = loop.call_later(_SENT_SECONDS, self._look_over_sent)

    def _is_taken(self, call: Call) -> None:
        del self._sent[call]
        call.held.waiting(0)
        call.held.released()

    def _look_over_sent(self) -> None:
        """Drop those who do not take their answers."""
        loop = asyncio.get_running_loop()
        now, limits = loop.time(), self._limits
        half = limits.grace_period / 2
        for call in [call for call in self._sent if now - call.since >= half]:
            moved = self._sockets.moved(call.connection.peer)
            if moved is not None:
                stands = (
                    call.taken is not None and moved.taken < call.taken + half * limits.least_rate
                )
                if stands:
                    call.drop()
                call.taken = moved.taken
            call.since = now
            call.held.waiting(call.sending)  # whoever needs room has it from now on
            call.held.released()
        self._look_at_sent = (
            loop.call_later(_SENT_SECONDS, self._look_over_sent) if self._sent else None
        )


_SENT_SECONDS: Final = 1.0
"""Between looks at answers that are on their way."""
