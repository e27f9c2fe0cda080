"""What `batchedapi tune` finds on simulated services, beside trying every setting.

    python tests/bench/tuning.py --jobs 2

A tuning is played as it goes for real. Batches are timed at sizes in doublings, up to where tune
stops; the search gets nothing else. The manifest's own setting and the best three are then run on
the service as it is, at every size, with the arrivals of the case. Found is what served most of
these; recommended is what tune's own rule says, which keeps a manifest that is within 5 % of it.
The exhaustive search tries every size, interval and number of processes on that service. Tune
searches with Poisson arrivals, whatever the case has: only the runs see bursts and waves.

The best of hundreds of draws is a lucky one. So whoever was chosen is judged by other draws.
"""

import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Final, TypeAlias

import click
import numpy as np
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core.batching import Strategy
from batchedapi_core.simulation import (
    PoissonTrace,
    RecordedTrace,
    Service,
    StepTrace,
    Trace,
    simulate,
    tuning,
)
from batchedapi_core.simulation.tuning import Curve, Forecast, Lanes, Setting, Task
from batchedapi_serving.tuning.load import Answers
from batchedapi_serving.tuning.measuring import Ladder, Step, is_last
from batchedapi_serving.tuning.replica import Counters
from batchedapi_serving.tuning.run import AS_WRITTEN, BEST, FOUND, Known, Run, Wanted

WITHIN: Final = 0.95
"""Of the best there is: what tune finds has to answer as much in time."""
QUANTILE: Final = 0.99
REQUESTS: Final = 20_000  # of one load
SEED: Final = 11  # not that of the search
OTHER_DRAWS: Final = (21, 22, 23, 24, 25)
INTERVALS: Final = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)  # of the target
_ALL_SIZES: Final = 12  # rows up to which every size is tried
_FINER: Final = 1.12  # between two sizes above
_PRECISION: Final = 1.005  # of a load that is held
_LONGEST: Final = 400.0  # seconds of one load
_IDLE: Final = Counters(0, 0, 0, 0, 0, 0, 0, 0, one_by_one=False)

Seconds: TypeAlias = Callable[[int], float]
"""Of a batch of so many rows."""
Pattern: TypeAlias = Callable[[float, float, int], Trace]
"""Of requests/s, seconds, and a seed where the trace itself is drawn."""


# ---------------------------------------------------------------- arrivals


def strangers(rate: float, seconds: float, _: int) -> Trace:
    """Poisson."""
    return PoissonTrace(lambda _: rate, seconds)


def waves(rate: float, seconds: float, _: int) -> Trace:
    """A second a quarter above the mean, a second a quarter below it."""
    starts = tuple(float(t) for t in range(int(seconds)))
    return StepTrace(starts, tuple(rate * (0.75, 1.25)[int(t) % 2] for t in starts), seconds)


def groups(rate: float, seconds: float, seed: int) -> Trace:
    """Pages that ask four things at once."""
    chance = np.random.default_rng(seed)
    times = np.sort(chance.random(chance.poisson(rate * seconds / 4)) * seconds)
    return RecordedTrace(np.repeat(times, 4).tolist(), [1] * (4 * len(times)))


# ---------------------------------------------------------------- services


def line(fixed: float, per_row: float) -> Seconds:
    """Of milliseconds for a batch and for a row."""
    return lambda rows: (fixed + per_row * rows) / 1000


def bent(fixed: float, per_row: float, knee: int) -> Seconds:
    """Beyond `knee` rows each costs three times as much: a cache that is too small."""
    return lambda rows: (fixed + per_row * (rows + 2 * max(0, rows - knee))) / 1000


def padded(fixed: float, per_row: float, multiple: int) -> Seconds:
    """A compiled model: rows up to the next multiple are computed."""
    return lambda rows: (fixed + per_row * multiple * math.ceil(rows / multiple)) / 1000


@dataclass(frozen=True, slots=True)
class Case:
    """A service, its load, and the manifest that a tuning begins with."""

    name: str
    seconds: Seconds
    target: float  # seconds
    processes: Mapping[int, float]
    """Times longer that a batch takes while so many processes have one."""
    manifest: Setting
    pattern: Pattern = strangers
    noise: float = 0.05  # as Service has it
    strategy: Strategy = Strategy.WINDOW
    largest: int = 128  # rows

    @property
    def base(self) -> Service:
        """What is the same in each setting."""
        return Service(
            1e-3, 0.0, 1, 0.0, latency_target=self.target, noise=self.noise, strategy=self.strategy
        )

    def truth(self, processes: int) -> Curve:
        """At every size."""
        sizes = tuple(range(1, self.largest + 1))
        slower = self.processes[processes]
        return Curve(sizes, tuple(slower * self.seconds(n) for n in sizes))

    def measured(self, processes: int) -> Curve:
        """At the sizes at which tune times batches."""
        truth = self.truth(processes)
        sizes: list[int] = []
        seconds: list[float] = []
        for size in tuning.powers_of_two(self.largest):
            sizes.append(size)
            seconds.append(truth.at(size))
            if is_last(sizes, seconds, self.target):
                break
        return Curve(tuple(sizes), tuple(seconds))


