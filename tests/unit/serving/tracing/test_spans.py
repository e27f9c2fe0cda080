"""Trace context from others, who is drawn, and what one process tells another of a span."""

import itertools
import json
import random

import pytest

from batchedapi_serving.tracing.spans import (
    QUEUE_WAIT,
    Form,
    Span,
    SpanContext,
    Tracer,
    context_in,
    context_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
FORM = Form("POST /iris", server=True, constant=())


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


def asked(ours: Tracer, traceparent: bytes = b"") -> Span | None:
    """What a request gets, as those who take requests ask for it."""
    ours.undrawn -= 1
    if ours.undrawn < 0 or traceparent:
        return ours.begins(FORM, traceparent)
    return None


def test_a_callers_context_is_read_and_written_as_it_came() -> None:
    """Its trace and its state; the span is its own, under which ours is."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1,b=2"}
    for found in (
        context_of(headers["traceparent"].encode(), headers["tracestate"].encode()),
        context_in(headers),
    ):
        assert found is not None
        assert (bytes.fromhex(TRACE), bytes.fromhex(PARENT), True, "a=1,b=2") == (
            found.trace_id, found.span_id, found.sampled, found.state,
        )  # fmt: skip
        assert headers == Span(FORM, found).headers()


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
    assert {"traceparent": f"00-{TRACE}-{PARENT}-01"} == Span(FORM, found).headers()


def test_a_trace_that_begins_here_would_be_sampled_by_the_same_rule_elsewhere() -> None:
    """Of the last eight bytes of its id, as TraceIdRatioBased has it."""
    ours = tracer(0.01)
    found = [ours.begins(FORM) for _ in range(1000)]

    ids = {span.context.trace_id for span in found if span is not None}
    assert 1000 == len(ids)
    assert all(int.from_bytes(one[8:], "big") < 0.01 * 2**64 for one in ids)
    assert {b""} == {span.parent_id for span in found if span is not None}


@pytest.mark.parametrize(("flags", "traced"), [("01", True), ("00", False)])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_caller_has_decided(ratio: float, flags: str, traced: object) -> None:
    """Parent-based, whatever the share of traces that begin here: half a trace helps nobody."""
    span = tracer(ratio).begins(FORM, f"00-{TRACE}-{PARENT}-{flags}".encode(), b"a=1")

    assert traced == (span is not None)
    if span is not None:
        assert (TRACE, PARENT) == (span.context.trace_id.hex(), span.parent_id.hex())
        assert PARENT != span.context.span_id.hex()
        assert ("a=1", 7) == (span.context.state, span.started)


@pytest.mark.parametrize(("last", "traced"), [("0" * 15 + "1", True), ("f" * 16, False)])
def test_without_parent_based_the_id_decides(last: str, traced: object) -> None:
    """`traceidratio` asks nobody, and keeps the caller's trace all the same."""
    ours = tracer(0.5, follows_parent=False)
    span = ours.begins(FORM, f"00-{'a' * 16}{last}-{PARENT}-00".encode())

    assert traced == (span is not None)


def test_whoever_sends_nonsense_is_drawn_like_those_who_send_nothing() -> None:
    """Else a wrong header would be a way to have everything traced."""
    ours = tracer(0.1)
    found = [asked(ours, b"nonsense") for _ in range(2000)]

    assert 120 < sum(span is not None for span in found) < 280


@pytest.mark.parametrize(
    ("ratio", "least", "most"),
    [(0.0, 0, 0), (0.01, 150, 250), (0.5, 9_700, 10_300), (1.0, 2e4, 2e4)],
)
def test_as_many_are_drawn_as_the_share_says_and_each_by_itself(
    ratio: float, least: float, most: float
) -> None:
    """Also after one that was drawn the chance of the next is the same."""
    ours = tracer(ratio)
    drawn = [asked(ours) is not None for _ in range(20_000)]
    after = [now for before, now in itertools.pairwise(drawn) if before]

    assert least <= sum(drawn) <= most
    assert not after or ratio / 2 - 0.01 <= sum(after) / len(after) <= ratio * 1.5 + 0.01


def test_a_caller_with_a_trace_takes_nothing_from_the_share_of_others() -> None:
    """Each request is a chance of its own, whoever decides on it."""
    ours = tracer(0.1)
    sampled = f"00-{TRACE}-{PARENT}-01".encode()
    found = [asked(ours, sampled if number % 2 else b"") for number in range(4000)]

    assert all(span is not None for span in found[1::2])
    assert 120 < sum(span is not None for span in found[::2]) < 280


@pytest.mark.parametrize("header", [b"", f"00-{TRACE}-{PARENT}-01".encode()])
def test_each_batch_of_a_request_has_a_span_of_its_own_below_it(header: bytes) -> None:
    """Whether that was drawn ahead, as the first one's of a trace that begins here, or is now."""
    ours = tracer(1.0)
    request = ours.begins(FORM, header)
    assert request is not None
    batch = Form("batch predict", server=False, constant=())
    found = [ours.batch(batch, request) for _ in range(3)]

    assert 4 == len({span.context.span_id for span in (request, *found)})
    for span in found:
        assert (request.context.trace_id, request.context.span_id, batch) == (
            span.context.trace_id, span.parent_id, span.form,
        )  # fmt: skip
        assert {"traceparent": span.context.header()} == span.headers()


def test_what_another_process_learned_of_a_span_joins_it() -> None:
    """As JSON between web processes."""
    ours, there = tracer(1.0).begins(FORM), tracer(1.0, seed=2).begins(FORM)
    assert ours is not None
    assert there is not None
    there.queue_wait = 0.25
    there.batch_facts = 3, 2, "full"
    there.links.append(SpanContext(bytes.fromhex(TRACE), bytes.fromhex(PARENT), state="a=1"))
    facts = {
        QUEUE_WAIT: 0.25, "batchedapi.batch.rows": 3, "batchedapi.batch.requests": 2,
        "batchedapi.batch.reason": "full",
    }  # fmt: skip
    link = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"}

    told = json.loads(json.dumps(there.told()))
    assert {"facts": facts, "links": [link]} == told  # as replicas of other versions know it
    for _ in range(2):  # a second answer to the same request says the same once more
        ours.learn(told)

    assert facts == ours.attributes() == {**dict(ours.facts), QUEUE_WAIT: 0.25}
    (found,) = ours.links
    assert (link["traceparent"], "a=1") == (found.header(), found.state)


def test_a_span_that_waited_nowhere_learns_no_wait() -> None:
    """As of rows that were refused before a batch took them."""
    ours, there = tracer(1.0).begins(FORM), tracer(1.0, seed=2).begins(FORM)
    assert ours is not None
    assert there is not None

    ours.learn(there.told())

    assert ({}, []) == (ours.attributes(), ours.links)
