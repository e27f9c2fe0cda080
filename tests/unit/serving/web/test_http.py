"""Requirements of RFC 9110 and 9112 on a server, as common clients rely on them."""

import asyncio

import pytest

from batchedapi_serving.web.asgi import create_app
from connections import LIMITS, Peer, Server

pytestmark = pytest.mark.looptime

GET = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n1"
UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nhttp2-settings: AAMAAAB\r\n"


def post(
    headers: bytes = b"host: t\r\n", *, target: bytes = b"/predict", http: bytes = b"1.1"
) -> bytes:
    """One request with the body 7."""
    return b"POST %b HTTP/%b\r\n%bcontent-length: 1\r\n\r\n7" % (target, http, headers)


async def asked(data: bytes) -> tuple[Server, Peer]:
    """A server and its client, which has sent `data` and waited for a second."""
    server = Server(app=create_app)
    wire = server.connect()
    wire.send(data)
    await asyncio.sleep(1)
    return server, wire


@pytest.mark.parametrize("cut", [1, 7, 60, 1000])
async def test_a_wish_for_another_protocol_is_ignored(cut: int) -> None:
    """RFC 9110 7.8: Java's client sends it by default; the body is a body, the next a next."""
    server = Server(app=create_app)
    wire = server.connect()
    chunked = b"transfer-encoding: chunked\r\n\r\n1\r\n8\r\n0\r\n\r\n"
    data = (
        post(b"host: t\r\n" + UPGRADE) * 2
        + b"POST /predict HTTP/1.1\r\nhost: t\r\n" + UPGRADE + chunked
        + b"GET /v2 HTTP/1.1\r\nhost: t\r\n" + UPGRADE + b"\r\n"
        + GET
    )  # fmt: skip

    for start in range(0, len(data), cut):
        wire.send(data[start : start + cut])
    await asyncio.sleep(1)

    assert [200] * 5 == wire.statuses
    assert [[7], [7], [8], [1]] == server.engine.batches
    assert [] == wire.header("upgrade")


async def test_a_request_inside_the_body_of_an_upgrade_is_not_run() -> None:
    """A request that could be smuggled past a proxy is a body here as it is there."""
    head = b"POST /predict HTTP/1.1\r\nhost: t\r\n" + UPGRADE
    server, wire = await asked(head + b"content-length: %d\r\n\r\n%b" % (len(GET), GET))

    assert ([400], []) == (wire.statuses, server.engine.batches)


async def test_headers_beside_an_upgrade_have_the_same_limits() -> None:
    """The second reading of the head changes none of them."""
    long = b"x: " + b"a" * LIMITS.headers + b"\r\n"
    many = await asked(post(b"host: t\r\n" + UPGRADE + long))
    coded = await asked(post(b"host: t\r\n" + UPGRADE + b"transfer-encoding: gzip, chunked\r\n"))
    hostless = await asked(post(UPGRADE))

    assert [[431], [400], [400]] == [wire.statuses for _, wire in (many, coded, hostless)]


@pytest.mark.parametrize(
    ("headers", "http", "status"),
    [
        (b"host: t\r\n", b"1.1", 200),
        (b"Host: [::1]:8080\r\n", b"1.1", 200),
        (b"host: \r\n", b"1.1", 200),
        (b"", b"1.0", 200),
        (b"host: t\r\n", b"1.0", 200),
        (b"", b"1.1", 400),
        (b"host: t\r\nhost: t\r\n", b"1.1", 400),
        (b"host: t\r\nHOST: u\r\n", b"1.0", 400),
        (b"host: a b\r\n", b"1.1", 400),
        (b"host: t/predict\r\n", b"1.1", 400),
        (b"host: u@t\r\n", b"1.1", 400),
    ],
)
async def test_there_is_one_host(headers: bytes, http: bytes, status: int) -> None:
    """RFC 9112 3.2: two parties that read different ones would route by different ones."""
    server, wire = await asked(post(headers, http=http))

    assert [status] == wire.statuses
    assert (status == 400) == (b"header Host: expected" in wire.received)
    assert (status == 200) == bool(server.engine.batches)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://t/predict", 200),
        (b"HTTP://t:8080/predict?a=http://b/c", 200),
        (b"https://t/predict", 200),
        (b"http://t", 404),
        (b"http://t?a=/predict", 404),
        (b"http://t/nowhere", 404),
        (b"*", 404),
    ],
)
async def test_a_target_may_name_the_server(target: bytes, status: int) -> None:
    """RFC 9112 3.2.2: as it is asked of a proxy."""
    _, wire = await asked(post(target=target))

    assert [status] == wire.statuses


