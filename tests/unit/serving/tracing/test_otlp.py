"""What is sent to a collector, and what becomes of spans that it does not take."""

import asyncio
import logging
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.otlp import Exporter, UnsentError, _facts, client_of, encoded
from batchedapi_serving.tracing.spans import QUEUE_WAIT, Form, Span, SpanContext
from otlp import Received, spans_of

CONTEXT = SpanContext(b"t" * 16, b"s" * 8, state="a=1")
OTHER = SpanContext(b"u" * 16, b"v" * 8)
SECONDS = 30.0


def settings(**changes: Any) -> TracingSettings:
    """Send each span at once."""
    values: dict[str, Any] = {
        "endpoint": "http://c:4318/v1/traces", "headers": (), "timeout": 1.0, "gzip": False,
        "certificate": None, "client_certificate": None, "client_key": None, "ratio": 1.0,
        "follows_parent": True, "resource": (("service.name", "iris"),), "delay": 60.0,
        "most_queued": 100, "most_sent": 1,
    }  # fmt: skip
    return TracingSettings(**{**values, **changes})


def a_span(name: str = "POST /iris") -> Span:
    """Of a request that is over."""
    form = Form(name, server=True, constant=(("http.route", "/iris"), ("n", 1)))
    span = Span(form, CONTEXT, b"p" * 8, started=10)
    span.ended = 20
    return span


class Collector:
    """Takes requests when it is let, and refuses as often as it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Semaphore(0)
        self.refuses = 0
        self.spans: list[Received] = []
        self.dropped: list[int] = []

    async def __call__(self, body: bytes) -> None:
        """See Sender."""
        self.asked.release()
        await self.open.wait()
        if self.refuses:
            self.refuses -= 1
            raise UnsentError("nobody is there")
        self.spans += spans_of(ExportTraceServiceRequest.FromString(body))


def exporter(collector: Collector, **changes: Any) -> Exporter:
    """One that sends there."""
    made = Exporter(settings(**changes), collector, collector.dropped.append)
    made.start()
    return made


async def test_a_span_has_everything_that_is_known_of_it() -> None:
    """Ids, times, attributes of each type, links, and whose it is."""
    collector = Collector()
    ours, span = exporter(collector), a_span()
    span.queue_wait = 0.25
    span.batch_facts = 3, 2, "full"
    span.add_attribute("batchedapi.request_id", "mine")
    span.links.append(OTHER)
    span.error = "500"

    ours.finished(span)
    await ours.close()

    (found,) = collector.spans
    assert ("POST /iris", True, True) == (found.name, found.server, found.failed)
    assert (b"t" * 16, b"s" * 8, b"p" * 8) == tuple(
        bytes.fromhex(one) for one in (found.trace_id, found.span_id, found.parent_id)
    )
    assert (10, 20, "a=1") == (found.start, found.end, found.state)
    assert {
        "http.route": "/iris", "n": 1, QUEUE_WAIT: 0.25, "batchedapi.batch.rows": 3,
        "batchedapi.batch.requests": 2, "batchedapi.batch.reason": "full",
        "batchedapi.request_id": "mine", "error.type": "500",
    } == found.attributes  # fmt: skip
    assert [((b"u" * 16).hex(), (b"v" * 8).hex())] == found.links
    assert {"service.name": "iris"} == found.resource


def test_a_root_has_no_parent_and_success_has_no_status() -> None:
    """As the protocol says it: empty, and unset."""
    message = SpanMessage.FromString(encoded(Span(Form("b", server=False, constant=()), OTHER)))

    assert b"" == message.parent_span_id
    assert not message.HasField("status")


@pytest.mark.parametrize("value", ["x" * 300, "", 0, 1 << 40, -3, 0.0, -1e300])
def test_attributes_of_any_size_are_read_as_they_were(value: str | float) -> None:
    """Lengths of several bytes, and values that protobuf leaves out elsewhere."""
    span = a_span()
    span.add_attribute("found", value)
    span.add_attribute("again", 1.5)
    message = SpanMessage.FromString(encoded(span))

    found = {pair.key: pair.value for pair in message.attributes}
    assert {"http.route", "n", "found", "again"} == set(found)  # of no wait, as it had none
    read = getattr(found["found"], str(found["found"].WhichOneof("value")))
    assert (type(value), value) == (type(read), read)
    assert 1.5 == found["again"].double_value


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1e300])
def test_a_wait_is_read_as_it_was(seconds: float) -> None:
    """Also none at all, which protobuf leaves out elsewhere."""
    span = a_span()
    span.queue_wait = seconds
    message = SpanMessage.FromString(encoded(span))

    found = {pair.key: pair.value for pair in message.attributes}
    assert seconds == found[QUEUE_WAIT].double_value
    assert "double_value" == found[QUEUE_WAIT].WhichOneof("value")


def test_however_many_values_clients_think_of_few_are_kept() -> None:
    """Each is encoded right, also one that was kept and is not any more."""
    for number in [*range(5000), 0]:
        span = a_span()
        span.add_attribute("batchedapi.request_id", str(number))
        message = SpanMessage.FromString(encoded(span))
        assert str(number) == message.attributes[-1].value.string_value

        assert 0 < len(_facts) <= 4096


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """The collector hangs: the queue is bounded, and nobody waits for it."""
    collector = Collector()
    collector.open.clear()
    ours = exporter(collector, most_queued=3)
    ours.finished(a_span("first"))
    await asyncio.wait_for(collector.asked.acquire(), SECONDS)  # it hangs with one span

    for _ in range(5):
        ours.finished(a_span())
    collector.open.set()
    await ours.close(SECONDS)

    assert [1, 1] == collector.dropped
    assert 4 == len(collector.spans)


async def test_a_span_that_cannot_be_encoded_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is counted and said; those around it are sent, and so are later ones."""
    collector = Collector()
    ours = exporter(collector, most_sent=100)
    with caplog.at_level(logging.WARNING):
        for name in ("first", "\ud800", "last"):
            ours.finished(a_span(name))
        await ours.close(SECONDS)

    assert [1] == collector.dropped
    assert ["first", "last"] == [span.name for span in collector.spans]
    assert ["a span cannot be encoded"] == [record.getMessage() for record in caplog.records]


