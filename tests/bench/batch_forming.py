"""When a batch starts: ours beside other rules, as regret.

    python tests/bench/batch_forming.py --jobs 2

Simulated with the product's Scheduler in virtual time: nothing is timed, so the machine need not be
quiet, and the same seed gives the same table. The set is that of docs/decisions/0002: five t(n),
four intervals, closed, open, bursty and mixed traffic. Regret is by how much the best rule of a
cell is better: in requests a second where clients wait for answers (closed, mixed), in mean latency
where they do not (open, bursty).
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, TypeAlias

import click
from harness.clients import (
    Load,
    Outcome,
    Rule,
    Server,
    World,
    closed,
    on_and_off,
    poisson,
    together,
)
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import percentile

from batchedapi_core.batching import (
    Action,
    Batcher,
    BatchPolicy,
    Release,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.service_model import ServiceTime

SEED: Final = 7
SERVICES: Final[Mapping[str, tuple[ServiceTime, int]]] = {
    "W1": (ServiceTime(50e-6, 12e-6), 64),
    "W2": (ServiceTime(350e-6, 50e-6), 32),
    "W3": (ServiceTime(0.010, 0.0002), 64),
    "emb": (ServiceTime(0.025, 0.005), 32),
    "cpu": (ServiceTime(0.001, 0.004), 8),
}
INTERVALS: Final = (0.001, 0.005, 0.020, 0.100)
OPEN: Final = ("open", "bursty")
KINDS: Final = ("closed", "open", "bursty", "mixed")
MEAN_GOAL: Final = 0.005
WORST_GOAL: Final = 0.51
RETURNING_GOAL: Final = 0.10
"""Regret of ours: in the mean of all cells, in the worst, and there by address, as RETURNING."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Traffic of one kind, and how many rows of it are simulated."""

    kind: str
    load: Load
    rows: int
    closes: bool = False  # each connection, after one answer


Named: TypeAlias = Iterator[tuple[str, Cell]]


def _closed(service: ServiceTime) -> Named:
    for clients in (1, 2, 4, 16, 63, 64, 65, 256):
        for think in (0.0001, 0.001, 0.02):
            rows = min(8000, max(600, 100 * clients))
            yield (
                f"{clients} clients, {1e3 * think:g} ms",
                Cell("closed", closed(clients, think), rows),
            )
    for clients in (8, 32, 96):
        for share in (0.25, 0.6, 0.9, 1.5):
            load = closed(clients, share * service.fixed)
            yield f"{clients} clients, {share:g} a", Cell("closed", load, 100 * clients)


def _open(capacity: float, most: int) -> Named:
    for share in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        rows = 24000 if share >= 0.8 else 12000
        yield f"Poisson {share:.0%}", Cell("open", poisson(share * capacity), rows)
    for share in (0.5, 0.8):
        for pool in ("lifo", "fifo"):
            load = poisson(share * capacity, pool=pool)
            yield f"Poisson {share:.0%}, {pool} pool", Cell("open", load, 12000)
    seconds = 12000 / (0.5 * capacity)
    ramp = poisson(0.95 * capacity, share=lambda now: min(1.0, now / seconds))
    yield "ramp to 95%", Cell("open", ramp, 12000)
    for share in (0.3, 0.7):
        load = poisson(share * capacity * 2 / (1 + most), rows=(1, most))
        yield f"Poisson {share:.0%}, 1-{most} rows", Cell("open", load, 16000)


def _bursty(capacity: float, fixed: float, full: float) -> Named:
    for share in (0.1, 0.3, 0.6):
        for spread in (0.0, 0.2):
            load = poisson(share * capacity / 54, burst=(8, 100), spread=spread * fixed)
            yield f"bursts {share:.0%} in {spread:g} a", Cell("bursty", load, 16000)
    for share in (0.3, 0.6):
        load = on_and_off(1.5 * share * capacity, 0.0, 20 * full, 10 * full)
        yield f"on and off {share:.0%}", Cell("bursty", load, 16000)
    load = on_and_off(0.9 * capacity, 0.09 * capacity, 10 * full, 20 * full)
    yield "on and off 10 x", Cell("bursty", load, 16000)


