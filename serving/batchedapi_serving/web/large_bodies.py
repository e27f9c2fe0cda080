"""Requests whose bodies are too large to be taken apart on the event loop.

Parsing a body takes the whole interpreter: a second for 32 MiB of numbers, in which nobody else
would be answered. A codec process does it, one body at a time, and writes the answer later; the
event loop only moves bytes. It is started with the first such body and ends when none has come for
a while, and so gives back all the memory that it took. Bodies that take seconds have one of their
own, so that no other waits for them.
"""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from batchedapi_serving.codecs import Answer, Head
from batchedapi_serving.codecs.json_values import is_json, media_type
from batchedapi_serving.codecs.open_inference import raw_bytes
from batchedapi_serving.codecs.replies import NPY_TYPE
from batchedapi_serving.dispatch.engine import CLIENT_LEFT, STOPPED, Engine
from batchedapi_serving.dispatch.messages import error_of, unpack_rows
from batchedapi_serving.dispatch.outcomes import Relayed
from batchedapi_serving.errors import DrainingError, NotReadyError, QueueFullError, ServingError
from batchedapi_serving.ipc import BrokenFrameError, FrameProtocol, Meta, encode_frame
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import Backoff, Child, essential
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.large_request import LargeBody, LargeRequest, next_of, question
from batchedapi_serving.web.limits import PIECE_BYTES, BodyBudget, Inflater

log = logging.getLogger(__name__)

INLINE_BYTES: Final = 16 * 1024
"""Bodies up to this length are taken apart where they arrive, whatever they are.

The worst of it, 16384 empty lists in msgpack, take about 10 ms; handing a body over and getting its
rows back takes 0.5 ms, and a second process.
"""
_INLINE_JSON_BYTES: Final = 64 * 1024
"""JSON says less with as many bytes: the worst take about 10 ms as well."""
_INLINE_RAW_BYTES: Final = 1024 * 1024
"""Only the description of tensors that come as they lie in memory (.npy, v2 binary, gRPC raw)
is parsed; their values are looked over at a GiB a second."""
HUGE_BYTES: Final = 1024 * 1024
"""Longer bodies have a codec process of their own; one of this length takes 0.1 s or less."""
STEP_SECONDS: Final = 30.0
"""After which one body or answer is given up, and the process with it; the slowest takes 3."""
_UNPACKED_SHARE: Final = 3
"""One part in so many of the budget is for the rows of bodies that came packed. Further ones stay
packed until rows of these are answered, so that none is refused for bytes that nobody sent."""
_LOST: Final = "the process that reads large bodies was restarted; try again in a moment"
_NOT_STARTED: Final = "the process that reads large bodies could not be started; try again later"


IDLE_SECONDS: Final = 60.0
"""A codec process ends when nothing was asked of it for so long."""


def is_large(method: MethodSpec, head: Head, body: bytes) -> bool:
    """Whether a body takes too long for the event loop."""
    length = len(body)
    if is_json(head.content_type):
        return length > _INLINE_JSON_BYTES
    if length <= INLINE_BYTES:
        return False
    npy = media_type(head.content_type) == NPY_TYPE
    return is_large_beside(method, length, length if npy else raw_bytes(head, body))


def is_large_beside(method: MethodSpec, length: int, raw: int) -> bool:
    """The same of one of `length` bytes, `raw` of which are tensors as they lie in memory.

    A method of JSON items has them taken apart.
    """
    taken_apart = length - raw if method.inputs else length
    return taken_apart > INLINE_BYTES or length > _INLINE_RAW_BYTES


def unpacked_here(packed: bytes, most: int) -> bytes | None:
    """A gzip body that is short, inflated; None: it takes too long for the event loop.

    Raises:
        MalformedError: it is no gzip.
        TooLargeError: more than `most` bytes come of it.
    """
    inflater = Inflater(packed, most)
    while len(packed) <= PIECE_BYTES and inflater.size < PIECE_BYTES:
        if inflater.step():
            return inflater.body()
    return None


async def live(user: "CodecQueue", runtime: str) -> None:
    """Run one until it dies, or `user` has not needed it for a while.

    Raises:
        OSError: there is no process, no descriptor or no memory for it.
    """
    child = Child("codec", "batchedapi_serving.web.codec_process")
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            child.start([runtime, str(theirs.fileno())], descriptors=(theirs.fileno(),))
    except OSError:
        ours.close()
        raise
    try:
        await _spoken_with(user, ours)
    finally:
        child.signal(signal.SIGKILL)
        await child.ended()


async def _spoken_with(user: "CodecQueue", ours: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    try:
        transport, connection = await loop.create_connection(
            lambda: _CodecConnection(user), sock=ours
        )
    except OSError:
        ours.close()
        raise
    try:
        while not connection.closed.is_set():
            asked = user.asked
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.closed.wait(), IDLE_SECONDS)
            if asked == user.asked and not user.busy:
                break
    finally:
        user.lost()  # what comes from now on is for the next
        transport.abort()
        await connection.closed.wait()


