"""The wall clock jumps by a day, again and again, under load: nothing may happen.

    python tests/bench/clock.py --jumps 100

The replica runs with `native/shifted_clock.c` in front of libc (needs gcc): its wall clock is off
by what a file says, and its monotonic clock is left alone, as a real jump leaves it.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import metrics, servers
from harness.load import IdLoad, RunningLoad
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

SOURCE: Final = servers.BENCH / "native" / "shifted_clock.c"
_CONNECTIONS: Final = 16
_BETWEEN_SECONDS: Final = 0.3
_DAY: Final = 86400
_OFFSETS: Final = (_DAY, -_DAY, 0, 366 * _DAY, -30 * _DAY)


def build(folder: Path) -> Path:
    """The library to preload.

    Raises:
        RuntimeError: gcc could not make it.
    """
    library = folder / "shifted_clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"{' '.join(command)}: {made.stderr}")
    return library


async def run_jumps(
    server: servers.Server, set_offset: Callable[[int], None], jumps: int
) -> IdLoad:
    """Load while the offset changes."""
    async with RunningLoad(server.port, _CONNECTIONS) as load:
        for number in range(jumps):
            await asyncio.sleep(_BETWEEN_SECONDS)
            set_offset(_OFFSETS[number % len(_OFFSETS)])
        await asyncio.sleep(_BETWEEN_SECONDS)
    return load


def date_of(server: servers.Server) -> str:
    """The `date` header of an answer: shows that the replica's wall clock is really off."""
    head = subprocess.run(
        ["curl", "-si", f"http://{servers.HOST}:{server.port}/openapi.json"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    return next(line for line in head.lower().splitlines() if line.startswith("date:"))


@click.command(help=help_of(__doc__))
@click.option("--jumps", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--port", default=servers.PORT + 800, show_default=True, help="First of two.")
@out_option
def main(*, jumps: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with tempfile.TemporaryDirectory(prefix="bench-clock-") as folder:
        offset = Path(folder) / "offset"

        def set_offset(seconds: int) -> None:
            # In place: the replica has mapped the file.
            mode = "r+b" if offset.exists() else "wb"
            with offset.open(mode) as file:
                file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

        set_offset(0)
        shifted = {"LD_PRELOAD": str(build(Path(folder))), "CLOCK_OFFSET_FILE": str(offset)}
        value = servers.manifest("Echo", config={"milliseconds": 5})
        with (
            servers.manifest_file(value) as file,
            servers.serving(file, port, shifted) as server,
        ):
            load = uvloop.run(run_jumps(server, set_offset, jumps))
            set_offset(-400 * _DAY)
            time.sleep(1.5)  # the header is renewed once a second
            shown = date_of(server)
            after = metrics.read(server.admin_port)
    found: dict[str, Any] = {
        "jumps": jumps,
        "right": load.right,
        "failed": load.failed,
        "statuses": dict(load.statuses),
        "wrong": load.wrong,
        "slowest": load.slowest,
        "restarts": metrics.model_restarts(after),
        "expired": metrics.total(after, contract.METRIC_ROWS_REJECTED, reason="expired"),
        "date_400_days_back": shown,
    }
    table = Table(
        "Jumps of the wall clock by a day or more under load",
        ["jumps", "right", "failed", "wrong", "slowest s", "restarts", "rows expired"],
        [[str(jumps), f"{load.right:,}", str(load.failed), str(load.wrong), f"{load.slowest:.3f}",
          str(found["restarts"]), f"{found['expired']:.0f}"]],
    )  # fmt: skip
    note = f"Asked for its date 400 days back, the replica said `{shown}`."
    report("clock", began, [table], notes=[note], measured=found, out=out)
    if load.failed or load.wrong or found["restarts"] or found["expired"]:
        sys.exit("a jump of the clock was noticed: see the table")


if __name__ == "__main__":
    main()
