"""The stages of a tuning, in order; what is known stays known when it is interrupted."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

from batchedapi_core.batching import Strategy
from batchedapi_core.manifest import format_duration
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulation import tuning
from batchedapi_serving.laptop.simulating.settings import SimulateOptions, set_up
from batchedapi_serving.laptop.tuning.measuring import (
    Climb,
    Ladder,
    Measured,
    Rows,
    Tell,
    measure_curve,
    rows_for,
)
from batchedapi_serving.laptop.tuning.replica import (
    Changes,
    TuneSubject,
    apart_from,
    asked_cpu,
    running,
)

BEST: Final = 3
"""Settings that are run for real, beside the manifest's own and the one without batching."""
TOLERANCE: Final = 0.05
"""Goodputs that differ by less are one: a second run of the same setting differs as much."""
HELPS: Final = 1.1
"""Times what fewer lanes serve: more that bring less are not looked at any further."""
_ONE_CORE: Final = 0.95
"""Share of a core that a web process can use for requests."""
_SLOWER: Final = (0.8, 4.0)
"""Times longer that batches take under load than alone, at least and at most."""
_MOST: Final = 30_000  # of maxBatchSize while t(n) is measured; what maxReplicaConcurrency may be
_STEPS: Final = 8  # of a ladder, as far as one can say beforehand
_CURVE_SECONDS: Final = 7.0
_SEARCH_SECONDS: Final = 25.0  # for each number of lanes
AS_WRITTEN: Final = "as the manifest says"
WITHOUT: Final = "without batching"
FOUND: Final = "found"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of the command line; durations in seconds."""

    target: float
    items: Sequence[Any] | None = None
    processes: int = 1  # at most
    threads: int = 1  # at most
    largest: int = 256  # rows
    step: float = 4.0  # of one load


@dataclass(frozen=True, slots=True)
class SettingRun:
    """One setting, as it was expected and as it did."""

    label: str
    forecast: tuning.Forecast
    ladders: tuple[Ladder, ...]
    """One, and another of what was to take the manifest's place and of the manifest's own."""
    p99: float = math.nan
    """Seconds, as expected at the last ladder's comfortable load."""

    @property
    def setting(self) -> tuning.Candidate:
        """The setting that was run."""
        return self.forecast.setting

    @property
    def ladder(self) -> Ladder:
        """The last, which is shown: of two it is the one that nothing was chosen by."""
        return self.ladders[-1]

    @property
    def goodput(self) -> float:
        """Requests/s in time, in the mean of its ladders."""
        return fmean(ladder.goodput for ladder in self.ladders)

    @property
    def bounded(self) -> bool:
        """Whether the replica was what ended each of them; see Ladder."""
        return all(ladder.bounded for ladder in self.ladders)


