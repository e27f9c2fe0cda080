"""Ours beside the autoscalers of others: requests that miss their target, and what that costs.

    python tests/bench/autoscaling --jobs 2
    python tests/bench/autoscaling --service emb --trace step,flash --controller batchedapi,kpa-safe

Simulated with `batchedapi_core.simulation`: nothing is timed, so the machine need not be quiet.
A miss is a request answered later than the target or refused. Cost is replica-seconds over those
of a clairvoyant, who has for every 5 s the fewest replicas that hold its load.
"""

import contextlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Final

import click
from harness.report import environment, help_of, out_option, report

from autoscaling import cases, tables
from autoscaling.cases import Case, Result
from autoscaling.roster import ROSTER
from autoscaling.services import MAX_REPLICAS, MIN_REPLICAS, SERVICES
from autoscaling.traces import LOADS
from batchedapi_core.simulation import NoisyService, max_rate

_DIGITS: Final = 5  # of the figures written; the seeds differ in the third


def _job(job: tuple[Case, float]) -> Result:
    return cases.run(*job)


def run_all(todo: Sequence[Case], rates: Mapping[NoisyService, float], jobs: int) -> list[Result]:
    """Run the cases in `jobs` processes, telling how far it is once in a while."""
    with _ending_on_sigterm(), multiprocessing.Pool(jobs, _leave_to_parent) as pool:
        return list(_told(_each(pool, todo, rates), len(todo)))


def _each(
    pool: Pool, todo: Sequence[Case], rates: Mapping[NoisyService, float]
) -> Iterable[Result]:
    return pool.imap_unordered(_job, [(case, rates[case.served]) for case in todo])


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the program, so that the pool ends its processes."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all of them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the pool ends them


def _told(results: Iterable[Result], total: int) -> Iterable[Result]:
    began = told = time.monotonic()
    for done, result in enumerate(results, 1):
        now = time.monotonic()
        if now - told > 10.0 or done == total:
            told = now
            click.echo(f"{done} of {total} cases after {now - began:.0f} s", err=True)
        yield result


def _named(known: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Reads a list of names with commas; empty: all."""
    names = list(known)

    def read(_: click.Context, __: click.Parameter, value: str) -> list[str]:
        asked = [name.strip() for name in value.split(",") if name.strip()] or names
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise click.BadParameter(f"{', '.join(unknown)}: expected of {', '.join(names)}")
        return asked

    return read


def _some(known: Iterable[str]) -> str:
    return f"Some of {', '.join(known)}, with commas; absent: all."


@click.command(help=help_of(__doc__))
@click.option("--service", "services", default="", callback=_named(SERVICES),
              help=_some(SERVICES))  # fmt: skip
@click.option("--trace", "loads", default="", callback=_named(LOADS),
              help=_some(LOADS))  # fmt: skip
@click.option("--controller", "controllers", default="", callback=_named(ROSTER),
              help=_some(ROSTER))  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True,
              help="Runs of each case.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True,
              help="Processes.")  # fmt: skip
@out_option
def main(
    *,
    services: list[str],
    loads: list[str],
    controllers: list[str],
    seeds: int,
    jobs: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began, start = environment(), time.monotonic()
    todo = cases.cases_of(services, loads, controllers, seeds)
    ordinary = {name: SERVICES[name] for name in services}
    rates = {one: max_rate(one) for one in {*ordinary.values(), *(case.served for case in todo)}}
    held = {name: rates[service] for name, service in ordinary.items()}
    results = sorted(run_all(todo, rates, jobs), key=lambda result: todo.index(result.case))
    took = time.monotonic() - start
    report(
        "autoscaling",
        began,
        tables.tables(results),
        notes=[_HOW, _rates_note(held), tables.wins(results), _extent(len(todo), jobs, took)],
        measured={"max_rate": held, "cases": [_row(result) for result in results]},
        out=out,
    )


_HOW: Final = f"""\
Misses: percent of the requests answered after the target or refused. Cost: replica-seconds over a
clairvoyant's, who needs no time to start replicas. {MIN_REPLICAS} to {MAX_REPLICAS} replicas.
Cells are means over the services, or over the loads where the column is a service.
An asterisk: the target needs a load test of this model on this hardware; it was given the truth."""


def _rates_note(rates: Mapping[str, float]) -> str:
    held = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return f"Rows/s that one replica holds with 99 % in time: {held}."


def _extent(count: int, jobs: int, took: float) -> str:
    return f"{count} simulations in {took / 60:.1f} min, {jobs} at a time."


def _row(result: Result) -> dict[str, object]:
    figures = asdict(result)
    return {
        **figures.pop("case"),
        **{
            name: round(value, _DIGITS) if isinstance(value, float) else value
            for name, value in figures.items()
        },
    }
