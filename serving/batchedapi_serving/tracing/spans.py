"""A span, and which requests have one; nothing here imports OpenTelemetry.

    web, grpc: Tracer.begins ─▶ Span of a request ─▶ Tracer.ends
    dispatch:  Tracer.child  ─▶ Span of a batch, or of submitted rows ─▶ Tracer.ends

A request is drawn before anything else is done for its trace. Instead of a number for each request,
the number of those is drawn that come before the next one that is traced: one that is not costs a
subtraction. Ids are drawn as TraceIdRatioBased has it: the last eight bytes of the id of a
sampled trace are below its bound, and whoever continues the trace by the same rule samples it too.

Code that runs seldom finds nothing of its own in the caches, and takes several times as long. So
traces are drawn ahead, many together: the span of the request, that of the batch it will ride in,
and when the next one is due.
"""

import math
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

_TRACEPARENT: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_STATE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
_RANGE: Final = 1 << 64
_AHEAD: Final = 128
"""Traces that are drawn at once."""
_MOST_KEPT: Final = 4096
"""In each of those that `keep` puts into."""
QUEUE_WAIT: Final = "batchedapi.queue_wait_seconds"
CLIENT_LEFT_ERROR: Final = "client_left"
"""`error.type` of a request whose client did not wait for its answer."""

Value = str | int | float
Attributes = tuple[tuple[str, Value], ...]
BatchFacts = tuple[int, int, str]
"""Rows, requests and reason of a batch."""


_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


def keep(kept: dict[_Key, _Kept], key: _Key, value: _Kept) -> _Kept:
    """Put it there; if there are too many all are forgotten, as clients choose some keys.

    functools.lru_cache moves what it finds, which is slow where it is seldom asked (decision 64).
    """
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value


class SpanContext:
    """What crosses to others, so that they continue a trace: https://www.w3.org/TR/trace-context/."""

    __slots__ = ("sampled", "span_id", "state", "trace_id")

    def __init__(
        self, trace_id: bytes, span_id: bytes, *, sampled: bool = True, state: str = ""
    ) -> None:
        self.trace_id: Final = trace_id
        """16 bytes, not all zero."""
        self.span_id: Final = span_id
        """8 bytes, not all zero."""
        self.sampled: Final = sampled
        self.state: Final = state
        """`tracestate`, passed on as it came."""

    def header(self) -> str:
        """`traceparent`, the header of that name."""
        flags = "01" if self.sampled else "00"
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{flags}"


