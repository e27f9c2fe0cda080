"""Controllers of a simulated fleet: our own autoscaler, and one who knows the load.

The first does what the operator's loop does, without the network.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, assert_never

import numpy as np

from batchedapi_core.batching import SizeUnit
from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.observe import in_rows
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS, ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodSample, Unready
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.simulation.fleet import SimulatedFleet, SimulatedPod, simulate
from batchedapi_core.simulation.replica import NoisyService
from batchedapi_core.simulation.trace import PoissonTrace, RecordedTrace, Trace

REVISION: Final = "simulated"
"""What all replicas run."""


class CapacityController:
    """See Controller; keeps the state between looks and the decision of the last."""

    def __init__(
        self,
        policy: ScalingPolicy,
        *,
        every: float = SECONDS_BETWEEN_LOOKS,
        state: ScalingState | None = None,
        wall: float | None = None,
    ) -> None:
        """`policy.max_batch_size` is in the unit that `SimulatedPod.sizes` counts.

        Args:
            policy: Of the API.
            every: Seconds between looks.
            state: Learned before the simulation begins; None: nothing.
            wall: Unix seconds at which it begins; None: no schedules are learned.
        """
        self._policy = policy
        self._every = every
        self._state = ScalingState.empty() if state is None else state
        self._wall = wall
        self.decision: ScalingDecision | None = None

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """See Controller."""
        if fleet.now % self._every:
            return None
        ready = [pod for pod in fleet.pods if pod.ready]
        samples = tuple(_sample(pod, fleet.now) for pod in ready)
        policy = in_rows(self._policy, self._state, samples, fleet.now)
        placed = (pod.placed for pod in fleet.pods if not pod.ready and pod.placed is not None)
        look = Observation(
            samples,
            len(ready),
            len(fleet.pods),
            REVISION,
            Unready(
                unschedulable=sum(pod.placed is None for pod in fleet.pods),
                oldest=max((fleet.now - at for at in placed), default=0.0),
            ),
            fleet.wanted,
            wall=None if self._wall is None else self._wall + fleet.now,
        )
        self.decision, self._state = step(policy, self._state, look, fleet.now)
        return self.decision.desired

    def why(self) -> str:
        """The reason of the last decision; "" before the first."""
        return "" if self.decision is None else self.decision.reason.value


def _sample(pod: SimulatedPod, now: float) -> PodSample:
    counters = asdict(pod.counters)
    placed = pod.created if pod.placed is None else pod.placed
    return PodSample(
        pod=pod.name,
        time=now,
        process_start=pod.created,
        uptime=now - pod.created,
        rows_received=counters.pop("received"),
        rows_rejected=counters.pop("rejected"),
        **counters,
        queue_rows=pod.queue_rows,
        lanes=pod.lanes,
        in_flight=pod.in_flight,
        fixed=pod.fixed,
        startup=pod.ready_at - placed if pod.ready_at > placed else None,
        placement=placed - pod.created if pod.ready_at > placed else None,
    )


ORACLE_STEP: Final = 5  # seconds for which its number of replicas stays
_LEAST_SECONDS: Final = 20.0
_MOST_SECONDS: Final = 90.0
_ENOUGH: Final = 100_000.0  # requests: more would not move the 99th percentile
_ENOUGH_OF_LENGTHS: Final = 20_000.0  # each takes four times as long, and moves it by a hundredth
_HALVINGS: Final = 9
_LOWEST, _HIGHEST = 0.05, 1.2  # of the capacity of full batches


@dataclass(frozen=True, slots=True)
class Clairvoyant:
    """Replicas of one who knows the load and needs no time to start them."""

    replicas: tuple[int, ...]  # of each `ORACLE_STEP` seconds
    cost: float  # replica-seconds


def max_rate(
    service: NoisyService, *, sizes: Sequence[int] = (), seed: int = 3, quantile: float = 0.99
) -> float:
    """Largest Poisson load in rows/s at which one replica misses at most 1 - `quantile`.

    Args:
        service: With `latency_target`; without one only what is refused is missed.
        sizes: Rows of requests to draw from; none: one row each.
        quantile: Of the requests, to be in time.

    Returns:
        Within 0.3 % of the capacity of full batches; the lowest load looked at, 5 % of it, where
        not even that is held.
    """
    match service.size_unit:  # rows/s where all batches are full
        case SizeUnit.ROWS:
            full = service.capacity
        case SizeUnit.REQUESTS:
            rows = service.max_batch_size * (float(np.mean(sizes)) if sizes else 1.0)
            full = service.lanes * rows / service.time.seconds(rows)
        case _:
            assert_never(service.size_unit)
    if service.latency_target is None:
        return full
    enough = _ENOUGH_OF_LENGTHS if service.lengths else _ENOUGH
    seconds = float(math.ceil(min(_MOST_SECONDS, max(_LEAST_SECONDS, enough / full))))
    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        trace = _constant(middle * full, seconds, sizes, seed)
        if simulate(service, trace, None, seed=seed).miss_fraction <= 1.0 - quantile:
            low = middle
        else:
            high = middle
    return low * full


def clairvoyant(trace: Trace, rate: float, *, min_replicas: int = 1) -> Clairvoyant:
    """For every 5 s of `trace` the fewest replicas that hold its peak, at `rate` rows/s each."""
    replicas, cost = [], 0.0
    start, end = 0.0, float(int(trace.seconds))
    while start < end:
        stop = min(start + ORACLE_STEP, end)
        # What rounding adds to a load of exactly n replicas must not make it n + 1.
        needed = max(min_replicas, math.ceil(trace.peak(start, stop) / rate - 1e-9))
        replicas.append(needed)
        cost += needed * (stop - start)
        start = stop
    return Clairvoyant(tuple(replicas), cost)


def _constant(rate: float, seconds: float, sizes: Sequence[int], seed: int) -> Trace:
    """Poisson at `rate` rows/s, of requests that are as large as others were."""
    if not sizes:
        return PoissonTrace(lambda _: rate, seconds)
    rng = np.random.default_rng(seed)
    count = int(rng.poisson(rate * seconds / float(np.mean(sizes))))
    times = np.sort(rng.random(count)) * seconds
    return RecordedTrace(times.tolist(), rng.choice(np.asarray(sizes), count).tolist())
