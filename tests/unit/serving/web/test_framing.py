"""However the bytes of requests are cut and timed, the same requests are seen.

The connection takes short cuts for requests that repeat the head of the one before; none of them
may make one request out of two, two out of one, or answer with another's body.
"""

import asyncio
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from connections import Peer, Server
from dispatching import run_virtually
from thorough import examples

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=examples(100))

HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"


def whole(body: bytes, extra: bytes = b"") -> bytes:
    """With its length."""
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (HEAD, extra, len(body), body)


def chunked(body: bytes) -> bytes:
    """In chunks of two bytes."""
    parts = (body[i : i + 2] for i in range(0, len(body), 2))
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + data + b"0\r\n\r\n"


def length_last(body: bytes) -> bytes:
    """The same request with its headers in another order."""
    return (
        b"POST /predict HTTP/1.1\r\ncontent-length: %d\r\ncontent-type: application/json\r\n"
        b"host: t\r\n\r\n%b" % (len(body), body)
    )


# (bytes, status, body of the answer or None for an error's)
POOL: list[tuple[bytes, int, bytes | None]] = [
    *((whole(b"%d" % n), 200, b"%d" % n) for n in (1, 2, 3)),
    *((whole(b"%d" % n), 200, b"%d" % n) for n in (11, 12)),
    (whole(b'"POST /predict HTTP/1.1\\r\\n"'), 200, b'"POST /predict HTTP/1.1\\r\\n"'),
    (whole(b'"\\r\\n\\r\\n"'), 200, b'"\\r\\n\\r\\n"'),
    (whole(b"4", b"x-request-id: my-1\r\n"), 200, b"4"),
    (whole(b"{", b"x-request-id: my-1\r\n"), 400, None),
    (whole(b"{", b"x-request-id: my-2\r\n"), 400, None),
    (whole(b"{"), 400, None),
    (whole(b""), 400, None),
    (whole(b"5", b"content-encoding: identity\r\n"), 200, b"5"),
    (chunked(b"6789"), 200, b"6789"),
    (chunked(b"10"), 200, b"10"),
    (length_last(b"7"), 200, b"7"),
    (HEAD.replace(b"application/json", b"text/csv") + b"content-length: 1\r\n\r\n1", 415, None),
]
REQUESTS = st.lists(st.sampled_from(POOL), min_size=1, max_size=12)


def bodies_of(received: bytes) -> list[tuple[int, bytes]]:
    """(status, body) of each response."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        status = int(head[9:12])
        (length,) = re.findall(rb"content-length: (\d+)", head)
        found.append((status, rest[: int(length)]))
        received = rest[int(length) :]
    return found


async def sent_in_pieces(requests: list[Any], pieces: list[int], pause: float) -> Peer:
    """Cut into pieces of these sizes, again and again, with a pause after each."""
    wire = Server(interval=0.0).connect()
    data = b"".join(request for request, _, _ in requests)
    start = 0
    while start < len(data):
        for size in pieces:
            wire.send(data[start : start + size])
            start += size
            await asyncio.sleep(pause)
    await asyncio.sleep(5)
    return wire


@SETTINGS
@given(
    requests=REQUESTS,
    pieces=st.lists(st.sampled_from([1, 2, 7, 50, 97, 98, 99, 1000]), min_size=1, max_size=4),
    pause=st.sampled_from([0.0, 0.02]),
)
def test_any_cut_gives_the_same_requests(
    requests: list[Any], pieces: list[int], pause: float
) -> None:
    """One byte at a time, and a dozen requests at once."""

    async def live() -> None:
        wire = await sent_in_pieces(requests, pieces, pause)
        check(requests, wire)

    run_virtually(live())


def pieces_of(request: bytes, how: str) -> list[bytes]:
    """The pieces that a client sends at once; `joined` goes with the following request."""
    head, end, body = request.partition(b"\r\n\r\n")
    cut = {"whole": [request], "in two": [head + end, body[:1], body[1:]]}
    return [piece for piece in cut.get(how, [head + end, body]) if piece]


@SETTINGS
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(POOL), st.sampled_from(["whole", "apart", "in two", "joined"])),
        min_size=1, max_size=12,
    ),
    pause=st.sampled_from([0.0, 0.02]),
)  # fmt: skip
def test_heads_may_come_before_their_bodies(requests: list[tuple[Any, str]], pause: float) -> None:
    """Or with them, one request a read; a head that repeats is not parsed again, nor trusted."""

    async def live() -> None:
        wire = Server(interval=0.0).connect()
        kept = b""
        for (request, _, _), how in requests:
            pieces = pieces_of(request, how)
            pieces[0] = kept + pieces[0]
            kept = pieces.pop() if how == "joined" else b""
            for piece in pieces:
                wire.send(piece)
                await asyncio.sleep(pause)
        wire.send(kept)
        await asyncio.sleep(5)
        check([request for request, _ in requests], wire)

    run_virtually(live())


def check(requests: list[Any], wire: Peer) -> None:
    """Every request has its answer, in order, with its own body."""
    answers = bodies_of(wire.received)
    assert [status for _, status, _ in requests] == [status for status, _ in answers]
    for (request, _, expected), (_, body) in zip(requests, answers, strict=True):
        if expected is not None:
            assert expected == body
        for request_id in (b"my-1", b"my-2"):
            if expected is None:
                assert (b"x-request-id: " + request_id in request) == (request_id in body)


@SETTINGS
@given(st.binary(max_size=60), st.sampled_from([b"", whole(b"1"), whole(b"1") * 2]))
def test_garbage_is_refused_once_and_nothing_after_it_is_run(garbage: bytes, before: bytes) -> None:
    """Whatever comes: no exception, at most one refusal, and it is the last answer."""

    async def live() -> None:
        server = Server(interval=0.0)
        wire = server.connect()
        if before:
            wire.send(before)
            await asyncio.sleep(1)
        wire.send(b"\x00" + garbage)
        wire.send(whole(b"999"))
        await asyncio.sleep(1)
        assert [[999]] not in [[batch] for batch in server.engine.batches]
        assert wire.statuses == [200] * before.count(b"POST") + [400]

    run_virtually(live())
