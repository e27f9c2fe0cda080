"""Open-loop load: requests come when they come (Poisson), whatever became of earlier ones.

    python examples/load.py http://10.96.0.20/sleepy --rate 1650 --seconds 60

Connections are kept for about a second each and then reopened, because a Service balances
connections, not requests: replicas that were just added would otherwise get nothing. Every request
carries its own number and expects it back. Prints one JSON object: requests, answers by status,
broken connections, wrong answers, requests dropped because too many were under way, latency
quantiles in milliseconds. Standard library only (uvloop is used if it is there).
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

MAX_OPEN = 2000
"""Requests under way at once; what comes beyond them is dropped and counted, never sent later."""


OK = 200


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self):
        self.transport = None
        self.answer = None
        self.buffer = b""
        self.expires = 0.0

    def connection_made(self, transport):
        self.transport = transport

    def ask(self, request):
        """Send a request; the future gives (status, body) or ConnectionError."""
        self.buffer = b""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data):
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found or self.answer is None:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        if len(body) < length:
            return
        if b"connection: close" in lines:
            self.expires = 0.0
        answer, self.answer = self.answer, None
        if not answer.done():
            answer.set_result((int(head.split(b" ", 2)[1]), body))

    def connection_lost(self, exc):
        self.expires = -1.0
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("closed before the answer"))


class Load:
    """The generator and its tally."""

    def __init__(self, url, rate, lifetime, timeout, seed):
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname, parts.port or 80, parts.path or "/"
        self.rate, self.lifetime, self.timeout = rate, lifetime, timeout
        self.random = random.Random(seed)
        self.idle, self.open, self.dropped = [], 0, 0
        self.statuses, self.broken, self.wrong = Counter(), Counter(), 0
        self.latencies = []
        self.tasks = set()

    async def run(self, seconds, stop):
        """Send for `seconds`, or until `stop` is set; then wait for the last answers."""
        loop = asyncio.get_running_loop()
        at = begin = loop.time()
        for number in itertools.count():
            at += self.random.expovariate(self.rate)
            if at - begin > seconds or stop.is_set():
                break
            if (wait := at - loop.time()) > 0:
                await asyncio.sleep(wait)
            task = loop.create_task(self.request(number, at))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=self.timeout + 1)
        for connection in self.idle:
            connection.transport.close()
        return loop.time() - begin

    async def request(self, number, at):
        if self.open - len(self.idle) >= MAX_OPEN:
            self.dropped += 1
            return
        connection = None
        try:
            connection = await self.connected()
            body = b'{"id":%d}' % number
            request = (
                f"POST {self.path} HTTP/1.1\r\nhost: {self.host}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            ).encode() + body
            status, answer = await asyncio.wait_for(connection.ask(request), self.timeout)
        except (OSError, TimeoutError, RuntimeError) as error:  # RuntimeError: uvloop, closed
            self.broken[type(error).__name__] += 1
            if connection is not None:
                connection.transport.abort()
                self.open -= 1
            return
        loop = asyncio.get_running_loop()
        self.latencies.append(loop.time() - at)
        self.statuses[status] += 1
        self.wrong += status == OK and json.loads(answer) != {"id": number}
        if connection.expires > loop.time() and not connection.transport.is_closing():
            self.idle.append(connection)
        else:
            connection.transport.close()
            self.open -= 1

    async def connected(self):
        loop = asyncio.get_running_loop()
        while self.idle:
            connection = self.idle.pop()
            if connection.expires > loop.time() and not connection.transport.is_closing():
                return connection
            connection.transport.close()
            self.open -= 1
        self.open += 1
        try:
            connecting = loop.create_connection(Connection, self.host, self.port)
            _, connection = await asyncio.wait_for(connecting, self.timeout)
        except BaseException:
            self.open -= 1
            raise
        if connection.transport.is_closing():  # by a server that stops, before we came to use it
            self.open -= 1
            return await self.connected()
        connection.expires = loop.time() + self.lifetime * self.random.uniform(0.5, 1.5)
        return connection

    def report(self, seconds):
        """The tally as one JSON object."""
        ordered = sorted(self.latencies)

        def quantile(q):
            return round(1000 * ordered[int(q * (len(ordered) - 1))], 2) if ordered else None

        answered = self.statuses[OK]
        asked = sum(self.statuses.values()) + sum(self.broken.values())
        return {
            "seconds": round(seconds, 1),
            "requests": asked,
            "ok": answered,
            "lost": asked - answered,
            "wrong": self.wrong,
            "statuses": {str(code): count for code, count in sorted(self.statuses.items())},
            "broken": dict(self.broken),
            "dropped": self.dropped,
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "max_ms": quantile(1.0),
        }


async def main(options):
    load = Load(options.url, options.rate, options.lifetime, options.timeout, options.seed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    report = load.report(await load.run(options.seconds, stop))
    print(json.dumps(report), flush=True)
    return 0 if report["wrong"] == 0 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Open-loop Poisson load.")
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lifetime", type=float, default=1.0, help="seconds of a connection")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for one answer")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    arguments = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    sys.exit(asyncio.run(main(arguments)))
