"""Connections that stay where they were drawn to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvloop
from harness.pinned import Asked, Pinned, draw, send
from harness.servers import HOST, Server

from batchedapi_serving.tuning.load import Answers

ASK = b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\n1"
ANSWER = b"HTTP/1.1 %d -\r\ncontent-length: 0\r\n\r\n"


def server(port: int) -> Server:
    """One that others run."""
    return Server("other", 0, port, "/", 0, cast("Any", None))


SERVERS = [server(port) for port in range(1, 5)]


def test_the_same_seed_draws_the_same_servers() -> None:
    """A round that looks odd has to be run again as it was."""
    assert draw(SERVERS, 64, 4, 7) == draw(SERVERS, 64, 4, 7)
    assert draw(SERVERS, 64, 4, 7) != draw(SERVERS, 64, 4, 8)


def test_every_connection_is_drawn_by_itself() -> None:
    """As kube-proxy does: a round robin would hide what pinned connections cost."""
    counts = [draw(SERVERS, 64, 4, seed).counts(SERVERS) for seed in range(200)]

    assert {68} == {sum(one) for one in counts}
    assert len({max(one) for one in counts}) > 5


class Asks:
    """What a server was asked, and with what it answers."""

    def __init__(self, status: int | None) -> None:
        """None: it closes the connection."""
        self.status = status
        self.sizes: Counter[int] = Counter()
        """Of what lay there to be read, in requests."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Its port."""
        async with await asyncio.start_server(self._serve, HOST, 0) as listening:
            yield listening.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.sizes[len(data) // len(ASK)] += 1
            await asyncio.sleep(0.005)
            if self.status is None:
                break
            writer.write(ANSWER % self.status)
        writer.close()


def sent(asks: Asks) -> Answers:
    """A load of ten times as much as two connections carry."""

    async def run() -> Answers:
        answers = Answers(rate=4000.0, seconds=0.05, target=1.0)
        async with asks.serving() as port:
            pinned = Pinned([server(port)] * 2)
            await send(pinned, Asked(ASK), answers, seed=1, patience=30.0)
        return answers

    return uvloop.run(run())


def test_what_is_due_on_a_busy_connection_waits_in_front_of_it() -> None:
    """HTTP/1.1 clients do not pipeline; and nothing that was due is left out."""
    asks = Asks(200)

    answers = sent(asks)

    assert {1} == asks.sizes.keys()
    assert answers.sent == len(answers.latencies) == asks.sizes[1]
    assert answers.sent > 100


def test_the_wait_for_a_busy_connection_is_part_of_the_latency() -> None:
    """Counted from the sending, an overloaded service would look idle."""
    answers = sent(Asks(200))

    assert sorted(answers.latencies)[len(answers.latencies) // 2] > 10 * 0.005


def test_an_answer_other_than_200_is_refused() -> None:
    """Refusing is no goodput."""
    answers = sent(Asks(429))

    assert (answers.sent, 0) == (answers.refused, len(answers.latencies))


def test_what_falls_due_on_a_connection_that_ended_is_broken() -> None:
    """It would be missing from the share otherwise."""
    answers = sent(Asks(None))

    assert (answers.sent, 0, 0) == (answers.broken, answers.refused, len(answers.latencies))
