"""One case: a service under a load with an autoscaler."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from autoscaling.quick import quick
from autoscaling.roster import ROSTER
from autoscaling.services import MAX_REPLICAS, MIN_REPLICAS, SERVICES, LoadTested
from autoscaling.traces import LOADS
from batchedapi_core.simulation import NoisyService, clairvoyant, simulate


@dataclass(frozen=True, slots=True)
class Case:
    """Names of what is put together, so that another process can do it."""

    service: str
    load: str
    controller: str
    seed: int  # of arrivals, balancing, start-up times and noise

    @property
    def served(self) -> NoisyService:
        """Behaviour of each replica under this load; a load test of one sees its first minutes."""
        return replace(SERVICES[self.service], pace=LOADS[self.load].pace)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case."""

    case: Case
    misses: float  # share of the requests, late or refused
    rejected: float  # share of the requests
    cost: float  # replica-seconds over those of a clairvoyant who needs no time to start them
    p50: float  # seconds, of the answered
    p99: float
    scale_events: int
    most_replicas: int
    cpu_seconds: float  # that the simulation took


def cases_of(
    services: Collection[str], loads: Collection[str], controllers: Collection[str], seeds: int
) -> list[Case]:
    """Every combination; the longest first, so that the processes end together."""
    cases = [
        Case(service, load, controller, seed)
        for service in SERVICES
        if service in services
        for load in LOADS
        if load in loads
        for controller in ROSTER
        if controller in controllers
        for seed in range(seeds)
    ]
    return sorted(cases, key=lambda case: SERVICES[case.service].capacity, reverse=True)


def run(case: Case, max_rate: float) -> Result:
    """Simulate it.

    Args:
        case: What to simulate.
        max_rate: Rows/s that one replica of the service holds, by `simulation.max_rate`.
    """
    began = time.process_time()
    known = LoadTested(case.served, max_rate)
    load = LOADS[case.load]
    trace = load.trace(known.planned_rate)
    with quick():
        outcome = simulate(
            known.service,
            trace,
            ROSTER[case.controller].make(known),
            seed=case.seed,
            startup=load.startup,
            replicas=max(MIN_REPLICAS, math.ceil(load.level(0.0) - 1e-9)),
            min_replicas=MIN_REPLICAS,
            max_replicas=MAX_REPLICAS,
            balancer=load.balancer(),
        )
    least = clairvoyant(trace, max_rate, min_replicas=MIN_REPLICAS).cost
    return Result(
        case,
        misses=outcome.miss_fraction,
        rejected=outcome.rejected_fraction,
        cost=outcome.cost / least,
        p50=outcome.p50,
        p99=outcome.p99,
        scale_events=outcome.scale_events,
        most_replicas=outcome.max_replicas,
        cpu_seconds=time.process_time() - began,
    )
