"""The scraper against servers that misbehave, over real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.worlds import pod_body

from batchedapi_operator.autoscaling.metrics_page import MAX_BYTES, MetricsPage
from batchedapi_operator.autoscaling.scrape import (
    AT_ONCE_EACH,
    BYTES_A_LOOK,
    LOOK_SECONDS,
    SCRAPE_SECONDS,
    Outcome,
    Scraper,
    Turns,
)
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.views import PodView

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def whole(body: str, status: str = "200 OK", extra: str = "") -> Answer:
    """An ordinary answer."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        writer.write((head + body).encode())
        await writer.drain()

    return answer


async def endless(writer: asyncio.StreamWriter) -> None:
    """A gigabyte, if one takes it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    for _ in range(1000):
        writer.write(b"x" * 1_000_000)
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """One byte at a time, each well within any timeout between bytes."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def pod_that_answers(answer: Answer) -> AsyncIterator[int]:
    """A server on loopback; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def scraped(port: int, ip: str = "127.0.0.1") -> Outcome:
    """The outcome for one pod at that address."""
    async with Scraper.opened(port) as scraper:
        (outcome,) = await scraper.scrape([PodView.of(pod_body(ip=ip))])
    return outcome


async def test_a_page_becomes_a_sample_of_its_pod() -> None:
    """The sample carries the uid that we know, not one that the pod claims."""
    async with pod_that_answers(whole(page())) as port:
        outcome = await scraped(port)

    assert isinstance(outcome, MetricsPage)
    assert outcome.sample.pod == "iris-1-uid"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        pytest.param(whole("", "500 Oops"), "refused", id="error"),
        pytest.param(
            whole("", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "refused", id="redirect"
        ),
        pytest.param(
            whole("xx", extra="Content-Encoding: gzip\r\n"), "malformed", id="compressed unasked"
        ),
        pytest.param(endless, "too_large", id="a gigabyte"),
        pytest.param(dripping, "unreachable", id="drip"),
        pytest.param(whole("no exposition\n"), "incomplete", id="another page"),
    ],
)
async def test_a_pod_that_misbehaves_is_a_pod_not_seen(answer: Answer, result: str) -> None:
    """Within the time of a scrape and in bounded memory (O24)."""
    loop = asyncio.get_running_loop()
    async with pod_that_answers(answer) as port:
        begun = loop.time()
        outcome = await scraped(port)

    assert isinstance(outcome, MetricsUnavailableError)
    assert result == outcome.result
    assert loop.time() - begun < 10 * SCRAPE_SECONDS  # all that is dripped takes 100 s


async def test_a_pod_that_does_not_listen_is_not_seen() -> None:
    """It may just have been deleted."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        outcome = await scraped(closed.getsockname()[1])

    assert isinstance(outcome, MetricsUnavailableError)
    assert outcome.result == "unreachable"


@pytest.mark.parametrize("ip", ["", "evil.example/x?", "127.0.0.1@evil.example"])
async def test_only_addresses_are_scraped(ip: str) -> None:
    """A pod's status is written by its kubelet; still nothing but an address gets into a URL."""
    outcome = await scraped(1, ip)

    assert isinstance(outcome, MetricsUnavailableError)
    assert outcome.result == "no_address"


async def test_pods_that_hang_hold_up_nobody_for_longer_than_their_limit() -> None:
    """50 of 100: the others are read at once, and the look ends when the limit is over (O24)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if int(writer.get_extra_info("sockname")[0].rpartition(".")[2]) % 2:
                await whole(page(), extra="Connection: close\r\n")(writer)
            else:
                await reader.read()
        writer.close()

    bodies = [pod_body(f"iris-{n}", ip=f"127.0.3.{n}") for n in range(1, 101)]
    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    begun = asyncio.get_running_loop().time()
    async with server, Scraper.opened(server.sockets[0].getsockname()[1], seconds=3.0) as scraper:
        outcomes = await scraper.scrape([PodView.of(body) for body in bodies])

    assert [True, False] * 50 == [isinstance(one, MetricsPage) for one in outcomes]
    assert asyncio.get_running_loop().time() - begun < 60  # one after the other: 150 s


async def test_more_pods_than_are_asked_at_once_wait_without_losing_their_time() -> None:
    """A pod's limit begins with its own request; hanging neighbours are not its fault."""
    hanging, limit = asyncio.Event(), 3.0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if writer.get_extra_info("sockname")[0] == "127.0.4.1":
                await whole(page(), extra="Connection: close\r\n")(writer)
            else:
                await hanging.wait()
        writer.close()

    bodies = [pod_body(f"iris-{n}", ip=f"127.0.5.{n}") for n in range(1, 255)]
    bodies = [*bodies[:AT_ONCE_EACH], pod_body("last", ip="127.0.4.1")]
    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    async with server, Scraper.opened(server.sockets[0].getsockname()[1], seconds=limit) as scraper:
        *_, last = await scraper.scrape([PodView.of(body) for body in bodies])
        hanging.set()

    assert isinstance(last, MetricsPage)


async def test_the_sample_carries_how_long_the_pod_took_to_start() -> None:
    """Its page does not say it: the pod's own conditions do."""
    pod = replace(PodView.of(pod_body(ip="127.0.0.1")), startup=21.0)
    async with (
        pod_that_answers(whole(page())) as port,
        Scraper.opened(port) as scraper,
    ):
        (outcome,) = await scraper.scrape([pod])

    assert isinstance(outcome, MetricsPage)
    assert 21.0 == outcome.sample.startup