DEFAULT: Final = Setting(32, 0.01)
ALONE: Final = {1: 1.0}
CASES: Final = (
    Case("GPU, 8 + 0.15 n", line(8, 0.15), 0.1, ALONE, DEFAULT),
    Case("GPU, two processes share it", line(8, 0.15), 0.1, {1: 1.0, 2: 1.8}, DEFAULT),
    Case("GPU, groups of four", line(8, 0.15), 0.1, ALONE, DEFAULT, groups),
    Case("device, 50 + 1 n, waves", line(50, 1), 0.4, ALONE, Setting(64, 0.1), waves),
    Case("device, 50 + 1 n, tight", line(50, 1), 0.15, ALONE, DEFAULT),
    Case("CPU, 1 + 4 n, two cores", line(1, 4), 0.1, {1: 1.0, 2: 1.1}, DEFAULT),
    Case("CPU, 5 + 5 n, waves", line(5, 5), 0.25, {1: 1.0, 2: 1.3}, Setting(4, 0.01), waves),
    Case("sentences, 25 + 5 n, noisy", line(25, 5), 0.5, ALONE, DEFAULT, noise=0.3),
    Case("cache too small, 5 + 1 n", bent(5, 1, 24), 0.2, ALONE, Setting(128, 0.02)),
    Case("compiled for 16, 4 + 0.5 n", padded(4, 0.5, 16), 0.08, ALONE, Setting(20, 0.005)),
    Case("no gain, 10 n, groups of four", line(0.2, 10), 0.3, {1: 1.0, 2: 1.05}, DEFAULT, groups),
    Case("Fixed, 20 + 1 n", line(20, 1), 0.2, ALONE, Setting(16, 0.08), strategy=Strategy.FIXED),
)


# ---------------------------------------------------------------- judging


def goodput(case: Case, setting: Setting, least: float = 0.0, seed: int = SEED) -> float:
    """Highest load, in requests/s, that the service holds in a setting; 0 if not even `least`."""
    curve = case.truth(setting.processes)
    service = tuning.service_of(case.base, curve, setting)

    def holds(rate: float) -> bool:
        seconds = math.ceil(min(_LONGEST, max(5.0, REQUESTS / rate)))
        outcome = simulate(service, case.pattern(rate, seconds, seed), None, seed=seed)
        return outcome.miss_fraction <= 1.0 - QUANTILE

    low, high = 0.0, 1.05 * full(curve, setting)
    if least:
        if least >= high or not holds(least):
            return 0.0
        low = least
    while high > _PRECISION * low and high > 0.01 * full(curve, setting):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def full(curve: Curve, setting: Setting) -> float:
    """Requests/s if batches are of the best size, always: no setting serves more."""
    return setting.lanes * curve.most(setting.max_batch_size)


def every_setting(case: Case) -> Iterator[Setting]:
    """Each size up to 12 rows and steps of 12 % above, with each interval and processes."""
    sizes, size = list(range(1, _ALL_SIZES + 1)), float(_ALL_SIZES)
    while (size := size * _FINER) < case.largest:
        sizes.append(round(size))
    sizes.append(case.largest)
    intervals = {tuning.round_interval(share * case.target) for share in INTERVALS}
    for rows, interval, processes in product(sizes, sorted(intervals), case.processes):
        yield Setting(rows, interval, processes)


def exhaustive(case: Case, known: Forecast) -> Forecast:
    """The best setting there is.

    Args:
        case: The service.
        known: A setting to begin with: each is asked for more than the best before it. A setting
            whose batches could not serve as much even if all were full is passed by.
    """
    best = known
    todo = sorted(every_setting(case), key=lambda s: -full(case.truth(s.processes), s))
    for setting in todo:
        more = goodput(case, setting, _PRECISION * best.goodput)
        if more > best.goodput:
            best = Forecast(setting, more, math.nan)
    return best


def judged(case: Case, one: Forecast) -> Forecast:
    """A setting that was chosen, and what it holds in the mean of other draws."""
    held = mean(goodput(case, one.setting, seed=seed) for seed in OTHER_DRAWS)
    return one._replace(goodput=held)


