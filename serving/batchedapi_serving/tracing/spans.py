"""Spans in flight, and which requests have one; nothing here imports OpenTelemetry.

    web, grpc: Tracer.begins ─▶ Span of a request ─▶ Tracer.ends
    dispatch:  Tracer.child  ─▶ Span of a batch, or of submitted rows ─▶ Tracer.ends

A request is drawn before anything else is done for its trace: one that is not costs a random
number. Ids are drawn as TraceIdRatioBased has it: the last eight bytes of the id of a sampled trace
are below its bound, and whoever continues the trace by the same rule samples it too.
"""

import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_TRACEPARENT: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_STATE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_RANGE: Final = 1 << 64
QUEUE_WAIT: Final = "batchedapi.queue_wait_seconds"
CLIENT_LEFT_ERROR: Final = "client_left"
"""`error.type` of a request whose client did not wait for its answer."""

Value = str | int | float


class SpanContext:
    """The part of a span that others continue its trace by: https://www.w3.org/TR/trace-context/."""

    __slots__ = ("sampled", "span_id", "state", "trace_id")

    def __init__(
        self, trace_id: int, span_id: int, *, sampled: bool = True, state: str = ""
    ) -> None:
        self.trace_id: Final = trace_id
        """Not 0, below 2 ** 128."""
        self.span_id: Final = span_id
        """Not 0, below 2 ** 64."""
        self.sampled: Final = sampled
        self.state: Final = state
        """`tracestate`, passed on as it came."""

    def header(self) -> str:
        """`traceparent`, the header of that name."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"

    def headers(self) -> dict[str, str]:
        """The headers that continue the trace."""
        state = {"tracestate": self.state} if self.state else {}
        return {"traceparent": self.header(), **state}


def context_of(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """Read a caller's headers; None: not as the recommendation has it, which counts as nothing."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found["version"] == b"ff":
        return None
    if found["version"] == b"00" and found["more"]:
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not trace_id or not span_id:
        return None
    state = tracestate.decode() if _STATE.fullmatch(tracestate) else ""
    sampled = bool(int(found["flags"], 16) & 1)
    return SpanContext(trace_id, span_id, sampled=sampled, state=state)


def context_in(headers: Mapping[str, str]) -> SpanContext | None:
    """The reverse of `SpanContext.headers`."""
    state = headers.get("tracestate", "")
    return context_of(headers.get("traceparent", "").encode(), state.encode())


class Span:
    """The span of a request, of a batch, or of submitted rows."""

    __slots__ = (
        "attributes", "context", "ended", "error", "links", "name", "parent_id", "server", "started"
    )  # fmt: skip

    def __init__(self, context: SpanContext, parent_id: int = 0, started: int = 0) -> None:
        self.name = ""
        self.server = False
        """Whether its request came from outside; else the span is internal."""
        self.context = context
        self.parent_id = parent_id
        """0: the trace begins here."""
        self.started = started
        self.ended = 0
        """Unix time in nanoseconds, as `started`."""
        self.error: str | None = None
        """Why it failed, in a few words."""
        self.attributes: dict[str, Value] = {}
        self.links: list[SpanContext] = []

    def told(self) -> dict[str, Any]:
        """Facts and links from elsewhere, for `learn`, as JSON."""
        return {"facts": self.attributes, "links": [link.headers() for link in self.links]}

    def learn(self, told: Mapping[str, Any]) -> None:
        """Take over what another process said of it; of the same twice, the later."""
        self.attributes.update(told["facts"])
        known = {link.span_id for link in self.links}
        for headers in told["links"]:
            link = context_in(headers)
            if link is not None and link.span_id not in known:
                self.links.append(link)


class Tracer:
    """Draws requests, and begins and ends spans."""

    def __init__(
        self,
        ratio: float,
        finished: Callable[[Span], None],
        *,
        follows_parent: bool = True,
        source: random.Random | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ratio` of the requests are drawn; `follows_parent`: a caller's decision counts.

        `finished` is given each span that is over, with everything there is to know of it.
        """
        source = random.Random() if source is None else source  # noqa: S311 - ids, not secrets
        self._bits = source.getrandbits
        self._random = source.random
        self._ratio = ratio
        self._bound = round(ratio * _RANGE)
        self._follows_parent = follows_parent
        self._finished = finished
        self.now: Final = now

    def begins(self, traceparent: bytes, tracestate: bytes) -> Span | None:
        """The span of a request; None: it was not drawn, nor has its caller a sampled trace.

        Who is given one names it.
        """
        parent = context_of(traceparent, tracestate) if traceparent else None
        if parent is None:
            if self._random() >= self._ratio:
                return None
            # An id below the bound, as the rule is for whoever continues the trace.
            trace_id = (self._bits(64) << 64 | self._bits(64) * self._bound >> 64) or 1
            span = Span(SpanContext(trace_id, self._span_id()), 0, self.now())
        else:
            sampled = parent.sampled
            if not self._follows_parent:
                sampled = parent.trace_id % _RANGE < self._bound
            if not sampled:
                return None
            span = self.child("", parent)
        span.server = True
        return span

    def child(self, name: str, parent: SpanContext) -> Span:
        """A span under another's, in its trace."""
        context = SpanContext(parent.trace_id, self._span_id(), state=parent.state)
        span = Span(context, parent.span_id, self.now())
        span.name = name
        return span

    def of_method(self, what: str, method: str, parent: SpanContext) -> Span:
        """A span for a batch of a method, or for rows that are submitted to it."""
        span = self.child(f"{what} {method}", parent)
        span.attributes["batchedapi.method"] = method
        return span

    def ends(self, span: Span, error: str | None = None, seconds: float | None = None) -> None:
        """It is over. `error`: why it failed; `seconds`: how long it took, if it has no start."""
        span.ended, span.error = self.now(), error
        if seconds is not None:
            span.started = span.ended - int(1e9 * seconds)
        self._finished(span)

    def _span_id(self) -> int:
        return self._bits(64) or 1
