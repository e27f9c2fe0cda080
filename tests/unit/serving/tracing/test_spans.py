"""Trace context from others, who is drawn, and what one process tells another of a span."""

import json
import random

import pytest

from batchedapi_serving.tracing.spans import (
    QUEUE_WAIT,
    Span,
    SpanContext,
    Tracer,
    context_in,
    context_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Kept:
    """Spans that are over."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def __call__(self, span: Span) -> None:
        """See Finished."""
        self.spans.append(span)


def tracer(ratio: float, *, follows_parent: bool = True, seed: int = 1) -> Tracer:
    """One that draws the same every time."""
    return Tracer(
        ratio,
        Kept(),
        follows_parent=follows_parent,
        source=random.Random(seed),
        now=lambda: 7,
    )


def test_a_callers_context_is_read_and_written_as_it_came() -> None:
    """Its trace and its state; the span is its own, under which ours is."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1,b=2"}
    for found in (
        context_of(headers["traceparent"].encode(), headers["tracestate"].encode()),
        context_in(headers),
    ):
        assert found is not None
        assert (int(TRACE, 16), int(PARENT, 16), True, "a=1,b=2") == (
            found.trace_id, found.span_id, found.sampled, found.state,
        )  # fmt: skip
        assert headers == found.headers()


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"00-{TRACE}-{PARENT}-02", False),
        (f"cc-{TRACE}-{PARENT}-01-what-will-be", True),
        (f"cc-{TRACE}-{PARENT}-01", True),
    ],
)
def test_flags_and_later_versions_are_read_as_far_as_they_are_known(
    header: str, sampled: object
) -> None:
    """As https://www.w3.org/TR/trace-context/ wants it of parsers."""
    found = context_of(header.encode())

    assert found is not None
    assert sampled == found.sampled


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"00-{TRACE}-{PARENT}-0g",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_what_is_no_context_counts_as_nothing(header: str) -> None:
    """A wrong header fails no request and begins a trace anew."""
    assert context_of(header.encode()) is None


@pytest.mark.parametrize("state", [b"a=\x00", b"x" * 513, "ä=1".encode()])
def test_a_state_that_cannot_be_passed_on_is_left_out(state: bytes) -> None:
    """It would be a header of ours to others; the trace goes on without."""
    found = context_of(f"00-{TRACE}-{PARENT}-01".encode(), state)

    assert found is not None
    assert {"traceparent": f"00-{TRACE}-{PARENT}-01"} == found.headers()


def test_a_trace_that_begins_here_would_be_sampled_by_the_same_rule_elsewhere() -> None:
    """The rule is TraceIdRatioBased's: it looks at the last eight bytes of the id."""
    ours = tracer(0.01)
    found = [span for _ in range(20_000) if (span := ours.begins(b"", b"")) is not None]

    ids = {span.context.trace_id for span in found}
    assert 150 < len(ids) == len(found) < 250
    assert all(one % 2**64 < 0.01 * 2**64 for one in ids)
    assert {0} == {span.parent_id for span in found}


@pytest.mark.parametrize(("flags", "traced"), [("01", True), ("00", False)])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_caller_has_decided(ratio: float, flags: str, traced: object) -> None:
    """Parent-based, whatever the share of traces that begin here: half a trace helps nobody."""
    span = tracer(ratio).begins(f"00-{TRACE}-{PARENT}-{flags}".encode(), b"a=1")

    assert traced == (span is not None)
    if span is not None:
        assert (int(TRACE, 16), int(PARENT, 16)) == (span.context.trace_id, span.parent_id)
        assert int(PARENT, 16) != span.context.span_id
        assert ("a=1", 7) == (span.context.state, span.started)


@pytest.mark.parametrize(("last", "traced"), [("0" * 15 + "1", True), ("f" * 16, False)])
def test_without_parent_based_the_id_decides(last: str, traced: object) -> None:
    """`traceidratio` asks nobody, and keeps the caller's trace all the same."""
    ours = tracer(0.5, follows_parent=False)
    span = ours.begins(f"00-{'a' * 16}{last}-{PARENT}-00".encode(), b"")

    assert traced == (span is not None)


def test_whoever_sends_nonsense_is_drawn_like_those_who_send_nothing() -> None:
    """Else a wrong header would be a way to have everything traced."""
    ours = tracer(0.1)
    found = [ours.begins(b"nonsense", b"") for _ in range(2000)]

    assert 120 < sum(span is not None for span in found) < 280


def test_what_another_process_learned_of_a_span_joins_it() -> None:
    """As JSON between web processes."""
    ours, there = (tracer(1.0, seed=seed).begins(b"", b"") for seed in (1, 2))
    assert ours is not None
    assert there is not None
    facts = {QUEUE_WAIT: 0.25, "batchedapi.batch.rows": 3}
    there.attributes.update(facts)
    there.links.append(SpanContext(int(TRACE, 16), int(PARENT, 16), state="a=1"))
    link = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"}

    told = json.loads(json.dumps(there.told()))
    assert {"facts": facts, "links": [link]} == told  # as replicas of other versions know it
    for _ in range(2):  # a second answer to the same request says the same once more
        ours.learn(told)

    assert facts == ours.attributes
    assert [link] == [one.headers() for one in ours.links]
