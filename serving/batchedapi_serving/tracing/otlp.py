"""Spans that are over -> a collector, in OTLP over HTTP.

    Tracer.ends -> Exporter.finished (queue, or count a drop) -> encode, some in a row
                -> its task, every `delay` or `most_sent`: a request -> httpx -> collector

There is no thread: that there is a second one, though it sleeps, makes each lock of the interpreter
slower, for every request (decision 59).

A message of protobuf is its fields one behind the other. What recurs, attributes above all, is
encoded once by the classes of OpenTelemetry's own package and kept; ids, times and lengths are put
between. So a span takes a few microseconds; the SDK's spans and exporter take 90 (decision 55).
They are encoded together, as code that runs seldom is slow, and soon, as a message takes less
memory than a span. Tests read what is sent by those classes.
"""

import asyncio
import contextlib
import functools
import gzip
import logging
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.environment import tls_of
from batchedapi_serving.tracing.spans import (
    QUEUE_WAIT,
    Attributes,
    BatchFacts,
    Form,
    Span,
    Tracer,
    Value,
    batch_attributes,
    keep,
)

log = logging.getLogger(__name__)
STOP_SECONDS: Final = 2.0
"""For a collector that hangs when the replica stops; within what a web process gets to end."""
_IN_A_ROW: Final = 128
"""Spans that are encoded together: a third of a millisecond of the event loop."""
_ATTEMPTS: Final = 4
_BACKOFF_SECONDS: Final = 0.5
"""Before the second attempt, doubled for each that follows; each wait is half to one and a half."""
_AGAIN: Final = (429, 502, 503, 504)
"""Answers after which the same request may be sent again: OTLP/HTTP, "Retryable Response Codes"."""
_OK: Final = 200
_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80
"""Of a length: another seven bits follow."""
_BYTES: Final = 2
_FIXED: Final = 1
"""How protobuf says what follows a tag: a length, or eight bytes."""
_TRACE: Final = bytes((SpanMessage.TRACE_ID_FIELD_NUMBER << 3 | _BYTES, 16))
_SPAN: Final = bytes((SpanMessage.SPAN_ID_FIELD_NUMBER << 3 | _BYTES, 8))
"""What is before a trace's id, and before a span's; a link has the same numbers as a span."""
_PARENT: Final = bytes((SpanMessage.PARENT_SPAN_ID_FIELD_NUMBER << 3 | _BYTES, 8))
_LINK: Final = bytes((SpanMessage.LINKS_FIELD_NUMBER << 3 | _BYTES, 2 + 16 + 2 + 8))
"""What is before a link that has nothing but ids."""
_TIMES: Final = struct.Struct("<BQBQ")
_START: Final = SpanMessage.START_TIME_UNIX_NANO_FIELD_NUMBER << 3 | _FIXED
_END: Final = SpanMessage.END_TIME_UNIX_NANO_FIELD_NUMBER << 3 | _FIXED
_DOUBLE: Final = struct.Struct("<d")
_FAILED: Final = SpanMessage(status=Status(code=Status.STATUS_CODE_ERROR)).SerializeToString()
_SCOPE: Final = ScopeSpans(scope=InstrumentationScope(name="batchedapi")).SerializeToString()

_forms: Final[dict[Form, bytes]] = {}
_batches: Final[dict[BatchFacts, bytes]] = {}
_facts: Final[dict[tuple[str, Value], bytes]] = {}
"""What was encoded and comes again, of each by itself: request ids come once, and fill the last."""


class UnsentError(Exception):
    """The collector did not take them."""


class Sender(Protocol):
    """Where requests go; see `send`."""

    async def __call__(self, body: bytes) -> None:
        """Send one, or raise UnsentError; may take as long as the timeouts of some attempts."""


