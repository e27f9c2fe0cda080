"""Findings and advice of a check, in sentences and a table; no I/O but of its own file.

A report crosses processes, and is what `--json` prints.
"""

import dataclasses
import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from batchedapi_core.service_model import ServiceTime
from batchedapi_serving.predictor import Measure, SizeOf
from batchedapi_serving.settings import built

ROWS: Final = "rows"
REPORT_FILE: Final = "check.json"
"""In the runtime folder."""
_WANTED_FILE: Final = "wanted.json"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of a check; `read` takes what `write` left in the runtime folder."""

    items: Sequence[Any] | None
    """Rows as JSON; None: those that the method suggests."""
    ignored: Sequence[str] = ()
    """Outputs, and members of JSON answers, that are not compared."""

    def write(self, runtime: Path) -> None:
        """Leave it for the process that checks."""
        (runtime / _WANTED_FILE).write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, runtime: str) -> "CheckOptions":
        """The options that `write` left."""
        return cls(**json.loads((Path(runtime) / _WANTED_FILE).read_text()))


@dataclasses.dataclass(frozen=True, slots=True)
class BatchTiming:
    """Batches of one size."""

    rows: int
    seconds: float
    """Median of a batch."""
    runs: int
    size: int
    """Size of such a batch, as `maxBatchSize` counts: its rows, or their cost."""

    @property
    def rows_per_second(self) -> float:
        """Rate of one lane with batches of this size."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class MethodReport:
    """Findings about one method."""

    name: str
    batched: bool
    max_batch_size: int
    samples: int
    """Rows that it was asked with; 0: nobody knows what it takes, so nothing was checked."""
    source: str
    """Where they come from."""
    findings: tuple[str, ...]
    """Differences that were found, a sentence each."""
    timings: tuple[BatchTiming, ...]
    """Ascending in rows."""
    line: ServiceTime | None
    """t(n) fitted through every batch; None: too few."""
    unit: str = ROWS
    """Unit of `maxBatchSize`: ROWS, or one unit of `size_of` in words."""


class Weight(enum.StrEnum):
    """How much a piece of advice matters."""

    NOTE = "note"
    WARNING = "warning"


@dataclasses.dataclass(frozen=True, slots=True)
class Remark:
    """One piece."""

    weight: Weight
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Findings about a predictor."""

    name: str
    methods: tuple[MethodReport, ...]
    memory: int
    """Bytes that the process had at most."""
    shared: bool = False
    """All processes share that memory, as they are forked from one."""
    sharing: Remark | None = None
    """What there is to say of that."""

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return not any(method.findings for method in self.methods)

    @property
    def checked(self) -> bool:
        """Something was asked."""
        return any(method.samples for method in self.methods)

    def to_json(self) -> dict[str, Any]:
        """JSON object that `from_json` takes back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The reverse of `to_json`."""
        return built(cls, json.loads(text))


LITTLE: Final = 1.2
"""Times the rate of single rows below which batching is hardly worth its wait."""
STILL_RISING: Final = 1.2
"""Times the rate at half the size above which a larger size is worth a try."""
NEARLY_ALL: Final = 0.9
"""Share of the best rate with which a smaller size makes do."""


def advise_method(
    report: MethodReport, *, interval: float, max_latency: float | None
) -> list[Remark]:
    """Advice from the table of one method.

    Args:
        report: Of the method.
        interval: `batchInterval` in seconds.
        max_latency: `maxLatency` in seconds; None: no target.
    """
    timings = report.timings
    if not timings:
        return []
    full = timings[-1]
    advice = [_size(timings, report.max_batch_size)] if len(timings) > 1 else []
    of_row = full.size / full.rows
    gathered = full.rows_per_second * interval * of_row  # in one interval, at the best rate
    counted = ROWS if report.unit == ROWS else "units"  # by maxBatchSize
    if report.max_batch_size != 1 and interval != 0.0 and gathered < report.max_batch_size:
        advice.append(
            Remark(
                Weight.NOTE,
                f"at {full.rows_per_second:,.0f} rows/s, the rate of full batches, a batchInterval"
                f" of {_ms(interval)} gathers {gathered:,.1f} of {report.max_batch_size}"
                f" {counted}: what does not gather while a batch runs needs"
                f" {_ms(report.max_batch_size / of_row / full.rows_per_second)}",
            )
        )
    if max_latency is not None:
        advice += _latency(timings, interval, max_latency)
    elif full.rows > 1 and interval > 0 and full.seconds > 5 * interval:
        advice.append(
            Remark(
                Weight.NOTE,
                f"a full batch takes {_ms(full.seconds)}, so a batchInterval of {_ms(interval)}"
                " hardly matters for the latency: maxBatchSize decides it",
            )
        )
    return advice


def unit_of(size_of: SizeOf) -> str:
    """One unit of a method's cost, in words."""
    what = "byte"
    if size_of.measure is Measure.LENGTH:
        what = "of the length" if size_of.of is None else f"of the length of {size_of.of}"
    elif size_of.per != 1:
        what = "bytes"
    return f"{size_of.per:g} {what}"


