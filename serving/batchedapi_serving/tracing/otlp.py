"""Spans that are over -> a collector, in OTLP over HTTP.

    Tracer.ends -> Exporter.finished (event loop: encode, or count a drop) -> queue, bounded
                -> its thread: at most `most_sent` a request, every `delay` -> urllib3 -> collector

The messages are the generated classes of OpenTelemetry's own package; the SDK's spans and exporter
are not used, as they take 90 us of the interpreter for a span where this takes 15 (decision 55).
"""

import functools
import gzip
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import urllib3
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.spans import Form, Span, Tracer, Value

log = logging.getLogger(__name__)
STOP_SECONDS: Final = 2.0
"""For a collector that hangs when the replica stops; within what a web process gets to end."""
_FORMS: Final = 1024
"""Encoded ones that are kept: methods times paths times statuses, of which there are few."""
_RETRIES: Final = 3
_AGAIN: Final = (429, 502, 503, 504)
"""Answers after which the same request may be sent again: OTLP/HTTP, "Retryable Response Codes"."""
_OK: Final = 200


class UnsentError(Exception):
    """The collector did not take them."""


class Sender(Protocol):
    """Where requests go; see `sender`."""

    def __call__(self, body: bytes) -> None:
        """Send one, or raise UnsentError; may take as long as the timeout."""


class Exporter:
    """Owner of the spans that are over, and of the thread that sends them."""

    def __init__(
        self, settings: TracingSettings, send: Sender, dropped: Callable[[int], None]
    ) -> None:
        """`dropped` counts spans that nobody will see; called on the loop and on the thread."""
        self._settings = settings
        self._send = send
        self._dropped = dropped
        self._resource = [_pair(name, value) for name, value in settings.resource]
        self._held: deque[trace_pb2.Span] = deque()
        self._failing = False
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def finished(self, span: Span, ended: int, error: str | None) -> None:
        """See spans.Finished; it never waits."""
        held = self._held
        if len(held) >= self._settings.most_queued:
            self._dropped(1)
            return
        held.append(encoded(span, ended, error))
        if len(held) == self._settings.most_sent:
            self._wanted.set()

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Send what is held, and give up after so long."""
        self._stopping = True
        self._wanted.set()
        self._thread.join(seconds)
        if self._held:
            log.warning("spans are lost at the end", extra={"spans": len(self._held)})
            self._dropped(len(self._held))

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait(self._settings.delay)
            self._wanted.clear()
            while self._held:
                self._send_some()

    def _send_some(self) -> None:
        """Only this thread takes from the queue, so what it counts is there."""
        count = min(len(self._held), self._settings.most_sent)
        spans = [self._held.popleft() for _ in range(count)]
        try:
            self._send(request_of(spans, self._resource))
        except UnsentError as error:
            self._dropped(count)
            if not self._failing:  # each time it begins, not for each request
                facts = {"endpoint": self._settings.endpoint, "error": str(error)}
                log.warning("spans are dropped: the collector does not take them", extra=facts)
            self._failing = True
        else:
            if self._failing:
                log.info("the collector takes spans again")
            self._failing = False


def exporting_tracer(
    settings: TracingSettings, dropped: Callable[[int], None]
) -> tuple[Tracer, Callable[[], None]]:
    """A tracer whose spans are sent from now on, and what ends that."""
    exporter = Exporter(settings, sender(settings), dropped)
    exporter.start()
    tracer = Tracer(settings.ratio, exporter.finished, follows_parent=settings.follows_parent)
    return tracer, exporter.close


def sender(settings: TracingSettings) -> Sender:
    """What posts to the endpoint, over one connection that is kept."""
    again = urllib3.Retry(
        _RETRIES,
        status_forcelist=_AGAIN,
        allowed_methods=None,
        backoff_factor=0.5,
        redirect=False,
        raise_on_status=False,
    )
    pool = urllib3.PoolManager(
        1,
        retries=again,
        timeout=settings.timeout,
        ca_certs=settings.certificate,
        cert_file=settings.client_certificate,
        key_file=settings.client_key,
    )
    headers = {"content-type": "application/x-protobuf", **dict(settings.headers)}
    if settings.gzip:
        headers["content-encoding"] = "gzip"

    def send(body: bytes) -> None:
        if settings.gzip:
            body = gzip.compress(body, 1)
        try:
            answer = pool.request("POST", settings.endpoint, body=body, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnsentError(str(error)) from error
        if answer.status != _OK:
            raise UnsentError(f"it answers {answer.status}: {answer.data[:200]!r}")

    return send


def request_of(spans: Sequence[trace_pb2.Span], resource: Sequence[KeyValue]) -> bytes:
    """The body of one request to a collector."""
    request = ExportTraceServiceRequest()
    of_replica = request.resource_spans.add()
    of_replica.resource.attributes.extend(resource)
    scope = of_replica.scope_spans.add(scope=InstrumentationScope(name="batchedapi"))
    scope.spans.extend(spans)
    body: bytes = request.SerializeToString()
    return body


def encoded(span: Span, ended: int, error: str | None) -> trace_pb2.Span:
    """The message of a span that is over."""
    message: trace_pb2.Span = trace_pb2.Span.FromString(_encoded_form(span.form))
    context = span.context
    message.trace_id = context.trace_id
    message.span_id = context.span_id
    message.parent_span_id = span.parent_id
    message.trace_state = context.state
    message.start_time_unix_nano = span.started
    message.end_time_unix_nano = ended
    add_attributes(message, span.facts)
    if error is not None:
        message.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        add_attributes(message, {"error.type": error})
    for other in span.links:
        message.links.add(trace_id=other.trace_id, span_id=other.span_id, trace_state=other.state)
    return message


def add_attributes(message: trace_pb2.Span, attributes: Mapping[str, Value]) -> None:
    """Each of these, in its own type; set one by one, as keywords take twice as long."""
    for key, value in attributes.items():
        added = message.attributes.add()
        added.key = key
        if isinstance(value, str):
            added.value.string_value = value
        elif isinstance(value, int):
            added.value.int_value = value
        else:
            added.value.double_value = value


@functools.lru_cache(_FORMS)
def _encoded_form(form: Form) -> bytes:
    kinds = trace_pb2.Span.SpanKind
    kind = kinds.SPAN_KIND_SERVER if form.server else kinds.SPAN_KIND_INTERNAL
    message = trace_pb2.Span(name=form.name, kind=kind)
    add_attributes(message, dict(form.constant))
    form_bytes: bytes = message.SerializeToString()
    return form_bytes


def _pair(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
