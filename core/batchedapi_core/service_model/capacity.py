"""How many rows a second one lane sustains, given t(n) and a latency target.

A row waits at most max(batch interval, the batch in progress) and then for its own batch. What the
target leaves after that, the slack, absorbs queueing noise: the tail of a queue whose marginal cost
is one row's price c. While a batch has room one more makes it larger and costs per_row; once it is
full, one more takes its share of a further batch, t(n) / n. With z = ln(1 / (1 - quantile)) / 2

    capacity = max over n of  n / t(n) * slack / (slack + z * c * together),
    slack = target - max(interval, t(n)) - t(n) > 0

`together` is how many rows arrive at once, those of one request: a queue of clumps has a tail
longer by that factor.

tests/bench/capacity.py compares the rule with simulated truth for random services: half of them
are within 6 % below and nothing above, 95 % at most a fifth above; docs/decisions/0003 has the
context. With per_row as the price throughout, batches of few rows would be taken for twice what
they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from batchedapi_core.service_model.service_time import ServiceTime

BEST_EFFORT = 0.5
"""Share of the throughput to plan with when no batch size meets the target."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one lane sustains, and how."""

    rows_per_second: float
    batch_size: int  # rows, at which it does
    feasible: bool  # False: no batch size meets the latency target


def lane_capacity(
    service: ServiceTime,
    *,
    largest_batch: int,
    batch_interval: float,
    latency_target: float | None,
    quantile: float,
    rows_per_request: float = 1.0,
) -> Capacity:
    """Best rate of one lane with batches of at most `largest_batch` rows.

    Args:
        service: Seconds of a batch.
        largest_batch: Rows, >= 1.
        batch_interval: Seconds the oldest row waits for its batch to fill.
        latency_target: Seconds, for `quantile` of the rows; None plans for full batches.
        quantile: In (0, 1).
        rows_per_request: Rows that arrive at once, >= 1.

    Returns:
        `feasible` is False when even a batch of one row misses the target; the rate is then half
        of what full batches give.
    """
    throughput = largest_batch / service.seconds(largest_batch)
    if latency_target is None:
        return Capacity(throughput, largest_batch, feasible=True)
    noise = 0.5 * math.log(1.0 / (1.0 - quantile)) * rows_per_request

    def rate(rows: int) -> float:
        seconds = service.seconds(rows)
        slack = latency_target - max(batch_interval, seconds) - seconds
        price = seconds / rows if rows == largest_batch else service.per_row
        return rows / seconds * slack / (slack + noise * price) if slack > 0 else 0.0

    best = _peak(rate, largest_batch)
    if rate(best) <= 0.0:
        return Capacity(BEST_EFFORT * throughput, largest_batch, feasible=False)
    return Capacity(rate(best), best, feasible=True)


def _peak(rate: Callable[[int], float], largest: int) -> int:
    """Size with the highest rate, by bisection.

    The rate is log-concave while the slack is positive (n / t(n) is, and slack / (slack + c) is
    increasing and log-concave in a concave slack) and zero beyond: it rises, then falls. The last
    size of all may be lower for its price, which keeps that order.
    """
    low, high = 1, largest
    while low < high:
        middle = (low + high) // 2
        if rate(middle) < rate(middle + 1):
            low = middle + 1
        else:
            high = middle
    return low


# How busy lanes are that are used as planned, and how busy when they are used up.

ALL_BUSY: Final = 0.98
"""Of the lanes' time: between two batches there is a moment even with a queue."""


def as_planned(target: float, *, least: float, most: float) -> float:
    """Share up to which lanes are used as planned: halfway from the target to all there is.

    Args:
        target: Share of the capacity that replicas are planned with.
        least: No less than this, however low the target.
        most: What can be measured of lanes that are used up.
    """
    return max(least, min(most, (1.0 + target) / 2))
