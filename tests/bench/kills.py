"""Failures that clients notice when processes are killed under load.

    python tests/bench/kills.py --kills 100
    python tests/bench/kills.py --mode term --rounds 20

kill: SIGKILL of a random model process, only once a request sent after the last kill has been
answered. term: SIGTERM of the whole replica, a fresh one each round. Accepted is
a request of which the server read a byte; `harness/connections.py` says how that is told from
outside.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import uvloop
from harness import metrics, servers
from harness.connections import Fate
from harness.load import IdLoad, RunningLoad, recovery
from harness.processes import children
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread

from batchedapi_core import contract

_BATCH_MS: Final = 5
_POLL_SECONDS: Final = 0.005
_EXIT_SECONDS: Final = 45.0


class Stop(NamedTuple):
    """One round of mode term."""

    right: int
    wrong: int
    failed: int
    """Accepted and not answered with 200."""
    statuses: dict[int, int]
    unread: int
    seconds: float
    """From SIGTERM to the end of the process."""
    code: int


async def model_pids(server: servers.Server) -> list[int]:
    """Pids of the model processes, once there is one.

    Raises:
        RuntimeError: the replica ended.
    """
    while True:
        if server.process.poll() is not None:
            raise RuntimeError(f"the replica ended with exit code {server.process.poll()}")
        if found := children(server.pid, "batchedapi_serving.model"):
            return found
        await asyncio.sleep(_POLL_SECONDS)


async def kill_repeatedly(
    server: servers.Server, load: IdLoad, kills: int, spacing: float
) -> list[float]:
    """SIGKILL the model process `kills` times; seconds to recovery of each."""
    recoveries = []
    await recovery(load, time.monotonic())
    for number in range(kills):
        os.kill(random.choice(await model_pids(server)), signal.SIGKILL)
        killed = time.monotonic()
        recoveries.append(await recovery(load, killed))
        if (number + 1) % 10 == 0:
            click.echo(f"{number + 1} kills, {load.right} right, {load.failed} failed")
        await asyncio.sleep(max(0.0, killed + spacing - time.monotonic()))
    return recoveries


async def run_kills(
    server: servers.Server, connections: int, kills: int, spacing: float
) -> dict[str, Any]:
    """Load, kills, and what came of both."""
    before = metrics.read(server.admin_port)
    async with RunningLoad(server.port, connections) as load:
        recoveries = await kill_repeatedly(server, load, kills, spacing)
    after = metrics.read(server.admin_port)
    return {
        "kills": kills,
        "restarts": metrics.model_restarts(after) - metrics.model_restarts(before),
        "right": load.right,
        "counted": metrics.change(before, after, contract.METRIC_REQUESTS, code="200"),
        "failed": load.failed + load.fates[Fate.UNREAD],
        "statuses": dict(load.statuses),
        "wrong": load.wrong,
        "slowest_answer": load.slowest,
        "recoveries": recoveries,
    }


async def run_stop(port: int, connections: int, seconds: float, web_processes: int) -> Stop:
    """A fresh replica, load, SIGTERM in the middle of it."""
    value = servers.manifest("Echo", config={"milliseconds": _BATCH_MS})
    value["spec"]["predictor"]["webProcesses"] = web_processes
    with servers.manifest_file(value) as file, servers.serving(file, port) as server:
        async with RunningLoad(port, connections) as load:
            await asyncio.sleep(seconds)
            os.kill(server.pid, signal.SIGTERM)
            began = time.monotonic()
            code = await asyncio.to_thread(server.process.wait, _EXIT_SECONDS)
            took = time.monotonic() - began
    return Stop(
        load.right,
        load.wrong,
        load.failed,
        dict(load.statuses),
        load.fates[Fate.UNREAD],
        took,
        code,
    )


async def run_stops(
    port: int, connections: int, rounds: int, seconds: float, web_processes: int
) -> list[Stop]:
    """One replica after the other."""
    stops = []
    for number in range(rounds):
        stops.append(await run_stop(port, connections, seconds, web_processes))
        click.echo(f"round {number + 1}: {stops[-1]}")
    return stops


def kills_table(found: dict[str, Any]) -> Table:
    """One row."""
    return Table(
        "SIGKILL of the model process under load",
        ["kills", "restarts", "right", "counted", "failed", "statuses", "wrong", "recovery s",
         "slowest s"],
        [[
            str(found["kills"]), str(found["restarts"]), f"{found['right']:,}",
            f"{found['counted']:,.0f}",
            str(found["failed"]), str(found["statuses"] or "none"), str(found["wrong"]),
            Spread.of(found["recoveries"]).text(2), f"{found['slowest_answer']:.2f}",
        ]],
    )  # fmt: skip


def stops_table(stops: Sequence[Stop]) -> Table:
    """Sums over the rounds."""
    return Table(
        "SIGTERM of the replica under load",
        ["rounds", "right", "accepted and lost", "wrong", "closed unread", "stop s", "exit codes"],
        [[
            str(len(stops)), f"{sum(s.right for s in stops):,}", str(sum(s.failed for s in stops)),
            str(sum(s.wrong for s in stops)), str(sum(s.unread for s in stops)),
            Spread.of([s.seconds for s in stops]).text(2),
            " ".join(map(str, sorted({s.code for s in stops}))),
        ]],
    )  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(["kill", "term"]), default="kill", show_default=True)
@click.option("--kills", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--spacing", type=click.FloatRange(0.1, 60), default=0.8, show_default=True,
              help="Seconds from kill to kill, at least.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 16), default=2, show_default=True,
              help="Mode kill: model processes.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=1, show_default=True,
              help="Mode term: load before SIGTERM.")  # fmt: skip
@click.option("--connections", type=click.IntRange(1, 500), default=64, show_default=True)
@click.option("--web-processes", type=click.IntRange(1, 16), default=1, show_default=True,
              help="Mode term.")  # fmt: skip
@click.option("--port", default=servers.PORT + 300, show_default=True, help="First of two.")
@out_option
def main(
    *,
    mode: str,
    kills: int,
    spacing: float,
    processes: int,
    rounds: int,
    seconds: float,
    connections: int,
    web_processes: int,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    if mode == "kill":
        value = servers.manifest("Echo", config={"milliseconds": _BATCH_MS})
        value["spec"]["predictor"]["processesPerReplica"] = processes
        with servers.manifest_file(value) as file, servers.serving(file, port) as server:
            found = uvloop.run(run_kills(server, connections, kills, spacing))
        note = (
            f"{connections} clients, {processes} model processes, {_BATCH_MS} ms a batch, kills at"
            f" least {spacing:g} s apart."
        )
        report("kills", began, [kills_table(found)], notes=[note], measured=found, out=out)
        bad = found["failed"] or found["wrong"] or found["restarts"] != kills
    else:
        stops = uvloop.run(run_stops(port, connections, rounds, seconds, web_processes))
        note = (
            f"{connections} clients, {web_processes} web processes, {_BATCH_MS} ms a batch, SIGTERM"
            f" after {seconds:g} s, no drain delay. Closed unread:"
            " the server closed the connection before it read the request."
        )
        name = "stops" if web_processes == 1 else f"stops-{web_processes}-web"
        measured = {"rounds": [stop._asdict() for stop in stops]}
        report(name, began, [stops_table(stops)], notes=[note], measured=measured, out=out)
        bad = any(stop.failed or stop.unread or stop.wrong or stop.code for stop in stops)
    if bad:
        sys.exit("requests were lost, or restarts and kills differ: see the table")


if __name__ == "__main__":
    main()