class Exporter:
    """Owner of the spans that are over, and of the task that sends them."""

    def __init__(
        self, settings: TracingSettings, send: Sender, dropped: Callable[[int], None]
    ) -> None:
        """`dropped` counts spans that nobody will see."""
        self._settings = settings
        self._send = send
        self._dropped = dropped
        pairs = [
            KeyValue(key=name, value=AnyValue(string_value=value))
            for name, value in settings.resource
        ]
        self._resource = ResourceSpans(resource=Resource(attributes=pairs)).SerializeToString()
        self._most_queued = settings.most_queued
        self._in_a_row = min(_IN_A_ROW, settings.most_sent)
        self._ended: list[Span] = []
        """Not encoded yet."""
        self._held: list[bytes] = []
        """Encoded, and not sent yet."""
        self._sending = 0
        """Spans that the collector has not said it took."""
        self._failing = False
        self._wanted = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tracing")

    def finished(self, span: Span) -> None:
        """See spans.Finished; it never waits."""
        if len(self._held) + len(self._ended) >= self._most_queued:
            self._dropped(1)
            return
        self._ended.append(span)
        if len(self._ended) == self._in_a_row:  # after the answers that are on their way
            asyncio.get_running_loop().call_soon(self._encode)

    async def close(self, seconds: float = STOP_SECONDS) -> None:
        """Send what is held, and give up after so long."""
        self._stopping = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
        lost = len(self._ended) + len(self._held) + self._sending
        if lost:
            log.warning("spans are lost at the end", extra={"spans": lost})
            self._dropped(lost)

    async def _run(self) -> None:
        stopping = False
        while not stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.delay):
                    await self._wanted.wait()
            stopping = self._stopping
            self._encode()
            self._wanted.clear()
            due = len(self._held)  # what comes meanwhile waits for more, or for its time
            while due:
                spans = self._held[: min(due, self._settings.most_sent)]
                del self._held[: len(spans)]
                self._sending = len(spans)
                try:
                    await self._send(request_of(spans, self._resource))
                except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                    self._dropped(len(spans))
                    if not self._failing:  # each time it begins, not for each request
                        told = str(error) if isinstance(error, UnsentError) else repr(error)
                        facts = {"endpoint": self._settings.endpoint, "error": told}
                        log.warning(
                            "spans are dropped: the collector does not take them", extra=facts
                        )
                    self._failing = True
                else:
                    if self._failing:
                        log.info("the collector takes spans again")
                    self._failing = False
                self._sending = 0
                due -= len(spans)

    def _encode(self) -> None:
        """What has ended; it is short, as few spans end before the event loop comes to it."""
        ended, self._ended = self._ended, []
        for span in ended:
            try:
                self._held.append(_sized(ScopeSpans.SPANS_FIELD_NUMBER, encoded(span)))
            except (TypeError, ValueError) as error:  # the others go on
                self._dropped(1)
                log.warning("a span cannot be encoded", extra={"error": repr(error)})
        if len(self._held) >= self._settings.most_sent:
            self._wanted.set()


def exporting_tracer(
    settings: TracingSettings, dropped: Callable[[int], None]
) -> tuple[Tracer, Callable[[], Awaitable[None]]]:
    """A tracer whose spans are sent from now on, and what ends that."""
    client = client_of(settings)
    exporter = Exporter(settings, functools.partial(send, client, settings), dropped)
    exporter.start()
    tracer = Tracer(settings.ratio, exporter.finished, follows_parent=settings.follows_parent)

    async def end() -> None:
        await exporter.close()
        await client.aclose()

    return tracer, end


def client_of(settings: TracingSettings) -> httpx.AsyncClient:
    """One that keeps a connection to the endpoint."""
    # They tell of each attempt; what came of them all is said once, by the exporter.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.ERROR)
    headers = [(b"content-type", b"application/x-protobuf")]
    headers += [(name.encode(), value.encode()) for name, value in settings.headers]
    if settings.gzip:
        headers.append((b"content-encoding", b"gzip"))
    return httpx.AsyncClient(
        headers=headers,
        verify=tls_of(settings) or True,
        timeout=settings.timeout,
        limits=httpx.Limits(max_connections=1, keepalive_expiry=None),
        trust_env=False,
    )


