"""What load one replica truly holds, and the fewest replicas that a clairvoyant would pay for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np

from batchedapi_core.batching import SizeUnit
from batchedapi_core.simulation.fleet import simulate
from batchedapi_core.simulation.service import Service
from batchedapi_core.simulation.trace import PoissonTrace, RecordedTrace, Trace

ORACLE_STEP: Final = 5  # seconds for which its number of replicas stays
_LEAST_SECONDS: Final = 20.0
_MOST_SECONDS: Final = 90.0
_ENOUGH: Final = 100_000.0  # requests: more would not move the 99th percentile
_HALVINGS: Final = 9
_LOWEST, _HIGHEST = 0.05, 1.2  # of the capacity of full batches


@dataclass(frozen=True, slots=True)
class Clairvoyant:
    """Replicas of one who knows the load and needs no time to start them."""

    replicas: tuple[int, ...]  # of each `ORACLE_STEP` seconds
    cost: float  # replica-seconds


def max_rate(
    service: Service, *, sizes: Sequence[int] = (), seed: int = 3, quantile: float = 0.99
) -> float:
    """Largest Poisson load in rows/s at which one replica misses at most 1 - `quantile`.

    Args:
        service: With `latency_target`; without one only what is refused is missed.
        sizes: Rows of requests to draw from; none: one row each.
        seed: Of the arrivals.
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
    seconds = float(math.ceil(min(_MOST_SECONDS, max(_LEAST_SECONDS, _ENOUGH / full))))
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