@pytest.mark.parametrize(
    ("headers", "http", "status"),
    [
        (b"transfer-encoding: chunked\r\n", b"1.1", 200),
        (b"transfer-encoding: Chunked\r\n", b"1.1", 200),
        (b"te: gzip, chunked\r\ntransfer-encoding: chunked\r\n", b"1.1", 200),
        (b"transfer-encoding: gzip, chunked\r\n", b"1.1", 501),
        (b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", b"1.1", 501),
        (b"transfer-encoding: deflate , chunked\r\n", b"1.1", 501),
        (b"transfer-encoding: chunked\r\n", b"1.0", 400),
        (b"transfer-encoding: chunked, chunked\r\n", b"1.1", 400),
        (b"transfer-encoding: chunked, gzip\r\n", b"1.1", 400),
        (b"transfer-encoding: chunked\r\ncontent-length: 3\r\n", b"1.1", 400),
    ],
)
async def test_a_body_is_sent_as_it_is_or_in_chunks(
    headers: bytes, http: bytes, status: int
) -> None:
    """RFC 9112 6.1: what is not decoded must not reach a model as if it were."""
    head = b"POST /predict HTTP/%b\r\nhost: t\r\n%b\r\n" % (http, headers)
    server, wire = await asked(head + b"1\r\n7\r\n0\r\n\r\n")

    assert [status] == wire.statuses
    assert (status == 200) == bool(server.engine.batches)
    assert (status != 200) == wire.ended


@pytest.mark.parametrize(
    ("headers", "said", "closed"),
    [
        (b"", ["close"], True),
        (b"connection: close\r\n", ["close"], True),
        (b"connection: keep-alive\r\n", ["keep-alive"], False),
        (b"connection: Keep-Alive\r\n", ["keep-alive"], False),
    ],
)
async def test_an_old_client_is_told_that_its_connection_stays(
    headers: bytes, said: list[str], *, closed: bool
) -> None:
    """`ab -k` waits for the end of the connection otherwise; also with the shortcut."""
    _, wire = await asked(post(headers, http=b"1.0"))
    wire.send(post(headers, http=b"1.0"))
    await asyncio.sleep(1)

    assert [200] * (1 if closed else 2) == wire.statuses
    assert (said * len(wire.statuses), closed) == (wire.header("connection"), wire.is_closing())


async def test_an_old_client_gets_a_page_and_the_end() -> None:
    """Only predictions are worth keeping its connection."""
    _, wire = await asked(b"GET /v2 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")

    assert ([200], ["close"], True) == (
        wire.statuses,
        wire.header("connection"),
        wire.is_closing(),
    )


EXPECTING = (
    b"POST /predict HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
)


async def test_who_waits_for_100_gets_it() -> None:
    """At once, as nothing is before it."""
    _, wire = await asked(EXPECTING)
    before = wire.statuses
    wire.send(b"7")
    await asyncio.sleep(1)

    assert ([100], [100, 200]) == (before, wire.statuses)


@pytest.mark.parametrize("seconds", [0.5, 60.0])
async def test_who_waits_for_100_behind_another_request_gets_it_after_its_answer(
    seconds: float,
) -> None:
    """However long that takes: it is we who let it wait."""
    server = Server(app=create_app, seconds=lambda _: seconds, timeout=None)
    wire = server.connect()
    wire.send(GET + EXPECTING)
    await asyncio.sleep(seconds)
    before = wire.statuses
    await asyncio.sleep(1)
    between = wire.statuses
    wire.send(b"7")
    await asyncio.sleep(seconds + 1)

    assert ([], [200, 100], [200, 100, 200]) == (before, between, wire.statuses)


async def test_who_was_told_to_go_on_and_does_not_is_refused() -> None:
    """From then on its time counts."""
    wire = Server().connect()
    wire.send(GET + EXPECTING)
    await asyncio.sleep(LIMITS.grace_period + 2)

    assert [200, 100, 408] == wire.statuses


async def test_everybody_who_waits_is_told_to_go_on_every_time() -> None:
    """Also when the same head comes again and again, each time before its body."""
    server = Server()
    wire = server.connect()
    for _ in range(3):
        wire.send(EXPECTING)
        await asyncio.sleep(0.1)
        wire.send(b"7")
        await asyncio.sleep(1)

    assert [100, 200] * 3 == wire.statuses


async def test_who_stalls_after_a_head_that_repeats_is_told_so_by_its_id() -> None:
    """The limits in time hold whether a head is parsed or known."""
    wire = Server().connect()
    head = post(b"host: t\r\nx-request-id: mine\r\n")[:-1]
    for body in (b"7", b"7", b""):
        wire.send(head)
        await asyncio.sleep(0.1)
        if body:
            wire.send(body)
        await asyncio.sleep(1)
    await asyncio.sleep(2 * LIMITS.grace_period)

    assert [200, 200, 408] == wire.statuses
    assert ["mine"] * 3 == wire.header("x-request-id")
    assert b"body: expected all of it" in wire.received


async def test_an_old_client_is_not_told_to_go_on() -> None:
    """RFC 9110 10.1.1: it would take that for the answer."""
    _, wire = await asked(EXPECTING.replace(b"HTTP/1.1", b"HTTP/1.0"))
    wire.send(b"7")
    await asyncio.sleep(1)

    assert [200] == wire.statuses


@pytest.mark.parametrize(
    ("path", "status", "allowed"),
    [
        (b"/docs", 200, []),
        (b"/openapi.json", 200, []),
        (b"/docs/swagger-ui.css", 200, []),
        (b"/v2", 200, []),
        (b"/v2/health/ready", 200, []),
        (b"/v1/models/api", 200, []),
        (b"/v2/models/other", 404, []),
        (b"/predict", 405, ["POST"]),
    ],
)
async def test_a_head_is_a_get_without_its_body(
    path: bytes, status: int, allowed: list[str]
) -> None:
    """With the same headers; load balancers ask so."""
    line = b"%b %b HTTP/1.1\r\nhost: t\r\nx-request-id: 1\r\n\r\n"
    _, get = await asked(line % (b"GET", path))
    _, head = await asked(line % (b"HEAD", path))

    assert ([status], [status]) == (get.statuses, head.statuses)
    assert allowed == head.header("allow")
    assert head.received == get.received.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert head.header("content-length") == get.header("content-length") != ["0"]
