"""The policy in effect: the user's, as Adaptive and the memory that ran out have made it."""

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from batchedapi_core.batching.adaptive import Adaptive, Effective
from batchedapi_core.batching.choices import Strategy
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.service_model.service_time import ServiceTimeSamples

MOST_SHAPES: Final = 256
"""Shapes whose limits are remembered; of more, the one limited longest ago is forgotten, and
learned again from its next failure."""


class PolicyInEffect:
    """Policies by shape; `base` is that of every shape without a limit of its own.

    `adaptive` is None unless the strategy is Adaptive; `executed` need not be called then.
    """

    __slots__ = ("_limited", "_limits", "_user", "adaptive", "base")

    def __init__(self, policy: BatchPolicy) -> None:
        self.base = self._user = policy
        self.adaptive = Adaptive(policy) if policy.strategy is Strategy.ADAPTIVE else None
        self._limits: dict[Hashable, int] = {}  # longest ago first
        self._limited: dict[Hashable, BatchPolicy] = {}  # made when asked for

    def of(self, shape: Hashable) -> BatchPolicy:
        """What the batches of a shape are formed by."""
        limit = self._limits.get(shape)
        if limit is None:
            return self.base
        policy = self._limited.get(shape)
        if policy is None:
            policy = self._limited[shape] = self._at_most(self.base, limit)
        return policy

    def largest(self, shape: Hashable) -> int:
        """Size of a full batch of a shape."""
        return self.of(shape).max_batch_size

    def limit_of(self, shape: Hashable) -> int:
        """Largest size that a shape may have at all, whatever is best for latency."""
        return self._limits.get(shape, self._user.max_batch_size)

    def limit(self, shape: Hashable, size: int) -> None:
        """Batches of a shape have at most `size` from now on; a larger limit changes nothing."""
        if size < 1:
            raise ValueError(f"limit of shape {shape}: expected a size of at least 1, got {size}")
        if size >= self.limit_of(shape):
            return
        self._limits.pop(shape, None)
        self._limited.pop(shape, None)
        if len(self._limits) == MOST_SHAPES:
            forgotten = next(iter(self._limits))
            del self._limits[forgotten]
            self._limited.pop(forgotten, None)
        self._limits[shape] = size

    def executed(self, size: int, samples: ServiceTimeSamples) -> bool:
        """Learn from a batch that was observed; whether any policy is another than before."""
        tuning = self.adaptive and self.adaptive.executed(size, samples)
        if not tuning:
            return False
        max_batch_size, batch_interval = tuning
        tuned = replace(self._at_most(self._user, max_batch_size), batch_interval=batch_interval)
        if tuned == self.base:
            return False
        self.base = tuned
        self._limited.clear()
        return True

    def _at_most(self, policy: BatchPolicy, size: int) -> BatchPolicy:
        """With less size, a preferred one if there is any, and as much less time to fill it."""
        if size >= policy.max_batch_size:
            return policy
        preferred = policy.preferred_sizes[: bisect_right(policy.preferred_sizes, size)]
        size = preferred[-1] if preferred else size
        return replace(
            policy,
            max_batch_size=size,
            batch_interval=policy.batch_interval * size / policy.max_batch_size,
            preferred_sizes=preferred,
        )


def effective(policy: BatchPolicy) -> Effective:
    """Its limits."""
    return Effective(policy.max_batch_size, policy.batch_interval)
