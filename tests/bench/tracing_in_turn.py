"""What tracing at 1 % costs one replica, which draws requests and does not draw in turn.

    python tests/bench/tracing_in_turn.py --starts 6 --seconds 40

One wrk asks it with the body of W1, without a pause. Every 0.3 s a signal turns drawing on or off,
A B B A, and each slice is beside its neighbours: what disturbs a machine disturbs both. The figure
of a start is the median of its pairs. tracing.py measures replicas beside each other, as users have
them, and rounds of those differ by 20 % on two noisy cores.
"""

import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import click
import workloads
from harness import metrics, servers, wrk
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import mean_and_error
from harness.servers import PORT, Server
from tracing import SHARE, WORKLOAD, cpu_seconds, processes_of, variables_of

from batchedapi_core import contract
from otlp import collector

SLICE_SECONDS: Final = 0.3
SETTLE_SECONDS: Final = 0.03
"""After a signal, for what is on its way."""
TURNS: Final = (False, True, True, False)
_WARM_UP_SECONDS: Final = 2
_DRAWING: Final = Path(__file__).parent / "harness" / "drawing"


class Reading(NamedTuple):
    """Of a running replica."""

    web: float
    """CPU seconds so far."""
    replica: float
    page: bytes
    at: float
    """Seconds."""


class Slice(NamedTuple):
    """A moment under one load."""

    draws: bool
    web: float
    """CPU seconds a request."""
    replica: float
    rate: float
    """Requests/s."""


def reading(server: Server, web: Sequence[int], replica: Sequence[int]) -> Reading:
    """Now; the page is read later, as that takes time."""
    _, page = servers.ask(server.admin_port, contract.PATH_METRICS, None)
    return Reading(cpu_seconds(web), cpu_seconds(replica), page, time.monotonic())


def answered(page: bytes) -> float:
    """Requests so far."""
    return metrics.total(metrics.parse(page.decode()), contract.METRIC_REQUESTS)


def slice_of(before: Reading, after: Reading, *, draws: bool) -> Slice:
    """What happened between."""
    requests = answered(after.page) - answered(before.page)
    return Slice(
        draws,
        (after.web - before.web) / requests,
        (after.replica - before.replica) / requests,
        requests / (after.at - before.at),
    )


def in_turn(server: Server, seconds: float) -> list[Slice]:
    """Slices of a replica under load."""
    web, replica = processes_of(server)
    readings: list[tuple[bool, Reading, Reading]] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        draws = TURNS[len(readings) % len(TURNS)]
        os.kill(web[0], signal.SIGRTMIN + int(draws))
        time.sleep(SETTLE_SECONDS)
        before = reading(server, web, replica)
        time.sleep(SLICE_SECONDS)
        readings.append((draws, before, reading(server, web, replica)))
    return [slice_of(before, after, draws=draws) for draws, before, after in readings]


def beside(slices: Sequence[Slice]) -> tuple[float, float, float]:
    """Web process, replica and rate where it draws, of what they are in the neighbouring slice."""
    pairs = [(a, b) if b.draws else (b, a) for a, b in pairwise(slices) if a.draws != b.draws]
    return (
        statistics.median(on.web / off.web for off, on in pairs),
        statistics.median(on.replica / off.replica for off, on in pairs),
        statistics.median(on.rate / off.rate for off, on in pairs),
    )


@click.command(help=help_of(__doc__))
@click.option("--connections", type=click.IntRange(1, 1024), default=64, show_default=True)
@click.option("--starts", type=click.IntRange(1, 50), default=6, show_default=True)
@click.option("--seconds", type=click.IntRange(2, 600), default=40, show_default=True)
@click.option("--port", type=int, default=PORT, show_default=True, help="First of some ports.")
@out_option
def main(connections: int, starts: int, seconds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    wrk.require_wrk()
    (body,) = workloads.bodies_of(workloads.rows_of(workloads.WORKLOADS[WORKLOAD].width, 1))
    path = [str(_DRAWING), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**variables_of(port + 2), "PYTHONPATH": os.pathsep.join(path)}
    found: list[tuple[float, float, float]] = []
    errors = received = 0
    for _ in range(starts):
        with (
            collector(port + 2) as spans,
            servers.manifest_file(servers.manifest(WORKLOAD)) as file,
            servers.serving(file, port, variables) as server,
            ThreadPoolExecutor(1) as pool,
        ):
            load = pool.submit(wrk.timed, server, body, connections, seconds + 2 * _WARM_UP_SECONDS)
            time.sleep(_WARM_UP_SECONDS)
            found.append(beside(in_turn(server, seconds)))
            errors += load.result().errors
        received += len(spans.spans)
        click.echo("start {}: {:.3f} {:.3f} {:.3f}".format(len(found), *found[-1]))
    figures = [mean_and_error(values) for values in zip(*found, strict=True)]
    table = Table(
        f"{WORKLOAD}: with {SHARE:.0%} drawn, of none",
        ("web process, CPU a request", "replica, CPU a request", "requests/s", "errors", "spans"),
        [(*figures, str(errors), str(received))],
    )
    note = (
        f"Mean and standard error of {starts} starts, each the median of neighbouring slices of"
        f" {SLICE_SECONDS:g} s in {seconds} s; {connections} connections. wrk and the collector"
        " share the machine."
    )
    report("tracing_in_turn", began, [table], notes=[note], measured={"starts": found}, out=out)
    if not received or errors:
        sys.exit("no span was received, or requests failed: see the table")


if __name__ == "__main__":
    main()
