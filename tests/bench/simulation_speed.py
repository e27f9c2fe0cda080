"""How long `batchedapi simulate` takes for a million arrivals.

    python tests/bench/simulation_speed.py

CPU seconds of the whole command, start and report included: other work on the machine counts less
than it would in seconds of the clock, which are given beside them.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread
from harness.servers import PROGRAM

REQUESTS: Final = 1_000_000
SECONDS: Final = 1000
LIMIT: Final = 10.0
"""CPU seconds."""
SERVICE: Final = (
    "--service", "a=25ms,b=5ms", "--max-batch-size", "32", "--batch-interval", "20ms",
    "--max-replicas", "20",
)  # fmt: skip
STRATEGIES: Final = ("Window", "Fixed", "Adaptive")
MANIFEST: Final = """
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: speed}
spec:
  predictor: {path: "model:Model"}
  serverSideBatching: {strategy: %s, maxLatency: 500ms}
"""


def simulated(folder: Path, strategy: str) -> dict[str, Any]:
    """One run: seconds of the clock and of CPU, and what was simulated."""
    trace, manifest = folder / "trace.csv", folder / "api.yaml"
    trace.write_text(f"0,{REQUESTS / SECONDS}\n{SECONDS},0\n")
    manifest.write_text(MANIFEST % strategy)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [PROGRAM, "simulate", "-f", manifest, "--trace", trace, *SERVICE, "--json"],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall": time.monotonic() - began,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "requests": json.loads(done.stdout)["requests"],
    }


@click.command(help=help_of(__doc__))
@click.option("--rounds", default=3, show_default=True)
@out_option
def main(rounds: int, out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    runs: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in STRATEGIES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for strategy in STRATEGIES:
                runs[strategy].append(simulated(Path(folder), strategy))
    cpu = {name: Spread.of([run["cpu"] for run in found]) for name, found in runs.items()}
    table = Table(
        "Seconds for a million arrivals, median (range)",
        ("strategy", "CPU seconds", "seconds"),
        [
            (
                name,
                cpu[name].text(1),
                Spread.of([run["wall"] for run in found]).text(1),
            )
            for name, found in runs.items()
        ],
    )
    report("simulation_speed", around, [table], notes=[], measured=runs, out=out)
    sys.exit(max(spread.median for spread in cpu.values()) > LIMIT)


if __name__ == "__main__":
    main()
