"""The engine of web processes 1, 2, ...: requests are checked and answered here, and queued there.

`there` is the first web process, which has the replica's one queue. What costs time in a web
process, decoding and encoding, is done by as many of them as there are; batches still form of the
rows of all.

When the first web process ends, requests wait for the one that replaces it: new ones, and those
that were there, which it is handed once more. As after the death of a model process, a prediction
may so be run twice. Only who was in two deaths, has less time than a replacement may take, or still
waits when that time is over, is answered 503; so ends a stream that has begun.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Codec, DecodedRequest, codec_for
from batchedapi_serving.dispatch.engine import (
    CLIENT_LEFT,
    Caller,
    MethodTable,
    Reader,
    RequestHandle,
    ServedMethod,
)
from batchedapi_serving.dispatch.messages import answer_of, learn, pack_rows, trace_of
from batchedapi_serving.errors import NotReadyError, QueueFullError, ServingError
from batchedapi_serving.ipc import FrameProtocol, Meta, encode_frame
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)

_FIRST_WAIT: Final = 0.05  # seconds between attempts to connect, doubled each time
_LAST_WAIT: Final = 1.0
_HELD_SECONDS: Final = 5.0
"""Requests wait so long for the first web process to be replaced, which takes about two."""
_LOST: Final = "the process with the queue was restarted; try again in a moment"


@dataclass(frozen=True, slots=True)
class RemoteMethod:
    """See ServedMethod."""

    spec: MethodSpec
    codec: Codec


class ForwardedRequest:
    """A forwarded request; see RequestHandle."""

    __slots__ = (
        "caller",
        "client",
        "deadline",
        "decoded",
        "done",
        "number",
        "reader",
        "served",
        "times_sent",
    )

    def __init__(  # noqa: PLR0917 - one for each request, made in one place
        self, number: int, served: ServedMethod, decoded: DecodedRequest, client: Client,
        caller: Caller, deadline: float,
    ) -> None:  # fmt: skip
        self.number = number
        self.served = served
        self.decoded = decoded
        self.client = client
        self.caller = caller
        self.deadline = deadline
        """Seconds on the monotonic clock; inf: none."""
        self.times_sent = 0
        self.reader: Reader | None = None
        """The caller that has begun to get a stream."""
        self.done = False


class RemoteEngine(MethodTable[RemoteMethod]):
    """See Engine. Runs on one event loop; every request it took is answered exactly once."""

    def __init__(self, settings: ReplicaSettings, ready: Callable[[], None]) -> None:
        """`ready` is called each time the methods have become known."""
        super().__init__()
        self._settings = settings
        self._ready = ready
        self._forwarded: dict[int, ForwardedRequest] = {}
        self._clients: dict[Client, int] = {}
        self._next = 0
        self._transport: asyncio.WriteTransport | None = None
        self._held_until = -math.inf
        """Seconds: so long requests wait for a connection, if there is none."""
        self._hold_timer: asyncio.TimerHandle | None = None
        self._uncounted: Counter[int] = Counter()

    # ------------------------------------------------------------ the engine

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        limit = self._settings.max_concurrency
        if len(self._forwarded) >= limit:  # there it would be refused as well, but copied before
            raise QueueFullError.of_replica(limit)
        now, longest = time.monotonic(), self._settings.timeout or math.inf
        deadline = now + (longest if timeout is None else min(timeout, longest))
        if self._transport is None and not now < self._held_until <= deadline:
            raise NotReadyError(_LOST)
        self._next += 1
        request = self._forwarded[self._next] = ForwardedRequest(
            self._next, served, decoded, client, caller, deadline
        )
        self._send(request, timeout)
        return request

    def _send(self, request: ForwardedRequest, timeout: float | None) -> None:
        """Hand it over; nothing happens while there is nobody to take it."""
        if self._transport is None:
            return
        request.times_sent += 1
        rows, buffers = pack_rows(request.decoded)
        meta = {
            "request": request.number,
            "client": self._clients.setdefault(request.client, request.number),
            "method": request.served.spec.name,
            "timeout": timeout,
            **rows,
        }
        if self._settings.tracing is not None:
            meta |= trace_of(request.caller.span)
        self._transport.write(encode_frame(meta, buffers))

    def cancel(self, handle: RequestHandle, status: int = CLIENT_LEFT) -> None:
        """See Engine."""
        if isinstance(handle, ForwardedRequest) and not handle.done:
            handle.done = True
            del self._forwarded[handle.number]
            self._say({"cancel": handle.number, "status": status})
            if status == CLIENT_LEFT:
                self.disconnected(handle.client)

    def taken(self, handle: RequestHandle, items: int) -> None:
        """See Engine."""
        if isinstance(handle, ForwardedRequest) and not handle.done:
            self._say({"taken": handle.number, "items": items})

    def disconnected(self, client: Client) -> None:
        """See Engine."""
        number = self._clients.pop(client, None)
        if number is not None:
            self._say({"disconnected": number})

    def answered(self, code: int) -> None:
        """Count a response that was not forwarded; metrics have one writer, and it is there."""
        if self._transport is None:
            self._uncounted[code] += 1
        else:
            self._say({"answered": code, "times": 1})

    def _say(self, meta: Meta) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(meta))

    # ------------------------------------------------------------ the connection

    async def run(self) -> None:
        """Stay connected with the first web process until cancelled."""
        loop, wait = asyncio.get_running_loop(), _FIRST_WAIT
        path = str(self._settings.engine_path)
        while True:
            with contextlib.suppress(OSError):
                transport, protocol = await loop.create_unix_connection(
                    lambda: _RemoteConnection(self), path
                )
                wait = _FIRST_WAIT
                try:
                    await protocol.closed.wait()
                finally:
                    transport.abort()
                log.warning("connection to the queue lost")
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LAST_WAIT)

    def connected(self, transport: asyncio.WriteTransport, hello: Meta) -> None:
        """The first web process said which methods there are; from now on it takes requests."""
        settings = self._settings
        specs = [MethodSpec.from_json(value) for value in hello["methods"]]
        self._served = {
            spec.name: RemoteMethod(
                spec,
                codec_for(spec, settings.of_method(spec.name), settings.name, settings.receipts),
            )
            for spec in specs
        }
        self._default = hello["default"]
        if self._transport is transport:  # other methods are served now, by the same queue
            self._ready()
            return
        self._transport = transport
        for code, times in self._uncounted.items():
            self._say({"answered": code, "times": times})
        self._uncounted.clear()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        now = time.monotonic()
        for request in self._forwarded.values():
            self._send(request, None if request.deadline == math.inf else request.deadline - now)
        self._ready()

    def take_item(self, meta: Meta, payload: bytes) -> None:
        """Hand on an item of a stream to the request it answers."""
        request = self._forwarded.get(meta["item"])
        if request is None:
            return
        if request.reader is None:
            if not isinstance(request.caller, Reader):
                raise TypeError(f"expected a Reader, got {request.caller!r}")
            request.reader = request.caller
        request.reader.item(meta["kind"], payload)

    def take_answer(self, meta: Meta, payload: bytes) -> None:
        """Answer a request, unless its client left meanwhile."""
        request = self._forwarded.pop(meta["answer"], None)
        if request is None:
            return
        learn(request.caller.span, meta)
        codec, decoded = request.served.codec, request.decoded
        try:
            answer = answer_of(meta, payload, codec, decoded.reply, decoded.rows)
        except ServingError as error:
            self._fail(request, error)
        else:
            request.done = True
            request.caller.deliver(answer)

    def lost(self) -> None:
        """The first web process is gone, and with it the queue; another will come."""
        if self._transport is None:  # it had not yet said what it serves
            return
        self._transport = None
        self._clients.clear()
        self._held_until = until = time.monotonic() + _HELD_SECONDS
        self._hold_timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._give_up)
        forwarded = self._forwarded.values()
        self._refuse(
            [
                request
                for request in forwarded
                if request.reader or request.times_sent > 1 or request.deadline < until
            ]
        )

    def _give_up(self) -> None:
        self._hold_timer = None
        self._refuse(list(self._forwarded.values()))

    def _refuse(self, forwarded: Sequence[ForwardedRequest]) -> None:
        for request in forwarded:
            del self._forwarded[request.number]
            self._uncounted[NotReadyError.status] += 1
            self._fail(request, NotReadyError(_LOST))

    @staticmethod
    def _fail(request: ForwardedRequest, error: ServingError) -> None:
        request.done = True
        request.caller.deliver(request.decoded.reply.problem(error, request.caller.request_id()))


class _RemoteConnection(FrameProtocol):
    PEER = "the queue"

    def __init__(self, engine: RemoteEngine) -> None:
        super().__init__()
        self._engine = engine

    def take(self, meta: Meta, payload: bytes) -> None:
        if "hello" in meta:
            self._engine.connected(self.transport, meta["hello"])
        elif "item" in meta:
            self._engine.take_item(meta, payload)
        else:
            self._engine.take_answer(meta, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.lost()
        super().connection_lost(exc)
