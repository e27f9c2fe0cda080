"""`batchedapi simulate` against a real replica: mean batch and p99 of the same arrivals.

    python tests/bench/simulated.py
    python tests/bench/simulated.py --pods     # the replica in a pod of the current cluster

Three manifests of different kinds over the model of examples/02-sleepy, which costs a + b n without
using a core. Each gets open-loop Poisson load at about two thirds of what it can do, and records
it. The recorded arrivals are then simulated on the same manifest with one replica, and with the a
and b that follow from the replica's own counters. Measured latencies are the client's, so network
and HTTP are in them and not in the prediction; nothing is added to make up for it.

A machine with other work keeps a model from its core now and then, which no line a + b n can tell.
So rounds are judged by what went in, never by what came out: one in which the generator was late,
or too many batches took far longer than the model sleeps, is disturbed and does not count for p99.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Final

import click
import yaml
from harness import metrics, servers
from harness.places import Place, pods, processes
from harness.prediction import learned, simulated
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.rounds import Spread, percentile

from batchedapi_core import contract

EXAMPLE: Final = ROOT / "examples/02-sleepy/batchedapi.yaml"
TOLERANCE: Final = 0.15
LATE: Final = 0.02
"""Seconds that the generator may be late at most."""
SLOW: Final = 0.003
"""Share of batches that may take longer than the edge above SLOW_FACTOR times a full one."""
SLOW_FACTOR: Final = 1.25
_MOST_ROUNDS: Final = 4
"""Times as many rounds are run at most, to have enough that are undisturbed."""
_RECORD_SECONDS: Final = 10.0
"""For the last lines to be written; a replica writes five times a second."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """One manifest and its load."""

    name: str
    rate: float
    """Requests/s."""
    batching: Mapping[str, Any]
    config: Mapping[str, float]
    processes: int = 1
    rows: Sequence[int] = field(default=(1,))
    """Of a request, each as likely."""

    @property
    def slow(self) -> float:
        """Seconds: the edge of the histogram above which a batch was kept waiting for a core."""
        full = self.config["fixed_ms"] + self.config["per_row_ms"] * self.batching["maxBatchSize"]
        return next(e for e in contract.LATENCY_BUCKETS if e >= SLOW_FACTOR * full / 1000)

    def manifest(self, folder: Path) -> Path:
        """The example's file with this case's values."""
        documents = list(yaml.safe_load_all(EXAMPLE.read_text()))
        spec = documents[1]["spec"]
        spec["serverSideBatching"] = dict(self.batching)
        spec["predictor"]["config"] = dict(self.config)
        spec["predictor"]["processesPerReplica"] = self.processes
        file = folder / contract.MANIFEST_FILE
        file.write_text(yaml.safe_dump_all(documents))
        return file


CASES: Final = (
    Case(
        "Window, 8 rows",
        450.0,  # of 690
        {"maxBatchSize": 8},
        {"fixed_ms": 10, "per_row_ms": 0.2},
    ),
    Case(
        "Fixed, 16 rows, 20 ms",
        290.0,  # of 444
        {"maxBatchSize": 16, "batchInterval": "20ms", "strategy": "Fixed"},
        {"fixed_ms": 20, "per_row_ms": 1},
    ),
    Case(
        "Window, 16 rows, 2 processes, 1-4 rows a request",
        230.0,  # of 355
        {"maxBatchSize": 16},
        {"fixed_ms": 20, "per_row_ms": 1},
        processes=2,
        rows=(1, 2, 3, 4),
    ),
)


def recorded(place: Place, known: int, requests: int) -> list[str]:
    """The lines of `requests` arrivals after the first `known`.

    Raises:
        RuntimeError: others, or other than so many.
    """
    end = time.monotonic() + _RECORD_SECONDS
    while len(lines := place.record()[known:]) < requests and time.monotonic() < end:
        time.sleep(0.2)
    if len(lines) != requests:
        raise RuntimeError(f"expected {requests} recorded requests, got {len(lines)}")
    return lines


def run_round(place: Place, case: Case, manifest: Path, seconds: float, seed: int) -> Figures:
    """Load, and what the simulator makes of it."""
    known, before = len(place.record()), place.samples()
    tally = place.load(
        "--rate", str(case.rate), "--seconds", str(seconds), "--seed", str(seed),
        "--rows", ",".join(map(str, case.rows)),
    )  # fmt: skip
    took: list[float] = tally["latencies"]
    if tally["failed"] or tally["delayed"]:
        raise RuntimeError(f"{case.name}: {tally['failed']} failed, {tally['delayed']} delayed")
    arrivals = recorded(place, known, len(took))
    after = place.samples()
    sums, batch = learned(before, after)
    predicted = simulated(manifest, arrivals, batch)
    request = contract.METRIC_REQUEST_SECONDS
    inside = metrics.change(before, after, f"{request}_sum") / len(took)
    bucket = f"{contract.METRIC_BATCH_SECONDS}_bucket"
    quick = metrics.change(before, after, bucket, le=f"{case.slow:g}")
    return {
        "requests": len(took),
        "fixed": batch.fixed,
        "per_row": batch.per_row,
        "rows": sums.rows / sums.batches,
        "rows_predicted": predicted["mean_rows"],
        "p50": percentile(took, 50),
        "p50_predicted": predicted["p50"],
        "p99": percentile(took, 99),
        "p99_predicted": predicted["p99"],
        "outside": mean(took) - inside,
        "lateness": tally["lateness"],
        "slow": 1 - quick / sums.batches,
    }


def run_case(
    case: Case,
    start: Callable[[Path], AbstractContextManager[Place]],
    rounds: int,
    seconds: float,
) -> list[Figures]:
    """Rounds of one replica, until so many are undisturbed."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-simulated-") as folder:
        manifest = case.manifest(Path(folder))
        with start(manifest) as place:
            for number in range(rounds * _MOST_ROUNDS):
                found.append(one := run_round(place, case, manifest, seconds, number))
                click.echo(
                    f"{case.name}, round {number + 1}: rows {off([one], 'rows').median:+.1%},"
                    f" p99 {off([one], 'p99').median:+.1%}, slow batches {one['slow']:.1%},"
                    f" {1e3 * one['lateness']:.0f} ms late{'' if calm(one) else ': disturbed'}"
                )
                if sum(map(calm, found)) >= rounds:
                    break
    return found


