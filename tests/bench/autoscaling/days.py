"""Twelve days of load whose jumps the clock repeats, and what ours makes of them from day four on.

    python tests/bench/autoscaling/days.py --hours 3 --jobs 2

A week's ten-minute means carry jumps of 1.6 to 4 times: at fixed seconds of the hour and of the
day, within 20 s of them, and as many as a third at no fixed time. There are a holiday, a schedule
that ends, and the day on which clocks are set. Of each day some hours are simulated.
"""

import json
import math
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import click
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as for the programs beside it

from harness.report import Table, environment, help_of, out_option, report

from autoscaling.quick import quick
from autoscaling.services import MAX_REPLICAS, SERVICES, LoadTested
from batchedapi_core.scaling.forecast import LEAST_LOAD
from batchedapi_core.scaling.schedule import Schedule
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.simulation import (
    STARTUP,
    CapacityController,
    PoissonTrace,
    clairvoyant,
    simulate,
)

DAYS: Final = 12
HOUR, DAY = 3600, 86400
RATE: Final = 166.4
"""Rows/s that one replica of `emb` holds, by `simulation.max_rate`."""
MEAN: Final = 2.5
"""Of the load, 1.0 being 80 % of what one replica holds."""
FIRST: Final = 3
"""Day four: before, nobody can know what most days bring."""
HOLIDAY, ENDS, CLOCKS_SET = 6, 8, 10
"""Days, from 0: without jumps at half the load; the last of some schedules; the first on which
schedules of the day come an hour earlier."""
LOOK: Final = 10
"""Seconds between looks while days are learned from; in simulated hours they are two."""
LEAD_IN: Final = 900
"""Seconds that are simulated before an hour that counts: capacity and start-ups are learned."""

Levels = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mark:
    """A schedule: jumps at a fixed second."""

    second: int  # of its period
    period: int  # seconds
    ratio: float  # times the load
    ends: bool  # with the day ENDS


@dataclass(frozen=True, slots=True)
class Jump:
    """An occurrence."""

    start: int  # seconds
    seconds: int
    ratio: float


@cache
def base(week: str) -> Levels:
    """Level of each second without jumps; linear between the middles of ten minutes."""
    known = json.loads(Path(__file__).with_name("weeks.json").read_text())["weeks"][week]
    middles = 300.0 + 600.0 * np.arange(len(known))
    means = np.maximum(MEAN * np.asarray(known) / 100.0, 0.05)
    return np.interp(np.arange(DAYS * DAY), middles, means)


def marks(rng: np.random.Generator) -> list[Mark]:
    """Each hour one and one that ends, every other hour one, and six of the day, two that end."""
    periods = [(HOUR, False), (HOUR, True), (2 * HOUR, False)]
    periods += [(DAY, number < 2) for number in range(6)]
    return [
        Mark(int(rng.integers(period)), period, float(rng.uniform(1.6, 4.0)), ends)
        for period, ends in periods
    ]


def jumps(seed: int) -> list[Jump]:
    """All of them in order: nine in ten of those that are due, and sixteen a day by chance."""
    rng = np.random.default_rng(seed)
    found = []
    for mark in marks(rng):
        for due in range(mark.second, DAYS * DAY, mark.period):
            day, of_day = due // DAY, mark.period != HOUR
            at = due - (HOUR if of_day and day >= CLOCKS_SET else 0) + int(rng.integers(-20, 21))
            ratio = max(1.2, mark.ratio * float(rng.lognormal(0.0, 0.12)))
            gone = day == HOLIDAY or (mark.ends and day > ENDS)
            if rng.random() < 0.9 and not gone:
                found.append(Jump(max(0, at), int(rng.integers(120, 420)), ratio))
    for _ in range(16 * DAYS):
        start, seconds = int(rng.integers(DAYS * DAY)), int(rng.integers(120, 420))
        found.append(Jump(start, seconds, float(rng.uniform(1.6, 4.0))))
    return sorted(found, key=lambda jump: jump.start)


def levels(week: str, seed: int) -> Levels:
    """Level of each second; jumps come within 5 s, and the larger of two that overlap counts."""
    ratio = np.ones(DAYS * DAY)
    for jump in jumps(seed):
        t = np.arange(jump.start, min(jump.start + jump.seconds, DAYS * DAY))
        ramp = 1.0 + (jump.ratio - 1.0) * np.minimum(1.0, (t - jump.start + 1) / 5.0)
        ratio[t] = np.maximum(ratio[t], ramp)
    made = base(week) * ratio
    made[HOLIDAY * DAY : (HOLIDAY + 1) * DAY] *= 0.5
    return np.minimum(made, 0.8 * MAX_REPLICAS)


def hours(seed: int, each_day: int) -> list[int]:
    """First seconds of the hours that count, `each_day` of each day from FIRST on."""
    rng = np.random.default_rng(1000 + seed)
    days = range(FIRST, DAYS)
    return [
        day * DAY + HOUR * int(hour)
        for day in days
        for hour in sorted(rng.choice(24, each_day, replace=False))
    ]


