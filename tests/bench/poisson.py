"""Open-loop Poisson load of one-row and many-row requests, timed from when each is sent.

    python tests/bench/poisson.py HOST PORT PATH --rate 300 --seconds 40 --rows 1,2,3,4

Standard library alone, and uvloop where it is there: it also runs in a pod, from standard input.
Each request is sent on one of `--connections` that is free, picked at random: strangers, of whom
the server cannot learn when they come back. A timer wakes up to a millisecond late, and the server
sees the request as late: so a latency counts from the sending. Prints one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from typing import Any, Final

_PATIENCE: Final = 30.0
"""Seconds for the last answers."""


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._buffer = b""
        self._sent = 0.0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Protocol."""
        self.transport = transport

    def send(self, request: bytes) -> None:
        """Send, and count the time from here."""
        self._sent = time.monotonic()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        if not found or len(body) < length:
            return
        self._buffer = b""
        self._load.answered(self, int(head.split(b" ", 2)[1]), time.monotonic() - self._sent)


class Load:
    """The generator and its tally."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._free: list[Connection] = []
        self._all: list[Connection] = []
        self.latencies: list[float] = []
        self.failed = 0
        self.delayed = 0
        """Found no connection that was free: no open loop any more."""
        self.lateness = 0.0
        """Seconds, the most that a request was sent after it was due."""

    def answered(self, connection: Connection, status: int, seconds: float) -> None:
        """An answer is whole."""
        self._free.append(connection)
        self.latencies.append(round(seconds, 6))
        self.failed += status != 200

    async def run(self) -> None:
        """Connect, send for so long, wait for the last answers."""
        options, loop = self._options, asyncio.get_running_loop()
        for _ in range(options.connections):
            _, connection = await loop.create_connection(
                lambda: Connection(self), options.host, options.port
            )
            self._free.append(connection)
            self._all.append(connection)
        sizes = [int(rows) for rows in options.rows.split(",")]
        requests = [self._request(rows) for rows in sizes]
        due = time.monotonic()
        end = due + options.seconds
        while (due := due + self._random.expovariate(options.rate)) < end:
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            while not self._free:
                self.delayed += 1
                await asyncio.sleep(0.001)
            self.lateness = max(self.lateness, time.monotonic() - due)
            self._free_one().send(self._random.choice(requests))
        patience = time.monotonic() + _PATIENCE
        while len(self._free) < len(self._all) and time.monotonic() < patience:  # noqa: ASYNC110 - a look now and then
            await asyncio.sleep(0.02)
        self.failed += len(self._all) - len(self._free)
        for connection in self._all:
            connection.transport.close()

    def _free_one(self) -> Connection:
        free = self._free
        place = self._random.randrange(len(free))
        free[place], free[-1] = free[-1], free[place]
        return free.pop()

    def _request(self, rows: int) -> bytes:
        body = b'{"id":1}'
        if rows > 1:
            body = b'{"instances":[' + b",".join([body] * rows) + b"]}"
        head = (
            f"POST {self._options.path} HTTP/1.1\r\nhost: {self._options.host}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rows", default="1", help="sizes of requests, each as likely")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    load = Load(parser.parse_args())
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not where only the standard library is

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(load.run())
    tally = {
        "latencies": load.latencies,
        "failed": load.failed,
        "delayed": load.delayed,
        "lateness": load.lateness,
    }
    # Not print: with PYTHONUNBUFFERED it writes once, which a pipe may cut short after uvloop ran.
    with open(sys.stdout.fileno(), "w", closefd=False) as output:
        json.dump(tally, output)


if __name__ == "__main__":
    main()
