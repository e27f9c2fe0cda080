"""What guards against a model of service times that is wrong; it only ever lowers the capacity.

Two things can be wrong, and show in two places. Batches take longer than the line says, because
inputs got longer or it bends: that shows in their measured time at once, while the model forgets in
minutes. Or capacity is less than rows over seconds would have it, because of what the model does
not know of: then requests wait longer than they should although there is no overload.
"""

import math
from collections.abc import Sequence

from batchedapi_core.scaling.window import Interval
from batchedapi_core.service_model.fit import BatchSums
from batchedapi_core.service_model.line import ServiceTime

RATIO_SECONDS = 30.0
"""Batches of this long are compared with the model."""
FEWEST_BATCHES = 20.0
SLOWEST = 2.0
"""Times longer than modelled: more is a fault, which more replicas would not mend."""
CALM_SECONDS = 20.0
"""Since the last overload: before, requests wait because of that."""
SLACK = 1.2
"""The mean latency may be this much above what is expected before anything is concluded."""
LEAST_TRUST = 0.6
FALL, RISE = 0.95, 1.01
"""Of the trust in ten seconds: lost quickly, regained slowly."""
_PER = 10.0
_TAIL = 4.6
"""ln 100: an exponential tail has its 99 % point at this many means."""


def slowdown(intervals: Sequence[Interval], service: ServiceTime | None) -> float:
    """Measured over modelled seconds of batches, 1 to SLOWEST; faster is left to the model."""
    sums = BatchSums()
    for one in intervals:
        sums = sums.plus(one.warm)
    if service is None or sums.batches < FEWEST_BATCHES:
        return 1.0
    modelled = sums.modelled(service)
    return min(SLOWEST, max(1.0, sums.seconds / modelled)) if modelled > 0.0 else 1.0


def expected_latency(
    service: ServiceTime, rows: int, *, batch_interval: float, latency_target: float
) -> float:
    """Mean seconds from arrival to answer in a replica that is just at its capacity.

    A batch of its own, half of one waited for, and the mean of an exponential tail of queueing
    whose 99 % point is what the target leaves.

    Args:
        service: Seconds of a batch.
        rows: Of the batch at which the capacity is reached.
        batch_interval: Seconds.
        latency_target: Seconds.
    """
    seconds = service.seconds(rows)
    wait = max(batch_interval, seconds)
    return seconds + wait / 2 + max(0.0, latency_target - wait - seconds) / _TAIL


def trusted(before: float, *, latency: float, expected: float, seconds: float) -> float:
    """Share of the modelled capacity to believe in, LEAST_TRUST to 1.

    Args:
        before: At the last look.
        latency: Mean seconds from arrival to answer since then, without an overload.
        expected: The same of a replica just at its capacity.
        seconds: Since the last look.
    """
    if latency > SLACK * expected:
        return max(LEAST_TRUST, before * math.pow(FALL, seconds / _PER))
    if latency < expected:
        return min(1.0, before * math.pow(RISE, seconds / _PER))
    return before
