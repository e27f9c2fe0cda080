"""What each term of forming batches brings where it matters most, and costs elsewhere.

    python tests/bench/batch_terms.py --jobs 2

A term is left out of the product's Scheduler, or a setting is not made, and nothing else is
changed. Simulated as in batch_forming.py, and its cells at an interval of 5 ms are the common set.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias

import click
from batch_forming import OPEN, SEED, SERVICES, cells, for_everybody
from harness.clients import Load, Outcome, Rule, Server, World, closed, on_and_off, poisson
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract
from batchedapi_core.batching import (
    Action,
    Batcher,
    BatchPolicy,
    Client,
    Effective,
    QueueOrder,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.policy import Adaptive
from batchedapi_core.batching.traffic import Bursts, ReturningClients
from batchedapi_core.service_model import ServiceTime

INTERVAL: Final = 0.005
TARGETS: Final = {"W1": 0.005, "W2": 0.010, "W3": 0.100, "emb": 0.500, "cpu": 0.100}
"""Seconds; of the terms that need a latency target."""
SHARE: Final = 0.5  # of the rows of each cell

Change: TypeAlias = Callable[[Server], Server]


# ---------------------------------------------------------------- without a term


class NobodyAwaited(ReturningClients):
    """Learns who comes back, and expects nobody."""

    def answered(self, answers: Iterable[tuple[Client, int]], now: float) -> None:
        """See ReturningClients."""
        super().answered(answers, now)
        self.groups = []


class NoBursts(Bursts):
    """Sees none."""

    def arrived(self, size: int, now: float, *, idle: bool) -> None:
        """See Bursts."""


class SizesOnly(Adaptive):
    """Leaves the interval as it is written."""

    def __init__(self, policy: BatchPolicy) -> None:
        super().__init__(policy)
        self._interval = policy.batch_interval

    def _tuned(self, line: ServiceTime) -> Effective:
        """See Adaptive."""
        return Effective(super()._tuned(line).max_batch_size, self._interval)


def at_every_arrival(batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
    """Ours, but each arrival ends the wait, to be thought over."""
    action = next_action(batcher, now, ahead=ahead)
    return WaitUntil(action.at) if isinstance(action, WaitUntil) else action


def to_the_interval(batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
    """Ours, but a wait for clients ends with the interval, not a tick later."""
    action = next_action(batcher, now, ahead=ahead)
    if not isinstance(action, WaitUntil):
        return action
    begun = max(batcher.queue.oldest_arrival, batcher.lanes.free_since)
    return WaitUntil(min(action.at, begun + batcher.policy.batch_interval), action.size)


def _plain(server: Server) -> Server:
    return server


def _ruled(rule: Rule) -> Change:
    return lambda server: replace(server, rule=lambda: rule)


def _nobody(server: Server) -> Server:
    def prepare(batcher: Batcher) -> None:
        batcher.returning = NobodyAwaited()

    return replace(server, prepare=prepare)


def _four_lanes(server: Server) -> Server:
    return replace(server, lanes=4)


def _four_workers(server: Server) -> Server:
    """On one queue, where nobody can tell who will get a client's next request."""
    return _nobody(_four_lanes(server))


def _no_bursts(server: Server) -> Server:
    def prepare(batcher: Batcher) -> None:
        batcher.bursts = NoBursts()

    return replace(server, prepare=prepare)


def _sizes_only(server: Server) -> Server:
    def prepare(batcher: Batcher) -> None:
        server.prepare(batcher)
        batcher.policies.adaptive = SizesOnly(batcher.policy)

    return replace(server, prepare=prepare)


def _no_target_in_waits(server: Server) -> Server:
    def prepare(batcher: Batcher) -> None:
        server.prepare(batcher)
        batcher.policy_in_effect = replace(batcher.policy, latency_target=None)

    return replace(server, prepare=prepare)


def _nothing_ahead(server: Server) -> Server:
    return replace(server, sends_ahead=False)


def _untold(server: Server) -> Server:
    return replace(server, told_of_closing=False)


def _by_deadline(server: Server) -> Server:
    return replace(server, policy=replace(server.policy, queue_order=QueueOrder.DEADLINE))


def _preferring(server: Server) -> Server:
    largest = server.policy.max_batch_size
    sizes = largest // 8, largest // 4, largest // 2, largest
    return replace(server, policy=replace(server.policy, preferred_sizes=sizes))


def _adaptive(server: Server) -> Server:
    return replace(server, policy=replace(server.policy, strategy=Strategy.ADAPTIVE))


def aiming(server: Server, target: float) -> Server:
    """With a latency target, and as a model process that is to meet one times its batches."""

    def prepare(batcher: Batcher) -> None:
        for size in contract.batch_size_buckets(batcher.policy.max_batch_size):
            batcher.warmed_up(size, server.seconds(size))

    return replace(server, policy=replace(server.policy, latency_target=target), prepare=prepare)


