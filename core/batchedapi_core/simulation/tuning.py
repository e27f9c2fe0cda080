"""The size, interval and lanes that answer most requests within a latency target.

    Task (t(n) as measured, the target, what may vary) -> explore -> Forecast, ... -> choose

Each setting is judged by the simulated replica: the highest Poisson load at which the share of
requests that `Task.quantile` says is answered in time. Where every batch is full bounds what a
setting can serve, so those that cannot come near the best are not simulated. Of settings that
serve alike the one with fewer lanes is chosen, then the one that changes least.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from batchedapi_core.batching import SizeUnit
from batchedapi_core.service_model import lane_capacity
from batchedapi_core.simulation.fleet import Outcome, simulate
from batchedapi_core.simulation.replica import NoisyService
from batchedapi_core.simulation.trace import PoissonTrace

COMFORTABLE: Final = 0.8
"""Share of the load that is held, at which p99 is told: at the knee itself it says nothing."""
ALIKE: Final = 0.02
"""Settings whose goodput differs by less serve alike: another draw of arrivals moves it by 1 %."""
REQUESTS: Final = 10_000
"""Requests of one simulated load: a hundred of them are beyond the 99th percentile."""
_SHORTEST, _LONGEST = 5.0, 300.0  # seconds of one simulated load
_PRECISION: Final = 1.006  # of the load that is held
_LOWEST: Final = 0.02  # of the capacity: a setting that does not hold that holds nothing
_HOPELESS: Final = 0.9  # of the best goodput: what full batches serve at less is not simulated
_FINER: Final = (0.71, 0.84, 1.19, 1.41)  # times the best size
_INTERVALS: Final = (0.0, 1 / 32, 1 / 8, 1 / 4, 1 / 2)  # of the target
_MILLISECOND: Final = 1e-3
_DIFFERENT: Final = 1.4  # times the size: two that differ by less are one experiment


@dataclass(frozen=True, slots=True)
class Curve:
    """t(n) as measured, while every lane is busy.

    Raises:
        ValueError: no sizes, sizes that do not ascend from 1, or times that are not positive.
    """

    sizes: tuple[int, ...]  # rows
    seconds: tuple[float, ...]  # of a batch, as many

    def __post_init__(self) -> None:
        sizes = list(self.sizes)
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] != 1:
            raise ValueError(f"curve: expected ascending sizes from 1, got {sizes}")
        if len(self.seconds) != len(sizes) or not all(0 < t < math.inf for t in self.seconds):
            raise ValueError(f"curve: expected seconds > 0 of each size, got {self.seconds}")

    def at(self, rows: int) -> float:
        """Seconds of a batch: between sizes on a line, beyond the last in proportion."""
        sizes, seconds = self.sizes, self.seconds
        i = bisect_left(sizes, rows)
        if i == len(sizes):
            return seconds[-1] * rows / sizes[-1]
        if sizes[i] == rows:
            return seconds[i]
        share = (rows - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    def slower(self, factor: float) -> "Curve":
        """Every batch so many times longer."""
        return Curve(self.sizes, tuple(factor * t for t in self.seconds))

    def most(self, rows: int) -> float:
        """Rows/s of one lane at the best size of at most `rows`."""
        sizes = [*(n for n in self.sizes if n < rows), rows]
        return max(n / self.at(n) for n in sizes)


class Candidate(NamedTuple):
    """A setting that is judged."""

    max_batch_size: int  # rows
    batch_interval: float  # seconds
    processes: int = 1
    threads: int = 1

    @property
    def lanes(self) -> int:
        """Batches at once."""
        return self.processes * self.threads


class LaneCurve(NamedTuple):
    """Processes and threads to try, with t(n) while all of them are busy."""

    processes: int
    threads: int
    curve: Curve


class Forecast(NamedTuple):
    """The goodput and latency that a setting is expected to have."""

    setting: Candidate
    goodput: float  # requests/s in time, at the highest load that is held; 0: none is
    p99: float  # seconds, at COMFORTABLE of that load; nan: none is held


@dataclass(frozen=True, slots=True)
class Task:
    """The aim of a search, and the settings among which it searches."""

    service: NoisyService
    """With `latency_target`, and all that a manifest says beside the setting: strategy, limits."""
    manifest: Candidate
    lanes: tuple[LaneCurve, ...]
    largest: int = 0
    """Rows of a batch at most; 0: as the curves were measured."""
    quantile: float = 0.99  # of the requests, to be in time
    ceiling: float = math.inf
    """Requests/s that the rest of a replica lets through, whatever its batches do."""
    requests: int = REQUESTS
    seed: int = 3
    target: float = field(init=False)  # seconds

    def __post_init__(self) -> None:
        if self.service.latency_target is None:
            raise ValueError("task: expected a service with a latency target, got none")
        object.__setattr__(self, "target", self.service.latency_target)


def service_of(base: NoisyService, curve: Curve, setting: Candidate) -> NoisyService:
    """`base` as it is in a setting: its batches take what the curve says."""
    size = setting.max_batch_size
    full, single = curve.at(size), curve.at(1)
    per_row = max(0.0, (full - single) / (size - 1)) if size > 1 else 0.0
    fixed = max(0.0, full - per_row * size)
    per_row = (full - fixed) / size  # the line meets the curve at a full batch

    def pace(_replica: int, _at: float, share: float) -> float:
        rows = max(1, round(share * size))
        return curve.at(rows) / (fixed + per_row * rows)

    return replace(
        base,
        fixed=fixed,
        per_row=per_row,
        max_batch_size=size,
        batch_interval=setting.batch_interval,
        lanes=setting.lanes,
        size_unit=SizeUnit.ROWS,
        pace=pace,
    )


def forecast(task: Task, curve: Curve, setting: Candidate) -> Forecast:
    """The forecast of one setting, by simulation."""
    service = service_of(task.service, curve, setting)
    held = min(_held(task, service, setting.lanes * curve.most(setting.max_batch_size)),
               task.ceiling)  # fmt: skip
    if held <= 0.0:
        return Forecast(setting, 0.0, math.nan)
    return Forecast(setting, held, expected_at(task, curve, setting, COMFORTABLE * held).p99)


def expected_at(task: Task, curve: Curve, setting: Candidate, rate: float) -> Outcome:
    """The outcome of a load of `rate` requests/s, > 0."""
    return _loaded(task, service_of(task.service, curve, setting), rate)


def _loaded(task: Task, service: NoisyService, rate: float) -> Outcome:
    seconds = math.ceil(min(_LONGEST, max(_SHORTEST, task.requests / rate)))
    return simulate(service, PoissonTrace(lambda _: rate, seconds), None, seed=task.seed)


def _held(task: Task, service: NoisyService, capacity: float) -> float:
    """Highest load, in requests/s, at which enough requests are in time."""

    def holds(rate: float) -> bool:
        return _loaded(task, service, rate).miss_fraction <= 1.0 - task.quantile

    guess = lane_capacity(
        service.time,
        largest_batch=service.max_batch_size,
        batch_interval=service.batch_interval,
        latency_target=task.target,
        quantile=task.quantile,
    )
    low, high = 0.0, 1.05 * capacity
    step, middle = 1.1, min(service.lanes * guess.rows_per_second, 0.98 * capacity)
    while high > _PRECISION * low and high > _LOWEST * capacity:
        if holds(middle):
            low = middle
            middle = min(middle * step, (low + high) / 2)
        else:
            high = middle
            middle = max(middle / step, (low + high) / 2)
        step *= step
    return low


def explore(task: Task) -> Iterator[Forecast]:
    """Forecasts, as they are made: the manifest's own first, then whatever may be better.

    Whoever stops in between has what was made until then.
    """
    search = _Search(task)
    for processes, threads, curve in sorted(task.lanes, key=lambda one: one[0] * one[1]):
        yield from search.lanes(processes, threads, curve)


class _Search:
    """One search; owner of what is known so far."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[Candidate, Forecast] = {}
        self._best = 0.0  # goodput, of all lanes

    def lanes(self, processes: int, threads: int, curve: Curve) -> Iterator[Forecast]:
        task, interval = self._task, self._task.manifest.batch_interval
        own = task.manifest
        if (processes, threads) == (own.processes, own.threads):
            yield from self._judge(curve, [own])
        largest = task.largest or curve.sizes[-1]
        rule = by_rule(curve, processes * threads, task.target, largest)
        sizes = [n for n in powers_of_two(largest) if n == 1 or curve.at(n) <= task.target]
        settings = [Candidate(n, interval, processes, threads) for n in sizes]
        settings += [] if rule is None else [Candidate(*rule, processes, threads)]
        settings.sort(key=lambda setting: -self._guess(curve, setting))
        yield from self._judge(curve, settings)
        yield from self._finer(curve, (processes, threads), largest)
        best = self._best_of(processes, threads)
        if best is None:
            return
        ceiling = min(task.target, task.service.max_latency or math.inf)
        intervals = {round_interval(share * task.target) for share in _INTERVALS}
        yield from self._judge(
            curve, [best._replace(batch_interval=d) for d in sorted(intervals) if d < ceiling]
        )
        yield from self._finer(curve, (processes, threads), largest)

    def _finer(self, curve: Curve, lanes: tuple[int, int], largest: int) -> Iterator[Forecast]:
        """Sizes around the best, until none is better."""
        before = None
        while (best := self._best_of(*lanes)) is not None and best != before:
            near = {round(times * best.max_batch_size) for times in _FINER}
            sizes = sorted(n for n in near if 1 <= n <= largest)
            yield from self._judge(curve, [best._replace(max_batch_size=n) for n in sizes])
            before = best

    def _judge(self, curve: Curve, settings: Sequence[Candidate]) -> Iterator[Forecast]:
        for setting in settings:
            if setting in self._made:
                continue
            full = setting.lanes * curve.most(setting.max_batch_size)
            if full < _HOPELESS * self._best and setting != self._task.manifest:
                continue
            made = self._made[setting] = forecast(self._task, curve, setting)
            self._best = max(self._best, made.goodput)
            yield made

    def _best_of(self, processes: int, threads: int) -> Candidate | None:
        """Best setting of these lanes that holds any load; None: none does."""
        made = [
            one for one in self._made.values()
            if one.goodput > 0.0
            and (one.setting.processes, one.setting.threads) == (processes, threads)
        ]  # fmt: skip
        return max(made, key=lambda one: one.goodput).setting if made else None

    def _guess(self, curve: Curve, setting: Candidate) -> float:
        """Requests/s by the operator's formula, to begin with what is likely to be best."""
        service = service_of(self._task.service, curve, setting)
        guess = lane_capacity(
            service.time,
            largest_batch=setting.max_batch_size,
            batch_interval=setting.batch_interval,
            latency_target=self._task.target,
            quantile=self._task.quantile,
        )
        return guess.rows_per_second if guess.feasible else 0.0


