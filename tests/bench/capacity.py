"""How near the autoscaler's formula of capacity is to what a replica holds.

    python tests/bench/capacity.py

Services are drawn at random: batches of 1 to 64 rows, a fixed cost of 2 ms to 0.6 s, rows from free
to three times as dear, targets of 2.2 to 10 full batches. What a replica holds is found by
simulating it at one load after the other; see `max_rate`.
"""

import math
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core.service_model import ServiceTime, lane_capacity
from batchedapi_core.simulation import Service, max_rate

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
FASTEST: Final = 3000.0
"""Rows/s; simulating more takes long and says nothing new."""
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
GROUPS: Final = ((1, 4), (6, 12), (16, 64), (1, 64))
"""Rows of the largest batch, from and to."""
OFF: Final = 0.05
"""The median may be off by so much."""


def services(seed: int) -> Iterator[Service]:
    """Without end."""
    chance = random.Random(seed)
    while True:
        size, fixed = chance.choice(SIZES), 10 ** chance.uniform(-2.7, -0.2)
        per_row = 0.0 if chance.random() < 0.15 else fixed * 10 ** chance.uniform(-3, 0.5)
        full = fixed + per_row * size
        target = full * 10 ** chance.uniform(math.log10(2.2), 1.0)
        interval = chance.uniform(0.0, 0.3) * min(target, full)
        service = Service(fixed, per_row, size, interval, target)
        if service.capacity <= FASTEST:
            yield service


def compared(service: Service) -> dict[str, float]:
    """Rows/s by the formula and in truth."""
    formula = lane_capacity(
        ServiceTime(service.fixed, service.per_row),
        largest_batch=service.max_batch_size,
        batch_interval=service.batch_interval,
        latency_target=service.latency_target,
        quantile=0.99,
    )
    return {
        "size": service.max_batch_size,
        "fixed": _short(service.fixed),
        "per_row": _short(service.per_row),
        "interval": _short(service.batch_interval),
        "target": _short(service.latency_target or 0.0),
        "formula": _short(formula.rows_per_second),
        "truth": _short(max_rate(service)),
    }


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")


def row_of(least: int, most: int, runs: list[dict[str, float]]) -> tuple[Any, ...]:
    """Quantiles of formula / truth among services with such batches."""
    ratios = sorted(run["formula"] / run["truth"] for run in runs if least <= run["size"] <= most)
    found = (ratios[min(len(ratios) - 1, int(share * len(ratios)))] for share in QUANTILES)
    error = math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios))
    return (
        f"{least} to {most}",
        str(len(ratios)),
        *(f"{ratio:.2f}" for ratio in found),
        f"{error:.2f}",
    )


@click.command(help=help_of(__doc__))
@click.option("--services", "count", default=1000, show_default=True, help="About 15 a second.")
@click.option("--seed", default=7, show_default=True)
@out_option
def main(count: int, seed: int, out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    runs = [compared(service) for service in islice(services(seed), count)]
    rows = [row_of(least, most, runs) for least, most in GROUPS]
    table = Table(
        "Capacity by the formula over what a replica holds",
        (
            "rows of a full batch",
            "services",
            *(f"{share:.0%}" for share in QUANTILES),
            "rms log error",
        ),
        rows,
    )
    report("capacity", around, [table], notes=[], measured={"services": runs}, out=out)
    median = float(rows[-1][2 + QUANTILES.index(0.5)])
    sys.exit(abs(median - 1.0) > OFF)


if __name__ == "__main__":
    main()