# ---------------------------------------------------------------- terms


class Measure:
    """What is compared; more is better but for times."""

    ROWS = "rows/s"
    MEAN = "ms"
    IN_TIME = "in time"


def figure(measure: str, outcome: Outcome) -> float:
    """Of an outcome."""
    if measure == Measure.ROWS:
        return outcome.throughput
    return 1e3 * outcome.mean if measure == Measure.MEAN else outcome.in_time


def text(measure: str, value: float) -> str:
    """A figure with its unit."""
    if measure == Measure.IN_TIME:
        return f"{value:.1%} in time"
    return f"{value:.0f} rows/s" if measure == Measure.ROWS else f"{value:.1f} ms"


def gain(measure: str, with_it: float, without: float) -> float:
    """By what share it is better with it."""
    return (without / with_it if measure == Measure.MEAN else with_it / without) - 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """A load that has what a term is for."""

    name: str
    server: Server
    load: Load
    measure: str
    rows: int = 40_000


@dataclass(frozen=True, slots=True)
class Term:
    """One, with it and without."""

    having: Change
    lacking: Change
    case: Case | None = None  # None: the cell of the set in which it brings most
    on_set: bool = True
    aims: bool = False  # on the set: at TARGETS


W3: Final = SERVICES["W3"][0]
CPU: Final = SERVICES["cpu"][0]
FLAT: Final = ServiceTime(0.0005, 0.001)
FULL: Final = 64 / W3.seconds(64)  # rows/s of W3
PADDED: Final = (8, 16, 32, 64)


def padded(rows: int) -> float:
    """Seconds of a compiled model, which fills batches up to the next of PADDED."""
    return 0.002 + 0.0005 * next(size for size in PADDED if rows <= size)


def _server(seconds: Callable[[int], float], largest: int, interval: float = INTERVAL) -> Server:
    return Server(BatchPolicy(largest, interval), seconds)


_BURSTS_OF_256: Final = Case(
    "bursts of 128-256, 0.5 + n ms, target 100 ms",
    aiming(_server(FLAT.seconds, 256, 0.1), 0.1),
    poisson(0.3 * 1000 / 192, burst=(128, 256), spread=0.025),
    Measure.IN_TIME,
)

TERMS: Final[Mapping[str, Term]] = {
    "waiting for returning clients": Term(_plain, _nobody),
    "waiting for returning clients, 4 lanes": Term(_four_lanes, _four_workers),
    "a wait is for all who are known": Term(_plain, _ruled(at_every_arrival)),
    "unless they come too slowly": Term(_plain, _ruled(for_everybody)),
    "a tick more than the interval": Term(
        _plain,
        _ruled(to_the_interval),
        Case(
            "W3, 64 clients, 1 ms +- 1%, interval 1 ms",
            _server(W3.seconds, 64, 0.001),
            closed(64, 0.001, deviation=0.01),
            Measure.ROWS,
        ),
    ),
    "who closed is not awaited": Term(
        _plain,
        _untold,
        Case(
            "W3, 4 clients, 3 ms, 10 requests a connection",
            _server(W3.seconds, 64),
            closed(4, 0.003, keeps=10),
            Measure.MEAN,
        ),
        on_set=False,
    ),
    "bursts": Term(_plain, _no_bursts),
    "a batch ahead": Term(
        _plain,
        _nothing_ahead,
        Case(
            "W3, 256 clients, a lane idle for 1 ms between batches",
            replace(_server(W3.seconds, 64), handover=0.001),
            closed(256, 0.001),
            Measure.ROWS,
        ),
    ),
    "queueOrder: Deadline": Term(
        _by_deadline,
        _plain,
        Case(
            "W3, on and off 70%, timeouts of 0.1 s and 2 s",
            _server(W3.seconds, 64),
            on_and_off(1.4 * FULL, 0.14 * FULL, 0.5, 0.5, timeouts=(0.1, 2.0)),
            Measure.IN_TIME,
        ),
    ),
    "preferredBatchSizes": Term(
        _preferring,
        _plain,
        Case(
            "rows padded to 8, 16, 32, 64, Poisson 80%",
            _server(padded, 64),
            poisson(0.8 * 64 / padded(64)),
            Measure.MEAN,
        ),
    ),
    "maxLatency ends a wait": Term(
        _plain,
        _no_target_in_waits,
        Case(
            "W3, 4 clients, 8 ms, interval 100 ms, target 24 ms",
            aiming(_server(W3.seconds, 64, 0.1), 0.024),
            closed(4, 0.008),
            Measure.IN_TIME,
        ),
        aims=True,
    ),
    "maxLatency ends a wait, at its worst": Term(
        _plain,
        _no_target_in_waits,
        Case(
            "W3, 8 clients, 3 ms, interval 100 ms, target 17 ms",
            aiming(_server(W3.seconds, 64, 0.1), 0.017),
            closed(8, 0.003),
            Measure.IN_TIME,
        ),
        on_set=False,
    ),
    "Adaptive": Term(_adaptive, _plain, _BURSTS_OF_256, aims=True),
    "Adaptive, at its worst": Term(
        _adaptive,
        _plain,
        Case(
            "cpu, Poisson 200%, target 100 ms",
            aiming(_server(CPU.seconds, 8), 0.1),
            poisson(2 * 8 / CPU.seconds(8)),
            Measure.IN_TIME,
        ),
        on_set=False,
    ),
    "Adaptive: its interval": Term(
        _adaptive, lambda server: _sizes_only(_adaptive(server)), _BURSTS_OF_256, aims=True
    ),
}