class _CodecConnection(FrameProtocol):
    """With the codec process."""

    PEER = "the codec process"

    def __init__(self, user: "CodecQueue") -> None:
        super().__init__()
        self._user = user

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._user.connected(transport)

    def take(self, meta: Meta, payload: bytes) -> None:
        self._user.take(meta, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._user.lost()
        super().connection_lost(exc)


class CodecQueue:
    """Owner of a codec process and of the requests that go through it."""

    def __init__(
        self,
        settings: ReplicaSettings,
        engine: Engine,
        answered: Callable[[int], None],
        live: Callable[["CodecQueue", str], Awaitable[None]] = live,
    ) -> None:
        """`answered` counts a response by its code that the engine has not counted.

        `live` runs a codec process.
        """
        self._settings = settings
        self._live = live
        self._engine = engine
        self._answered = answered
        self.asked = 0
        """How many requests there have been."""
        self._bodies: list[LargeRequest] = []  # in order of arrival
        self._passed_since: float | None = None  # others were taken before the oldest
        self._most_unpacked = BodyBudget(settings.max_body_bytes).most // _UNPACKED_SHARE
        self._wants_room = False
        """It is called once others give bytes back: a packed body does not fit."""
        self._answers: deque[tuple[LargeRequest, bytes]] = deque()
        self._inside: set[LargeRequest] = set()  # whose replies the process has
        self._active: LargeRequest | None = None  # what it works on
        self._late: asyncio.TimerHandle | None = None  # ends it if that takes too long
        self._backoff = Backoff()
        self._transport: Any = None
        self._running: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ requests

    def submit(self, asked: LargeBody) -> LargeRequest:
        """Have a body taken apart and its rows queued; the caller is told the answer in any case.

        Raises:
            QueueFullError: as many as may be in the replica are here.
        """
        limit = self._settings.max_concurrency
        if len(self._undecoded()) + len(self._inside) >= limit:
            raise QueueFullError.of_replica(limit)
        self.asked += 1
        request = LargeRequest(asked, self.asked, self.write, self._settings)
        self._bodies.append(request)
        if request.deadline < math.inf:
            loop = asyncio.get_running_loop()
            request.timer = loop.call_at(request.deadline, self._expire, request)
        self._go_on()
        return request

    def cancel(self, request: LargeRequest, status: int = CLIENT_LEFT) -> None:
        """The client left: what is not begun is not done, and nobody is told; see Engine."""
        if request.done:
            return
        if request.handle is None:
            self._engine.disconnected(request.asked.client)
        self._end(request, status)
        if request is not self._active:
            self._forget(request)

    def abandon(self) -> None:
        """The time to stop is over: whoever waits here is answered 503.

        The engine answers those that it has; what it answers is still written.
        """
        for request in self._undecoded():
            self._fail(request, DrainingError(STOPPED))

    def _undecoded(self) -> list[LargeRequest]:
        """Requests that wait for their bodies to be taken apart."""
        active = self._active
        if active is None or active.done or active in self._inside:
            return list(self._bodies)
        return [active, *self._bodies]

    def _expire(self, request: LargeRequest) -> None:
        """Tell a request that is still not taken apart at its deadline."""
        if request in self._undecoded():
            self._fail(request, request.late())

    def write(self, request: LargeRequest, frame: bytes) -> None:
        """Have the response written that `frame` tells of."""
        self._answers.append((request, frame))
        self._go_on()

    def _forget(self, request: LargeRequest) -> None:
        if request in self._inside:
            self._inside.remove(request)
            self._transport.write(encode_frame({"forget": request.number}))
            self._go_on()  # there may be room for another

    def _fail(self, request: LargeRequest, error: ServingError) -> None:
        if not request.done:
            self._end(request, error.status)
            request.asked.caller.deliver(request.asked.problem_of(error))

    def _end(self, request: LargeRequest, status: int) -> None:
        """Nothing more is done for it; counted once."""
        request.done = True
        if request.timer is not None:
            request.timer.cancel()
        if request.handle is not None:
            self._engine.cancel(request.handle, status)
        elif not request.counted:
            self._answered(status)
        with contextlib.suppress(ValueError):
            self._bodies.remove(request)
        request.give_up_body()

    # ------------------------------------------------------------ the process

    def _go_on(self) -> None:
        """Give it the next to do: answers first, for their requests are nearly over."""
        if self._running is None:
            self._running = essential("large bodies", self._run())
        if self._transport is None or self._active is not None:
            return
        while self._answers:
            request, frame = self._answers.popleft()
            if not request.done:
                self._begin(request, (frame,))
                return
        following = self._next_body()
        if following is not None:
            self._bodies.remove(following)
            body = following.asked.body
            frame = encode_frame(question(following), (), len(body))
            following.give_up_body()
            self._begin(following, (frame, body))
            return
        held = next((one.asked.held for one in self._bodies if one.asked.packed), None)
        if held is not None and not self._wants_room:
            self._wants_room = True
            held.when_freed(self._look_for_room)

    def _next_body(self) -> LargeRequest | None:
        """The body that is taken apart next; None: there is none, or no room for what it has."""
        ready = [body for body in self._bodies if self._fits(body)]
        while ready:
            now = asyncio.get_running_loop().time()
            since = now if self._passed_since is None else self._passed_since
            lengths = [body.length for body in ready]
            request = ready[next_of(lengths, now - since, ready[0].timeout)]
            if request.reserves():
                self._passed_since = None if request is ready[0] else since
                return request
            ready = [body for body in ready if not body.asked.packed]
        return None

    def _look_for_room(self) -> None:
        self._wants_room = False
        self._go_on()

    def _fits(self, request: LargeRequest) -> bool:
        """Whether rows of a packed body fit beside those that are not answered yet."""
        if not request.asked.packed:
            return True
        unpacked = sum(
            one.asked.held.bytes
            for one in self._inside
            if one.asked.packed and not one.done and one.asked.held is not None
        )
        return not unpacked or unpacked + request.length <= self._most_unpacked

    def _begin(self, request: LargeRequest, pieces: Sequence[bytes]) -> None:
        self._active = request
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(STEP_SECONDS, self._transport.abort)
        for piece in pieces:
            self._transport.write(piece)

    @property
    def busy(self) -> bool:
        """Whether it has something to do, or is to write something later."""
        return bool(self._inside) or self._active is not None

    def connected(self, transport: Any) -> None:
        """The codec process runs."""
        self._transport = transport
        self._go_on()

    def take(self, meta: Meta, payload: bytes) -> None:
        """Take a frame from the codec process.

        Whatever this raises ends the process, and `lost` answers the request.
        """
        request = self._active
        if request is None or self._late is None:
            raise BrokenFrameError("nothing was asked")
        if "status" in meta:
            headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in meta["headers"])
            content_type = meta["content_type"].encode("latin-1")
            status, retry_after = meta["status"], meta["retry_after"]
            answer = Answer(status, content_type, payload, retry_after, headers)
            self._inside.discard(request)
            if not request.done:
                request.done = True
                request.asked.caller.deliver(answer)
        elif "error" in meta:
            self._fail(request, error_of(meta["error"]))
        else:
            self._inside.add(request)
            if request.timer is not None:
                request.timer.cancel()
            self._queue(request, meta, payload)
        self._active = None
        self._late.cancel()
        self._backoff.reset()
        self._go_on()

    def _queue(self, request: LargeRequest, meta: Meta, payload: bytes) -> None:
        """Its rows are here."""
        if request.done:
            self._forget(request)
            return
        left = request.deadline - asyncio.get_running_loop().time()
        asked = request.asked
        caller = Relayed(request.over, asked.caller.span, on_item=request.item)
        decoded = unpack_rows(meta, payload, caller)
        try:
            if left <= 0:
                raise request.late()
            if asked.held is not None and not asked.held.answering(len(payload)):
                raise asked.held.error()
            timeout = None if left == math.inf else left
            served = self._engine.served(
                asked.served.spec.name
            )  # the engine may have been replaced
            handle = self._engine.submit(served, decoded, asked.client, caller, timeout)
        except ServingError as error:
            self._answered(error.status)
            request.counted = True
            request.over(error)
        else:
            request.counted = True
            request.handle = None if handle.done else handle

    def lost(self) -> None:
        """The codec process ended, with everything that it had: nobody can write those answers."""
        self._transport = None
        if self._late is not None:
            self._late.cancel()
        had = [*self._inside]
        if self._active is not None:
            had.append(self._active)
        self._active = None
        self._answers.clear()
        self._inside.clear()
        for request in had:
            self._fail(request, NotReadyError(_LOST))

    async def _run(self) -> None:
        """Keep it running while there is something for it to do."""
        while self._bodies:
            try:
                await self._live(self, self._settings.runtime)
            except OSError as error:  # no process, no descriptor, no memory
                log.warning("codec process not started", extra={"error": str(error)})
                for request in list(self._bodies):
                    self._fail(request, NotReadyError(_NOT_STARTED))
            if self._bodies:
                await asyncio.sleep(self._backoff.take())
        self._running = None

    async def close(self) -> None:
        """The web process ends: so does it."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))


class LargeBodies:
    """Owner of a web process's codec processes, each of which it starts when it needs it."""

    def __init__(
        self, settings: ReplicaSettings, engine: Engine, answered: Callable[[int], None]
    ) -> None:
        """See CodecQueue."""
        self._most = settings.max_body_bytes
        self._large = CodecQueue(settings, engine, answered)
        self._huge = CodecQueue(settings, engine, answered)

    def submit(self, asked: LargeBody) -> LargeRequest:
        """See CodecQueue."""
        return self._queue(asked.length(self._most)).submit(asked)

    def cancel(self, request: LargeRequest, status: int = CLIENT_LEFT) -> None:
        """See CodecQueue."""
        self._queue(request.length).cancel(request, status)

    def abandon(self) -> None:
        """See CodecQueue."""
        for queue in (self._large, self._huge):
            queue.abandon()

    async def close(self) -> None:
        """See CodecQueue."""
        for queue in (self._large, self._huge):
            await queue.close()

    def _queue(self, length: int) -> CodecQueue:
        return self._huge if length > HUGE_BYTES else self._large
