"""Requests/s beside another server: the same predictor, row and answer, rounds A B A B ...

    python tests/bench/throughput.py --workload W1 --connections 1,64 --rounds 3 --seconds 3

    python tests/bench/throughput.py --workload W1 --peer litserve     # or bentoml; else mosec

    python tests/bench/throughput.py --workload W1 --parent HEAD~1     # beside an earlier commit


Timed rounds send one row and count answers; before them each cell is checked once with a row for
each client, every answer compared with the right one. No request has the bytes of the one before:
its numbers are written with more or fewer zeros, and it has the ids and headers of a proxy.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import workloads
from harness import servers, wrk
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, ratio
from harness.servers import Server
from harness.wrk import WrkResult

_WARM_UP_SECONDS = 1
_BARE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One server with one number of connections."""

    server: str
    connections: int
    rounds: Sequence[WrkResult]
    check: WrkResult

    @property
    def rates(self) -> list[float]:
        """Requests/s of each round."""
        return [result.rate for result in self.rounds]

    @property
    def errors(self) -> int:
        """Errors of all timed rounds and the check."""
        return sum(result.errors for result in (*self.rounds, self.check))

    def latency(self) -> str:
        """Medians over the rounds of p50 and p99, in ms."""
        p50 = Spread.of([result.p50 for result in self.rounds]).median
        p99 = Spread.of([result.p99 for result in self.rounds]).median
        return f"{p50 * 1e3:.1f} / {p99 * 1e3:.1f}"


def measure(
    pair: Sequence[Server], workload: str, connections: int, rounds: int, seconds: float
) -> list[Cell]:
    """A cell for each server, their rounds interleaved."""
    chosen = workloads.WORKLOADS[workload]
    rows = workloads.rows_of(chosen.width, min(connections, wrk.MAX_THREADS))
    bodies, answers = workloads.bodies_of(rows), workloads.answers_to(chosen, rows)
    checks = [
        wrk.checked(server, server.bodies(bodies), server.answers(answers), connections, 1)
        for server in pair
    ]
    timed: list[list[WrkResult]] = [[] for _ in pair]
    for number in range(rounds):
        for results, server in zip(timed, pair, strict=True):
            body = server.bodies(bodies)[0]
            results.append(wrk.timed(server, body, connections, seconds))
            rate = results[-1].rate
            click.echo(
                f"{workload} c={connections} round {number + 1} {server.name}: {rate:,.0f}/s"
            )
    return [
        Cell(server.name, connections, results, check)
        for server, results, check in zip(pair, timed, checks, strict=True)
    ]


def rates_table(workload: str, cells: Sequence[Sequence[Cell]], bare: Mapping[int, float]) -> Table:
    """Ratios first; every figure beside them belongs to this run only.

    Args:
        workload: For the title.
        cells: Ours and the peer's, for each number of connections.
        bare: Requests/s of the predictor called alone, by connections; empty: not compared.
    """
    columns = ["connections", "ours / peer", "ours req/s", "peer req/s"]
    rows = []
    for ours, peer in cells:
        row = [
            str(ours.connections),
            ratio(ours.rates, peer.rates).text(2),
            Spread.of(ours.rates).text(),
            Spread.of(peer.rates).text(),
        ]
        if bare:
            called = bare[ours.connections]
            row += [f"{workloads.bare_bound(ours.connections):,.0f}", f"{called:,.0f}"]
            for cell in (ours, peer):
                row.append(Spread.of([rate / called * 100 for rate in cell.rates]).text(0, " %"))
        rows.append(row)
    if bare:
        columns += ["bare predictor", "bare, called", "ours of called", "peer of called"]
    return Table(f"{workload}: median (range) of the rounds", columns, rows)


