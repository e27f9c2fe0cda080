"""The dispatcher's side of a model process's channel: calls of async methods, and what they submit.

To the model process:
    {"call": id, "method", "rows", ...}     a batch for an async method; many run side by side
    {"cancel": id}                          nobody waits for that call; its result comes anyway
    {"taken": id, "items": n}               the client of a stream took n more items
    {"submitted": id, "kind": ...}          results, see Results.to_frame
    {"submitted": id, "kind": "error", "status", "error"}
From it:
    {"result": id, "kind": ...}             of a call; of a stream: how it ended
    {"item": id, "kind": ...}               one item of a stream, before its result
    {"submit": id, "call": id of the call that awaits it, "method", ...}    see `submitted_rows`
    {"forget": id}                          the call that awaited it was cancelled

Submitted rows join the queue of their method like those of any client. Which methods wait for which
is known from the calls, so that a circle is refused before it can wait for itself.
"""

import asyncio
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from batchedapi_core.batching import Batch, Client, Request
from batchedapi_serving.codecs.submits import submitted_rows
from batchedapi_serving.dispatch.engine import Caller, Engine, Reader, RequestHandle
from batchedapi_serving.dispatch.executor import Done
from batchedapi_serving.dispatch.outcomes import Awaited, Outcome
from batchedapi_serving.errors import InvalidInputError, ServingError
from batchedapi_serving.ipc import BrokenFrameError, Meta, encode_frame
from batchedapi_serving.tracing.spans import Span, Tracer, context_in

_SWEEP_SECONDS: Final = 0.25
"""Between looks at calls whose clients have all left or had their 504. A batch has many clients:
to look at it whenever one leaves would cost more than what runs on for so long."""


class _Call:
    """A call that runs in the model process."""

    __slots__ = ("batch", "cancelled", "chain", "deadline", "done", "reader", "trace")

    def __init__(
        self, batch: Batch, done: Done, awaited_by: tuple[str, ...], trace: Mapping[str, str] | None
    ) -> None:
        self.batch = batch
        self.trace = trace
        """Headers of its batch's span; None: it is not traced."""
        self.done = done
        self.chain = (*awaited_by, batch.method)
        """Methods that wait for it, the outermost first, and its own."""
        self.deadline = max(request.deadline for request in batch.requests)
        """When nobody waits for it any more."""
        self.cancelled = False
        self.reader: Reader | None = None
        """The caller that has begun to get a stream."""

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return any(not request.cancelled for request in self.batch.requests)


