"""Keys are checked before a body is taken, and the routes without a key are an exact list."""

import asyncio
import itertools
from pathlib import Path
from typing import Any, Final

import pytest

from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.access import OPEN, RENEWED_SECONDS
from batchedapi_serving.web.asgi import create_app
from batchedapi_serving.web.limits import LINGER_BYTES
from connections import Peer, Server

pytestmark = pytest.mark.looptime

KEY: Final = b"x-api-key: one\r\n"
PADDING: Final = b"x: " + b"y" * 5000 + b"\r\n"
"""So that what has come is worth counting."""
STREAM: Final = MethodSpec("predict", batched=False, max_batch_size=1, streams=True)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with the key `one`."""
    (tmp_path / "mine").write_text("one")
    return tmp_path


def head(*lines: bytes, method: bytes = b"POST", path: bytes = b"/predict") -> bytes:
    """The head of a request; `lines` end as they do on the wire."""
    return b"%b %b HTTP/1.1\r\nhost: t\r\n%b\r\n" % (method, path, b"".join(lines))


async def sent(server: Server, *pieces: bytes) -> Peer:
    """A client that has sent these pieces, a moment ago."""
    wire = server.connect()
    for piece in pieces:
        wire.send(piece)
        await asyncio.sleep(0.1)
    return wire


@pytest.mark.parametrize(
    "lines",
    [
        (b"content-length: 900\r\n",),
        (b"transfer-encoding: chunked\r\n",),
        (b"content-length: 900\r\n", b"content-encoding: gzip\r\n"),
        (b"content-length: 900\r\n", b"expect: 100-continue\r\n"),
        (b"content-length: 900\r\n", b"x-api-key: two\r\n"),
        (b"content-length: 900\r\n", b"upgrade: h2c\r\n", b"connection: upgrade\r\n"),
    ],
)
async def test_without_a_key_nothing_of_a_body_is_awaited(
    keys: Path, lines: tuple[bytes, ...]
) -> None:
    """The answer comes with the end of the head, and ends the connection: no byte is held."""
    server = Server(keys=keys)
    wire = await sent(server, head(*lines), b"1" * 500)

    assert [401] == wire.statuses
    assert ["Bearer"] == wire.header("www-authenticate")
    assert ["close"] == wire.header("connection")
    assert wire.ended
    assert 0 == server.frontend.bodies.held
    assert [401] == server.engine.codes


async def test_without_a_key_not_all_of_a_body_is_read(keys: Path) -> None:
    """To read and drop what a client sends without end would be work as well."""
    server = Server(keys=keys)
    little, much = [await sent(server, head(b"content-length: 900\r\n")) for _ in range(2)]
    little.send(bytes(LINGER_BYTES))
    much.send(bytes(LINGER_BYTES + 1))

    assert (False, True) == (little.aborted, much.aborted)


async def test_of_many_without_a_key_the_last_are_told_later(keys: Path) -> None:
    """Who asks again comes less often, and is not read meanwhile."""
    server = Server(keys=keys)
    crowd = [server.connect() for _ in range(25)]
    for wire in crowd:
        wire.send(head(b"content-length: 900\r\n"))
    waiting = [wire for wire in crowd if not wire.statuses]
    reading = [wire.reading for wire in waiting]
    waiting[0].connection.eof_received()
    waiting[1].abort()
    allowed = await sent(server, head(KEY, b"content-length: 1\r\n") + b"1")
    for wire in waiting[2:]:
        wire.connection.shutdown()
    stopped = [wire.is_closing() for wire in waiting[2:]]
    await asyncio.sleep(1)
    told = [wire.statuses[-1:] for wire in waiting]

    assert [False] * 5 == reading
    assert [200] == allowed.statuses
    assert [False] * 3 == stopped
    assert [[401], [], [401], [401], [401]] == told
    assert all(wire.ended and wire.reading for wire in waiting[2:])
    assert [401] * 25 == server.engine.codes


async def test_with_a_key_a_body_is_taken(keys: Path) -> None:
    """In one piece, in two, and after the interim answer that its client waits for."""
    server = Server(keys=keys)
    wire = await sent(
        server,
        head(KEY, b"content-length: 1\r\n") + b"1",
        head(KEY, b"content-length: 1\r\n"),
        b"2",
        head(KEY, b"content-length: 1\r\n", b"expect: 100-continue\r\n"),
        b"3",
    )

    assert [200, 200, 100, 200] == wire.statuses


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_head_that_comes_again_is_asked_again(keys: Path, pieces: int) -> None:
    """Equal bytes are not parsed again; its key may have been withdrawn meanwhile."""
    server = Server(keys=keys)
    request = head(KEY, b"content-length: 1\r\n")
    again = [request + b"1"] if pieces == 1 else [request, b"1"]
    wire = await sent(server, request + b"1", *again)
    (keys / "mine").write_text("two")
    await asyncio.sleep(2 * RENEWED_SECONDS)
    for piece in again:
        wire.send(piece)
    await asyncio.sleep(1)

    assert [200, 200, 401] == wire.statuses
    assert wire.ended


async def test_what_came_before_a_request_without_a_key_is_answered(keys: Path) -> None:
    """In order; and nothing that comes after it."""
    good, bad = head(KEY, b"content-length: 1\r\n") + b"1", head(b"content-length: 1\r\n") + b"1"
    wire = await sent(Server(keys=keys), good + good + bad + good)

    assert [200, 200, 401] == wire.statuses


async def test_a_body_on_an_open_route_needs_a_key(keys: Path) -> None:
    """None of them takes one."""
    server = Server(keys=keys, app=create_app)
    live = {"method": b"GET", "path": b"/v2/health/live"}
    codes = [
        (await sent(server, head(*lines, **live))).statuses
        for lines in ((), (b"content-length: 0\r\n",), (b"content-length: 9\r\n",))
    ]

    assert [[200], [200], [401]] == codes


def spellings(path: str) -> list[str]:
    """Spellings of one path: some mean the same to a lenient server, some begin like it."""
    first = path.lstrip("/")[:1] or "x"
    return [
        path, f"{path}/", f"/{path}", f"/.{path}", f"/x/..{path}", f"{path}/.", f"{path}//x",
        path.upper(), path.replace("/", "/%2f", 1), path.replace(first, f"%{ord(first):02x}", 1),
        f"{path}%00", f"{path};x", f"{path}%20", f"{path}x", f"{path}/predict", f"{path}?key=one",
        f"http://t{path}", path.replace("/", "\\", 1),
    ]  # fmt: skip


METHODS: Final = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH")


def routes(server: Server, app: Any) -> set[str]:
    """All that are served, of predictions and of the application; names stand for parameters."""
    served = {route.path for route in app._app.routes} | {
        path.decode() for path in server.frontend.routes.by_path
    }
    named = {"{model}": "api", "{version}": "1", "{method}": "predict"}
    for parameter, value in named.items():
        served = {path.replace(parameter, value) for path in served}
    return served


@pytest.mark.parametrize(
    ("name", "endpoint", "methods"),
    [
        ("api", "/api", {}),
        ("api", "/api", {"methods": (STREAM,)}),
        ("docs", "/docs", {}),
        ("docs2", "/openapi.json", {}),
        ("api", "/v2/health", {}),
        ("api", "/v2/health/live", {}),
        ("api", "/docs/swagger-ui.css", {"methods": (STREAM,)}),
    ],
)
async def test_whatever_is_not_in_the_list_needs_a_key(
    keys: Path, name: str, endpoint: str, methods: dict[str, Any]
) -> None:
    """Each route there is, however it is spelled, also one that is added; each path of the list."""
    apps: list[Any] = []

    def app(frontend: Any) -> Any:
        apps.append(create_app(frontend))
        apps[0]._app.add_api_route("/docs/new", lambda: "secret", methods=["GET"])
        return apps[0]

    server = Server(keys=keys, app=app, name=name, endpoint=endpoint, **methods)
    paths = itertools.chain.from_iterable(map(spellings, sorted(routes(server, apps[0]))))
    answered = set()
    for method, path in itertools.product(METHODS, [*paths, "*"]):
        wire = server.connect()
        wire.send(head(method=method, path=path.encode()))
        await asyncio.sleep(0)
        if not wire.statuses:  # so many refusals have a pace
            await asyncio.sleep(1)
        if wire.statuses not in ([401], [400]):
            answered.add((method, path.encode()))
            wire.abort()

    plain = {
        (method, path.removeprefix(b"http://t").partition(b"?")[0]) for method, path in answered
    }
    streams = {endpoint.encode(), f"/{name}".encode()} if methods else set()
    assert {pair for pair in OPEN if pair[1] not in streams} == plain
    assert [] == server.engine.asked


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t  "])
async def test_white_space_around_a_value_is_no_part_of_it(keys: Path, space: bytes) -> None:
    """RFC 9110 5.5; some clients and proxies leave it behind a value."""
    lines = {
        b"host": b"t", b"x-api-key": b"one", b"content-length": b"1", b"expect": b"100-continue",
        b"content-type": b"application/json", b"x-request-timeout-ms": b"2500",
        b"content-encoding": b"identity", b"x-request-id": b"mine",
    }  # fmt: skip
    server = Server(keys=keys)
    request = b"".join(b"%b:%b%b%b\r\n" % (k, space, v, space) for k, v in lines.items())
    wire = await sent(server, b"POST /predict HTTP/1.1\r\n%b\r\n" % request, b"1")

    assert [100, 200] == wire.statuses
    assert ["mine"] == wire.header("x-request-id")
    assert [("predict", 2.5)] == server.engine.asked


async def test_heads_that_never_end_count_with_all_their_headers() -> None:
    """A header of four bytes takes more than a hundred in memory."""
    server = Server()
    wire = await sent(server, b"POST /predict HTTP/1.1\r\n" + b"a:b\r\n" * 1000)

    assert server.frontend.bodies.held > 100_000
    wire.abort()
    await asyncio.sleep(0.1)
    assert 0 == server.frontend.bodies.held


async def test_requests_that_wait_for_the_one_before_count() -> None:
    """One piece of 256 KiB may be nine thousand of them, each an object of its own."""
    server = Server(seconds=lambda _: 1.0)
    request = head(b"content-length: 1\r\n") + b"1"
    wire = await sent(server, request * 10)

    assert server.frontend.bodies.held > 9 * 1024
    await asyncio.sleep(20)
    assert [200] * 10 == wire.statuses
    assert 0 == server.frontend.bodies.held


def slow_reader(server: Server) -> Peer:
    """A client whose answer does not fit on its way."""
    wire = server.connect()
    wire.send(head(b"content-length: 1\r\n") + b"1")
    wire.unread = 100
    wire.connection.pause_writing()
    return wire


async def test_an_answer_that_is_not_read_counts_until_it_is() -> None:
    """The kernel takes the beginning of it; all of it is kept until its end is sent."""
    server = Server(lambda _: ["x" * 1000])
    wire = slow_reader(server)
    await asyncio.sleep(0.1)
    unread = server.frontend.bodies.held
    wire.unread = 0
    wire.connection.resume_writing()

    assert unread > 1000
    assert [200] == wire.statuses
    assert 0 == server.frontend.bodies.held


def full(server: Server) -> None:
    """Nobody may hold anything more."""
    budget = server.frontend.bodies
    budget.most = budget.held  # type: ignore[misc]  # of a smaller process


async def test_who_reads_is_answered_where_others_do_not() -> None:
    """They have had all of their answers' time, and nothing is done for them any more."""
    server = Server(lambda _: ["x" * 10_000])
    slow = [slow_reader(server) for _ in range(3)]
    await asyncio.sleep(0.1)
    full(server)
    good = await sent(server, head(PADDING, b"content-length: 3\r\n"), b"123")

    assert [True, False, False] == [wire.aborted for wire in slow]
    assert [200] == good.statuses


async def test_whoever_holds_most_is_told_that_its_room_is_needed() -> None:
    """Bodies that are coming, and those that are queued: 503, and the client may come again."""
    server = Server(seconds=lambda _: 5.0)
    greedy = [server.connect() for _ in range(2)]
    small = [server.connect() for _ in range(2)]
    for wire, owner in zip(greedy + small, ("greedy", "greedy", "small", "other"), strict=True):
        wire.connection._held.owned_by(owner)
    greedy[0].send(head(PADDING, b"content-length: 900\r\n") + b"1" * 800)
    greedy[1].send(head(b"content-length: 3\r\n") + b"123")
    greedy[1].connection._held.answering(9000)  # what a larger body would be
    full(server)
    for wire in small:
        wire.send(head(PADDING, b"content-length: 900\r\n") + b"1" * 500)
    await asyncio.sleep(0.1)

    assert [[503], [503], [], []] == [wire.statuses for wire in greedy + small]
    assert [503] == server.engine.cancelled_with
