"""The first burst that a fresh replica gets: nobody is to be refused on a guess.

    python tests/bench/first_burst.py           # 100 starts
    python tests/bench/first_burst.py --busy    # beside two processes that do nothing but count

A batch takes 10 ms and 0.2 ms a row, `maxLatency` is ten times what 64 rows take, and 64 clients
connect and ask at once. Every other start has a method without an example, of which no warm-up says
what its batches take; before every other burst a lone client asks once, so that a batch of one is
all that is known.
"""

import asyncio
import collections
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import uvloop
import workloads
from harness import servers
from harness.http_answers import read_answer, request
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

_CLIENTS: Final = 64
_TARGET: Final = 10 * (workloads.FIXED_SECONDS + workloads.ROW_SECONDS * _CLIENTS)
_ANSWER_SECONDS: Final = 30.0
_BODIES: Final = {
    "W3": workloads.bodies_of(workloads.rows_of(workloads.WIDTH, 1))[0],
    "Unseen": b"1",
}


async def burst(port: int, body: bytes, *, lone: bool) -> tuple[collections.Counter[int], float]:
    """Statuses of 64 requests sent at once, and the seconds until the last was answered."""
    if lone:
        await _ask(port, body)
    began = time.monotonic()
    statuses = collections.Counter(
        await asyncio.gather(*(_ask(port, body) for _ in range(_CLIENTS)))
    )
    return statuses, time.monotonic() - began


async def _ask(port: int, body: bytes) -> int:
    """Status of the answer on a connection of its own; 0: there was none."""
    reader, writer = await asyncio.open_connection(servers.HOST, port)
    writer.write(request(contract.PATH_PREDICT, contract.JSON, body))
    data = b""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            while (answer := read_answer(data)) is None:
                more = await reader.read(1 << 16)
                if not more:
                    return 0
                data += more
        return answer.status
    finally:
        writer.close()


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that use a core each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@click.command(help=help_of(__doc__))
@click.option("--starts", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--busy", is_flag=True, help="Beside two busy loops.")
@click.option("--port", default=servers.PORT + 800, show_default=True, help="First of two.")
@out_option
def main(*, starts: int, busy: bool, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found: dict[str, Any] = {
        name: {"starts": 0, "statuses": collections.Counter(), "seconds": []} for name in _BODIES
    }
    with busy_loops(2 if busy else 0):
        for number in range(starts):
            name = list(_BODIES)[number % len(_BODIES)]
            value = servers.manifest(name)
            value["spec"]["serverSideBatching"]["maxLatency"] = f"{1000 * _TARGET:.0f}ms"
            with servers.manifest_file(value) as file, servers.serving(file, port):
                lone = number // len(_BODIES) % 2 == 1
                statuses, took = uvloop.run(burst(port, _BODIES[name], lone=lone))
            found[name]["starts"] += 1
            found[name]["statuses"] += statuses
            found[name]["seconds"].append(took)
    table = Table(
        f"{_CLIENTS} requests at once to a replica that has just started",
        ["method", "starts", "answered", "refused", "others", "slowest burst ms"],
        [
            [
                {"W3": "warmed up", "Unseen": "without example"}[name], str(one["starts"]),
                f"{one['statuses'][200]:,}", str(one["statuses"][429]),
                str(one["statuses"].total() - one["statuses"][200] - one["statuses"][429]),
                f"{1000 * max(one['seconds'], default=0):.0f}",
            ]
            for name, one in found.items()
        ],
    )  # fmt: skip
    note = f"maxLatency {1000 * _TARGET:.0f} ms{', beside two busy loops' if busy else ''}."
    name = "first_burst-busy" if busy else "first_burst"
    report(name, began, [table], notes=[note], measured=found, out=out)
    if any(set(one["statuses"]) - {200} for one in found.values()):
        sys.exit("some were refused: see the table")


if __name__ == "__main__":
    main()