def _mixed(capacity: float, most: int) -> Named:
    for think, share in ((0.001, 0.3), (0.001, 0.6), (0.02, 0.3), (0.0001, 0.1)):
        load = together(closed(16, think), poisson(share * capacity))
        name = f"16 clients, {1e3 * think:g} ms, and Poisson {share:.0%}"
        yield name, Cell("mixed", load, 8000)
    for name, load in (
        ("60 clients 0.1 ms, 4 20 ms", closed(64, lambda n: 0.0001 if n > 3 else 0.02)),
        ("56 clients 1 ms, 8 5 ms", closed(64, lambda n: 0.001 if n > 7 else 0.005)),
        ("32 clients 0.1 ms, 32 20 ms", closed(64, lambda n: 0.0001 if n % 2 else 0.02)),
        ("64 clients, exponential 1 ms", closed(64, 0.001, exponential=True)),
        ("64 clients, 1 ms +- 1%", closed(64, 0.001, deviation=0.01)),
    ):
        yield name, Cell("mixed", load, 6000)
    yield (
        f"16 clients, 1 ms, 1-{most} rows",
        Cell("mixed", closed(16, 0.001, rows=(1, most)), 12000),
    )
    for clients, rows in ((64, 6000), (16, 4000)):
        load = closed(clients, 0.001, keeps=0)
        yield f"{clients} clients, 1 ms, connections close", Cell("mixed", load, rows, closes=True)


def cells(service: str) -> dict[str, Cell]:
    """Traffic for a service; rates are shares of what one lane can do."""
    time, largest = SERVICES[service]
    full = time.seconds(largest)
    capacity, most = largest / full, 16 if largest >= 32 else 4
    return dict(
        [
            *_closed(time),
            *_open(capacity, most),
            *_bursty(capacity, time.fixed, full),
            *_mixed(capacity, most),
        ]
    )


# ---------------------------------------------------------------- other rules


