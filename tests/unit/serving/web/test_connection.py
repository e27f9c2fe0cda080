"""One connection under the clock: who sends too slowly, too much, or leaves."""

import asyncio

import pytest

from batchedapi_serving.web.asgi import create_app
from batchedapi_serving.web.limits import (
    ACTIVE,
    EXPIRY_GRACE,
    LAST_CALL,
    LINGER_BYTES,
    SWEEP_SECONDS,
)
from connections import LIMITS, JsonCodec, Peer, Server

pytestmark = pytest.mark.looptime

HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n"
GET = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n1"


async def test_a_silent_connection_is_closed() -> None:
    """It never asked for anything, so it is told nothing."""
    wire = Server().connect()

    await asyncio.sleep(LIMITS.header_arrival + SWEEP_SECONDS)

    assert (b"", True) == (wire.received, wire.is_closing())


async def test_headers_must_be_there_in_ten_seconds_however_they_trickle() -> None:
    """Slowloris sends a header now and then."""
    wire = Server().connect()
    wire.send(HEAD)
    for _ in range(9):
        await asyncio.sleep(1)
        wire.send(b"x-a: b\r\n")
    before = wire.statuses

    await asyncio.sleep(1 + SWEEP_SECONDS)

    assert ([], [408]) == (before, wire.statuses)
    assert wire.ended


async def test_a_body_has_time_of_its_own() -> None:
    """From the end of the headers, not from the first byte."""
    wire = Server().connect()
    wire.send(HEAD)
    await asyncio.sleep(8)
    wire.send(b"\r\n1")
    await asyncio.sleep(LIMITS.grace_period - 1)
    before = wire.statuses

    await asyncio.sleep(1 + SWEEP_SECONDS)

    assert ([], [408]) == (before, wire.statuses)
    assert b"1024 bytes a second" in wire.received


async def test_a_client_that_does_not_take_a_small_answer_is_dropped() -> None:
    """S28: it left this process at once, so only the kernel knows; memory there is memory too."""
    wire = Server().connect()
    wire.send(GET)
    await asyncio.sleep(1)
    wire.unread = 100

    await asyncio.sleep(LIMITS.grace_period + SWEEP_SECONDS)

    assert wire.aborted


async def test_a_client_that_takes_a_large_answer_slowly_is_left_alone() -> None:
    """A bad line is no attack."""
    wire = Server().connect()
    wire.send(GET)
    await asyncio.sleep(1)
    wire.unread = 1 << 20

    for _ in range(60):
        await asyncio.sleep(1)
        wire.unread -= 2 * LIMITS.least_rate

    assert not wire.is_closing()


async def test_a_client_that_reads_nothing_of_what_it_pipelined_is_dropped() -> None:
    """Its further requests do not prolong its time."""
    wire = Server().connect()
    wire.connection.pause_writing()
    wire.unread = 100_000
    for _ in range(20):
        wire.send(GET + HEAD[:-10] if wire.reading else b"")
        await asyncio.sleep(1)

    assert wire.aborted


async def test_a_refused_client_that_does_not_leave_is_closed() -> None:
    """It has a few seconds to read the answer."""
    wire = Server().connect()
    wire.send(b"NONSENSE\r\n\r\n")
    wire.send(b"more of it")

    await asyncio.sleep(EXPIRY_GRACE + SWEEP_SECONDS)

    assert ([400], True, True) == (wire.statuses, wire.ended, wire.is_closing())


async def test_a_kept_connection_is_closed_after_it_was_idle() -> None:
    """And not while it is used."""
    wire = Server().connect()
    for _ in range(3):
        wire.send(GET)
        await asyncio.sleep(LIMITS.idle - 1)
    used = wire.is_closing()

    await asyncio.sleep(1 + SWEEP_SECONDS)

    assert ([200, 200, 200], False, True) == (wire.statuses, used, wire.is_closing())


async def test_an_old_connection_is_closed_with_an_answer_and_loses_nothing() -> None:
    """Pools find new replicas so; a client that is idle then is told with its next answer."""
    wire = Server(app=create_app).connect()
    for _ in range(9):
        wire.send(GET)
        await asyncio.sleep(LIMITS.age / 10)
    young = wire.header("connection")
    await asyncio.sleep(LIMITS.age * 0.2 - LIMITS.idle + SWEEP_SECONDS)
    wire.send(GET)
    await asyncio.sleep(LIMITS.idle - SWEEP_SECONDS)
    idle = wire.is_closing()
    wire.send(GET + GET)
    await asyncio.sleep(1)

    assert ([], False) == (young, idle)
    assert [200] * 12 == wire.statuses
    assert (["close"], True) == (wire.header("connection"), wire.ended)


