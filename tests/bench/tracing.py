"""The cost of tracing: off, on with nobody drawn, and on at 1 %; rounds A B C C B A ...

    python tests/bench/tracing.py --starts 12 --rounds 8 --seconds 1

One wrk asks each server in turn with the body of W1. After some rounds all are started anew: one
process is some percent faster than another of the same code, as its memory lies better. So a start
is what is counted: the median of its rounds beside their neighbours. CPU seconds a request are from
/proc, over the timed rounds: of all processes of a replica, and of the web process alone, which is
what limits it. The spans go to a collector in this program, which takes them apart afterwards.
"""

import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import workloads
from harness import servers, wrk
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, mean_and_error, quotient
from harness.servers import PORT, Server
from harness.wrk import WrkResult

from otlp import Collector, collector

WORKLOAD: Final = "W1"
SHARES: Final = (None, 0.0, 0.01)
"""Share of requests that have spans; None: tracing is off."""
_WARM_UP_SECONDS: Final = 1
_STEP: Final = 10
"""Between the ports of two servers."""


@dataclass(frozen=True)
class Measured:
    """One server, started some times, and its rounds."""

    share: float | None
    rounds: list[WrkResult] = field(default_factory=list)
    web: list[float] = field(default_factory=list)
    """CPU seconds of the web process, of each round."""
    replica: list[float] = field(default_factory=list)
    """CPU seconds of all processes of the replica, of each round."""

    @property
    def name(self) -> str:
        """As the table has it."""
        return "off" if self.share is None else f"on, {self.share:.0%}"

    @property
    def rates(self) -> list[float]:
        """Requests/s of each round."""
        return [one.rate for one in self.rounds]

    def each(self, seconds: Sequence[float]) -> list[float]:
        """CPU microseconds a request, of each round."""
        return [1e6 * used / one.requests for used, one in zip(seconds, self.rounds, strict=True)]


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU seconds of these processes so far; a tick of 10 ms would be 1 % of a round."""
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def processes_of(server: Server) -> tuple[list[int], list[int]]:
    """The web process of a replica, and all its processes."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    pids = [int(pid) for pid in children]
    web = [
        pid
        for pid in pids
        if b"batchedapi_serving.web_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return web, [server.pid, *pids]


def measure(
    found: Sequence[Measured],
    started: Sequence[Server],
    connections: int,
    rounds: int,
    seconds: float,
) -> None:
    """Rounds of all of them, interleaved."""
    chosen = workloads.WORKLOADS[WORKLOAD]
    rows = workloads.rows_of(chosen.width, 1)
    (body,) = workloads.bodies_of(rows)
    for server in started:
        wrk.timed(server, body, connections, _WARM_UP_SECONDS)
    for number in range(rounds):
        turn = list(zip(found, started, strict=True))
        for one, server in turn if number % 2 == 0 else reversed(turn):
            web, replica = processes_of(server)
            before = cpu_seconds(web), cpu_seconds(replica)
            one.rounds.append(wrk.timed(server, body, connections, seconds))
            one.web.append(cpu_seconds(web) - before[0])
            one.replica.append(cpu_seconds(replica) - before[1])
            click.echo(f"round {len(one.rounds)} {one.name}: {one.rounds[-1].rate:,.0f}/s")


def variables_of(share: float | None, port: int) -> dict[str, str]:
    """Variables that trace a share of the requests, for a collector on that port."""
    if share is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{servers.HOST}:{port}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
    }


@contextlib.contextmanager
def serving_all(port: int) -> Iterator[tuple[list[Server], Collector]]:
    """A replica for each of SHARES."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(servers.manifest_file(servers.manifest(WORKLOAD)))
        found = stack.enter_context(collector(port + 3 * _STEP))
        variables = [variables_of(share, port + 3 * _STEP) for share in SHARES]
        started = [
            stack.enter_context(servers.serving(file, port + number * _STEP, own))
            for number, own in enumerate(variables)
        ]
        yield started, found


def beside(ours: Sequence[float], theirs: Sequence[float], rounds: int) -> str:
    """Mean of the starts, of so many rounds each, and its standard error."""
    pairs = [quotient(a, b) for a, b in zip(ours, theirs, strict=True)]
    starts = range(0, len(pairs), rounds)
    return mean_and_error([statistics.median(pairs[n : n + rounds]) for n in starts])


def table_of(found: Sequence[Measured], spans: int, rounds: int) -> Table:
    """Each beside the first, which is off."""
    off = found[0]
    rows = [
        [
            one.name,
            Spread.of(one.rates).text(),
            beside(one.rates, off.rates, rounds),
            Spread.of(one.each(one.web)).text(2),
            beside(one.each(one.web), off.each(off.web), rounds),
            Spread.of(one.each(one.replica)).text(2),
            beside(one.each(one.replica), off.each(off.replica), rounds),
            str(sum(result.errors for result in one.rounds)),
            str(spans if one.share else 0),
        ]
        for one in found
    ]
    columns = [
        "tracing", "requests/s", "/ off", "web process, CPU us a request", "/ off",
        "replica, CPU us a request", "/ off", "errors", "spans received",
    ]  # fmt: skip
    return Table("W1: median (range) of the rounds", columns, rows)


@click.command(help=help_of(__doc__))
@click.option("--connections", type=click.IntRange(1, 1024), default=64, show_default=True)
@click.option("--starts", type=click.IntRange(1, 50), default=12, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1, 50), default=8, show_default=True, help="Of each start."
)
@click.option("--seconds", type=click.IntRange(1, 60), default=1, show_default=True)
@click.option("--port", type=int, default=PORT, show_default=True, help="First of some ports.")
@out_option
def main(  # noqa: PLR0917 - click passes its options
    connections: int, starts: int, rounds: int, seconds: int, port: int, out: Path | None
) -> None:
    """See the module's docstring."""
    began = environment()
    wrk.require_wrk()
    found, received = [Measured(share) for share in SHARES], 0
    for _ in range(starts):
        with serving_all(port) as (started, spans):
            measure(found, started, connections, rounds, seconds)
        received += len(spans.spans)  # what was held is sent when a replica stops
    note = (
        f"{starts} starts with {rounds} interleaved rounds of {seconds} s each at {connections}"
        " connections; wrk, the replicas and the collector share the machine. / off: of each"
        " start the median of the ratios of neighbouring rounds; their mean, and its standard"
        " error. Absolute figures do not travel."
    )
    measured = {
        one.name: {
            "requests_per_second": one.rates,
            "web_us": one.each(one.web),
            "replica_us": one.each(one.replica),
        }
        for one in found
    }
    tables = [table_of(found, received, rounds)]
    report("tracing", began, tables, notes=[note], measured=measured, out=out)
    if not received or any(result.errors for one in found for result in one.rounds):
        sys.exit("no span was received, or requests failed: see the table")


if __name__ == "__main__":
    main()
