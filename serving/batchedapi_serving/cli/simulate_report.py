"""A simulation as text for a terminal; pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from batchedapi_core.manifest import format_duration
from batchedapi_core.simulation import ReplicaChoice
from batchedapi_serving.cli.simulate_assertions import shown
from batchedapi_serving.cli.simulate_picture import BLOCKS, draw
from batchedapi_serving.cli.simulate_run import Simulated

BAR: Final = 30
"""Characters of the longest bar."""
MOST_CHANGES: Final = 20
"""Changes of the number of replicas that are printed, the first ones."""


def render(simulated: Simulated, levels: str = BLOCKS) -> str:
    """Table, histogram, changes, picture and what it all rests on; ends with a line feed."""
    outcome = simulated.outcome
    return "\n".join(
        [
            *_table(simulated),
            "",
            *_histogram(outcome.batch_rows),
            *_changes(outcome.replicas),
            draw(outcome, levels),
            *_settings(simulated),
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


def _settings(simulated: Simulated) -> list[str]:
    settings = simulated.settings
    name, value = (max(len(setting[i]) for setting in settings) for i in (0, 1))
    lines = (f"{s.name:<{name}}  {s.value:<{value}}  {s.origin}".rstrip() for s in settings)
    return [f"{'it was simulated with':<{name}}  {'':<{value}}  from", *lines]