# ---------------------------------------------------------------- the common set

Cell: TypeAlias = tuple[str, str]
"""A service and its traffic."""
Pair: TypeAlias = tuple[float, float]
"""With and without."""


def on_the_set(cell: Cell) -> tuple[Cell, dict[str, Pair]]:
    """Figures with and without each term in a cell."""
    service, name = cell
    (time, largest), traffic = SERVICES[service], cells(service)[name]
    server = _server(time.seconds, largest)
    known: dict[tuple[Change, bool], float] = {}

    def run(change: Change, *, aims: bool) -> float:
        if (change, aims) not in known:
            made = change(aiming(server, TARGETS[service]) if aims else server)
            world = World(made, traffic.load, SEED, one_address=False)
            outcome = world.until(int(SHARE * traffic.rows))
            in_time = (len(outcome.latencies) - outcome.late) / outcome.span
            known[change, aims] = in_time if aims else figure(measure_of(cell), outcome)
        return known[change, aims]

    return cell, {
        name: (run(term.having, aims=term.aims), run(term.lacking, aims=term.aims))
        for name, term in TERMS.items()
        if term.on_set
    }


def measure_of(cell: Cell) -> str:
    """What is compared in a cell without a target."""
    return Measure.MEAN if cells(cell[0])[cell[1]].kind in OPEN else Measure.ROWS


def on_its_load(name: str) -> Pair:
    """Figures with and without a term on its own load."""
    term = TERMS[name]
    case = term.case
    assert case is not None

    def run(change: Change) -> float:
        world = World(change(case.server), case.load, SEED, one_address=False)
        return figure(case.measure, world.until(case.rows))

    return run(term.having), run(term.lacking)


def told(cell: Cell) -> str:
    """A cell's name."""
    return ", ".join(cell)


def row_of(name: str, found: Sequence[tuple[Cell, Mapping[str, Pair]]]) -> dict[str, Any]:
    """What a term brings on its load and on the set."""
    term = TERMS[name]
    gains = {}
    if term.on_set:
        gains = {
            cell: gain(Measure.ROWS if term.aims else measure_of(cell), *pairs[name])
            for cell, pairs in found
        }
    if term.case is None:
        best = max(gains, key=gains.__getitem__)
        load, measure, pair = told(best), measure_of(best), dict(found)[best][name]
    else:
        load, measure, pair = term.case.name, term.case.measure, on_its_load(name)
    worst = min(gains, key=gains.__getitem__, default=None)
    return {
        "load": load,
        "without": text(measure, pair[1]),
        "with": text(measure, pair[0]),
        "brings": round(gain(measure, *pair), 4),
        "set_mean": round(fmean(gains.values()), 5) if gains else None,
        "set_worst": None if worst is None else [told(worst), round(gains[worst], 4)],
        "set_best": round(max(gains.values()), 4) if gains else None,
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    on_set = ("-", "-")
    if row["set_worst"]:
        where, worst = row["set_worst"]
        on_set = f"{row['set_mean']:+.2%}", f"{worst:+.1%}: {where}" if worst < 0.0 else "none"
    return row["load"], row["without"], row["with"], f"{row['brings']:+.1%}", *on_set


@click.command(help=help_of(__doc__))
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes.")
@click.option("--service", "services", multiple=True, default=SERVICES, help="Some; absent: all.")
@out_option
def main(jobs: int, services: Sequence[str], out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    todo = [(service, name) for service in services for name in cells(service)]
    with multiprocessing.Pool(jobs) as pool:
        found = sorted(pool.imap_unordered(on_the_set, todo, 2), key=lambda one: todo.index(one[0]))
    rows = {name: row_of(name, found) for name in TERMS}
    table = Table(
        "Without and with each term",
        ("term", "load", "without", "with", "brings", "on the set", "costs most"),
        [(name, *_cells(row)) for name, row in rows.items()],
    )
    report("batch_terms", around, [table], notes=[HOW], measured=rows, out=out)


HOW: Final = """\
Brings: by how much it is better with the term, in rows/s, in the share that is answered in time,
or in mean latency. The load of a term that has none of its own is the cell of the set in which it
brings most. On the set: the mean of its cells at an interval of 5 ms, and the cell that is worst
with it; of terms that need a target, in requests answered in time a second."""


if __name__ == "__main__":
    main()
