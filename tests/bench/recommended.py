"""A recommendation of the operator's that is followed: does a replica then serve what it said?

    python tests/bench/recommended.py

Three manifests over the model of examples/02-sleepy, which costs a + b n without using a core. Each
replica gets Poisson load, and what its page counted meanwhile is what the operator would have
learned. `recommend` is asked as the operator asks it. A replica with the size and interval that it
recommends is then sent a ladder of loads, by which `batchedapi tune` finds what is held: the
highest at which 99 % of the requests are in time. That is compared with what was said; and the p99
at the load with which one replica is planned, 93 % of what was said, with the target.

A machine with other work keeps a replica or the generator from its core, so a load at which the
generator was late does not bound what a replica holds.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness import metrics
from harness.prediction import learned
from harness.report import ROOT, Table, environment, help_of, out_option, report

from batchedapi_core.manifest import BatchedAPI, format_duration, parse_api, scaling_policy_of
from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.need import replica_capacity
from batchedapi_core.scaling.recommendation import Batching, recommend
from batchedapi_core.service_model import ServiceTime
from batchedapi_serving.tuning.measuring import Climb, Ladder, Rows
from batchedapi_serving.tuning.replica import Changes, Subject, running

EXAMPLE: Final = ROOT / "examples/02-sleepy/batchedapi.yaml"
TOLERANCE: Final = 0.15
QUANTILE: Final = 0.99
ROWS: Final = Rows("/sleepy", [{"id": 1}], batched=True, source="of the example")
_LEARNING_SECONDS: Final = 20.0
"""For some hundred batches; of fewer the operator says that it does not know yet."""


@dataclass(frozen=True, slots=True)
class Case:
    """A manifest, and the milliseconds of its model."""

    name: str
    fixed: float
    per_row: float
    target: str
    batching: Mapping[str, Any]
    processes: int = 1
    share: float = 0.8
    """Of what the manifest's own setting holds, to learn at: batches of many sizes run there."""

    def subject(self) -> Subject:
        """The example with this case's values, and its code."""
        source, document = yaml.safe_load_all(EXAMPLE.read_text())
        spec = document["spec"]
        spec["serverSideBatching"] = dict(self.batching)
        spec["autoscaling"] = {"slo": {"latency": self.target}}
        spec["predictor"] |= {
            "config": {"fixed_ms": self.fixed, "per_row_ms": self.per_row},
            "processesPerReplica": self.processes,
        }
        files = {name: text.encode() for name, text in source["data"].items()}
        return Subject(parse_api(document), files, EXAMPLE.parent)


CASES: Final = (
    Case("Window, 4 rows", 30, 1, "200ms", {"maxBatchSize": 4}),
    Case(
        "Fixed, 6 rows, 40 ms",
        20,
        1,
        "150ms",
        {"maxBatchSize": 6, "batchInterval": "40ms", "strategy": "Fixed"},
        share=0.5,  # at more all batches are full, and say nothing of others
    ),
    Case("Window, 4 rows, 2 processes", 40, 2, "240ms", {"maxBatchSize": 4}, processes=2),
)


@dataclass(frozen=True, slots=True)
class Followed:
    """What was said of one case, and what came of it; rates in requests/s, times in seconds."""

    effect: str
    batching: Batching
    said_before: float
    said: float
    ladder: Ladder
    target: float
    planned_p99: float

    @property
    def off(self) -> float:
        """Of what was said from what is held, as a share of it."""
        return self.said / self.ladder.goodput - 1 if self.ladder.goodput else float("inf")

    @property
    def fine(self) -> bool:
        """Both promises are kept."""
        return abs(self.off) <= TOLERANCE and self.planned_p99 <= (1 + TOLERANCE) * self.target