@dataclass(slots=True)
class Known:
    """Results of a tuning so far."""

    name: str
    wanted: TuneOptions
    quantile: float
    source: str = ""
    own: tuning.Candidate | None = None
    """The manifest's, in rows."""
    own_size: int = 0
    """Its maxBatchSize as it counts; `size_of_row` of them are a row."""
    measured: list[Measured] = field(default_factory=list)
    slower: float = 1.0
    """Times longer that batches take under load than alone."""
    ceiling: float = math.inf
    """Requests/s that the busiest web process can do."""
    asked: str = ""
    """CPUs by `spec.compute`, as written there."""
    cpus: int = 0
    """CPUs that the generator left to the replica; 0: both shared all of them."""
    rule: tuple[int, float] | None = None
    """Rows and seconds of the rule of thumb."""
    forecasts: list[tuning.Forecast] = field(default_factory=list)
    runs: list[SettingRun] = field(default_factory=list)
    interrupted: bool = False

    @property
    def size_of_row(self) -> float:
        """Share of `maxBatchSize` that a row takes."""
        return self.measured[0].size_of_row if self.measured else 1.0

    @property
    def own_run(self) -> SettingRun | None:
        """The manifest's setting, as it did."""
        return next((run for run in self.runs if run.label == AS_WRITTEN), None)

    @property
    def best_run(self) -> SettingRun | None:
        """The run that served most, and of those that serve alike the most modest."""
        best = max((run.goodput for run in self.runs), default=0.0)
        if best <= 0.0:
            return None
        alike = [run for run in self.runs if run.goodput >= (1.0 - TOLERANCE) * best]
        if any(run.label == AS_WRITTEN for run in alike):
            return self.own_run
        fewest = min(run.setting.lanes for run in alike)
        return max(
            (run for run in alike if run.setting.lanes == fewest),
            key=lambda run: run.goodput,
        )

    @property
    def undecided(self) -> bool:
        """Whether a setting may serve more than was seen, as the generator fell behind in its run.

        What was seen to be better is better all the same.
        """
        best = self.best_run
        if best is not None and best is not self.own_run:
            return False
        return any(not run.bounded for run in self.runs if run.label != WITHOUT)

    @property
    def expected_best(self) -> tuning.Forecast | None:
        """The best by simulation alone; for a tuning that ran none."""
        return None if self.own is None else tuning.choose(self.forecasts, self.own)

    def manifest_size(self, setting: tuning.Candidate) -> int:
        """`maxBatchSize` of a setting, as the manifest counts."""
        if setting.max_batch_size == (self.own and self.own.max_batch_size):
            return self.own_size
        return max(1, round(setting.max_batch_size * self.size_of_row))

    def changes(self, setting: tuning.Candidate) -> dict[str, dict[str, Any]]:
        """Differences of a setting from the manifest; {} if there are none."""
        own = self.own
        if own is None:
            return {}
        batching: dict[str, Any] = {}
        predictor: dict[str, Any] = {}
        if setting.max_batch_size != own.max_batch_size:
            batching["maxBatchSize"] = self.manifest_size(setting)
        if setting.batch_interval != own.batch_interval:
            batching["batchInterval"] = format_duration(setting.batch_interval)
        if setting.processes != own.processes:
            predictor["processesPerReplica"] = setting.processes
        if setting.threads != own.threads:
            predictor["threadsPerProcess"] = setting.threads
        both = {"serverSideBatching": batching, "predictor": predictor}
        return {section: fields for section, fields in both.items() if fields}


class _Clock:
    """How long the rest will take, from what each stage was thought to."""

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        self._tell = tell
        self._ahead: list[float] = []
        self._ends = time.monotonic()

    def expect(self, *stages: float) -> None:
        """Seconds of stages that are to come, instead of those thought of before."""
        self._ahead = list(stages)

    def begin(self) -> None:
        """The next stage."""
        seconds = self._ahead.pop(0) if self._ahead else 0.0
        self._ends = time.monotonic() + seconds

    def tell(self, text: str) -> None:
        """Show the present step."""
        self._tell(text, max(0.0, self._ends - time.monotonic()) + sum(self._ahead))