async def test_spans_that_are_encoded_and_those_that_are_not_share_the_queue() -> None:
    """Some in a row are encoded before they are sent; they count for as long as they are held."""
    collector = Collector()
    ours = exporter(collector, most_queued=150, most_sent=150)
    for _ in range(130):
        ours.finished(a_span())
    await asyncio.sleep(0)
    assert (130, 0) == (len(ours._held), len(ours._ended))
    assert [] == collector.spans

    for _ in range(30):
        ours.finished(a_span())
    await ours.close(SECONDS)

    assert [1] * 10 == collector.dropped
    assert 150 == len(collector.spans)


async def test_a_collector_that_is_away_is_said_once_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line, not one for each request; and one when it is back."""
    collector = Collector()
    collector.refuses = 3
    ours = exporter(collector)
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            ours.finished(a_span())
        await ours.close(SECONDS)

    assert [1, 1, 1] == collector.dropped
    assert 1 == len(collector.spans)
    assert [
        "spans are dropped: the collector does not take them", "the collector takes spans again",
    ] == [record.getMessage() for record in caplog.records]  # fmt: skip
    assert "nobody is there" == caplog.records[0].error  # type: ignore[attr-defined]


async def test_the_end_waits_no_longer_than_it_may_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A collector that hangs does not hold up a stop."""
    collector = Collector()
    collector.open.clear()
    ours = exporter(collector)
    ours.finished(a_span())
    await asyncio.wait_for(collector.asked.acquire(), SECONDS)
    ours.finished(a_span())

    await ours.close(0.01)

    assert [2] == collector.dropped
    assert ["spans are lost at the end"] == [one.getMessage() for one in caplog.records]
    collector.open.set()


async def test_what_comes_while_some_are_sent_waits_for_more() -> None:
    """A collector gets a request for `most_sent` spans, not one for each that came meanwhile."""
    collector = Collector()
    collector.open.clear()
    ours = exporter(collector, most_sent=4)
    for _ in range(4):
        ours.finished(a_span())
    await asyncio.wait_for(collector.asked.acquire(), SECONDS)
    for _ in range(3):
        ours.finished(a_span())
    collector.open.set()
    for _ in range(10):
        await asyncio.sleep(0)

    assert 4 == len(collector.spans)
    ours.finished(a_span())
    await asyncio.wait_for(collector.asked.acquire(), SECONDS)
    await ours.close(SECONDS)
    assert 8 == len(collector.spans)


async def test_an_error_that_nobody_knows_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and counted; the next are sent."""
    collector = Collector()
    wrong = [ValueError("of a library")]

    async def send(body: bytes) -> None:
        if wrong:
            raise wrong.pop()
        await collector(body)

    ours = Exporter(settings(), send, collector.dropped.append)
    ours.start()
    ours.finished(a_span())
    await asyncio.sleep(0.01)
    ours.finished(a_span())
    await ours.close(SECONDS)

    assert ([1], 1) == (collector.dropped, len(collector.spans))
    assert "ValueError('of a library')" == caplog.records[0].error  # type: ignore[attr-defined]


async def test_headers_may_have_any_text() -> None:
    """Percent-encoded in the variable; as UTF-8 on the way."""
    client = client_of(settings(headers=(("x-team", "caf\u00e9"),)))

    assert "caf\u00e9".encode() == client.headers.raw[-1][1]
    await client.aclose()
