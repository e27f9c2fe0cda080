"""Load, replicas, batches and latency over time, as text for a terminal; pure."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from batchedapi_core.simulation import Outcome, Second

WIDTH: Final = 72
HEIGHT: Final = 4
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PLAIN: Final = " #"
"""For a terminal that cannot show the blocks."""


class Column(NamedTuple):
    """A span of time; nan where nothing happened."""

    load: float  # rows/s
    ready: float
    live: float
    batch: float  # mean rows
    p99: float  # seconds


def draw(outcome: Outcome, levels: str = BLOCKS) -> str:
    """Four panels above a time axis, ending with a line feed; empty without a second."""
    columns = columns_of(outcome)
    if not columns:
        return ""
    parts = [
        _panel("load", "rows/s", [c.load for c in columns], levels),
        _panel("replicas ready", "", [c.ready for c in columns], levels),
        _panel("replicas ready or starting", "", [c.live for c in columns], levels),
        _panel("mean batch", "rows", [c.batch for c in columns], levels),
        _panel("p99", "ms", [1e3 * c.p99 for c in columns], levels),
    ]
    end = f"{outcome.seconds:g} s"
    return "\n".join([*parts, f"{'':10}0{end:>{max(1, len(columns) - 1)}}"]) + "\n"


def columns_of(outcome: Outcome, width: int = WIDTH) -> list[Column]:
    """The seconds of an outcome in at most `width` spans of one length."""
    seconds = outcome.timeline
    each = max(1, math.ceil(len(seconds) / width))
    columns, first = [], 0
    for begin in range(0, len(seconds), each):
        span = seconds[begin : begin + each]
        last = first + sum(second.answered for second in span)
        columns.append(_column(span, outcome.latencies[first:last]))
        first = last
    return columns


def _column(span: Sequence[Second], latencies: np.ndarray) -> Column:
    count = len(span)
    batches = sum(second.batches for second in span)
    return Column(
        load=sum(second.rate for second in span) / count,
        ready=sum(second.ready for second in span) / count,
        live=sum(second.live for second in span) / count,
        batch=sum(second.batch_rows for second in span) / batches if batches else math.nan,
        p99=float(np.quantile(latencies, 0.99, method="higher")) if len(latencies) else math.nan,
    )


def _panel(title: str, unit: str, values: Sequence[float], levels: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    top = max(known, default=0.0)
    steps = len(levels) - 1
    heights = [
        0 if math.isnan(value) or top <= 0.0 else math.ceil(value / top * HEIGHT * steps - 1e-9)
        for value in values
    ]
    lines = [f"{title} (most {top:.4g}{' ' if unit else ''}{unit})"]
    for row in range(HEIGHT - 1, -1, -1):
        mark = f"{top:>9.4g}" if row == HEIGHT - 1 else f"{'0' if row == 0 else '':>9}"
        filled = (levels[max(0, min(steps, height - row * steps))] for height in heights)
        lines.append(f"{mark} {''.join(filled)}".rstrip())
    return "\n".join(lines)
