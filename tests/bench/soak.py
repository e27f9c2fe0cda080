"""Millions of requests: what grows, and whether the replica counted what its clients counted.

    python tests/bench/soak.py --requests 10000000

wrk asks in rounds until that many were answered; after each the memory and open files of every
process are read. The first fifth is warm-up.
"""

import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import workloads
from harness import metrics, servers, wrk
from harness.processes import children, descriptors, resident_kib, slope_per_hour
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

_CONNECTIONS: Final = 64
_ROUND_SECONDS: Final = 5.0
ROLES: Final = ("supervisor", "web", "model")


def processes(server: servers.Server) -> dict[str, int]:
    """Pid of each role."""
    (web,) = children(server.pid, "batchedapi_serving.web_process")
    (model,) = children(server.pid, "batchedapi_serving.model")
    return {"supervisor": server.pid, "web": web, "model": model}


def run_soak(server: servers.Server, requests: int) -> dict[str, Any]:
    """Rounds until so many requests were answered."""
    bodies = workloads.bodies_of(workloads.rows_of(workloads.WIDTH, 1))
    pids = processes(server)
    samples: list[dict[str, Any]] = []
    answered = errors = 0
    began = time.monotonic()
    while answered < requests:
        result = wrk.timed(server, bodies[0], _CONNECTIONS, _ROUND_SECONDS)
        answered += result.requests - result.refused
        errors += result.errors
        samples.append(
            {
                "seconds": time.monotonic() - began,
                "answered": answered,
                "kib": {role: resident_kib(pid) for role, pid in pids.items()},
                "files": {role: descriptors(pid) for role, pid in pids.items()},
            }
        )
        if len(samples) % 10 == 0:
            click.echo(f"{answered:,} {samples[-1]}")
    time.sleep(2)  # gauges are written twice a second
    after = metrics.read(server.admin_port)
    return {
        "answered": answered,
        "errors": errors,
        "counted": metrics.total(after, contract.METRIC_REQUESTS, code="200"),
        "rows": metrics.total(after, f"{contract.METRIC_BATCH_ROWS}_sum"),
        "in_flight_after": metrics.total(after, contract.METRIC_IN_FLIGHT_REQUESTS),
        "seconds": time.monotonic() - began,
        "samples": samples,
    }


@click.command(help=help_of(__doc__))
@click.option("--requests", type=click.IntRange(1000, 100_000_000), default=10_000_000)
@click.option("--port", default=servers.PORT + 700, show_default=True, help="First of two.")
@out_option
def main(*, requests: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with servers.serving_workload("W1", port) as server:
        found = run_soak(server, requests)
    settled = found["samples"][len(found["samples"]) // 5 :]
    rows = []
    for role in ROLES:
        kib = [(s["seconds"], s["kib"][role]) for s in settled]
        files = [s["files"][role] for s in settled]
        slope = slope_per_hour(kib) / 1024
        found[f"{role}_mib_per_hour"] = slope
        rows.append(
            [role, f"{kib[0][1] / 1024:.1f}", f"{kib[-1][1] / 1024:.1f}", f"{slope:+.2f}",
             f"{min(files)}-{max(files)}"]
        )  # fmt: skip
    # wrk counts an answer when it has read it, and leaves with up to one a connection unread.
    uncounted = found["counted"] - found["answered"]
    rounds = len(found["samples"])
    tables = [
        Table("Memory and files after warm-up",
              ["process", "first MiB", "last MiB", "MiB an hour", "open files"], rows),
        Table("Counts", ["answered to wrk", "counted by the replica", "difference",
                         "connections cut by wrk, at most", "errors", "in flight after"],
              [[f"{found['answered']:,}", f"{found['counted']:,.0f}", f"{uncounted:,.0f}",
                f"{rounds * _CONNECTIONS:,}", str(found["errors"]),
                f"{found['in_flight_after']:.0f}"]]),
    ]  # fmt: skip
    report("soak", began, tables, notes=[f"{found['seconds']:.0f} s."], measured=found, out=out)
    wrong = not 0 <= uncounted <= rounds * _CONNECTIONS
    if found["errors"] or wrong or found["in_flight_after"]:
        sys.exit("errors, or counts that differ: see the table")


if __name__ == "__main__":
    main()
