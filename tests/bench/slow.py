"""Thousands of clients that send or read slowly: closed in time, and nobody else notices.

    python tests/bench/slow.py --connections 2000

slowhttptest (Debian package) in its three modes: headers, bodies, and answers that are read a few
bytes at a time; beside it 16 clients that ask and check as usual.
"""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import servers
from harness.load import RunningLoad
from harness.processes import children, descriptors
from harness.report import Table, environment, help_of, out_option, report

_CONNECTIONS: Final = 16
MODES: Final = {"headers": "-H", "body": "-B", "reading": "-X"}
_CLOSED_WITHIN: Final = 15.0
_SECONDS: Final = 40


def require_slowhttptest() -> None:
    """Install the Debian package if it is missing and we may.

    Raises:
        FileNotFoundError: it is missing and could not be installed.
    """
    if shutil.which("slowhttptest") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "-y", "slowhttptest"], capture_output=True, check=False
        )
    if shutil.which("slowhttptest") is None:
        raise FileNotFoundError("slowhttptest is missing; on Debian: apt-get install slowhttptest")


def command(mode: str, port: int, connections: int) -> list[str]:
    """How slowhttptest is started; bounded in time."""
    return [
        "slowhttptest", mode, "-c", str(connections), "-r", "500", "-l", str(_SECONDS), "-p", "5",
        "-i", "3", "-x", "24", "-w", "10", "-y", "20", "-n", "3", "-z", "8", "-k", "1",
        "-t", "POST" if mode == "-B" else "GET",
        "-u", f"http://{servers.HOST}:{port}/{'openapi.json' if mode == '-X' else 'predict'}",
    ]  # fmt: skip


async def run_mode(server: servers.Server, mode: str, connections: int) -> dict[str, Any]:
    """One mode beside the usual load."""
    (web,) = children(server.pid, "batchedapi_serving.web_process")
    idle = descriptors(web)
    process = await asyncio.create_subprocess_exec(
        *command(mode, server.port, connections),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    most, most_at, free_at = idle, 0.0, 0.0
    async with RunningLoad(server.port, _CONNECTIONS) as load:
        began = time.monotonic()
        reading = asyncio.create_task(_all_of(process))
        while not reading.done() and time.monotonic() < began + _SECONDS + 20:
            await asyncio.sleep(0.25)
            now, count = time.monotonic() - began, descriptors(web)
            if count > most:
                most, most_at = count, now
            if count <= idle + _CONNECTIONS + 2:
                free_at = free_at or (now if most > idle + connections // 2 else 0.0)
            elif now > most_at:
                free_at = 0.0
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        output = await reading
    return {
        "most_connections": most - idle - _CONNECTIONS,
        "gone_after": free_at - most_at if free_at else float("inf"),
        "right": load.right,
        "failed": load.failed,
        "wrong": load.wrong,
        "slowest": load.slowest,
        "report": re.sub(r"\x1b\[[0-9;]*m", "", output)[-1500:],
    }


async def _all_of(process: asyncio.subprocess.Process) -> str:
    output, _ = await process.communicate()
    return output.decode(errors="replace")


@click.command(help=help_of(__doc__))
@click.option("--connections", type=click.IntRange(10, 10_000), default=2000, show_default=True)
@click.option("--port", default=servers.PORT + 900, show_default=True, help="First of two.")
@out_option
def main(*, connections: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    require_slowhttptest()
    found = {}
    for name, mode in MODES.items():
        with servers.serving_workload("Echo", port, {"milliseconds": 5}) as server:
            found[name] = uvloop.run(run_mode(server, mode, connections))
        click.echo(f"{name}: { {k: v for k, v in found[name].items() if k != 'report'} }")
    table = Table(
        f"{connections} slow clients beside {_CONNECTIONS} usual ones",
        ["slow at", "most connected", "all gone s after the most", "right", "failed", "wrong",
         "slowest s"],
        [[name, str(f["most_connections"]), f"{f['gone_after']:.1f}", f"{f['right']:,}",
          str(f["failed"]), str(f["wrong"]), f"{f['slowest']:.3f}"] for name, f in found.items()],
    )  # fmt: skip
    report("slow", began, [table], notes=[], measured=found, out=out)
    if any(f["failed"] or f["wrong"] or f["gone_after"] > _CLOSED_WITHIN for f in found.values()):
        sys.exit("slow clients were noticed by others, or stayed too long: see the table")


if __name__ == "__main__":
    main()
