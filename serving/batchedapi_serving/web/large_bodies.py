"""Requests whose bodies are too large to be taken apart on the event loop.

Parsing a body takes the whole interpreter: a second for 32 MiB of numbers, in which nobody else
would be answered. A codec process does it, one body at a time, and writes the answer later; the
event loop only moves bytes. It is started with the first such body and ends when none has come for
a while, and so gives back all the memory that it took.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from batchedapi_core.batching import Client
from batchedapi_serving.codecs.base import Answer, Decoded, Head, Wire
from batchedapi_serving.codecs.json_values import is_json, media_type
from batchedapi_serving.codecs.open_inference_binary import raw_bytes
from batchedapi_serving.codecs.plain_replies import NPY_TYPE
from batchedapi_serving.dispatch.desk import AnswerTo, Desk, Line
from batchedapi_serving.dispatch.frames import BrokenFrameError, Meta, encode_frame
from batchedapi_serving.dispatch.remote_frames import error_of, hashable, unpack_payload
from batchedapi_serving.errors import DeadlineExceededError, NotReadyError, ServingError
from batchedapi_serving.predictor.method import MethodSpec
from batchedapi_serving.processes import essential
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.children import Backoff
from batchedapi_serving.web import codec_life
from batchedapi_serving.web.large_request import LargeRequest, question

log = logging.getLogger(__name__)

INLINE_BYTES: Final = 16 * 1024
"""Bodies up to this length are taken apart where they arrive, whatever they are.

