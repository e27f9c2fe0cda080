"""One queue for all replicas beside what there is without it: another's, and one a replica.

    python tests/bench/shared_queue.py --mode peer --connections 1,16,64,256

    python tests/bench/shared_queue.py --mode added --rate 1000

peer: requests/s of W1 beside dynamic_batcher, which goes through Redis, too; a web process, a
process with the model, and a Redis of its own each. added: what a request at a steady rate waits
longer with a queue than without, W1, one row each, on 64 connections. Rounds are interleaved.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import throughput
import uvloop
import workloads
from harness import pinned, queued, servers, wrk
from harness.http_answers import request
from harness.pinned import Asked, Pinned
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, percentile
from harness.servers import HOST, Server

from batchedapi_core import contract
from batchedapi_serving.tuning.load import Answers

_WORKLOAD: Final = "W1"
_LAST_SECONDS: Final = 10.0
_WARM_UP_SECONDS: Final = 2.0
_PEER: Final = "dynamic_batcher"
_PEER_PATH: Final = "/predict"


@contextlib.contextmanager
def dynamic_batcher(port: int) -> Iterator[Server]:
    """Both of its programs and a Redis, answering."""
    with queued.redis(port) as redis:
        variables = {  # its user is the default one, whose password is the same
            "REDIS__HOST": HOST,
            "REDIS__PORT": str(redis.port),
            "REDIS__PASSWORD": redis.environment["REDIS__PASSWORD"],
            "BENCH_WORKLOAD": _WORKLOAD,
        }
        web = [sys.executable, "-m", "uvicorn", "dynamic_batcher_app:app", "--host", HOST,
               "--port", str(port + 1), "--no-access-log", "--log-level", "warning"]  # fmt: skip
        batches = [sys.executable, str(servers.BENCH / "dynamic_batcher_app.py")]
        with (
            servers.running(batches, variables),
            servers.running(web, variables) as (process, log),
        ):
            body = workloads.bodies_of(workloads.rows_of(workloads.WIDTH, 1))[0]
            server = Server(_PEER, process.pid, port + 1, _PEER_PATH, 0, process)
            servers.wait_until(
                lambda: servers.status_of(port + 1, _PEER_PATH, body) == 200, process, log
            )
            yield server


def at_a_rate(
    server: Server, rate: float, seconds: float, connections: int, seed: int
) -> tuple[list[float], int]:
    """Latencies from when a request was handed to its connection, and those that failed."""
    row = workloads.bodies_of(workloads.rows_of(workloads.WIDTH, 1))[0]
    asked = Asked(request(contract.PATH_PREDICT, contract.JSON, row))
    answers = Answers(rate, seconds, _LAST_SECONDS)
    uvloop.run(
        pinned.send(
            Pinned([server] * connections), asked, answers, seed=seed, patience=_LAST_SECONDS,
            from_due=False,
        )
    )  # fmt: skip
    return answers.latencies, answers.refused + answers.broken


def added(
    pair: Sequence[Server], rate: float, rounds: int, seconds: float, connections: int
) -> dict[str, Any]:
    """p50 and p99 of each round of both, in milliseconds."""
    found: dict[str, Any] = {one.name: {"p50": [], "p99": [], "failed": 0} for one in pair}
    for server in pair:
        at_a_rate(server, rate, _WARM_UP_SECONDS, connections, 0)
    for number in range(rounds):
        for server in pair:
            took, failed = at_a_rate(server, rate, seconds, connections, number)
            of_server = found[server.name]
            of_server["failed"] += failed
            for percent in (50, 99):
                of_server[f"p{percent}"].append(1000 * percentile(took, percent))
            click.echo(f"round {number + 1} {server.name}: {of_server}")
    return found


def added_table(found: dict[str, Any]) -> Table:
    """A row for each, and one for what the second has more than the first."""
    rows = [
        [name, Spread.of(one["p50"]).text(2), Spread.of(one["p99"]).text(2), str(one["failed"])]
        for name, one in found.items()
    ]
    without, through = found.values()
    more = [
        Spread.of([b - a for a, b in zip(without[p], through[p], strict=True)]).text(2)
        for p in ("p50", "p99")
    ]
    return Table(
        "median (range) of the rounds, ms", ["", "p50", "p99", "failed"],
        [*rows, ["added, round by round", *more, ""]],
    )  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(["peer", "added"]), default="peer", show_default=True)
@click.option("--connections", callback=throughput.numbers_of, default="1,16,64,256",
              show_default=True, help="Mode peer.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(1, 20_000), default=1000, show_default=True,
              help="Mode added: requests a second.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--seconds", type=click.IntRange(1, 60), default=5, show_default=True)
@click.option("--port", default=servers.PORT + 1200, show_default=True,
              help=f"First of {2 * queued.PORTS}.")  # fmt: skip
@out_option
def main(
    *,
    mode: str,
    connections: list[int],
    rate: float,
    rounds: int,
    seconds: int,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    with queued.running(servers.manifest(_WORKLOAD), port) as run:
        (ours,) = run.web
        other = port + queued.PORTS
        if mode == "added":
            with servers.serving_workload(_WORKLOAD, other) as alone:
                found = added((alone, ours), rate, rounds, seconds, wrk.MAX_THREADS)
            note = f"{rounds} interleaved rounds of {seconds} s, {rate:g} requests/s (Poisson)."
            report(
                "shared_queue-added", began, [added_table(found)], notes=[note], measured=found,
                out=out,
            )  # fmt: skip
            if any(one["failed"] for one in found.values()):
                sys.exit("requests failed: see the table")
            return
        wrk.require_wrk()
        with dynamic_batcher(other) as peer:
            cells = [
                throughput.measure((ours, peer), _WORKLOAD, c, rounds, seconds) for c in connections
            ]
    tables = [
        throughput.rates_table(_WORKLOAD, cells, {}),
        throughput.checks_table(_WORKLOAD, cells),
    ]
    note = f"{rounds} interleaved rounds of {seconds} s a cell; peer: {_PEER} 1.0.6.1."
    measured = {"cells": throughput.measured(cells)}
    report("shared_queue-peer", began, tables, notes=[note], measured=measured, out=out)
    if any(pair[0].errors or pair[0].check.wrong for pair in cells):
        sys.exit("ours answered with errors or wrongly: see the table")


if __name__ == "__main__":
    main()