async def test_pods_that_send_too_much_use_up_their_own_apis_share() -> None:
    """Each page alone is small enough; what was read before the share was used up counts."""
    noise = "".join(f"{'x' * 1000} {number}\n" for number in range(500))
    pods = [PodView.of(pod_body(f"iris-{number}")) for number in range(32)]
    ours = [replace(pod, ip="127.0.0.1") for pod in pods]

    async with pod_that_answers(whole(page() + noise)) as port, Scraper.opened(port) as scraper:
        loud, quiet = await asyncio.gather(scraper.scrape(ours), scraper.scrape(ours[:1]))

    read = [isinstance(one, MetricsPage) for one in loud]
    refused = {one.result for one in loud if isinstance(one, MetricsUnavailableError)}
    assert ({"too_large"}, BYTES_A_LOOK[0] // len(page() + noise)) == (refused, sum(read))
    assert isinstance(quiet[0], MetricsPage)


async def test_a_page_that_is_announced_as_too_large_costs_its_api_nothing() -> None:
    """One pod that lies about a gigabyte must not use up what its neighbours may send."""
    small, large = whole(page()), whole("x" * (MAX_BYTES + 1))
    pods = [PodView.of(pod_body(f"iris-{n}", ip=f"127.0.8.{n}")) for n in range(1, 41)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            lies = int(writer.get_extra_info("sockname")[0].rpartition(".")[2]) % 2
            await (large if lies else small)(writer)
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Scraper.opened(port, seconds=LOOK_SECONDS) as scraper:
        outcomes = await scraper.scrape(pods)

    assert 40 * MAX_BYTES // 2 > BYTES_A_LOOK[0]
    assert [False, True] * 20 == [isinstance(one, MetricsPage) for one in outcomes]


async def test_pods_of_an_api_that_has_sent_too_much_are_not_asked_at_that_look() -> None:
    """Each connection, and what comes in before it is closed, is time of everybody's looks."""
    asked, unannounced = 0, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 400_000
    pods = [PodView.of(pod_body(f"iris-{n}", ip=f"127.0.9.{n}")) for n in range(1, 251)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            asked += 1
            writer.write(unannounced)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    async with server, Scraper.opened(server.sockets[0].getsockname()[1]) as scraper:
        first = await scraper.scrape(pods)
        at_first = asked
        again = await scraper.scrape(pods[:1])

    assert {"too_large"} >= {
        one.result for one in first if isinstance(one, MetricsUnavailableError)
    }
    assert AT_ONCE_EACH <= at_first < len(pods)
    assert asked > at_first
    assert 1 == len(again)


async def test_the_smallest_page_that_waits_is_parsed_next() -> None:
    """Honest pages are small: those of others wait for one large page, and not for fifty."""
    turns, order = Turns(), list[int]()

    async def parse(size: int) -> None:
        async with turns.of(size):
            await asyncio.sleep(0)
            order.append(size)

    waiting = [asyncio.create_task(parse(size)) for size in (900, 800, 4, 700, 5, 5)]
    await asyncio.sleep(0)
    waiting[3].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    assert [900, 4, 5, 5, 800] == order


async def test_a_turn_that_comes_to_nobody_is_passed_on() -> None:
    """Whoever waited may be cancelled just as its turn comes."""
    turns, order = Turns(), list[int]()

    async def parse(size: int) -> None:
        async with turns.of(size):
            order.append(size)

    async with turns.of(1):
        waiting = [asyncio.create_task(parse(size)) for size in (2, 3)]
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await parse(4)

    assert [3, 4] == order


async def test_anothers_pods_are_all_read_while_a_tenants_own_hold_up_its_look() -> None:
    """120 that send for ever, hardly anything or too much.

    A pod has four times as long as usual: all of them are answered by this busy process.
    """
    loud = whole("x" * 2**20, extra="Connection: close\r\n")
    kinds, honest = (endless, dripping, loud), whole(page(), extra="Connection: close\r\n")
    serving = set[asyncio.Task[object] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        gone = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.closing(writer), contextlib.suppress(*gone):
            await reader.readuntil(b"\r\n\r\n")
            *_, tenant, number = map(int, writer.get_extra_info("sockname")[0].split("."))
            await (honest if tenant == 7 else kinds[number % 3])(writer)

    looks = [
        [PodView.of(pod_body(f"iris-{n}", ip=f"127.0.{tenant}.{n}")) for n in range(1, pods + 1)]
        for tenant, pods in ((6, 120), (7, 50))
    ]
    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Scraper.opened(port, seconds=4 * SCRAPE_SECONDS) as scraper:
        theirs, ours = (asyncio.create_task(scraper.scrape(pods)) for pods in looks)
        outcomes = await ours
        still_looking = not theirs.done()
        hostile = await theirs
        for one in filter(None, serving):  # some have much to say yet
            one.cancel()
        await asyncio.wait(filter(None, serving))

    assert still_looking
    assert [True] * 50 == [isinstance(one, MetricsPage) for one in outcomes]
    assert not any(isinstance(one, MetricsPage) for one in hostile)


async def test_the_page_that_is_asked_for_has_only_what_is_read() -> None:
    """A replica that does not know the query answers with the whole page, as before."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await whole(page(), extra="Connection: close\r\n")(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        outcome = await scraped(server.sockets[0].getsockname()[1])

    assert isinstance(outcome, MetricsPage)
    assert asked[0].startswith(b"GET /metrics?view=scaling HTTP/1.1\r\n")
