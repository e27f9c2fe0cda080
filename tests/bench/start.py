"""How long a warm start takes: from exec to /readyz, and to the first answer.

    python tests/bench/start.py --runs 20
    python tests/bench/start.py --parent HEAD~1     # in turn with an earlier commit

Warm: one start before the measured ones fills the page cache and compiles every module, as an image
has them compiled, into a folder of this run's own.
"""

import contextlib
import http
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
from harness import servers
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread

from batchedapi_core import contract

_POLL_SECONDS: Final = 0.005
_LIMIT_SECONDS: Final = 60.0


class Start(NamedTuple):
    """Seconds since exec."""

    ready: float
    answer: float


def start_once(file: Path, body: bytes, port: int, compiled: Mapping[str, str]) -> Start:
    """Start, wait, ask once, stop.

    Raises:
        RuntimeError: the server ended, or its first answer is not 200.
    """
    began = time.perf_counter()
    with servers.running(servers.serve_command(file, port), compiled) as (process, log):
        while not servers.is_ready(port + 1):
            late = time.perf_counter() - began > _LIMIT_SECONDS
            if late or process.poll() is not None:
                raise RuntimeError(f"not ready:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(_POLL_SECONDS)
        ready = time.perf_counter() - began
        status, answer = servers.ask(port, contract.PATH_PREDICT, body)
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"first answer: expected 200, got {status}: {answer!r}")
        return Start(ready, time.perf_counter() - began)


def import_floor() -> float:
    """Seconds that python needs to start and import numpy: no model process can be ready sooner."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return time.perf_counter() - began


@click.command(help=help_of(__doc__))
@click.option("--runs", type=click.IntRange(1, 200), default=20, show_default=True)
@click.option("--manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Absent: the echo predictor.")  # fmt: skip
@click.option("--item", default="1", show_default=True, help="JSON of the first request.")
@click.option("--parent", help="A commit of ours to start in turn.")
@click.option("--port", default=servers.PORT + 400, show_default=True, help="First of two.")
@out_option
def main(  # noqa: PLR0917 - as click has it
    runs: int,
    manifest: Path | None,
    item: str,
    parent: str | None,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    with (
        servers.manifest_file(servers.manifest("Echo")) as echo,
        tempfile.TemporaryDirectory(prefix="bench-compiled-") as folder,
        contextlib.ExitStack() as stack,
    ):
        compiled = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        file, body = manifest or echo, item.encode()
        codes = {"": compiled}
        if parent is not None:
            codes[f", commit {parent}"] = compiled | stack.enter_context(servers.code_of(parent))
        for code in codes.values():
            start_once(file, body, port, code)
        starts: dict[str, list[Start]] = {name: [] for name in codes}
        floors = []
        for _ in range(runs):
            for name, code in codes.items():
                starts[name].append(start_once(file, body, port, code))
            floors.append(import_floor())
    timed = [("python -c 'import numpy', for scale", floors)]
    for name, several in reversed(starts.items()):
        timed.insert(0, (f"first answer{name}", [start.answer for start in several]))
        timed.insert(0, (f"/readyz 200{name}", [start.ready for start in several]))
    rows = [[what, *(f"{value:.2f}" for value in Spread.of(seconds))] for what, seconds in timed]
    table = Table("seconds since exec", ["until", "median", "min", "max"], rows)
    found = {"seconds": dict(timed)}
    report("start", began, [table], notes=[f"{runs} warm starts."], measured=found, out=out)


if __name__ == "__main__":
    main()
