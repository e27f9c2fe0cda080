"""What clients that read their streams notice of others that hardly do.

    python tests/bench/streams.py

32 clients read streams of 20 items, one each 10 ms, again and again: alone, or beside 100 that ask
for a stream without end and read 4 KiB of it a second. Generators are not async, so each stream has
a thread. Rounds are interleaved, on one replica.
"""

import asyncio
import contextlib
import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import servers
from harness.report import Table, environment, help_of, out_option, report

_FAST: Final = 32
_SLOW: Final = 100
_ITEMS: Final = 20
_WAIT: Final = 0.010
_READ_BYTES: Final = 4096
_WARM_SECONDS: Final = 4.0
"""Until the buffers of the slow ones are full, in the kernel and here."""
_MOST: Final = 0.05
END: Final = b"0\r\n\r\n"
FAST: Final = {"n": _ITEMS, "size": 16, "wait": _WAIT}
ENDLESS: Final = {"n": 1_000_000, "size": 1000, "wait": 0}


def question(payload: dict[str, Any]) -> bytes:
    """A request for a stream."""
    body = json.dumps(payload).encode()
    head = "POST /predict HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def read_again_and_again(port: int, took: list[float]) -> None:
    """A fast client: how long each of its streams took, until it is cancelled.

    Raises:
        AssertionError: a stream was not whole.
    """
    reader, writer = await asyncio.open_connection(servers.HOST, port)
    try:
        while True:
            began, text = time.perf_counter(), b""
            writer.write(question(FAST))
            while not text.endswith(END):
                data = await reader.read(1 << 16)
                assert data, text
                text += data
            took.append(time.perf_counter() - began)
            assert text.count(b'"i":') == _ITEMS, text
    finally:
        writer.close()


async def hardly_read(port: int) -> int:
    """A slow client: asks anew when its stream is over; bytes it read when it is cancelled."""
    loop, read = asyncio.get_running_loop(), 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _READ_BYTES)
                connection.setblocking(False)
                await loop.sock_connect(connection, (servers.HOST, port))
                await loop.sock_sendall(connection, question(ENDLESS))
                while data := await loop.sock_recv(connection, _READ_BYTES):
                    read += len(data)
                    await asyncio.sleep(len(data) / _READ_BYTES)
    return read


async def run_round(server: servers.Server, seconds: float, slow: int) -> dict[str, Any]:
    """The fast ones beside so many slow ones; figures of the fast."""
    took: list[float] = []
    lazy = [asyncio.create_task(hardly_read(server.port)) for _ in range(slow)]
    await asyncio.sleep(_WARM_SECONDS if slow else 0)
    fast = [asyncio.create_task(read_again_and_again(server.port, took)) for _ in range(_FAST)]
    await asyncio.sleep(1)
    took.clear()
    await asyncio.sleep(seconds)
    found = {"streams": len(took), "p50": statistics.median(took), "slowest": max(took)}
    failed = [task for task in fast if task.done()]
    for task in (*fast, *lazy):
        task.cancel()
    read = await asyncio.gather(*lazy)
    await asyncio.gather(*fast, return_exceptions=True)
    return {**found, "failed": len(failed), "read": sum(read)}


def median_of(rounds: list[dict[str, Any]], what: str) -> float:
    """Over the rounds of one case."""
    return statistics.median(float(one[what]) for one in rounds)


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=click.FloatRange(1, 600), default=6, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True)
@click.option("--port", default=servers.PORT + 720, show_default=True, help="First of two.")
@out_option
def main(*, seconds: float, rounds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found: dict[int, list[dict[str, Any]]] = {0: [], _SLOW: []}
    with servers.serving_workload("Streamed", port) as server:
        for _ in range(rounds):
            for slow, each in found.items():
                each.append(uvloop.run(run_round(server, seconds, slow)))
                click.echo(f"{slow} slow: {each[-1]}")
    calm, beside = found[0], found[_SLOW]
    slower = median_of(beside, "p50") / median_of(calm, "p50")
    share = median_of(beside, "streams") / median_of(calm, "streams")
    failed = sum(one["failed"] for one in (*calm, *beside))
    rows = [
        [
            str(slow), f"{median_of(each, 'streams'):.0f}", f"{1000 * median_of(each, 'p50'):.1f}",
            f"{1000 * median_of(each, 'slowest'):.0f}", str(sum(one["failed"] for one in each)),
        ]
        for slow, each in found.items()
    ]  # fmt: skip
    table = Table(
        f"{_FAST} clients that read streams of {_ITEMS} items, one each {1000 * _WAIT:g} ms",
        ["beside slow ones", f"streams in {seconds:g} s", "p50 ms", "slowest ms", "failed"],
        rows,
    )
    note = (
        f"Medians of {rounds} interleaved rounds; beside the slow ones {slower:.3f} times the p50"
        f" and {share:.3f} of the streams; at most {1 + _MOST:g} and at least {1 - _MOST:g}."
    )
    measured = {"calm": calm, "beside": beside}
    report("streams", began, [table], notes=[note], measured=measured, out=out)
    if slower > 1 + _MOST or share < 1 - _MOST or failed:
        sys.exit("the fast ones notice the slow ones: see the table")


if __name__ == "__main__":
    main()