def checks_table(workload: str, cells: Sequence[Sequence[Cell]]) -> Table:
    """Errors, checked answers and latencies."""
    columns = ["connections", "server", "errors", "right", "wrong", "p50 / p99 ms"]
    rows = [
        [
            str(c.connections), c.server, str(c.errors),
            str(c.check.right), str(c.check.wrong), c.latency(),
        ]
        for pair in cells
        for c in pair
    ]  # fmt: skip
    return Table(f"{workload}: answers and latencies", columns, rows)


def measured(cells: Sequence[Sequence[Cell]]) -> list[dict[str, Any]]:
    """Everything, for programs."""
    return [
        {
            "server": cell.server,
            "connections": cell.connections,
            "requests_per_second": cell.rates,
            "rounds": [result._asdict() for result in cell.rounds],
            "check": cell.check._asdict(),
        }
        for pair in cells
        for cell in pair
    ]


def _other(
    workload: str, peer: str, parent: str | None, port: int
) -> contextlib.AbstractContextManager[Server]:
    if parent is None:
        return servers.serving_peer(peer, workload, port)
    return servers.serving_commit(workload, parent, port)


def _file(workload: str, peer: str, parent: str | None) -> str:
    """Name of the results: mosec is the peer that nothing is said of."""
    other = "-parent" if parent else "" if peer == servers.PEERS[0] else f"-{peer}"
    return f"throughput-{workload.lower()}{other}"


def numbers_of(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    """Numbers like 1,16,64 of a command line, for click."""
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"expected numbers like 1,16,64, got {value!r}") from error
    if min(numbers) < 1:
        raise click.BadParameter(f"expected numbers >= 1, got {value!r}")
    return numbers


@click.command(help=help_of(__doc__))
@click.option("--workload", type=click.Choice(list(workloads.WORKLOADS)), default="W1")
@click.option(
    "--connections", callback=numbers_of, default="1,2,16,63,64,65,256", show_default=True
)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--seconds", type=click.IntRange(1, 60), default=3, show_default=True)
@click.option(
    "--baseline", type=click.Choice(["bare"]), help="W3: compare with the predictor alone."
)
@click.option(
    "--peer", type=click.Choice(servers.PEERS), default=servers.PEERS[0], show_default=True
)
@click.option("--parent", help="A commit of ours to compare with, instead of a peer.")
@click.option("--port", default=servers.PORT, show_default=True, help="First of eleven.")
@out_option
def main(
    *,
    workload: str,
    connections: list[int],
    rounds: int,
    seconds: int,
    baseline: str | None,
    peer: str,
    parent: str | None,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    if baseline and workload != "W3":
        raise click.UsageError("--baseline bare is known for W3 only, whose cost is a formula")
    wrk.require_wrk()
    began = environment()
    bare = {c: workloads.bare_called(c, _BARE_SECONDS) for c in connections if baseline}
    with (
        servers.serving_workload(workload, port) as ours,
        _other(workload, peer, parent, port + servers.PEER_OFFSET) as other,
    ):
        body = workloads.bodies_of(workloads.rows_of(workloads.WORKLOADS[workload].width, 1))[0]
        for server in (ours, other):
            wrk.timed(server, server.bodies([body])[0], wrk.MAX_THREADS, _WARM_UP_SECONDS)
        cells = [measure((ours, other), workload, c, rounds, seconds) for c in connections]
    tables = [
        rates_table(workload, cells, bare),
        checks_table(workload, cells),
    ]
    note = (
        f"{rounds} interleaved rounds of {seconds} s a cell; peer: {other.name}."
        " The ratio is that of the medians, its range that of neighbouring rounds."
        " Absolute figures do not travel."
    )
    report(
        _file(workload, peer, parent),
        began,
        tables,
        notes=[note],
        measured={"cells": measured(cells), "bare_called": bare},
        out=out,
    )
    if any(cell.errors or cell.check.wrong for pair in cells for cell in pair[:1]):
        sys.exit("ours answered with errors or wrongly: see the table")


if __name__ == "__main__":
    main()