def context_of(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """What a caller sent; None: it is not as the recommendation has it, and counts as nothing."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found["version"] == b"ff":
        return None
    if found["version"] == b"00" and found["more"]:
        return None
    trace_id, span_id = (bytes.fromhex(found[part].decode()) for part in ("trace", "span"))
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    state = tracestate.decode() if _STATE.fullmatch(tracestate) else ""
    sampled = bool(int(found["flags"], 16) & 1)
    return SpanContext(trace_id, span_id, sampled=sampled, state=state)


def context_in(headers: Mapping[str, str]) -> SpanContext | None:
    """The reverse of `Span.headers`."""
    state = headers.get("tracestate", "")
    return context_of(headers.get("traceparent", "").encode(), state.encode())


class Form:
    """What spans of one kind have in common; made once for each kind, and encoded once."""

    __slots__ = ("constant", "name", "server")

    def __init__(self, name: str, *, server: bool, constant: Attributes) -> None:
        self.name: Final = name
        self.server: Final = server
        """Of a request that came from outside; else the span is internal."""
        self.constant: Final = constant


_NO_FORM: Final = Form("", server=True, constant=())
_method_forms: Final[dict[tuple[str, str], Form]] = {}


def method_form(what: str, method: str) -> Form:
    """Of what is done for a method: of its batches, or of rows that are submitted to it."""
    form = _method_forms.get((what, method))
    if form is None:
        constant = (("batchedapi.method", method),)
        form = Form(f"{what} {method}", server=False, constant=constant)
        return keep(_method_forms, (what, method), form)
    return form


def batch_attributes(batch_facts: BatchFacts) -> Attributes:
    """What a span says of a batch."""
    rows, requests, reason = batch_facts
    return (
        ("batchedapi.batch.rows", rows),
        ("batchedapi.batch.requests", requests),
        ("batchedapi.batch.reason", reason),
    )


class Span:
    """Of a request, of a batch, or of submitted rows."""

    __slots__ = (
        "batch", "batch_facts", "context", "ended", "error", "facts", "form", "links", "parent_id",
        "queue_wait", "started", "traceparent",
    )  # fmt: skip

    def __init__(
        self, form: Form, context: SpanContext, parent_id: bytes = b"", started: int = 0
    ) -> None:
        self.form = form
        self.context = context
        self.traceparent = context.header()
        self.parent_id = parent_id
        """Empty: the trace begins here."""
        self.started = started
        self.ended = 0
        """Unix time in nanoseconds, as `started`."""
        self.error: str | None = None
        """Why it failed, in a few words."""
        self.queue_wait = -1.0
        """Seconds until a batch took it; below 0: none did."""
        self.batch_facts: BatchFacts = (0, 0, "")
        """Of itself, or of the last one that it rode in; 0 rows: of none."""
        self.facts: Attributes = ()
        """What else is known later."""
        self.links: list[SpanContext] = []
        self.batch: Span | None = None
        """A child that was drawn ahead, see Tracer.batch."""

    def add_attribute(self, key: str, value: Value) -> None:
        """Learn one that it has not yet."""
        self.facts += ((key, value),)

    def headers(self) -> dict[str, str]:
        """What its trace is continued with."""
        return _headers(self.traceparent, self.context.state)

    def attributes(self) -> dict[str, Value | float]:
        """What is known of it beside its form."""
        waited = {QUEUE_WAIT: self.queue_wait} if self.queue_wait >= 0.0 else {}
        batch = batch_attributes(self.batch_facts) if self.batch_facts[0] else ()
        return {**waited, **dict(batch), **dict(self.facts)}

    def told(self) -> dict[str, Any]:
        """What was learned of it elsewhere, for `learn`, as JSON."""
        links = [_headers(link.header(), link.state) for link in self.links]
        return {"facts": self.attributes(), "links": links}

    def learn(self, told: Mapping[str, Any]) -> None:
        """Take over what another process said of it; of the same twice, the later."""
        facts = {**dict(self.facts), **told["facts"]}
        self.queue_wait = facts.pop(QUEUE_WAIT, self.queue_wait)
        self.facts = tuple(facts.items())
        known = {link.span_id for link in self.links}
        for headers in told["links"]:
            link = context_in(headers)
            if link is not None and link.span_id not in known:
                self.links.append(link)


def _headers(traceparent: str, state: str) -> dict[str, str]:
    if state:
        return {"traceparent": traceparent, "tracestate": state}
    return {"traceparent": traceparent}


class Finished(Protocol):
    """Who is given spans that are over."""

    def __call__(self, span: Span) -> None:
        """It has everything that there is to know of it."""


class Tracer:
    """Draws requests and begins spans. Callers count down, and ask `begins` for whom it may be.

        tracer.undrawn -= 1
        if tracer.undrawn < 0 or options.traceparent:
            span = tracer.begins(...)

    That is inlined where requests arrive: nearly all are not drawn, and a call for each of them
    would cost more than everything that is done for the others.
    """

    def __init__(
        self,
        ratio: float,
        finished: Finished,
        *,
        follows_parent: bool = True,
        source: random.Random | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ratio` of the requests are drawn; `follows_parent`: a caller's decision counts."""
        source = random.Random() if source is None else source  # noqa: S311 - ids, not secrets
        self._source = source
        self._ratio = ratio
        self._roots: list[Span] = []  # whose requests have not come
        self._gaps: list[float] = []  # see `undrawn`, each of them before one that is drawn
        self.undrawn = self._until_next()
        """Requests that come before the next one that is drawn; below 0: this is the one."""
        self._bound = max(1, round(ratio * _RANGE))
        self._follows_parent = follows_parent
        self._finished = finished
        self.now: Final = now

    def begins(self, form: Form, traceparent: bytes = b"", tracestate: bytes = b"") -> Span | None:
        """The span of a request that was drawn or whose caller has a trace; None: it has none."""
        drawn = self.undrawn < 0
        if drawn:
            if not self._gaps:
                self._gaps = [self._until_next() for _ in range(_AHEAD)]
            self.undrawn = self._gaps.pop()
        parent = context_of(traceparent, tracestate) if traceparent else None
        if parent is not None:
            sampled = parent.sampled
            if not self._follows_parent:
                sampled = int.from_bytes(parent.trace_id[8:], "big") < self._bound
            return self.child(form, parent) if sampled else None
        if traceparent and not drawn:
            return None
        if not self._roots:
            for _ in range(_AHEAD):
                first, last = self._source.getrandbits(64), self._source.getrandbits(64)
                trace_id = ((first << 64 | last * self._bound >> 64) or 1).to_bytes(16, "big")
                root = Span(_NO_FORM, SpanContext(trace_id, self._span_id()))
                child = SpanContext(trace_id, self._span_id())
                root.batch = Span(_NO_FORM, child, root.context.span_id)
                self._roots.append(root)
        span = self._roots.pop()
        span.form, span.started = form, self.now()
        return span

    def child(self, form: Form, parent: SpanContext) -> Span:
        """A span under another's, in its trace."""
        context = SpanContext(parent.trace_id, self._span_id(), state=parent.state)
        return Span(form, context, parent.span_id, self.now())

    def batch(self, form: Form, rider: Span) -> Span:
        """The span of a batch, under that of a request in it; who ends it says how long it took."""
        span = rider.batch
        if span is None:
            return self.child(form, rider.context)
        rider.batch = None
        span.form = form
        return span

    def ends(self, span: Span, error: str | None = None, seconds: float | None = None) -> None:
        """It is over. `error`: why it failed; `seconds`: how long it took, if it has no start."""
        span.ended, span.error = self.now(), error
        if seconds is not None:
            span.started = span.ended - int(1e9 * seconds)
        self._finished(span)

    def _until_next(self) -> float:
        """Whole, or inf; as if each request was drawn by itself: the geometric distribution."""
        if not 0.0 < self._ratio < 1.0:
            return 0.0 if self._ratio else math.inf
        return math.log(1.0 - self._source.random()) // math.log1p(-self._ratio)

    def _span_id(self) -> bytes:
        return (self._source.getrandbits(64) or 1).to_bytes(8, "big")