def choose(forecasts: Sequence[Forecast], manifest: Candidate) -> Forecast | None:
    """The setting to run: the best, and of those that serve alike the most modest.

    Returns:
        None if none holds any load.
    """
    best = max((one.goodput for one in forecasts), default=0.0)
    alike = [one for one in forecasts if one.goodput > 0.0 and one.goodput >= (1 - ALIKE) * best]
    return min(alike, key=lambda one: _immodesty(one.setting, manifest), default=None)


def _immodesty(setting: Candidate, manifest: Candidate) -> tuple[int, int, bool, float, int]:
    """Fewer lanes first, then threads by which no memory is used, then what changes less."""
    return (
        setting.lanes,
        setting.processes,
        setting != manifest,
        abs(setting.batch_interval - manifest.batch_interval),
        setting.max_batch_size,
    )


def best_few(forecasts: Sequence[Forecast], manifest: Candidate, count: int) -> list[Forecast]:
    """The chosen one, and the best others that are another experiment: lanes, or another size."""
    chosen = choose(forecasts, manifest)
    if chosen is None:
        return []
    found = [chosen]
    for one in sorted(forecasts, key=lambda one: -one.goodput):
        if len(found) == count or one.goodput <= 0.0:
            break
        if all(_differ(one.setting, other.setting) for other in found):
            found.append(one)
    return found


def _differ(one: Candidate, other: Candidate) -> bool:
    if (one.processes, one.threads) != (other.processes, other.threads):
        return True
    small, large = sorted((one.max_batch_size, other.max_batch_size))
    return large >= _DIFFERENT * small


def by_rule(curve: Curve, lanes: int, target: float, largest: int) -> tuple[int, float] | None:
    """Size and interval of the rule of thumb: rows that come in the longest wait that is left.

    The rate is that of single rows; a batch of rate * wait rows, whose own time comes on top, must
    be answered within the target.

    Returns:
        (rows, seconds), or None if not even single rows are in time.
    """
    rate = lanes / curve.at(1)
    found = None
    for rows in range(1, largest + 1):
        wait = rows / rate
        if wait + curve.at(rows) > target:
            break
        found = rows, round_interval(wait)
    return found


def powers_of_two(largest: int) -> list[int]:
    """1, 2, 4, ... and `largest` itself."""
    sizes = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
    return [*sizes, largest]


def round_interval(seconds: float) -> float:
    """As one would write it: whole milliseconds, and tenths below one."""
    if seconds < _MILLISECOND:
        return round(seconds, 4)
    return round(seconds, 3)
