"""Bodies that come as gzip: inflated in pieces, and never more than the limit of bodies."""

import asyncio
import gzip
import random
from unittest.mock import MagicMock

import pytest

from batchedapi_serving.errors import ServingError
from batchedapi_serving.tracing.spans import Span, Tracer
from batchedapi_serving.web.limits import PIECE_BYTES, Inflater
from connections import LIMITS, Peer, Server

LIMIT = 4 * PIECE_BYTES
BODY = bytes(range(256)) * (3 * PIECE_BYTES // 256)


def inflated(packed: bytes, most: int = LIMIT) -> tuple[bytes, list[int]]:
    """The body, and how much was there after each step."""
    inflater, sizes = Inflater(packed, most), []
    whole = False
    while not whole:
        whole = inflater.step()
        sizes.append(inflater.size)
    return inflater.body(), sizes


def refusal(packed: bytes, most: int = LIMIT) -> tuple[int, str]:
    """Status and message."""
    with pytest.raises(ServingError) as raised:
        inflated(packed, most)
    return raised.value.status, str(raised.value)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_body_is_inflated_in_pieces(level: int) -> None:
    """Others are served between two of them."""
    body, sizes = inflated(gzip.compress(BODY, level))

    assert BODY == body
    assert len(sizes) >= 3
    assert max(b - a for a, b in zip([0, *sizes], sizes, strict=False)) <= PIECE_BYTES


def test_the_limit_itself_fits_and_one_byte_more_does_not() -> None:
    """The limit counts what the codec gets, as for a body that was sent as it is."""
    fits, _ = inflated(gzip.compress(BODY), len(BODY))
    status, message = refusal(gzip.compress(BODY), len(BODY) - 1)

    assert BODY == fits
    assert (413, True) == (status, "maxBodySize" in message)


def test_a_bomb_is_stopped_at_the_limit() -> None:
    """A hundred megabytes in a hundred kilobytes: no more than the limit is ever there."""
    inflater = Inflater(gzip.compress(bytes(100 * 1024 * 1024)), LIMIT)
    for _ in range(LIMIT // PIECE_BYTES):
        assert not inflater.step()
    with pytest.raises(ServingError, match="once inflated"):
        inflater.step()

    assert inflater.size == LIMIT


@pytest.mark.looptime
async def test_a_request_is_drawn_once_be_it_packed_or_not() -> None:
    """Else half of one in two would be three in four."""
    spans: list[Span] = []
    tracer = Tracer(0.5, spans.append, source=random.Random(3))
    server = Server()
    server.frontend.tracer = tracer
    client, drawn = server.connect(), []
    for body, header in ((b"1", b""), (gzip.compress(b"1"), b"content-encoding: gzip\r\n")):
        before = len(spans)
        for _ in range(200):
            client.send(
                b"POST /api HTTP/1.1\r\nhost: t\r\n%bcontent-length: %d\r\n\r\n%b"
                % (header, len(body), body)
            )
            await asyncio.sleep(0.1)
        drawn.append(len(spans) - before)

    assert [200] * 400 == client.statuses
    assert all(70 < number < 130 for number in drawn), drawn


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "a part of it"),
        (b'{"a": 1}', "incorrect header"),
        (gzip.compress(b"1")[:-3], "a part of it"),
        (gzip.compress(b"1")[:-8] + bytes(8), "incorrect data check"),
        (gzip.compress(b"1") + b"x", "something after it"),
        (gzip.compress(b"1") * 2, "something after it"),
        (gzip.compress(b"1") + bytes(200_000), "something after it"),
    ],
    ids=["empty", "not gzip", "cut", "wrong checksum", "more", "two members", "much more"],
)
def test_what_is_no_gzip_is_refused(packed: bytes, said: str) -> None:
    """Many members would be copied again and again; no client sends more than one."""
    status, message = refusal(packed)

    assert (400, True) == (status, said in message)


def post(body: bytes, coding: bytes = b"gzip") -> bytes:
    """One request."""
    head = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-encoding: "
    return head + b"%b\r\ncontent-length: %d\r\n\r\n%b" % (
        coding, len(body), body,
    )  # fmt: skip


async def answers(*requests: bytes) -> tuple[Server, Peer]:
    """One connection asks them one after the other."""
    server = Server()
    wire = server.connect()
    for request in requests:
        wire.send(request)
        await asyncio.sleep(1)
    return server, wire


@pytest.mark.looptime
@pytest.mark.parametrize("coding", [b"gzip", b"GZIP", b"x-gzip"])
async def test_a_row_that_came_as_gzip_is_answered(coding: bytes) -> None:
    """The second time its head is known, and the shortcut must inflate too."""
    _, wire = await answers(*[post(gzip.compress(b"[1, 2]"), coding)] * 2)

    assert [200, 200] == wire.statuses
    assert wire.received.endswith(b"\r\n\r\n[1,2]")


@pytest.mark.looptime
async def test_a_wrong_one_leaves_the_connection_and_the_budget_as_they_were() -> None:
    """Too large once inflated, no gzip, another coding, two codings; then a good one."""
    large = gzip.compress(b"1" * (LIMITS.body + 1))
    twice = post(b"1").replace(b"gzip\r\n", b"gzip\r\ncontent-encoding: gzip\r\n")
    server, wire = await answers(
        post(large), post(b"1"), post(b"1", b"br"), post(b"1", b"gzip, gzip"), twice,
        post(gzip.compress(b"7")),
    )  # fmt: skip

    assert [413, 400, 415, 415, 415, 200] == wire.statuses
    assert ([413, 400, 415, 415, 415], 0) == (server.engine.codes, server.frontend.bodies.held)


@pytest.mark.looptime
async def test_a_long_one_stays_packed_on_its_way_to_the_codec_process() -> None:
    """Inflating it here would take the memory and the time of everybody else."""
    server = Server()
    server.frontend.limits = server.frontend.limits._replace(body=LIMIT)
    server.frontend.large = MagicMock()
    packed = gzip.compress(BODY)
    server.connect().send(post(packed))

    (large,) = server.frontend.large.submit.call_args.args
    names = [name for name, _ in large.head.headers]
    assert (packed, True, [b"host", b"content-length"]) == (large.body, large.packed, names)
    assert server.frontend.bodies.held in {0, len(packed)}


@pytest.mark.looptime
async def test_a_client_that_leaves_while_its_body_is_packed_is_forgotten() -> None:
    """Nothing is asked for it, and nothing of the budget stays taken."""
    server = Server()
    server.frontend.limits = server.frontend.limits._replace(body=LIMIT)
    wire = server.connect()
    wire.send(post(gzip.compress(BODY)))
    wire.abort()
    await asyncio.sleep(1)

    assert ([], 0) == (server.engine.asked, server.frontend.bodies.held)
