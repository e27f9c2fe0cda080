"""A simulation as text for a terminal; pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from batchedapi_core.manifest import format_duration
from batchedapi_core.simulation import Outcome, ReplicaChoice
from batchedapi_serving.laptop.simulating.run import Simulated, shown

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
        latencies = outcome.latencies[first:last]
        p99 = float(np.quantile(latencies, 0.99, method="higher")) if len(latencies) else math.nan
        count, batches = len(span), sum(second.batches for second in span)
        columns.append(
            Column(
                load=sum(second.rate for second in span) / count,
                ready=sum(second.ready for second in span) / count,
                live=sum(second.live for second in span) / count,
                batch=sum(second.batch_rows for second in span) / batches if batches else math.nan,
                p99=p99,
            )
        )
        first = last
    return columns


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


BAR: Final = 30
"""Characters of the longest bar."""
MOST_CHANGES: Final = 20
"""Changes of the number of replicas that are printed, the first ones."""


def render(simulated: Simulated, levels: str = BLOCKS) -> str:
    """Table, histogram, changes, picture and what it all rests on; ends with a line feed."""
    outcome, settings = simulated.outcome, simulated.settings
    name, value = (max(len(setting[i]) for setting in settings) for i in (0, 1))
    return "\n".join(
        [
            *_table(simulated),
            "",
            *_histogram(outcome.batch_rows),
            *_changes(outcome.replicas),
            *_ways(simulated),
            draw(outcome, levels),
            f"{'it was simulated with':<{name}}  {'':<{value}}  from",
            *(f"{s.name:<{name}}  {s.value:<{value}}  {s.origin}".rstrip() for s in settings),
            "",
        ]
    )


def _table(simulated: Simulated) -> list[str]:
    outcome, target = simulated.outcome, simulated.target
    cost = f"{outcome.cost:.0f} replica-seconds"
    late = "" if target is None else f"answered later than {format_duration(target)}, or "
    latencies = " / ".join(shown(name, simulated.value(name)) for name in ("p50", "p90", "p99"))
    rejected = shown("miss_fraction", outcome.rejected_fraction)
    rows = (
        ("requests", f"{outcome.requests} in {outcome.seconds:g} s"),
        ("misses", f"{shown('miss_fraction', outcome.miss_fraction)}: {late}refused ({rejected})"),
        ("p50 / p90 / p99", latencies),
        ("mean batch", f"{outcome.mean_rows:.3g} rows"),
        ("replicas", f"{outcome.max_replicas} at most, {outcome.scale_events} scale events"),
        ("cost", f"{cost}, {simulated.cost_ratio:.2f} times the clairvoyant minimum"),
        ("one replica", f"holds {simulated.rate:.4g} rows/s"),
    )
    return [f"{name:<16} {value}" for name, value in rows]


def _ways(simulated: Simulated) -> list[str]:
    """The load with one queue, where the comparison was asked for."""
    ways = simulated.ways
    if ways is None:
        return []
    wide = max(len(way.name) for way in ways.ways)
    head = f"the load on {ways.replicas} replicas"
    return [
        f"{head:<{wide}} {'misses':>8} {'p50':>10} {'p99':>10} {'batch':>6}",
        *(
            f"{way.name:<{wide}} {shown('miss_fraction', way.outcome.miss_fraction):>8}"
            f" {shown('p50', way.outcome.p50):>10} {shown('p99', way.outcome.p99):>10}"
            f" {way.outcome.mean_rows:>6.3g}"
            for way in ways.ways
        ),
        "",
    ]


def _histogram(batches: Mapping[int, int]) -> list[str]:
    """Batches by the power of two up to which their rows are."""
    if not batches:
        return []
    edges: dict[int, int] = {}
    for rows, count in batches.items():
        edge = 1 << max(0, rows - 1).bit_length()
        edges[edge] = edges.get(edge, 0) + count
    most = max(edges.values())
    return [
        f"{'rows up to':>10} {'batches':>9}",
        *(
            f"{edge:>10} {count:>9}  {'#' * max(1, round(BAR * count / most))}"
            for edge, count in sorted(edges.items())
        ),
        "",
    ]


def _changes(choices: Sequence[ReplicaChoice]) -> list[str]:
    changes = [
        (before.desired, after)
        for before, after in pairwise(choices)
        if before.desired != after.desired
    ]
    if not changes:
        return []
    lines = [
        f"{choice.t:>8.0f} s  {before:>4} -> {choice.desired:<4} {choice.reason}"
        for before, choice in changes[:MOST_CHANGES]
    ]
    more = len(changes) - len(lines)
    return ["replicas asked for", *lines, *([f"{'':>10}  and {more} more"] if more else []), ""]