class Last:
    """Waits for as many as the last batch had."""

    def __init__(self, *, from_free: bool) -> None:
        """`from_free`: the interval counts from the free lane, else from the oldest request."""
        self._from_free = from_free
        self._last = 1

    def __call__(self, batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
        """Instead of next_action."""
        action = next_action(batcher, now, ahead=ahead)
        if not isinstance(action, Release):
            return action
        since = batcher.queue.oldest_arrival
        if self._from_free:
            since = max(since, batcher.lanes.free_since)
        end = since + batcher.policy.batch_interval
        if action.size < min(self._last, batcher.policy.max_batch_size) and now < end:
            return WaitUntil(end, self._last)
        self._last = action.size
        return action


def at_least(size: int) -> Rule:
    """Waits for so many, however long that takes."""

    def rule(batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
        action = next_action(batcher, now, ahead=ahead)
        if isinstance(action, Release) and action.size < size:
            return WaitUntil(now + 1e6, size)
        return action

    return rule


def for_everybody(batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
    """Ours, but a wait is for everybody who is known, however slowly they come."""
    action = next_action(batcher, now, ahead=ahead)
    if not isinstance(action, WaitUntil) or not action.size:
        return action
    away = sum(group.away for group in batcher.returning.groups if group.end > now)
    known = batcher.queue.size + batcher.running_size + away
    return WaitUntil(action.at, min(batcher.policy.max_batch_size, known))


EAGER: Final = Strategy.IMMEDIATE
OTHERS: Final[Mapping[str, tuple[Strategy, Callable[[], Rule] | None]]] = {
    "never waits": (EAGER, None),
    "the interval, from the oldest": (Strategy.FIXED, None),
    "as many as the last": (EAGER, partial(Last, from_free=False)),
    "as many as the last, from the free lane": (EAGER, partial(Last, from_free=True)),
    "returning clients, always everybody": (Strategy.WINDOW, lambda: for_everybody),
    **{f"at least {n}": (EAGER, partial(at_least, n)) for n in (2, 4, 8)},
}
"""`at least` only in the open cells: in others it may wait for ever."""
OURS: Final = "ours"
ADDRESS: Final = "ours, connections that close by address"
RETURNING: Final = "ours, those of clients that return by address"
FREE_OF_INTERVAL: Final = ("never waits", *(f"at least {n}" for n in (2, 4, 8)))


def value(kind: str, outcome: Outcome) -> float:
    """What is compared in cells of a kind; more is better."""
    return 1.0 / outcome.mean if kind in OPEN else outcome.throughput


def run_cell(service: str, name: str) -> dict[float, dict[str, float]]:
    """The value of every rule in a cell, by interval."""
    cell, (time, largest) = cells(service)[name], SERVICES[service]

    def run(interval: float, rule: str) -> float:
        strategy, made = OTHERS.get(rule, (Strategy.WINDOW, None))
        server = Server(BatchPolicy(largest, interval, strategy), time.seconds, rule=made)
        world = World(server, cell.load, SEED, one_address=rule == ADDRESS)
        return value(cell.kind, world.until(cell.rows))

    rules = [rule for rule in OTHERS if cell.kind == "open" or not rule.startswith("at least")]
    free = {rule: run(0.0, rule) for rule in rules if rule in FREE_OF_INTERVAL}
    return {
        interval: {
            rule: free[rule] if rule in free else run(interval, rule)
            for rule in (OURS, ADDRESS, *rules)
        }
        for interval in INTERVALS
    }


# ---------------------------------------------------------------- the table

Regrets = Mapping[str, float]
"""Of each rule in a cell."""


def regrets(values: Mapping[str, float]) -> Regrets:
    """Of each rule; that by address is not among the best that the others are compared with."""
    best = max(found for rule, found in values.items() if rule != ADDRESS)
    return {
        rule: (max(best, found) if rule == ADDRESS else best) / found - 1.0
        for rule, found in values.items()
    }


def _job(cell: tuple[str, str]) -> tuple[tuple[str, str], dict[float, Regrets]]:
    closes = cells(cell[0])[cell[1]].closes
    found: dict[float, Regrets] = {}
    for interval, values in run_cell(*cell).items():
        one = regrets(values)
        found[interval] = {RETURNING: one[ADDRESS if closes else OURS], **one}
    return cell, found


def spread(shares: Sequence[float]) -> str:
    """Worst, 95th percentile and mean, in percent."""
    if not shares:
        return "-"
    worst, high, mean = max(shares), percentile(shares, 95), fmean(shares)
    return f"{100 * worst:.0f} / {100 * high:.1f} / {100 * mean:.2f}"


@click.command(help=help_of(__doc__))
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes.")
@click.option("--service", "services", multiple=True, default=SERVICES, help="Some; absent: all.")
@out_option
def main(jobs: int, services: Sequence[str], out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    todo = [(service, name) for service in services for name in cells(service)]
    kinds = {cell: cells(cell[0])[cell[1]].kind for cell in todo}
    with multiprocessing.Pool(jobs) as pool:
        found = sorted(pool.imap_unordered(_job, todo, 2), key=lambda one: todo.index(one[0]))
    runs = [(*cell, interval, one) for cell, by in found for interval, one in by.items()]

    def of(rule: str, kind: str | None = None) -> list[float]:
        return [
            one[rule]
            for service, name, _, one in runs
            if rule in one and kind in {None, kinds[service, name]}
        ]

    rules = (
        OURS,
        RETURNING,
        ADDRESS,
        *(rule for rule in OTHERS if not rule.startswith("at least")),
    )
    table = Table(
        "Regret in %: worst / 95th percentile / mean",
        ("rule", *KINDS, "all"),
        [(rule, *(spread(of(rule, kind)) for kind in KINDS), spread(of(rule))) for rule in rules],
    )
    by_regret = {
        rule: sorted(runs, key=lambda run: -run[3][rule])[:WORST]
        for rule in (OURS, RETURNING, ADDRESS)
    }
    dearest = Table(
        "Where it is most",
        ("rule", "service", "traffic", "interval, ms", "regret", "best"),
        [
            (
                rule, service, name, f"{1e3 * interval:g}", f"{one[rule]:.1%}",
                min((other for other in one if "address" not in other), key=one.__getitem__),
            )
            for rule, cases in by_regret.items()
            for service, name, interval, one in cases
        ],
    )  # fmt: skip
    measured = {
        "cells": len(runs),
        "regret": {
            rule: {
                kind or "all": {"worst": round(max(of(rule, kind)), 4),
                                "mean": round(fmean(of(rule, kind)), 5)}
                for kind in (*KINDS, None)
            }
            for rule in rules
        },
    }  # fmt: skip
    report("batch_forming", around, [table, dearest], notes=[HOW], measured=measured, out=out)
    missed = max(of(OURS)) > WORST_GOAL or max(of(RETURNING)) > RETURNING_GOAL
    sys.exit(fmean(of(OURS)) > MEAN_GOAL or missed)


WORST: Final = 6  # cells that are named
HOW: Final = """\
Each rule runs through the product's Scheduler, on the same arrivals. The best of a cell is the best
of all rules but those by address, in the open cells of `at least` 2, 4 and 8, too. By address: all
connections that close after their answer count as one client, as if they came from one peer; the
product does not do so. Those of clients that return: only in closed loops, where they do."""


if __name__ == "__main__":
    main()