async def send(client: httpx.AsyncClient, settings: TracingSettings, body: bytes) -> None:
    """Post one request to the endpoint; see Sender."""
    if settings.gzip:
        body = await asyncio.to_thread(gzip.compress, body, 1)
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:  # a Retry-After is not obeyed: it may say a day
            pause = _BACKOFF_SECONDS * 2 ** (attempt - 1)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - no secret
        try:
            answer = await client.post(settings.endpoint, content=body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            problem = str(error) or type(error).__name__
            continue
        if answer.status_code == _OK:
            return
        problem = f"it answers {answer.status_code}: {answer.content[:200]!r}"
        if answer.status_code not in _AGAIN:
            break
    raise UnsentError(problem)


def request_of(spans: Sequence[bytes], resource: bytes) -> bytes:
    """The body of one request to a collector: spans as fields of ScopeSpans, and whose they are."""
    scope = _sized(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, b"".join((_SCOPE, *spans)))
    return _sized(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, resource + scope)


def encoded(span: Span) -> bytes:
    """The message of a span that is over: its parts, one behind the other."""
    own, form, batch, facts = span.context, span.form, span.batch_facts, span.facts
    before = _forms.get(form) or keep(_forms, form, _encoded_form(form))
    parts = [before, _TRACE, own.trace_id, _SPAN, own.span_id]
    if span.parent_id:
        parts += (_PARENT, span.parent_id)
    parts.append(_TIMES.pack(_START, span.started, _END, span.ended))
    if span.queue_wait >= 0.0:
        parts += (_QUEUE_WAIT, _DOUBLE.pack(span.queue_wait))
    if batch[0]:
        told = _batches.get(batch)
        parts.append(told or keep(_batches, batch, _encoded_attributes(batch_attributes(batch))))
    if span.error is not None:
        parts.append(_FAILED)
        facts += (("error.type", span.error),)
    for fact in facts:
        if type(fact[1]) is float:  # 0.0 would be found where 0 is kept
            parts.append(_encoded_attributes((fact,)))
        else:
            parts.append(_facts.get(fact) or keep(_facts, fact, _encoded_attributes((fact,))))
    for other in span.links:
        ids = _TRACE, other.trace_id, _SPAN, other.span_id
        if other.state:
            link = _sized(SpanMessage.Link.TRACE_STATE_FIELD_NUMBER, other.state.encode())
            parts.append(_sized(SpanMessage.LINKS_FIELD_NUMBER, b"".join(ids) + link))
        else:
            parts.append(_LINK)
            parts += ids
    if own.state:
        parts.append(_sized(SpanMessage.TRACE_STATE_FIELD_NUMBER, own.state.encode()))
    return b"".join(parts)


def _sized(number: int, content: bytes) -> bytes:
    """A field of bytes or of a message, with a number below 16: tag, length, content."""
    length, sizes = len(content), bytearray((number << 3 | 2,))
    while length > _SEVEN_BITS:
        sizes.append(length & _SEVEN_BITS | _MORE)
        length >>= 7
    sizes.append(length)
    return bytes(sizes) + content


def _encoded_form(form: Form) -> bytes:
    kinds = SpanMessage.SpanKind
    kind = kinds.SPAN_KIND_SERVER if form.server else kinds.SPAN_KIND_INTERNAL
    message: bytes = SpanMessage(name=form.name, kind=kind).SerializeToString()
    return message + _encoded_attributes(form.constant)


def _encoded_attributes(attributes: Attributes) -> bytes:
    """As fields of a span."""
    fields = []
    for key, value in attributes:
        if isinstance(value, str):
            of_value = AnyValue(string_value=value)
        elif isinstance(value, int):
            of_value = AnyValue(int_value=value)
        else:
            of_value = AnyValue(double_value=value)
        pair = KeyValue(key=key, value=of_value).SerializeToString()
        fields.append(_sized(SpanMessage.ATTRIBUTES_FIELD_NUMBER, pair))
    return b"".join(fields)


_QUEUE_WAIT: Final = _encoded_attributes(((QUEUE_WAIT, 0.0),))[: -_DOUBLE.size]
"""What is before its eight bytes."""