def follow(case: Case, seconds: float) -> Followed:
    """Learn, ask, follow, measure.

    Raises:
        RuntimeError: nothing is recommended.
    """
    subject = case.subject()
    model = _learned(case, subject)
    policy = scaling_policy_of(subject.api)
    found = recommend(policy, model)
    if found.batching is None:
        raise RuntimeError(f"{case.name}: expected a recommendation, got {found.effect!r}")
    size, interval = found.batching
    said = _rate(subject.api, model, found.batching)
    target = policy.latency_target or 0.0
    changes: Changes = {
        "serverSideBatching": {"maxBatchSize": size, "batchInterval": format_duration(interval)}
    }
    with running(subject, changes) as replica:
        climb = Climb(replica, ROWS, target=target, quantile=QUANTILE, seconds=seconds)
        climb.climb(said, _tell(case))
        planned = Climb(replica, ROWS, target=target, quantile=QUANTILE, seconds=2 * seconds)
        answers = planned.load(policy.target_utilization * said).answers
    before = Batching(policy.max_batch_size, policy.batch_interval)
    return Followed(
        found.effect,
        found.batching,
        _rate(subject.api, model, before),
        said,
        climb.ladder,
        target,
        answers.p(QUANTILE),
    )


def _learned(case: Case, subject: Subject) -> LearnedModel:
    """As the operator would, of a replica under a load that it holds."""
    exact = ServiceTime(case.fixed / 1e3, case.per_row / 1e3)
    policy = scaling_policy_of(subject.api)
    held = replica_capacity(policy, exact, rows_per_request=1.0, slowdown=1.0).rows_per_second
    with running(subject, {}) as replica:
        before = metrics.read(replica.admin_port)
        climb = Climb(
            replica, ROWS, target=policy.latency_target or 0.0, quantile=QUANTILE,
            seconds=_LEARNING_SECONDS,
        )  # fmt: skip
        _tell(case)(f"learning at {case.share * held:.0f} requests/s")
        climb.load(case.share * held)
        sums, _ = learned(before, metrics.read(replica.admin_port))
    return LearnedModel("", sums)


def _rate(api: BatchedAPI, model: LearnedModel, batching: Batching) -> float:
    """Rows/s of a replica, as the operator says it."""
    size, interval = batching
    policy = replace(scaling_policy_of(api), max_batch_size=size, batch_interval=interval)
    service = model.service(policy)
    return replica_capacity(policy, service, rows_per_request=1.0, slowdown=1.0).rows_per_second


def _tell(case: Case) -> Any:
    return lambda text: click.echo(f"{case.name}: {text}")


@click.command(help=help_of(__doc__))
@click.option("--case", "only", type=click.Choice([one.name for one in CASES]), default=None)
@click.option("--seconds", type=click.FloatRange(1.0, 60.0), default=8.0, show_default=True)
@out_option
def main(only: str | None, seconds: float, out: Path | None) -> None:
    """See the module's docstring."""
    around = environment()
    cases = [one for one in CASES if only in {None, one.name}]
    found = {case.name: follow(case, seconds) for case in cases}
    rows = [
        (
            name,
            f"{one.batching.max_batch_size}, {1e3 * one.batching.batch_interval:g}",
            f"{one.said_before:.0f}",
            f"{one.said:.0f}",
            f"{'' if one.ladder.bounded else '>'}{one.ladder.goodput:.0f}",
            f"{one.off:+.1%}",
            f"{1e3 * one.planned_p99:.0f} of {1e3 * one.target:.0f}",
        )
        for name, one in found.items()
    ]
    table = Table(
        "A recommendation that is followed",
        ("manifest", "rows, ms", "said before, rows/s", "said", "held", "off", "p99, ms"),
        rows,
    )
    note = (
        f"Loads of {seconds:g} s. p99 is at 93 % of what was said, with which a replica is planned,"
        " and beside its target. `>`: the generator fell behind first."
    )
    measured = {
        name: {"effect": one.effect, "said": one.said, "held": one.ladder.goodput,
               "p99": one.planned_p99, "target": one.target}
        for name, one in found.items()
    }  # fmt: skip
    report("recommended", around, [table], notes=[note], measured=measured, out=out)
    bad = [name for name, one in found.items() if not one.fine]
    if bad:
        sys.exit(f"off by more than {TOLERANCE:.0%}: {'; '.join(bad)}")


if __name__ == "__main__":
    main()
