"""Six APIs on a cluster whose places do not suffice for all of their peaks together.

    python tests/bench/autoscaling/shared.py --places 34 --seeds 4

They are simulated with `emb` and need 23 to 39 replicas at once. A pod takes a place, and waits
where none is free. Under `selfish` start-up is learned from a pod's creation and an API does not
know who waits; under `giving` it is learned from the place on, and what is held goes.
"""

import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as for the programs beside it

from harness.report import Table, environment, help_of, out_option, report

from autoscaling.quick import quick
from autoscaling.services import SERVICES, LoadTested
from autoscaling.traces import LOADS
from batchedapi_core.simulation import (
    STARTUP,
    CapacityController,
    Fleet,
    Places,
    PoissonTrace,
    SimulatedFleet,
    simulate_together,
)

SECONDS: Final = 1500
RATE: Final = 166.4
"""Rows/s that one replica of `emb` holds, by `simulation.max_rate`."""
RULES: Final = ("selfish", "giving")


def _day(shift: float, t: float) -> float:
    return 7.0 - 4.6 * math.cos(2 * math.pi * (t / 900 + shift))


APIS: Final[Sequence[Callable[[float], float]]] = (
    partial(_day, 0.0),
    partial(_day, 1 / 3),
    partial(_day, 1 / 2),
    lambda t: 1.3 * LOADS["random-walk"].level(t),
    lambda t: 1.2 * LOADS["two-peaks"].level(t),
    lambda t: 2.0 + LOADS["slow-decay"].level(t),
)
"""Levels, 1.0 being 80 % of what one replica holds."""


def _rate(level: Callable[[float], float], unit: float, t: float) -> float:
    return level(t) * unit


def need(t: float) -> int:
    """Replicas that all of them need at once."""
    return sum(max(1, math.ceil(0.8 * level(t))) for level in APIS)


@dataclass(frozen=True, slots=True)
class Shared:
    """The outcome of a run."""

    rule: str
    seed: int
    late: float  # share of the requests of all APIs, late or refused
    worst: float  # of those of the API with the largest share
    start_up: float  # seconds, the longest that an API had learned in the end
    cost: float  # replica-seconds


@dataclass(slots=True)
class Member:
    """Ours for one of the APIs, which may be made to know what it knew before."""

    ours: CapacityController
    selfish: bool

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """See Controller."""
        if self.selfish:
            pods = (replace(p, placed=None if p.placed is None else p.created) for p in fleet.pods)
            fleet = replace(fleet, pods=tuple(pods), wanted=0)
        return self.ours(fleet)

    @property
    def start_up(self) -> float:
        """Seconds, as learned."""
        decision = self.ours.decision
        return 0.0 if decision is None else decision.terms.start_up


def run(places: int, rule: str, seed: int, seconds: int = SECONDS) -> Shared:
    """Simulate all of them on so many places."""
    service = SERVICES["emb"]
    known, room = LoadTested(service, RATE), Places(places)
    members = [Member(CapacityController(known.policy()), rule == "selfish") for _ in APIS]
    with quick():
        fleets = [
            Fleet(
                service,
                PoissonTrace(partial(_rate, level, known.planned_rate), float(seconds)),
                member,
                seed=100 * seed + number,
                replicas=math.ceil(0.8 * level(0.0)),
                places=room,
            )
            for number, (level, member) in enumerate(zip(APIS, members, strict=True))
        ]
        outcomes = simulate_together(fleets, room, seconds)
    return Shared(
        rule,
        seed,
        late=sum(one.missed for one in outcomes) / sum(one.requests for one in outcomes),
        worst=max(one.miss_fraction for one in outcomes),
        start_up=max(member.start_up for member in members),
        cost=sum(one.cost for one in outcomes),
    )


def table(results: Sequence[Shared]) -> Table:
    """A line for each run, and the means of each rule."""
    rows = [_row(str(one.seed), [one]) for one in results]
    means = [_row("all", [one for one in results if one.rule == rule]) for rule in RULES]
    columns = ["rule", "seed", "late", "worst API", "start-up learned", "replica-seconds"]
    return Table("six APIs that share places", columns, [*rows, *means])


def _row(seed: str, runs: Sequence[Shared]) -> list[str]:
    late, worst = fmean(one.late for one in runs), max(one.worst for one in runs)
    learned, cost = max(one.start_up for one in runs), fmean(one.cost for one in runs)
    told = [f"{100 * late:.1f} %", f"{100 * worst:.0f} %", f"{learned:.0f} s", f"{cost:.0f}"]
    return [runs[0].rule, seed, *told]


@click.command(help=help_of(__doc__))
@click.option("--places", type=click.IntRange(6), default=34, show_default=True,
              help="Replicas that the cluster has room for.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 100), default=4, show_default=True,
              help="Runs of each rule.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True,
              help="Processes.")  # fmt: skip
@out_option
def main(*, places: int, seeds: int, jobs: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with multiprocessing.Pool(jobs) as pool:
        todo = [(places, rule, seed) for rule in RULES for seed in range(seeds)]
        results = pool.starmap(run, todo, chunksize=1)
    needs = [need(float(t)) for t in range(SECONDS)]
    least, most = STARTUP
    told = f"{min(needs)} to {max(needs)} replicas are needed, {fmean(needs):.1f} on average"
    report(
        "autoscaling-shared",
        began,
        [table(results)],
        notes=[f"{told}, on {places} places. One starts within {least:g} to {most:g} s."],
        measured={"runs": [asdict(one) for one in results]},
        out=out,
    )


if __name__ == "__main__":
    main()
