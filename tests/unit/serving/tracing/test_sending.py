"""Spans on their way through OpenTelemetry's SDK to a collector on a socket."""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing import started_tracer
from batchedapi_serving.tracing.environment import tracing_settings
from batchedapi_serving.tracing.sending import Exporter
from batchedapi_serving.tracing.spans import SpanContext, Tracer
from otlp import HOST, collector
from ports import free_port


@pytest.fixture(autouse=True)
def _of_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Environment and loggers are as before after each test."""
    monkeypatch.setattr(logging.getLogger(OTLPSpanExporter.__module__), "filters", [])
    with mock.patch.dict(os.environ):
        yield
    senders_end()


def senders_end() -> None:
    """Wait for the SDK's threads."""
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatch"):
            thread.join(5)


def settings(port: int, **variables: str) -> TracingSettings:
    """Every request is traced, and spans go to that port."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{port}?key=s3cr3t"}
    endpoint["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"http://{HOST}:{port}/v1/traces"
    found = tracing_settings({**endpoint, **variables}, "iris", "iris-0")
    assert found is not None
    return found


def some(tracer: Tracer, count: int) -> None:
    """Spans of so many requests."""
    for _ in range(count):
        span = tracer.begins(b"", b"")
        assert span is not None
        tracer.ends(span)


async def test_a_span_has_everything_that_is_known_of_it() -> None:
    """Ids, times, attributes, links and why it failed, from a batch under a caller's request."""
    port = free_port()
    with collector(port) as found:
        tracer, close = started_tracer(settings(port), lambda _: None)
        assert tracer is not None
        parent = SpanContext(1 << 100, 7, state="team=a")
        span = tracer.of_method("batch", "embed", parent)
        span.attributes["batchedapi.batch.rows"] = 3
        span.links.append(SpanContext(5, 6))
        tracer.ends(span, "raised ValueError", 0.5)
        some(tracer, 1)
        await close()

    batch, request = found.spans
    assert ("batch embed", True, "team=a") == (batch.name, batch.failed, batch.state)
    assert span.context.header() == f"00-{batch.trace_id}-{batch.span_id}-01"
    assert (f"{7:016x}", [(f"{5:032x}", f"{6:016x}")]) == (batch.parent_id, batch.links)
    assert 5e8 == pytest.approx(batch.end - batch.start, abs=1)
    assert {
        "batchedapi.method": "embed", "batchedapi.batch.rows": 3, "error.type": "raised ValueError",
    } == batch.attributes  # fmt: skip
    assert {"service.name": "iris", "service.instance.id": "iris-0"}.items() <= (
        batch.resource.items()
    )
    assert ("", True, False) == (request.parent_id, request.server, request.failed)


async def test_a_collector_that_hangs_costs_spans_and_a_bounded_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spans that do not fit into the queue are dropped at once, the rest at the end, each once."""
    dropped: list[int] = []
    with socket.create_server((HOST, 0)) as hangs:
        limits = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_EXPORTER_OTLP_TIMEOUT": "3"}
        exporter = Exporter(settings(hangs.getsockname()[1], **limits), dropped.append)
        tracer = Tracer(1.0, exporter.finished)
        began = time.monotonic()
        some(tracer, 100)
        assert time.monotonic() - began < 1
        assert 80 <= sum(dropped) <= 92
        await asyncio.wait_for(exporter.close(0.2), 5)
    senders_end()  # the last attempt fails after the end

    assert 100 == sum(dropped)
    assert "spans are lost at the end" in caplog.text


async def test_a_collector_that_is_away_is_said_once_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the reason, and without the query of its URL."""
    port, dropped = free_port(), list[int]()
    caplog.set_level(logging.INFO)
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_TIMEOUT": "1.5"}
    tracer, close = started_tracer(settings(port, **quick), dropped.append)
    assert tracer is not None
    for number in (1, 2):
        some(tracer, 1)
        while sum(dropped) < number:  # noqa: ASYNC110 - a thread counts
            await asyncio.sleep(0.02)
    with collector(port) as found:
        some(tracer, 1)
        await close()

    assert 1 == len(found.spans)
    (said,) = [one for one in caplog.records if "does not take" in one.message]
    assert "refused" in said.__dict__["error"]
    assert 1 == caplog.text.count("the collector takes spans again")
