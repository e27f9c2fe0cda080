"""Runs what was set up, and puts the outcome beside the clairvoyant minimum. No I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchedapi_core.simulation import (
    CapacityController,
    Outcome,
    RecordedTrace,
    StepTrace,
    clairvoyant,
    max_rate,
    simulate,
)
from batchedapi_serving.cli.simulate_assertions import QUANTITIES
from batchedapi_serving.cli.simulate_settings import Setting
from batchedapi_serving.cli.simulate_setup import Setup

_FIRST: float = 5.0
"""Seconds of load that the fleet is found ready for."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """An outcome and what it is measured by."""

    outcome: Outcome
    rate: float  # rows/s that one replica holds within the target
    minimum: float  # replica-seconds of the clairvoyant
    target: float | None  # seconds
    settings: tuple[Setting, ...]

    @property
    def cost_ratio(self) -> float:
        """Replica-seconds over the clairvoyant's."""
        return self.outcome.cost / self.minimum

    def value(self, quantity: str) -> float:
        """One of simulate_assertions.QUANTITIES: seconds, a share of 0..1, or a number."""
        outcome = self.outcome
        values: Mapping[str, float] = {
            "p50": outcome.p50,
            "p90": outcome.p90,
            "p99": outcome.p99,
            "miss_fraction": outcome.miss_fraction,
            "cost_ratio": self.cost_ratio,
            "mean_rows": outcome.mean_rows,
            "replicas": outcome.max_replicas,
        }
        return values[quantity]

    def as_object(self) -> dict[str, Any]:
        """For `--json`; durations in seconds, null where nothing was answered."""
        outcome = self.outcome
        numbers = {name: self.value(name) for name in QUANTITIES if name != "replicas"}
        return {
            **{name: None if math.isnan(value) else value for name, value in numbers.items()},
            "rejected_fraction": outcome.rejected_fraction,
            "requests": outcome.requests,
            "seconds": outcome.seconds,
            "scale_events": outcome.scale_events,
            "max_replicas": outcome.max_replicas,
            "replica_seconds": outcome.cost,
            "clairvoyant_replica_seconds": self.minimum,
            "rows_per_second_of_a_replica": self.rate,
            "batch_rows": {str(rows): count for rows, count in outcome.batch_rows.items()},
            "replicas": [list(choice) for choice in outcome.replicas],
            "settings": {name: {"value": v, "from": o} for name, v, o in self.settings},
        }


def run(setup: Setup, trace: StepTrace | RecordedTrace) -> Simulated:
    """Simulate; deterministic."""
    service = setup.service
    sizes = trace.sizes if isinstance(trace, RecordedTrace) else ()
    rate = max_rate(service, sizes=sizes, quantile=setup.quantile)
    first = trace.peak(0.0, min(_FIRST, max(1.0, trace.seconds)))
    controller = None if setup.policy is None else CapacityController(setup.policy)
    replicas = setup.replicas
    if replicas is None:
        used = 1.0 if setup.policy is None else setup.policy.target_utilization
        needed = math.ceil(first / (used * rate) - 1e-9)
        replicas = max(setup.min_replicas, min(setup.max_replicas, needed))
    outcome = simulate(
        service,
        trace,
        controller,
        seed=setup.seed,
        startup=setup.startup,
        replicas=replicas,
        min_replicas=setup.min_replicas,
        max_replicas=setup.max_replicas,
        why=(lambda: "") if controller is None else controller.why,
    )
    origin = "as the first load needs" if setup.replicas is None else "given"
    return Simulated(
        outcome=outcome,
        rate=rate,
        minimum=clairvoyant(trace, rate, min_replicas=setup.min_replicas).cost,
        target=service.latency_target,
        settings=(*setup.settings, Setting("replicas at the start", str(replicas), origin)),
    )
