"""Spans that are over -> OpenTelemetry's SDK -> a collector, in OTLP over HTTP.

    Tracer.ends -> Exporter.finished (count a drop, or queue) -> BatchSpanProcessor and its thread
                -> _CountedExporter -> OTLPSpanExporter -> collector

The SDK has spans that are over, and not its tracer: a batch's span has its id before the batch
begins, and a request's may learn of its batches in another process (decision 55).
"""

import asyncio
import logging
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing import spans

log = logging.getLogger(__name__)
STOP_SECONDS: Final = 2.0
"""For a collector that hangs when the replica stops; within what a web process gets to end."""
_POLL_SECONDS: Final = 0.02
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_ANY: Final = SpanContext(1, 1, is_remote=False, trace_flags=_SAMPLED)
"""The processor looks at the flag alone."""
_SCOPE: Final = InstrumentationScope("batchedapi")


class Exporter:
    """Owner of the spans that are over, and of the SDK's processor in this process."""

    def __init__(self, settings: TracingSettings, dropped: Callable[[int], None]) -> None:
        """`dropped` counts spans that nobody will see."""
        os.environ.update(settings.variables)  # the manifest's too: the SDK reads nothing else
        self._most_queued = settings.most_queued
        self._counted = _CountedExporter(settings.endpoint, dropped)
        self._processor = BatchSpanProcessor(self._counted)
        self._resource = Resource.create()
        self._given = 0
        """Spans so far."""

    def finished(self, span: spans.Span) -> None:
        """See spans.Finished; it never waits."""
        if self._given - self._counted.taken >= self._most_queued:
            self._counted.drop(1)
            return
        self._given += 1
        self._processor.on_end(_Ended(span, self._resource))

    async def close(self, seconds: float = STOP_SECONDS) -> None:
        """Send what is held, and give up after so long."""
        # Not one of the loop's threads, for which the process would wait.
        thread = threading.Thread(target=self._processor.shutdown, daemon=True)
        thread.start()
        ends = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < ends:  # noqa: ASYNC110 - no event of asyncio
            await asyncio.sleep(_POLL_SECONDS)
        if thread.is_alive():
            self._counted.shutdown()  # no further attempt
        lost = self._counted.ends(self._given)
        if lost:
            log.warning("spans are lost at the end", extra={"spans": lost})


class _CountedExporter(SpanExporter):
    """The SDK's exporter, with figures and one log line when it begins to fail."""

    def __init__(self, endpoint: str, dropped: Callable[[int], None]) -> None:
        self._endpoint = endpoint
        self._dropped = dropped
        self._lock = threading.Lock()
        system, session = ssl.get_default_verify_paths().cafile, requests.Session()
        if system is not None:  # else certifi's
            os.environ.setdefault("OTEL_EXPORTER_OTLP_CERTIFICATE", system)
        session.trust_env = False  # CURL_CA_BUNDLE would be trusted instead of the certificate
        self._exporter = OTLPSpanExporter(session=session)
        self._failing = False
        self._reason = ""
        self.taken = 0
        """Spans from the queue so far."""
        self._over = 0
        """Spans of them that were sent or dropped."""
        self._ended = False
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._said)
        # Each of its lines at level DEBUG has the endpoint's query.
        logging.getLogger("urllib3").setLevel(logging.WARNING)

    def drop(self, count: int) -> None:
        """Count spans that nobody will see, from any thread."""
        with self._lock:
            self._dropped(count)

    def ends(self, given: int) -> int:
        """Drop what is not over of so many spans; a later result of theirs counts no more."""
        with self._lock:
            self._ended = True
            lost = given - self._over
            self._dropped(lost)
        return lost

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter; called by the processor's thread."""
        self.taken += len(spans)
        self._reason = ""
        made = [span.made() for span in spans if isinstance(span, _Ended)]
        result = self._exporter.export(made)
        self._count(len(spans), result)
        if result is not SpanExportResult.SUCCESS:
            if not self._failing:  # each time it begins, not for each request
                facts = {"endpoint": self._endpoint, "error": self._reason}
                log.warning("spans are dropped: the collector does not take them", extra=facts)
        elif self._failing:
            log.info("the collector takes spans again")
        self._failing = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def _count(self, spans: int, result: SpanExportResult) -> None:
        with self._lock:
            if self._ended:
                return
            self._over += spans
            if result is not SpanExportResult.SUCCESS:
                self._dropped(spans)

    def _said(self, record: logging.LogRecord) -> bool:
        """Keep the first words of an export for our line; there are some for each attempt."""
        text, query = record.getMessage(), urllib.parse.urlsplit(self._endpoint).query
        self._reason = self._reason or (text.replace(query, "***") if query else text)
        return False


class _Ended(ReadableSpan):
    """A span on its way through the processor; the SDK's thread makes the rest of it.

    Made there many in a row, the objects of a span take a third of the time that they take between
    two requests.
    """

    def __init__(self, span: spans.Span, resource: Resource) -> None:
        super().__init__(span.name, _ANY, resource=resource)
        self._span = span

    def made(self) -> ReadableSpan:
        """All of it."""
        span, parent, attributes = self._span, None, self._span.attributes
        own = span.context
        if span.parent_id:
            parent = _context(spans.SpanContext(own.trace_id, span.parent_id))
        if span.error is not None:
            attributes = {**attributes, "error.type": span.error}
        return ReadableSpan(
            span.name,
            _context(own),
            parent,
            self.resource,
            attributes,
            links=[Link(_context(other)) for other in span.links],
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
            start_time=span.started,
            end_time=span.ended,
            instrumentation_scope=_SCOPE,
        )


def _context(context: spans.SpanContext) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(
        context.trace_id, context.span_id, is_remote=True, trace_flags=_SAMPLED, trace_state=state
    )