class Tuner:
    """One tuning; `known` is there at any time."""

    def __init__(
        self, subject: TuneSubject, own: tuple[int, int], wanted: TuneOptions,
        tell: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        """`own`: processes and threads of the manifest; `tell` has a text and seconds left."""
        spec = subject.api.spec
        self.known = Known(subject.api.metadata.name, wanted, spec.autoscaling.slo.percentile / 100)
        self.known.asked = asked_cpu(spec.compute)
        self.known.cpus = len(subject.cpus)
        self._subject = subject
        self._lanes = own
        self._wanted = wanted
        self._clock = _Clock(tell)
        self._rows: Rows | None = None

    def run(self) -> None:
        """All stages; Ctrl-C ends it, and `known` says what is known.

        Raises:
            LoadError: a replica does not start.
            MeasuringError: it does not answer.
            NoRowsError: nobody says what it takes.
        """
        try:
            with apart_from(self._subject.cpus):
                self._stages()
        except KeyboardInterrupt:
            self.known.interrupted = True

    def _stages(self) -> None:
        ladder = _STEPS * (self._wanted.step + 1.0)
        # Processes and threads to measure: the manifest's, and others in doublings.
        processes = {*tuning.powers_of_two(self._wanted.processes), self._lanes[0]}
        threads = {*tuning.powers_of_two(self._wanted.threads), self._lanes[1]}
        tries = sorted(
            {(p, t) for p in processes for t in threads}, key=lambda one: (one[0] * one[1], one[0])
        )
        self._clock.expect(
            3.0, *(_CURVE_SECONDS for _ in tries), ladder, ladder,
            _SEARCH_SECONDS * len(tries), *(ladder for _ in range(BEST)), ladder, ladder,
        )  # fmt: skip
        self._clock.begin()
        rows = self._look()
        self._measure(rows, tries)
        rows_of_own = max(1, int(self.known.own_size / self.known.size_of_row))
        interval = self._subject.api.spec.server_side_batching.batch_interval
        own = self.known.own = tuning.Candidate(rows_of_own, interval, *self._lanes)
        task = self._task()
        self._run(AS_WRITTEN, self._forecast(task, own), rows)
        self._calibrate()
        task = self._task()
        written = self.known.runs.pop(0)  # its forecast again, with what its ladder has taught
        self._ran(written.label, self._forecast(task, written.setting), written.ladder)
        self._run(
            WITHOUT,
            self._forecast(task, own._replace(max_batch_size=1, batch_interval=0.0)), rows,
        )  # fmt: skip
        self._clock.begin()
        for made in tuning.explore(task):
            self.known.forecasts.append(made)
            self._clock.tell(f"simulated {len(self.known.forecasts)} settings")
        ran = {run.setting for run in self.known.runs}
        for one in tuning.best_few(self.known.forecasts, own, BEST):
            if one.setting not in ran:
                self._run(FOUND, one, rows)
            else:
                self._clock.begin()
        self._run_again(rows)

    def _run_again(self, rows: Rows) -> None:
        """Run the best setting and the manifest's own on a second ladder each.

        The best of some ladders is the luckiest, too: two of one setting differ by a tenth. If it
        is not the best in the mean of both, what is then has its turn.
        """
        known = self.known
        while (best := known.best_run) is not None and best is not known.own_run:
            again = [run for run in (known.own_run, best) if run and len(run.ladders) == 1]
            if best not in again:
                return
            for run in again:
                # Around what it held: loads are some percent apart, and others even that out.
                self._run(run.label, run.forecast, rows, run)

    # ------------------------------------------------------------ measuring

    def _look(self) -> Rows:
        """Rows for the method; and note the size that is in effect."""
        known = self.known
        self._clock.tell("starting a replica")
        with running(self._subject, {}) as replica:
            metadata = replica.get(f"/v2/models/{known.name}")
            rows = rows_for(
                replica.endpoint, replica.get("/openapi.json"), metadata, self._wanted.items
            )
            known.own_size = int(replica.counters().largest)
        known.source = rows.source
        return rows

    def _measure(self, rows: Rows, tries: Sequence[tuple[int, int]]) -> None:
        """t(n) of each number of lanes, as long as more of them help."""
        limit = _MOST
        alone: Changes = {
            "serverSideBatching": {
                "maxBatchSize": limit, "batchInterval": "0s", "strategy": Strategy.IMMEDIATE.value,
                "maxLatency": None,
            },
            "overload": {"maxReplicaConcurrency": limit},
        }  # fmt: skip
        best = 0.0
        useless: set[tuple[int, int]] = set()
        for processes, threads in tries:
            self._clock.begin()
            fewer = {(p, t) for p, t in useless if p <= processes and t <= threads}
            if fewer and (processes, threads) != self._lanes:
                continue
            predictor: dict[str, Any] = {
                "processesPerReplica": processes, "threadsPerProcess": threads,
                "warmup": {"enabled": False},
            }  # fmt: skip
            self._clock.tell(f"starting {processes} processes of {threads} threads")
            with running(self._subject, {**alone, "predictor": predictor}) as replica:
                found = measure_curve(
                    replica, rows, (processes, threads),
                    largest=self._wanted.largest, target=self._wanted.target, tell=self._clock.tell,
                )  # fmt: skip
            self.known.measured.append(found)
            served = processes * threads * found.curve.most(found.curve.sizes[-1])
            if served < HELPS * best:
                useless.add((processes, threads))
            best = max(best, served)

    # ------------------------------------------------------------ expecting

    def _task(self) -> tuning.Task:
        """The search's task, with all that is known by now."""
        known, target = self.known, self._wanted.target
        outside = min(one.outside for one in known.measured)
        setup = set_up(self._subject.api, SimulateOptions(service=ServiceTime(1e-3, 0.0)))
        service = replace(
            setup.service, latency_target=max(0.05 * target, target - outside),
            queue_limit=None,
        )  # fmt: skip
        largest = min(
            max(one.curve.sizes[-1] for one in known.measured),
            self._subject.api.spec.overload.max_replica_concurrency,
        )
        assert known.own is not None  # noqa: S101 - it was set before
        return tuning.Task(
            service=service,
            manifest=known.own,
            lanes=tuple(
                one.lanes._replace(curve=one.curve.slower(known.slower)) for one in known.measured
            ),
            largest=largest,
            quantile=known.quantile,
            ceiling=known.ceiling,
        )

    def _curve(self, task: tuning.Task, setting: tuning.Candidate) -> tuning.Curve:
        lanes = (setting.processes, setting.threads)
        return next(one.curve for one in task.lanes if (one.processes, one.threads) == lanes)

    def _forecast(self, task: tuning.Task, setting: tuning.Candidate) -> tuning.Forecast:
        self._clock.tell("simulating it")
        return tuning.forecast(task, self._curve(task, setting), setting)

    def _calibrate(self) -> None:
        """Learn from the own ladder how a load slows batches, and the web process's limit."""
        run = self.known.own_run
        knee = None if run is None else run.ladder.knee
        if run is None or knee is None or not knee.counted.batches:
            return
        counted = knee.counted
        curve = self._curve(self._task(), run.setting)
        alone = counted.batches * curve.at(max(1, round(knee.mean_rows)))
        least, most = _SLOWER
        self.known.slower = min(most, max(least, counted.batch_seconds / alone))
        if counted.web_cpu > 0:
            web = self._subject.api.spec.predictor.web_processes
            self.known.ceiling = web * _ONE_CORE * counted.requests / counted.web_cpu
        rows = self.known.measured[0].curve.slower(self.known.slower)
        self.known.rule = tuning.by_rule(rows, 1, self._wanted.target, self._wanted.largest)

    def _ran(
        self,
        label: str,
        expected: tuning.Forecast,
        ladder: Ladder,
        before: SettingRun | None = None,
    ) -> None:
        """Remember a ladder, beside what is expected of the load that it is compared at."""
        task, step, p99 = self._task(), ladder.comfortable, math.nan
        if step is not None:
            curve = self._curve(task, expected.setting)
            outcome = tuning.expected_at(task, curve, expected.setting, step.answers.rate)
            p99 = outcome.p99 + self._wanted.target - task.target
        runs = self.known.runs
        if before is None:
            runs.append(SettingRun(label, expected, (ladder,), p99))
        else:
            again = replace(before, ladders=(*before.ladders, ladder), p99=p99)
            runs[runs.index(before)] = again

    # ------------------------------------------------------------ running

    def _run(
        self, label: str, expected: tuning.Forecast, rows: Rows, before: SettingRun | None = None
    ) -> None:
        """One setting on a ladder; what it did until Ctrl-C is known, too.

        `before`: the same setting, as it is known, to which the ladder is added.
        """
        self._clock.begin()
        setting, known, wanted = expected.setting, self.known, self._wanted
        what = f"{label} (maxBatchSize {known.manifest_size(setting)})"
        self._clock.tell(f"{what}: starting")
        with running(self._subject, known.changes(setting)) as replica:
            climb = Climb(
                replica, rows, target=wanted.target, quantile=known.quantile, seconds=wanted.step
            )
            tell: Tell = lambda text: self._clock.tell(f"{what}: {text}")  # noqa: E731 - one line
            curve = self._curve(self._task(), setting)
            held = expected.goodput if before is None else before.goodput or expected.goodput
            start = held or 0.5 * setting.lanes * curve.most(setting.max_batch_size)
            try:
                climb.climb(start, tell)
            finally:
                if climb.ladder.steps:
                    self._ran(label, expected, climb.ladder, before)
