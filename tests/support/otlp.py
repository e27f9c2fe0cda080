"""A collector for tests: takes traces in OTLP over HTTP and keeps them.

with collector(port) as found:
    ...
    found.wait_for(lambda spans: len(spans) == 3)
"""

import contextlib
import gzip
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from ports import HOST

PATH: Final = "/v1/traces"
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Received:
    """A span as the collector got it; ids in hexadecimal, times in nanoseconds."""

    name: str
    server: bool
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: the trace begins with it."""
    state: str
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace and span of each."""
    resource: dict[str, Any]

    @property
    def link(self) -> tuple[str, str]:
        """The IDs by which other spans link to it."""
        return self.trace_id, self.span_id


@dataclass
class Collector:
    """The requests received so far, and the answers to the next ones."""

    bodies: list[bytes] = field(default_factory=list)
    """Of the requests that were answered with 200."""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each, names in lower case."""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers, first first; 200 after them."""

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """One request; the status that it is answered with."""
        self.requests.append(headers)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == http.HTTPStatus.OK:
            packed = headers.get("content-encoding") == "gzip"
            self.bodies.append(gzip.decompress(body) if packed else body)
        return status

    @property
    def spans(self) -> list[Received]:
        """Everything that was taken; read when asked for, so that taking it costs a test little."""
        requests = (ExportTraceServiceRequest.FromString(body) for body in list(self.bodies))
        return [span for request in requests for span in spans_of(request)]

    def wait_for(
        self, condition: Callable[[Sequence[Received]], bool], seconds: float = 30.0
    ) -> list[Received]:
        """The spans received, once `condition` is true of them.

        Raises:
            AssertionError: It never was.
        """
        end = time.monotonic() + seconds
        while not condition(spans := self.spans):
            assert time.monotonic() < end, f"{len(spans)} spans: {spans}"
            time.sleep(_POLL_SECONDS)
        return spans


@contextlib.contextmanager
def collector(port: int, tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """One on a loopback port for as long as the block runs; `tls`: it speaks that alone."""
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(found.take(headers, body) if self.path == PATH else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server has it
            pass

    server = http.server.ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def spans_of(request: ExportTraceServiceRequest) -> list[Received]:
    """Every span of a request."""
    return [
        _received(span, _attributes(of_replica.resource.attributes))
        for of_replica in request.resource_spans
        for scope in of_replica.scope_spans
        for span in scope.spans
    ]


def _received(span: SpanMessage, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        server=span.kind == SpanMessage.SpanKind.SPAN_KIND_SERVER,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        state=span.trace_state,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        failed=bool(span.status.code),
        attributes=_attributes(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource=resource,
    )


def _attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    found = {pair.key: _value(pair.value) for pair in pairs}
    assert len(found) == len(pairs), f"an attribute comes twice: {pairs}"
    return found


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))
