"""A head that was seen before is read as if it had been parsed, whatever stands in it."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedapi_serving.web.limits import Limits
from batchedapi_serving.web.parser import HttpRequest, KnownHeads, RequestParser
from thorough import examples

LIMITS = Limits(body=1000, headers=2000)
PATHS = {b"/iris": None}
SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=examples(150))

Head = list[tuple[bytes, bytes]]


def plain(length: bytes = b"3", request_id: bytes = b"a-1") -> Head:
    """A head as a proxy sends it."""
    return [
        (b"Host", b"iris:8080"),
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id),
        (b"traceparent", b"00-1-2-00"),
        (b"user-agent", b"curl/8"),
        (b"Content-Length", length),
    ]


def sent(head: Head, body: bytes = b"123", line: bytes = b"POST /iris HTTP/1.1") -> bytes:
    """One request."""
    return b"%b\r\n%b\r\n%b" % (line, b"".join(b"%b: %b\r\n" % pair for pair in head), body)


def outcome(parser: RequestParser, data: bytes) -> tuple[str, str | None, str]:
    """Everything that a connection sees of a parser; errors are equal if their text is."""
    return repr(list(parser.feed(data))), parser.awaiting, str(parser.error)


def same_as_parsed(pieces: list[bytes], *, traced: bool = False) -> None:
    """The same with known heads and without."""
    known = KnownHeads(PATHS, traced=traced)
    first, second = (RequestParser(LIMITS, each, traced=traced) for each in (known, None))
    for data in pieces:
        assert outcome(second, data) == outcome(first, data), data


def read(known: KnownHeads, data: bytes) -> list[HttpRequest]:
    """The requests that the known heads read in `data`."""
    found = (form.read(data, LIMITS) for form in known.forms)
    return [request for request in found if request is not None]


def test_heads_that_differ_in_their_ids_and_lengths_are_known() -> None:
    """After two of them were parsed; of a third both may be new."""
    known = KnownHeads(PATHS)
    parser = RequestParser(LIMITS, known)
    for head, body in ((plain(), b"123"), (plain(b"4", b"a-2"), b"1234")):
        parser.feed(sent(head, body))

    (request,) = read(known, sent(plain(b"12", b"quite another"), b"123456789012"))

    assert (b"123456789012", "quite another") == (request.body, request.options.request_id)


def test_heads_are_known_on_every_connection() -> None:
    """A proxy opens many."""
    known = KnownHeads(PATHS)
    RequestParser(LIMITS, known).feed(sent(plain()))

    assert 1 == len(read(known, sent(plain())))


def test_a_thousand_forms_are_not_kept() -> None:
    """A client could send so many, and each would be tried with each request."""
    known = KnownHeads(PATHS)
    for number in range(1000):
        RequestParser(LIMITS, known).feed(sent([*plain(), (b"x-%d" % number, b"1")]))

    assert 16 >= len(known.forms)


def test_what_was_read_is_not_kept() -> None:
    """Bodies are large."""
    known = KnownHeads(PATHS)
    RequestParser(LIMITS, known).feed(sent(plain()))

    assert [b""] == [form.request.body for form in known.forms]


NAMES = [
    b"x-a", b"X-A", b"host", b"transfer-encoding", b"content-length", b"expect", b"connection",
    b"upgrade", b"content-encoding", b"x-request-timeout-ms", b"tracestate", b"x-request-id ", b"",
    b"accept", b"proxy-connection",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([
        b"", b" ", b" a", b"a ", b"a\t", b"\ta", b"a b", b"a\nb", b"a\r\nb: c", b"a\r\n b", b"a\rb",
        b"\x00", b"\xff", b"\x7f", b"3", b"03", b"4", b"+3", b"3 ", b"1_0", b"3, 3", b"99999999999",
        b"chunked", b"close", b"keep-alive", b"100-continue", b"gzip", b"x" * 300, b"x" * 2100,
        b"h2c", b"a\r\n\r\nPOST /iris HTTP/1.1",
    ]),
    st.binary(max_size=5),
    st.text("0123456789abcdef-", max_size=36).map(str.encode),
)  # fmt: skip
BODIES = st.sampled_from([b"123", b"", b"1", b"1POST /iris HTTP/1.1\r\n\r\n", b"x" * 1001])
LINES = st.sampled_from([
    b"POST /iris HTTP/1.1", b"POST /iris?a=1 HTTP/1.1", b"POST /iris HTTP/1.0",
    b"PUT /iris HTTP/1.1", b"POST /other HTTP/1.1", b"POST http://iris/iris HTTP/1.1",
])  # fmt: skip


@st.composite
def requests(draw: Any) -> bytes:
    """One that is like others but for a few things, good or bad."""
    head, body = plain(), draw(BODIES)
    head[-1] = (b"Content-Length", b"%d" % len(body))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(head) - 1))
        match draw(st.sampled_from(["value", "value", "value", "name", "insert", "delete"])):
            case "value":
                head[place] = (head[place][0], draw(VALUES))
            case "name":
                head[place] = (draw(st.sampled_from(NAMES)), head[place][1])
            case "insert":
                head.insert(place, (draw(st.sampled_from(NAMES)), draw(VALUES)))
            case _:
                del head[place]
    line = draw(st.one_of(st.just(b"POST /iris HTTP/1.1"), LINES))
    return sent(head, body, line)


@SETTINGS
@given(st.lists(requests(), min_size=1, max_size=8), st.booleans())
@example([sent(plain()), sent(plain(b"3\n4"))], False)
@example([sent(plain()), sent(plain()) + sent(plain())], True)
def test_what_is_known_is_read_as_it_is_parsed(pieces: list[bytes], traced: bool) -> None:  # noqa: FBT001 - drawn
    """Good heads and bad ones, after others that are like them, on one connection."""
    same_as_parsed(pieces, traced=traced)


@SETTINGS
@given(st.lists(requests(), min_size=2, max_size=8))
def test_connections_learn_from_each_other_nothing_wrong(pieces: list[bytes]) -> None:
    """Each request has a connection of its own, so that a bad one does not end the test."""
    known = KnownHeads(PATHS)
    for data in pieces:
        assert outcome(RequestParser(LIMITS), data) == outcome(RequestParser(LIMITS, known), data)


@SETTINGS
@given(st.lists(requests(), min_size=2, max_size=5), st.integers(1, 40), st.data())
def test_a_changed_byte_changes_nothing_but_what_is_read(
    pieces: list[bytes], changes: int, data: Any
) -> None:
    """Any byte, of any of them."""
    known = KnownHeads(PATHS)
    RequestParser(LIMITS, known).feed(sent(plain()))
    for piece in pieces:
        text = bytearray(piece)
        for _ in range(1 + changes // 20):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        changed = bytes(text)
        found = outcome(RequestParser(LIMITS, known), changed)
        assert outcome(RequestParser(LIMITS), changed) == found