def _size(timings: tuple[BatchTiming, ...], configured: int) -> Remark:
    single, half, full = timings[0], timings[-2], timings[-1]
    best = max(timings, key=lambda timing: timing.rows_per_second)
    gain = best.rows_per_second / single.rows_per_second if single.rows_per_second else 1.0
    if gain < LITTLE:
        return Remark(
            Weight.WARNING,
            f"batching buys next to nothing: {gain:.2f} times the rows per second of single rows."
            " Look whether the method works on the whole array at once, or set maxBatchSize: 1:"
            " neither size nor interval is the bottleneck, but CPU, processes or threads are",
        )
    enough = next(t for t in timings if t.rows_per_second >= NEARLY_ALL * best.rows_per_second)
    if enough.rows < full.rows:
        share = enough.rows_per_second / best.rows_per_second
        return Remark(
            Weight.NOTE,
            f"maxBatchSize: {enough.size} would do: {share:.0%} of the best rate, and a batch takes"
            f" {_ms(enough.seconds)} instead of {_ms(full.seconds)}",
        )
    if full.rows_per_second > STILL_RISING * half.rows_per_second:
        return Remark(
            Weight.NOTE,
            f"the rate still rises at {full.rows} rows: try maxBatchSize: {2 * configured}",
        )
    return Remark(
        Weight.NOTE,
        f"maxBatchSize: {configured} fits: {gain:.1f} times the rows per second of single rows",
    )


def _latency(timings: tuple[BatchTiming, ...], interval: float, max_latency: float) -> list[Remark]:
    """A row waits for the interval or the batch in progress, and then for its own batch."""
    full = timings[-1]
    if full.seconds > max_latency:
        text = f"a full batch takes {_ms(full.seconds)}, more than maxLatency {_ms(max_latency)}"
    elif max(interval, full.seconds) + full.seconds > max_latency:
        text = (
            f"a row that waits for a full batch and then rides in one needs"
            f" {_ms(max(interval, full.seconds) + full.seconds)}, more than maxLatency"
            f" {_ms(max_latency)}"
        )
    else:
        return []
    fitting = [t for t in timings if max(interval, t.seconds) + t.seconds <= max_latency]
    remedy = (
        f"set maxBatchSize: {fitting[-1].size}"
        if fitting
        else "no size meets it: raise maxLatency, lower batchInterval, or use a faster model"
    )
    return [Remark(Weight.WARNING, f"{text}: {remedy}")]


def advise_memory(peak: int, processes: int, limit: int | None) -> list[Remark]:
    """Whether the copies fit; bytes, `limit` is `spec.compute.mem`."""
    if limit is None:
        return []
    if processes * peak <= limit:
        return []
    return [
        Remark(
            Weight.WARNING,
            f"{processes} processes of {peak / 2**20:.0f}Mi need more than spec.compute.mem"
            f" {limit / 2**20:.0f}Mi: raise it, lower processesPerReplica, or lower maxBatchSize",
        )
    ]


def advise_sharing(problem: str | None, processes: int, *, marked: bool) -> Remark | None:
    """Whether processes share the model, or could; `marked` with @fork_safe."""
    if problem is not None:
        if not marked:
            return None
        text = f"@fork_safe: each process has a model of its own: {problem}"
        return Remark(Weight.WARNING, text)
    if marked:
        return Remark(Weight.NOTE, "all processes share one copy of the model")
    return Remark(
        Weight.NOTE,
        f"a fork answers the same, so {processes} processes could share one copy of the model:"
        " write @fork_safe above the class if its constructor opens nothing that they cannot share",
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}ms"


# ------------------------------------------------------------ a report as text for a terminal

_UNITS: Final = f" {'units':>8}"
BAR: Final = 30
"""Characters of the longest bar."""


def render_method(report: MethodReport, advice: Sequence[Remark]) -> str:
    """Everything about one method, ending with a line feed."""
    lines = [f"{report.name}"]
    if not report.samples:
        return f"{report.name}\n  not checked: {report.source}\n"
    if report.findings:
        lines += [f"  WRONG  {finding}" for finding in report.findings]
    elif report.batched:
        lines.append(
            f"  ok     {report.samples} rows ({report.source}) are answered the same alone, in"
            " batches, and in another order"
        )
    lines += [f"  {line}" for line in render_table(report.timings, units=report.unit != ROWS)]
    if report.unit != ROWS and report.timings:
        lines.append(f"  maxBatchSize counts units: {report.unit}, at least one a row")
    if report.line is not None:
        fixed, per_row = report.line.fixed, report.line.per_row
        lines.append(f"  t(n) = {1e3 * fixed:.3g} ms + {1e3 * per_row:.3g} ms * n")
    lines += [f"  {one.weight.value + ':':8} {one.text}" for one in advice]
    return "\n".join(lines) + "\n"


def render_table(timings: Sequence[BatchTiming], *, units: bool = False) -> list[str]:
    """One line a size, with a bar as long as its rate; empty without sizes.

    `units` adds the size as `maxBatchSize` counts it, where that is not rows.
    """
    if not timings:
        return []
    best = max(timing.rows_per_second for timing in timings) or 1.0
    return [
        f"{'rows':>6}{_UNITS if units else ''} {'ms a batch':>11} {'ms a row':>9} {'rows/s':>9}",
        *(
            f"{t.rows:>6}{f' {t.size:>8}' if units else ''} {_milliseconds(t.seconds):>11}"
            f" {_milliseconds(t.seconds / t.rows):>9}"
            f" {t.rows_per_second:>9.0f}  {'#' * max(1, round(BAR * t.rows_per_second / best))}"
            for t in timings
        ),
    ]


def _milliseconds(seconds: float) -> str:
    """Milliseconds, with three digits that say something."""
    value = 1e3 * seconds
    return f"{value:.3f}" if value >= 0.1 else f"{value:#.3g}"  # noqa: PLR2004 - 0.100 has three
