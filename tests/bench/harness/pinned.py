"""Connections that stay with their server, and requests that fall due on them at a rate.

kube-proxy draws a replica when a connection is made, each as likely: all that is ever asked on it
goes there. Arrivals are Poisson, an open loop, and each is due on any of the connections. So each
connection has a Poisson stream of its own, of the same rate: many clients that do not know of each
other. HTTP/1.1 carries one request at a time; what falls due on a busy connection waits in front of
it, in the client. gRPC carries many.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import grpc

from batchedapi_serving.tuning.load import Answers
from harness.http_answers import read_answer
from harness.servers import HOST, Server

_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_OWN: Final = (("grpc.use_local_subchannel_pool", 1),)  # else channels share a connection
_TICK_SECONDS: Final = 0.001
_LOOK_SECONDS: Final = 0.02


class Asked(NamedTuple):
    """What every request is."""

    http: bytes
    """All of it."""
    grpc: bytes = b""
    """A serialized ModelInferRequest."""


class Pinned(NamedTuple):
    """The server of each connection."""

    http: Sequence[Server]
    grpc: Sequence[Server] = ()

    def counts(self, servers: Sequence[Server]) -> list[int]:
        """Connections of each of them."""
        ports = [server.port for server in (*self.http, *self.grpc)]
        return [ports.count(server.port) for server in servers]


def draw(servers: Sequence[Server], over_http: int, over_grpc: int, seed: int) -> Pinned:
    """Each of so many connections to any server; the same seed gives the same draw."""
    drawn = random.Random(seed).choices(servers, k=over_http + over_grpc)
    return Pinned(drawn[:over_http], drawn[over_http:])


class _Connection(Protocol):
    @property
    def waiting(self) -> int:
        """Requests without an answer."""

    def ask(self, since: float) -> None:
        """Send one, now or behind the others; its time counts from `since`."""

    async def close(self) -> None:
        """With or without the last answers."""


class _Http(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, data: bytes, answers: Answers) -> None:
        self._data = data
        self._answers = answers
        self._since: deque[float] = deque()
        """The first is under way."""
        self._buffer = b""
        self._transport: Any = None

    @property
    def waiting(self) -> int:
        return len(self._since)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, since: float) -> None:
        if self._transport.is_closing():
            return  # it is never answered
        self._since.append(since)
        if len(self._since) == 1:
            self._transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answer = read_answer(self._buffer)
        if answer is None:
            return
        self._buffer = answer.rest
        took = time.monotonic() - self._since.popleft()
        if answer.status == HTTPStatus.OK:
            self._answers.latencies.append(took)
        else:
            self._answers.refused += 1
        if self._since:
            self._transport.write(self._data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is one
        self._since.clear()

    async def close(self) -> None:
        self._transport.abort()


class _Grpc:
    """Many requests at once."""

    def __init__(self, port: int, message: bytes, answers: Answers) -> None:
        self.channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=_OWN)
        self._infer = self.channel.unary_unary(_INFER)
        self._message = message
        self._answers = answers
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        return len(self._calls)

    def ask(self, since: float) -> None:
        call = asyncio.create_task(self._call(since))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, since: float) -> None:
        try:
            await self._infer(self._message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:  # else it is broken
                self._answers.refused += 1
        else:
            self._answers.latencies.append(time.monotonic() - since)

    async def close(self) -> None:
        await self.channel.close()  # which cancels its calls
        await asyncio.gather(*self._calls, return_exceptions=True)


async def _connected(pinned: Pinned, asked: Asked, answers: Answers) -> list[_Connection]:
    loop = asyncio.get_running_loop()
    http = [
        (await loop.create_connection(lambda: _Http(asked.http, answers), HOST, server.port))[1]
        for server in pinned.http
    ]
    calls = [_Grpc(server.grpc_port, asked.grpc, answers) for server in pinned.grpc]
    for one in calls:
        await one.channel.channel_ready()
    return [*http, *calls]


async def send(
    pinned: Pinned,
    asked: Asked,
    answers: Answers,
    *,
    seed: int,
    patience: float,
    from_due: bool = True,
) -> None:
    """Send requests at the rate and for the time of `answers`, which is filled.

    Args:
        pinned: Where connections are made to.
        asked: What is sent.
        answers: `lags` are from when a request was due until it was handed to its connection:
            what the generator itself was late.
        seed: Of the arrivals.
        patience: Seconds for the last answers; what is unanswered then is broken.
        from_due: Count latencies from when a request was due; else from when it was handed to its
            connection, where a millisecond of the generator's timer is too much.
    """
    connections = await _connected(pinned, asked, answers)
    chance = random.Random(seed)
    due = time.monotonic()
    end = due + answers.seconds
    while due < end:
        while due <= (now := time.monotonic()) and due < end:
            chance.choice(connections).ask(due if from_due else now)
            answers.lags.append(now - due)
            due += chance.expovariate(answers.rate)
        await asyncio.sleep(_TICK_SECONDS)
    answers.sent = len(answers.lags)
    end = time.monotonic() + patience
    while any(one.waiting for one in connections) and time.monotonic() < end:  # noqa: ASYNC110 - a look now and then
        await asyncio.sleep(_LOOK_SECONDS)
    for one in connections:
        await one.close()
    answers.broken = answers.sent - len(answers.latencies) - answers.refused