async def old(server: Server) -> Peer:
    """A client whose connection has just ended for its age, by an answer that it may not know."""
    wire = server.connect()
    while not wire.ended:
        wire.send(GET)
        await asyncio.sleep(0.5)
    assert (["close"], False) == (wire.header("connection"), wire.is_closing())
    return wire


async def test_what_a_client_sends_after_the_end_is_dropped_until_it_closes() -> None:
    """A reset would take answers with it that it has not read."""
    server = Server(interval=0.0)
    wire = await old(server)
    asked = len(server.engine.batches)

    wire.send(GET * 3)
    await asyncio.sleep(1)

    assert (asked, False) == (len(server.engine.batches), wire.is_closing())
    assert not wire.connection.eof_received()  # the loop then closes it


async def test_a_client_that_does_not_close_after_the_end_is_cut_off() -> None:
    """It has had time to read its answer."""
    wire = await old(Server())
    await asyncio.sleep(EXPIRY_GRACE - 1)
    before = wire.aborted
    await asyncio.sleep(1 + SWEEP_SECONDS)

    assert (False, True) == (before, wire.aborted)


async def test_a_client_that_sends_a_lot_after_the_end_is_cut_off() -> None:
    """The server does not read unwanted bytes without end."""
    wire = await old(Server())
    wire.send(b"x" * LINGER_BYTES)
    before = wire.aborted
    wire.send(b"x")

    assert (False, True) == (before, wire.aborted)


async def test_a_client_that_pipelines_is_not_reset_by_a_drain() -> None:
    """More of its requests may be on their way when the last answer is written."""
    server = Server()
    wire, other = server.connect(), server.connect()
    wire.send(GET + GET)
    other.send(GET)
    server.frontend.draining = True
    await asyncio.sleep(1)

    assert (True, False) == (wire.ended, wire.is_closing())
    assert (False, True) == (other.ended, other.is_closing())


async def test_a_request_that_takes_long_is_not_the_clients_fault() -> None:
    """Limits in time are for what the client sends."""
    wire = Server(seconds=lambda _: 300.0, timeout=None).connect()
    wire.send(GET)

    await asyncio.sleep(299)
    before = wire.is_closing()
    await asyncio.sleep(2)

    assert (False, [200]) == (before, wire.statuses)


async def test_the_rest_of_a_pipelined_request_has_a_limit_too() -> None:
    """It began while others were answered."""
    wire = Server().connect()
    wire.send(GET + GET + HEAD)

    await asyncio.sleep(LIMITS.header_arrival + SWEEP_SECONDS + 1)

    assert [200, 200, 408] == wire.statuses


async def test_what_is_pipelined_is_not_read_without_limit() -> None:
    """The client is slowed down while its first request is answered."""
    wire = Server().connect()

    wire.send(GET * 3)
    paused = not wire.reading
    await asyncio.sleep(1)

    assert paused
    assert wire.reading
    assert [200, 200, 200] == wire.statuses


async def test_a_client_that_closes_is_not_computed_for() -> None:
    """Its row leaves the queue (LitServe computes it); it is asked, as it could still read."""
    server = Server()
    gone, stays = server.connect(), server.connect()
    gone.send(GET)
    stays.send(GET)

    assert gone.connection.eof_received()
    gone.reset = True  # what its kernel answers to the interim answer
    await asyncio.sleep(1)

    assert [[1]] == server.engine.batches
    assert ([100], [200]) == (gone.statuses, stays.statuses)
    assert 1 == len(server.engine.cancelled)


async def test_a_client_that_only_ends_its_side_gets_all_its_answers() -> None:
    """`nc -N` and others half-close; what was not sent whole is not awaited any more."""
    wire = Server(app=create_app).connect()
    wire.send(GET + GET + HEAD)

    assert wire.connection.eof_received()
    await asyncio.sleep(1)

    assert [100, 200, 200] == wire.statuses
    assert ["close"] == wire.header("connection")
    assert wire.is_closing()


async def test_a_client_of_an_old_version_gets_no_interim_answer() -> None:
    """It would take it for the answer."""
    wire = Server().connect()
    wire.send(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))

    assert wire.connection.eof_received()
    await asyncio.sleep(1)

    assert ([200], True) == (wire.statuses, wire.is_closing())