def run_of(label: str, setting: Setting, served: float) -> Run:
    """A run at whose knee so much was answered in time, for tune's own rule."""
    answers = Answers(served, 1.0, 1.0, sent=round(served), latencies=[0.0] * round(served))
    return Run(label, Forecast(setting, served, math.nan),
               (Ladder((Step(answers, _IDLE, 1.0),), QUANTILE),))  # fmt: skip


def tuned(case: Case) -> tuple[int, Known, Run]:
    """How many settings were simulated, what is known of those that were run, what is advised."""
    task = Task(
        case.base,
        case.manifest,
        tuple(Lanes(n, 1, case.measured(n)) for n in case.processes),
        quantile=QUANTILE,
    )
    made = list(tuning.explore(task))
    own = goodput(case, case.manifest)
    known = Known(case.name, Wanted(case.target), QUANTILE, own=case.manifest)
    known.runs.append(run_of(AS_WRITTEN, case.manifest, own))
    for one in tuning.best_few(made, case.manifest, BEST):
        if one.setting != case.manifest:
            known.runs.append(run_of(FOUND, one.setting, goodput(case, one.setting)))
    best = known.best_run
    if best is None:
        raise RuntimeError(f"{case.name}: no load was held")
    return len(made), known, best


def compared(case: Case) -> dict[str, Any]:
    """One case's figures."""
    simulated, known, recommended = tuned(case)
    forecasts = [run.forecast for run in known.runs]
    found = max(forecasts, key=lambda one: one.goodput)
    manifest, found, advised, best = (
        judged(case, one)
        for one in (forecasts[0], found, recommended.forecast, exhaustive(case, found))
    )
    return {
        "name": case.name,
        "target": case.target,
        "arrivals": case.pattern.__name__,
        "manifest": _told(manifest),
        "found": _told(found),
        "recommended": _told(advised),
        "best": _told(best),
        "simulated": simulated,
        "tried": len(list(every_setting(case))),
        "ratio": round(found.goodput / best.goodput, 4),
        "ratio_of_recommended": round(advised.goodput / best.goodput, 4),
    }


def _told(one: Forecast) -> list[float]:
    """Size, interval, processes, threads and requests/s."""
    return [*one.setting, round(one.goodput, 1)]


# ---------------------------------------------------------------- telling


def row_of(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the table."""

    def told(name: str) -> str:
        size, interval, processes, _, served = figures[name]
        return f"{size}, {1e3 * interval:g} ms, {processes}: {served:,.0f}"

    return (
        f"{figures['name']}, {1e3 * figures['target']:g} ms",
        str(figures["arrivals"]),
        told("manifest"),
        told("found"),
        told("best"),
        f"{figures['simulated']} / {figures['tried']}",
        f"{figures['ratio']:.3f}",
        told("recommended"),
        f"{figures['ratio_of_recommended']:.3f}",
    )


@click.command(help=help_of(__doc__))
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes.")
@click.option("--case", "chosen", multiple=True, help="Part of a name; some. [default: all]")
@out_option
def main(jobs: int, chosen: Sequence[str], out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    numbers = [
        number for number, case in enumerate(CASES)
        if not chosen or any(part in case.name for part in chosen)
    ]  # fmt: skip
    if not numbers:
        sys.exit(f"--case: expected a part of {', '.join(case.name for case in CASES)}")
    found = []
    with multiprocessing.Pool(jobs) as pool:
        for figures in pool.imap(_compared, numbers):
            click.echo(f"{figures['name']}: {figures['ratio_of_recommended']:.3f}")
            found.append(figures)
    table = Table(
        "What tune finds, beside every setting",
        ("service, ms a batch of n rows, target", "arrivals", "manifest", "found", "best",
         "simulated / all", "ratio", "recommended", "ratio of that"),
        [row_of(figures) for figures in found],
    )  # fmt: skip
    note = (
        "A setting is maxBatchSize, batchInterval and processesPerReplica; behind it are the"
        " requests/s that are held with 99 % of them in time, by the same simulation for all three."
        " `simulated / all`: settings that tune simulates, and those of the exhaustive search."
        f" Each was chosen by one draw of arrivals and noise, and is judged by {len(OTHER_DRAWS)}"
        " others, as the best of hundreds of settings in one draw is a lucky one."
    )
    report("tuning", around, [table], notes=[note], measured={"cases": found}, out=out)
    bad = [figures["name"] for figures in found if figures["ratio_of_recommended"] < WITHIN]
    if bad:
        sys.exit(f"less than {WITHIN:.0%} of the best: {'; '.join(bad)}")


def _compared(number: int) -> dict[str, Any]:
    return compared(CASES[number])  # a case has functions, which no process can be sent


if __name__ == "__main__":
    main()
