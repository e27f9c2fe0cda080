"""What a check's figures mean for the manifest, in sentences; pure."""

import enum
from dataclasses import dataclass
from typing import Final

from batchedapi_serving.checking.report import MethodReport, Timing

LITTLE: Final = 1.2
"""Times the rate of single rows below which batching is hardly worth its wait."""
STILL_RISING: Final = 1.2
"""Times the rate at half the size above which a larger size is worth a try."""
NEARLY_ALL: Final = 0.9
"""Share of the best rate with which a smaller size makes do."""


class Weight(enum.StrEnum):
    """How much a piece of advice matters."""

    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece."""

    weight: Weight
    text: str


def advise_method(
    report: MethodReport, *, interval: float, max_latency: float | None
) -> list[Advice]:
    """What the table of one method suggests.

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
    advice += _interval(full, interval, report.max_batch_size)
    if max_latency is not None:
        advice += _latency(timings, interval, max_latency)
    elif full.rows > 1 and interval > 0 and full.seconds > 5 * interval:
        advice.append(
            Advice(
                Weight.NOTE,
                f"a full batch takes {_ms(full.seconds)}, so a batchInterval of {_ms(interval)}"
                " hardly matters for the latency: maxBatchSize decides it",
            )
        )
    return advice


def _size(timings: tuple[Timing, ...], configured: int) -> Advice:
    single, half, full = timings[0], timings[-2], timings[-1]
    best = max(timings, key=lambda timing: timing.rows_per_second)
    gain = best.rows_per_second / single.rows_per_second if single.rows_per_second else 1.0
    if gain < LITTLE:
        return Advice(
            Weight.WARNING,
            f"batching buys next to nothing: {gain:.2f} times the rows per second of single rows."
            " Look whether the method works on the whole array at once, or set maxBatchSize: 1:"
            " neither size nor interval is the bottleneck, but CPU, processes or threads are",
        )
    enough = next(t for t in timings if t.rows_per_second >= NEARLY_ALL * best.rows_per_second)
    if enough.rows < full.rows:
        share = enough.rows_per_second / best.rows_per_second
        return Advice(
            Weight.NOTE,
            f"maxBatchSize: {enough.rows} would do: {share:.0%} of the best rate, and a batch takes"
            f" {_ms(enough.seconds)} instead of {_ms(full.seconds)}",
        )
    if full.rows_per_second > STILL_RISING * half.rows_per_second:
        return Advice(
            Weight.NOTE,
            f"the rate still rises at {full.rows} rows: try maxBatchSize: {2 * configured}",
        )
    return Advice(
        Weight.NOTE,
        f"maxBatchSize: {configured} fits: {gain:.1f} times the rows per second of single rows",
    )


def _interval(full: Timing, interval: float, configured: int) -> list[Advice]:
    """Rows that come in one interval at the best rate: rate * interval, against a full batch."""
    gathered = full.rows_per_second * interval
    if configured == 1 or interval == 0.0 or gathered >= configured:
        return []
    return [
        Advice(
            Weight.NOTE,
            f"at {full.rows_per_second:,.0f} rows/s, the rate of full batches, a batchInterval of"
            f" {_ms(interval)} gathers {gathered:,.1f} of {configured} rows: what does not gather"
            f" while a batch runs needs {_ms(configured / full.rows_per_second)}",
        )
    ]


def _latency(timings: tuple[Timing, ...], interval: float, max_latency: float) -> list[Advice]:
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
        f"set maxBatchSize: {fitting[-1].rows}"
        if fitting
        else "no size meets it: raise maxLatency, lower batchInterval, or use a faster model"
    )
    return [Advice(Weight.WARNING, f"{text}: {remedy}")]


def advise_memory(peak: int, processes: int, limit: int | None) -> list[Advice]:
    """Whether the copies fit; bytes, `limit` is `spec.compute.mem`."""
    if limit is None:
        return []
    if processes * peak <= limit:
        return []
    return [
        Advice(
            Weight.WARNING,
            f"{processes} processes of {peak / 2**20:.0f}Mi need more than spec.compute.mem"
            f" {limit / 2**20:.0f}Mi: raise it, lower processesPerReplica, or lower maxBatchSize",
        )
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}ms"