class ModelChannel:
    """A process's connection for calls of async methods, and for what its predictor submits."""

    def __init__(
        self,
        engine: Engine,
        caller_of: Callable[[Request], Caller | None],
        transport: asyncio.Transport,
        hello: Meta,
        *,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        """`caller_of` finds who waits for a request, `tracer` begins spans of submitted rows."""
        self._engine = engine
        self._caller_of = caller_of
        self._tracer = tracer
        self._transport = transport
        self._now = clock
        self.worker_index: int = hello["worker_index"]
        self.pid: int = hello["pid"]
        self._next = 0
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, int] = {}
        """Calls of streams that have begun, by their requests' ids."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._handles: dict[int, RequestHandle] = {}
        self._clients: dict[str, Client] = {}
        """By submitted method: a predictor that composes models asks for each again and again."""

    # ------------------------------------------------------------ calls

    def run(
        self, batch: Batch, meta: Mapping[str, Any], payload: Sequence[bytes], done: Done
    ) -> None:
        """See Runner."""
        self._next += 1
        chain: dict[str, None] = {}  # methods that wait for some row of the batch
        for request in batch.requests:
            caller = self._caller_of(request)
            if isinstance(caller, Awaited):
                chain |= dict.fromkeys(caller.chain)
        self._calls[self._next] = _Call(batch, done, tuple(chain), meta.get("trace"))
        self._say({**meta, "call": self._next}, payload)
        if self._sweeper is None:
            self._sweep()

    def _sweep(self) -> None:
        """Cancel calls that nobody waits for, now and again as long as there are calls."""
        for number, call in self._calls.items():
            if not call.cancelled and not call.wanted:
                self._cancel(number, call)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep) if self._calls else None

    def _cancel(self, number: int, call: _Call) -> None:
        call.cancelled = True
        self._say({"cancel": number})

    def received(self, meta: Meta, payload: bytes) -> None:
        """A frame came, not the hello."""
        match meta:
            case {"result": int(number)} if number in self._calls:
                call = self._calls.pop(number)
                if call.reader is not None:
                    del self._streams[call.batch.requests[0].id]
                call.done(self, call.batch, meta, payload)
            case {"item": int(number), "kind": str(kind)} if number in self._calls:
                self._item(number, self._calls[number], kind, payload)
            case {"submit": int(number), "method": str(method), "call": caller}:
                self._submit(number, method, self._calls.get(caller), meta, payload)
            case {"forget": int(number)}:
                handle = self._handles.pop(number, None)
                if handle is not None:
                    self._engine.cancel(handle)
            case _:
                raise BrokenFrameError(f"frame with {', '.join(meta)} on a channel")

    # ------------------------------------------------------------ streams

    def _item(self, number: int, call: _Call, kind: str, body: bytes) -> None:
        if not call.wanted:  # no need to wait until it is noticed
            if not call.cancelled:
                self._cancel(number, call)
            return
        if call.reader is None:
            (request,) = call.batch.requests
            caller = self._caller_of(request)
            if not isinstance(caller, Reader):
                raise TypeError(f"expected a Reader of {call.batch.method}, got {caller!r}")
            call.reader = caller
            self._streams[request.id] = number
        call.reader.item(kind, body)

    def taken(self, request: Request, items: int) -> None:
        """The client of a stream took so many more items, if it runs here and has begun."""
        number = self._streams.get(request.id)
        if number is not None:
            self._say({"taken": number, "items": items})

    def begun(self) -> Sequence[Request]:
        """Requests that were given part of a stream, and no end of it."""
        calls = (self._calls[number] for number in self._streams.values())
        return [request for call in calls for request in call.batch.requests]

    def close(self) -> None:
        """See Runner."""
        self._transport.abort()

    def closed(self) -> None:
        """The connection is gone. The dispatcher knows: the calls are its own to run again."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._calls.clear()
        self._streams.clear()
        for handle in list(self._handles.values()):
            self._engine.cancel(handle)
        self._handles.clear()
        for client in self._clients.values():
            self._engine.disconnected(client)
        self._clients.clear()

    # ------------------------------------------------------------ submits

    def _submit(
        self, number: int, method: str, caller: _Call | None, meta: Meta, payload: bytes
    ) -> None:
        """Queue submitted rows; without a caller, a task of the predictor's own asked."""
        chain = () if caller is None else caller.chain
        span = None
        if caller is not None and caller.trace is not None and self._tracer is not None:
            parent = context_in(caller.trace)
            if parent is not None:
                span = self._tracer.of_method("submit", method, parent)
        submitted = Awaited(functools.partial(self._answer, number, span), span, chain=chain)
        try:
            if method in chain:
                circle = " -> ".join((*chain, method))
                raise InvalidInputError(f"methods would wait for each other in a circle: {circle}")
            served = self._engine.served(method)
            decoded = submitted_rows(served.codec, meta, payload).decoded(submitted)
            client = self._clients.setdefault(method, Client())
            timeout = None
            if caller is not None and caller.deadline < math.inf:
                timeout = max(0.0, caller.deadline - self._now())
            handle = self._engine.submit(served, decoded, client, submitted, timeout)
        except ServingError as error:
            self._answer(number, span, error)
        else:
            if not handle.done:
                self._handles[number] = handle

    def _answer(self, number: int, span: Span | None, outcome: Outcome) -> None:
        self._handles.pop(number, None)
        failed = str(outcome.status) if isinstance(outcome, ServingError) else None
        if span is not None and self._tracer is not None:
            self._tracer.ends(span, failed)
        meta: Meta
        buffers: Sequence[bytes] = ()
        if isinstance(outcome, ServingError):
            meta = {"kind": "error", "status": outcome.status, "error": str(outcome)}
        else:
            meta, buffers = outcome.results.to_frame(outcome.start, outcome.stop)
        self._say({**meta, "submitted": number}, buffers)

    def _say(self, meta: Meta, payload: Sequence[bytes] = ()) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode_frame(meta, payload))
