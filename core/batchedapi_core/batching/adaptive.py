"""Strategy Adaptive: size and interval from t(n) and the latency target.

By the rule with which the operator counts replicas (`lane_capacity`): of the sizes up to the
user's, the one at which a lane serves most within the target. Holding rows back for no longer than
that batch takes costs nothing by the same rule, as a row may have to wait that long for the batch
in progress anyway. So the effective interval is t(size), and never more than the user's.

A target that no size meets changes nothing: smaller batches would lose throughput and still be
late, and admission sheds what cannot be answered in time.
"""

import math
from typing import Final, NamedTuple

from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.service_model.capacity import lane_capacity
from batchedapi_core.service_model.service_time import ServiceTime, ServiceTimeSamples

QUANTILE: Final = 0.99  # of the rows, to be within the target; the operator's
TUNE_EVERY: Final = 16  # batches; one calculation takes some 20 microseconds
EPOCH: Final = 512  # batches; what was seen counts for one to two of these
PROBE: Final = 1.25  # times the largest size seen: how far beyond it a batch may go to learn


class Effective(NamedTuple):
    """Limits that batches are formed by; never above the user's."""

    max_batch_size: int
    batch_interval: float  # seconds


class Adaptive:
    """Finds the effective limits of one method; O(1) a batch, in constant memory.

    A size that was never exceeded is no proof that a larger one would be worse: t(n) learned from
    batches of one and two rows may be so wrong that the best size seems to be one, and then nothing
    larger would ever be seen. So unless a larger batch than the best was seen within the last
    epochs the limit is above it, until one batch was. And what was learned from larger sizes than
    an epoch of full batches had is forgotten: the model may have been slower then.
    """

    __slots__ = ("_batches", "_best", "_earlier", "_largest", "_policy")

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._batches = 0
        self._best = policy.max_batch_size
        self._largest = self._earlier = 0  # sizes seen in this epoch, and in the one before

    def executed(self, size: int, samples: ServiceTimeSamples) -> Effective | None:
        """A batch of `size` was executed and observed; the limits from now on, if it is time."""
        self._batches += 1
        news = size > max(self._best, self._largest, self._earlier)
        self._largest = max(self._largest, size)
        if self._batches % EPOCH == 0:
            if self._largest >= self._best:  # else it is not the limit that keeps batches small
                samples.forget_above(self._largest)
            self._earlier, self._largest = self._largest, 0
        return self._tuned(samples.line) if news or self._batches % TUNE_EVERY == 0 else None

    def _tuned(self, line: ServiceTime) -> Effective:
        policy, largest = self._policy, self._policy.max_batch_size
        unchanged = Effective(largest, policy.batch_interval)
        if line.seconds(largest) <= 0.0:
            return unchanged
        capacity = lane_capacity(
            line,
            largest_batch=largest,
            batch_interval=0.0,
            latency_target=policy.latency_target,
            quantile=QUANTILE,
        )
        if not capacity.feasible:
            return unchanged
        self._best = size = capacity.batch_size
        interval = min(policy.batch_interval, line.seconds(size))
        seen = max(self._largest, self._earlier)
        if seen <= size:
            size = min(largest, max(size, math.ceil(PROBE * seen), seen + 1))
        return Effective(size, interval)