@dataclass(frozen=True, slots=True)
class Hour:
    """The outcome of one."""

    week: str
    seed: int
    day: int  # from 0
    hour: int
    requests: int
    late: int  # or refused
    cost: float  # replica-seconds
    least: float  # those of a clairvoyant
    most: int  # replicas at once


def schedules(week: str, seed: int, starts: Sequence[int]) -> Iterator[Schedule]:
    """What ours has learned when the simulation of each hour begins; `starts` are in order."""
    known, every = LoadTested(SERVICES["emb"], RATE), levels(week, seed)
    rng, learned = np.random.default_rng(seed), Schedule()
    begins = [start - LEAD_IN for start in starts]
    rates = rng.poisson(every[: max(begins)].reshape(-1, LOOK).sum(axis=1) * known.planned_rate)
    for number, rows in enumerate(rates.tolist()):
        now = float(LOOK * number)
        if now in begins:
            yield learned
        expected = learned.expected(now, lead=STARTUP[1])
        level = rows / LOOK
        learned = learned.looked(now, level=level, least=LEAST_LOAD * RATE, expected=expected)
    yield learned


def run(week: str, seed: int, jobs: Sequence[tuple[int, Schedule]]) -> Iterator[Hour]:
    """Simulate the hours that begin at those seconds, with what was learned before."""
    known, every = LoadTested(SERVICES["emb"], RATE), levels(week, seed)
    for start, schedule in jobs:
        begin = start - LEAD_IN
        rates = (every[begin : start + HOUR] * known.planned_rate).tolist()
        with quick():
            outcome = simulate(
                known.service, _trace(rates), _ours(known, schedule, begin),
                seed=seed, startup=STARTUP, replicas=max(1, math.ceil(0.8 * every[begin])),
                max_replicas=MAX_REPLICAS,
            )  # fmt: skip
        counted = outcome.timeline[LEAD_IN:]
        yield Hour(
            week, seed, start // DAY, start % DAY // HOUR,
            requests=sum(one.answered for one in counted),
            late=sum(one.missed for one in counted),
            cost=float(sum(one.live for one in counted)),
            least=clairvoyant(_trace(rates[LEAD_IN:]), RATE).cost,
            most=max(one.live for one in counted),
        )  # fmt: skip


def _trace(rates: list[float]) -> PoissonTrace:
    return PoissonTrace(lambda t: rates[min(int(t), len(rates) - 1)], float(len(rates)))


def _ours(known: LoadTested, schedule: Schedule, begin: int) -> CapacityController:
    state = replace(ScalingState.empty(), schedule=schedule)
    return CapacityController(known.policy(), state=state, wall=float(begin))


def _run(week: str, seed: int, jobs: Sequence[tuple[int, Schedule]]) -> list[Hour]:
    return list(run(week, seed, jobs))


def table(found: Sequence[Hour]) -> Table:
    """A line for each day, and one for all."""
    rows = [_row(str(day + 1), [one for one in found if one.day == day]) for day in
            sorted({one.day for one in found})]  # fmt: skip
    columns = ["day", "hours", "late", "cost", "most replicas"]
    return Table("jumps by the clock", columns, [*rows, _row("all", found)])


def _row(name: str, found: Sequence[Hour]) -> list[str]:
    late = sum(one.late for one in found) / max(1, sum(one.requests for one in found))
    cost = sum(one.cost for one in found) / sum(one.least for one in found)
    most = str(max(one.most for one in found))
    return [name, str(len(found)), f"{100 * late:.2f} %", f"{cost:.3f}", most]


@click.command(help=help_of(__doc__))
@click.option("--week", type=click.Choice(["m-large", "m-small"]), default="m-large",
              show_default=True, help="The load without jumps.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Of schedules and jumps.")  # fmt: skip
@click.option("--hours", "each_day", type=click.IntRange(1, 24), default=3, show_default=True,
              help="Of each day, to simulate.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True,
              help="Processes.")  # fmt: skip
@out_option
def main(*, week: str, seed: int, each_day: int, jobs: int, out: Path | None) -> None:
    """See the module's docstring."""
    began, starts = environment(), hours(seed, each_day)
    with multiprocessing.Pool(jobs) as pool:
        todo = list(zip(starts, schedules(week, seed, starts), strict=True))
        parts = pool.starmap(_run, [(week, seed, todo[n::jobs]) for n in range(jobs)])
    found = sorted((one for part in parts for one in part), key=lambda one: (one.day, one.hour))
    days = f"day {HOLIDAY + 1} is a holiday, some schedules end with day {ENDS + 1}"
    report(
        "autoscaling-days",
        began,
        [table(found)],
        notes=[f"Load {week}, seed {seed}: {days}, and clocks are set on day {CLOCKS_SET + 1}."],
        measured={"hours": [asdict(one) for one in found]},
        out=out,
    )


if __name__ == "__main__":
    main()
