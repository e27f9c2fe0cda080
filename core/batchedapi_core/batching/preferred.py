"""Preferred sizes: those that a model is compiled for, or a device is best filled with."""

from bisect import bisect_right

from batchedapi_core.batching.policy import BatchPolicy


def preferred(policy: BatchPolicy, queued: int) -> int:
    """Size of a batch that is released before it is full, of `queued` >= 1.

    The largest preferred size that can be filled, everything if the smallest cannot. What is left
    is decided on next. Only for batches released `early` or because of their `shape`: when an
    interval, a deadline or a drain releases a batch, as in Triton, everything that waits goes.
    """
    fitting = bisect_right(policy.preferred_sizes, queued)
    return policy.preferred_sizes[fitting - 1] if fitting else queued