def calm(one: Figures) -> bool:
    """Whether the machine had a core for everybody."""
    return one["lateness"] <= LATE and one["slow"] <= SLOW


def counting(rounds: Sequence[Figures]) -> Sequence[Figures]:
    """The undisturbed; all where there are none."""
    return [one for one in rounds if calm(one)] or rounds


def off(rounds: Sequence[Figures], figure: str) -> Spread:
    """Of the prediction from what was measured, as a share of it, in each round."""
    return Spread.of([one[f"{figure}_predicted"] / one[figure] - 1 for one in rounds])


def _row(case: Case, rounds: Sequence[Figures]) -> list[str]:
    undisturbed, total, rounds = sum(map(calm, rounds)), len(rounds), counting(rounds)

    def both(figure: str, scale: float, digits: int) -> str:
        pair = (Spread.of([scale * r[name] for r in rounds]).median for name in
                (figure, f"{figure}_predicted"))  # fmt: skip
        return " / ".join(f"{value:.{digits}f}" for value in pair)

    def range_off(figure: str) -> str:
        middle, low, high = off(rounds, figure)
        return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"

    def middle(figure: str) -> float:
        return 1e3 * Spread.of([one[figure] for one in rounds]).median

    return [
        case.name,
        f"{case.rate:g}",
        f"{middle('fixed'):.2f} + {middle('per_row'):.3f} n",
        both("rows", 1.0, 2),
        range_off("rows"),
        both("p50", 1e3, 1),
        both("p99", 1e3, 1),
        range_off("p99"),
        f"{middle('outside'):.1f}",
        f"{undisturbed} of {total}",
    ]


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(5.0, 300.0), default=40.0, show_default=True)
@click.option("--port", default=servers.PORT + 700, show_default=True, help="First of two.")
@click.option("--pods", "in_pods", is_flag=True, help="In pods; needs kubectl and a cluster.")
@click.option("--image", default="batchedapi-serving:dev", show_default=True, help="Of the pods.")
@out_option
def main(  # noqa: PLR0917 - click passes options by name
    rounds: int,
    seconds: float,
    port: int,
    in_pods: bool,  # noqa: FBT001 - as above
    image: str,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()

    def start(manifest: Path) -> AbstractContextManager[Place]:
        return pods(manifest, image) if in_pods else processes(manifest, port)

    found = {case.name: run_case(case, start, rounds, seconds) for case in CASES}
    table = Table(
        f"Measured / simulated, {'pods' if in_pods else 'processes'}",
        ["manifest", "requests/s", "batch of n rows, ms", "mean rows", "off", "p50 ms", "p99 ms",
         "off", "network and HTTP ms", "undisturbed"],
        [_row(case, found[case.name]) for case in CASES],
    )  # fmt: skip
    note = (
        f"Medians of undisturbed rounds of {seconds:g} s, and in brackets their range; without one,"
        " of all."
        " Latencies: the client's, from the sending to the whole answer, beside those simulated,"
        " to which nothing was added. The last column is what the client's mean is above the"
        " replica's own, and not part of any simulation."
    )
    name = "simulated-pods" if in_pods else "simulated"
    report(name, began, [table], notes=[note], measured=found, out=out)
    bad = [
        f"{case}: {figure}"
        for case, all_rounds in found.items()
        for figure in ("rows", "p99")
        if abs(off(counting(all_rounds), figure).median) > TOLERANCE
    ]
    if bad:
        sys.exit(f"off by more than {TOLERANCE:.0%}: {'; '.join(bad)}")


if __name__ == "__main__":
    main()