async def test_a_client_that_ends_its_side_between_requests_has_left() -> None:
    """Nothing is due to it."""
    wire = Server().connect()
    wire.send(GET)
    await asyncio.sleep(1)

    assert not wire.connection.eof_received()


async def test_while_draining_each_answer_closes_its_connection() -> None:
    """So that clients go elsewhere before the listener is gone."""
    server = Server()
    used, busy, half = server.connect(), server.connect(), server.connect()
    used.send(GET)
    await asyncio.sleep(ACTIVE + 1)
    busy.send(GET)
    half.send(HEAD)

    server.frontend.draining = True
    for wire in (used, busy, half):
        wire.connection.shutdown()
    closed_at_once = [wire.is_closing() for wire in (used, busy, half)]
    await asyncio.sleep(1)
    half.send(b"\r\n123")
    await asyncio.sleep(1)

    assert [True, False, False] == closed_at_once
    assert [[200]] * 3 == [used.statuses, busy.statuses, half.statuses]
    assert b"connection: close" in busy.received
    assert busy.is_closing()
    assert half.is_closing()


async def test_a_connection_accepted_just_before_the_stop_has_its_request_answered() -> None:
    """Its client could connect, so it expects an answer; one that stays silent is closed soon."""
    server = Server()
    asks, silent = server.connect(), server.connect()

    server.frontend.draining = True
    asks.connection.shutdown()
    silent.connection.shutdown()
    await asyncio.sleep(0.1)
    asks.send(GET)
    await asyncio.sleep(LAST_CALL + SWEEP_SECONDS)

    assert [200] == asks.statuses
    assert asks.is_closing()
    assert silent.is_closing()


async def test_a_tunnel_is_refused_once_and_what_follows_is_no_second_request() -> None:
    """The parser stops at CONNECT; what follows could be smuggled past a proxy."""
    server = Server()
    wire = server.connect()

    wire.send(b"CONNECT t:80 HTTP/1.1\r\nhost: t\r\ncontent-length: 99\r\n\r\n%b" % GET)
    await asyncio.sleep(1)

    assert [400] == wire.statuses
    assert wire.ended
    assert [] == server.engine.batches
    assert [400] == server.engine.codes


@pytest.mark.parametrize("size", [1, 100, 70_000, 200_000])
async def test_headers_are_bounded_however_they_are_cut(size: int) -> None:
    """In one piece of 200 kB as well as byte by byte."""
    wire = Server().connect()
    data = b"POST /predict HTTP/1.1\r\nhost: t\r\nx: " + b"a" * LIMITS.headers

    for start in range(0, len(data), size):
        wire.send(data[start : start + size])
    wire.send(b"\r\n\r\n")

    assert [431] == wire.statuses
    assert b"at most 65536 bytes" in wire.received


async def test_a_body_is_bounded_before_it_is_read() -> None:
    """And a chunked one as soon as it is too large."""
    server = Server()
    told, chunked = server.connect(), server.connect()

    told.send(b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1001\r\n\r\n")
    chunked.send(b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n")
    chunked.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
    before = chunked.statuses
    chunked.send(b"1\r\n \r\n")

    assert b"at most 1000 bytes (overload.maxBodySize)" in told.received
    assert ([413], [], [413]) == (told.statuses, before, chunked.statuses)


async def test_an_error_after_the_queue_carries_the_clients_request_id() -> None:
    """The id is how a client finds its request in a log; a repeated head has it too."""

    def raising(items: list[int]) -> list[int]:
        raise ValueError(items)

    wire = Server(raising).connect()
    request = HEAD.replace(b"content-length: 3", b"x-request-id: mine\r\ncontent-length: 1")
    for _ in range(2):
        wire.send(request + b"\r\n1")
        await asyncio.sleep(1)

    assert [500, 500] == wire.statuses
    assert 2 == wire.received.count(b'"request_id":"mine"')


async def test_an_unexpected_error_in_a_pipelined_request_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug of ours must not cost a client its time-out."""
    server = Server()
    wire = server.connect()

    def broken(*_: object) -> None:
        raise RuntimeError

    wire.send(GET)
    wire.send(GET)
    monkeypatch.setattr(JsonCodec, "decode", broken)
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: seen.append(context["exception"])
    )
    await asyncio.sleep(1)

    assert ([200], True) == (wire.statuses, wire.is_closing())
    assert [RuntimeError] == [type(error) for error in seen]