The worst of it, 16384 empty lists in msgpack, take about 10 ms; handing a body over and getting its
rows back takes 0.5 ms, and a second process.
"""
_INLINE_JSON_BYTES: Final = 64 * 1024
"""JSON says less with as many bytes: the worst take about 10 ms as well."""
_INLINE_RAW_BYTES: Final = 1024 * 1024
"""Of tensors that come as they lie in memory (.npy, v2 binary, gRPC raw) only what describes them
is parsed; their values are looked over at a GiB a second."""
STEP_SECONDS: Final = 30.0
"""After which one body or answer is given up, and the process with it; the slowest takes 3."""
_LOST: Final = "the process that reads large bodies was restarted; try again in a moment"


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


class LargeBodies:
    """Owner of a web process's codec process and of the requests that go through it."""

    def __init__(
        self,
        settings: ReplicaSettings,
        desk: Desk,
        answered: Callable[[int], None],
        live: Callable[[codec_life.CodecUser, str], Awaitable[None]] = codec_life.live,
    ) -> None:
        """`answered` counts a response by its code that the desk has not counted.

        `live` runs a codec process.
        """
        self._settings = settings
        self._live = live
        self._desk = desk
        self._answered = answered
        self.asked = 0
        """See CodecUser."""
        self._bodies: deque[LargeRequest] = deque()
        self._answers: deque[tuple[LargeRequest, bytes]] = deque()
        self._inside: set[LargeRequest] = set()  # whose replies the process has
        self._active: LargeRequest | None = None  # what it works on
        self._late: asyncio.TimerHandle | None = None  # ends it if that takes too long
        self._transport: Any = None
        self._running: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ requests

    def submit(  # noqa: PLR0917 - what a request is, in the order of the desk's
        self, line: Line, wire: Wire, head: Head, body: bytes, client: Client, asker: AnswerTo,
        timeout: float | None, problem_of: Callable[[ServingError], Answer],
    ) -> LargeRequest:  # fmt: skip
        """Have a body taken apart and its rows queued; `asker` is told the answer in any case.

        Args:
            line: One of the desk's.
            wire: Of the route.
            head: Beside the body.
            body: The whole of it.
            client: As the desk wants it.
            asker: As the desk wants it.
            timeout: Seconds that the client waits at most.
            problem_of: The answer to an error before the request is understood.
        """
        self.asked += 1
        request = LargeRequest(
            self, self.asked, line, wire, head, body, client, asker, timeout, problem_of
        )
        self._bodies.append(request)
        self._go_on()
        return request

    def cancel(self, request: LargeRequest) -> None:
        """The client left: what is not begun is not done, and nobody is told."""
        if request.done:
            return
        request.done = True
        if request.ticket is not None:
            self._desk.cancel(request.ticket)
        elif request not in self._inside:
            self._desk.disconnected(request.client)
            self._answered(499)
        if request is not self._active:
            self._forget(request)
        with contextlib.suppress(ValueError):
            self._bodies.remove(request)
        request.body, request.head = b"", None

    def write(self, request: LargeRequest, frame: bytes) -> None:
        """Have the response written that `frame` tells of."""
        if request not in self._inside:
            self._deliver(request, request.problem_of(NotReadyError(_LOST)))
            return
        self._answers.append((request, frame))
        self._go_on()

    def _forget(self, request: LargeRequest) -> None:
        if request in self._inside:
            self._inside.remove(request)
            self._transport.write(encode_frame({"forget": request.number}))

    def _fail(self, request: LargeRequest, error: ServingError) -> None:
        if not request.done:
            self._answered(error.status)
            self._deliver(request, request.problem_of(error))

    @staticmethod
    def _deliver(request: LargeRequest, answer: Answer) -> None:
        if not request.done:
            request.done = True
            request.asker.deliver(answer)

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
        if self._bodies:
            request = self._bodies.popleft()
            body, request.body = request.body, b""
            self._begin(request, (encode_frame(question(request), (), len(body)), body))

    def _begin(self, request: LargeRequest, pieces: Sequence[bytes]) -> None:
        self._active = request
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(STEP_SECONDS, self._transport.abort)
        for piece in pieces:
            self._transport.write(piece)

    @property
    def busy(self) -> bool:
        """See CodecUser."""
        return bool(self._inside) or self._active is not None

    def connected(self, transport: Any) -> None:
        """It runs."""
        self._transport = transport
        self._go_on()

    def take(self, meta: Meta, payload: bytes) -> None:
        """What it says of the request it works on."""
        request, self._active = self._active, None
        if request is None or self._late is None:
            raise BrokenFrameError("nothing was asked")
        self._late.cancel()
        if "status" in meta:
            self._inside.discard(request)
            headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in meta["headers"])
            content_type = meta["content_type"].encode("latin-1")
            status, retry_after = meta["status"], meta["retry_after"]
            self._deliver(request, Answer(status, content_type, payload, retry_after, headers))
        elif "error" in meta:
            self._fail(request, error_of(meta["error"]))
        else:
            self._inside.add(request)
            self._queue(request, meta, payload)
        self._go_on()

    def _queue(self, request: LargeRequest, meta: Meta, payload: bytes) -> None:
        """Its rows are here."""
        if request.done:
            self._forget(request)
            return
        timeout = request.timeout
        if timeout is not None:
            timeout -= asyncio.get_running_loop().time() - request.arrived
        shapes = meta["shapes"]
        decoded = Decoded(
            meta["rows"],
            unpack_payload(meta["payload"], payload),
            request,
            meta["sizes"],
            None if shapes is None else [hashable(shape) for shape in shapes],
        )
        try:
            if timeout is not None and timeout <= 0:
                raise DeadlineExceededError(f"no answer within {request.timeout:g} s as asked")
            line = self._desk.line(request.line.spec.name)  # the desk may have been replaced
            ticket = self._desk.submit(line, decoded, request.client, request, timeout)
        except ServingError as error:
            self._answered(error.status)
            request.deliver(request.problem(error, request.request_id()))
        else:
            request.ticket = None if ticket.done else ticket

    def lost(self) -> None:
        """It ended, with the replies that it had."""
        self._transport = None
        if self._late is not None:
            self._late.cancel()
        active, self._active = self._active, None
        waiting = [request for request, _ in self._answers]
        self._answers.clear()
        self._inside.clear()
        for request in (active, *waiting):
            if request is not None:
                self._fail(request, NotReadyError(_LOST))

    async def _run(self) -> None:
        """Keep it running while there is something for it to do."""
        backoff = Backoff()
        while self._bodies:
            try:
                await self._live(self, self._settings.runtime)
            except OSError as error:  # no process, no descriptor, no memory
                log.warning("codec process not started", extra={"error": str(error)})
                while self._bodies:
                    self._fail(self._bodies.popleft(), NotReadyError(_LOST))
            if self._bodies:
                await asyncio.sleep(backoff.take())
        self._running = None

    async def close(self) -> None:
        """The web process ends: so does it."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
