"""Sizes that a model is best at, and strategies that release early."""

from math import inf

import pytest

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Release,
    Request,
    Strategy,
    next_action,
)


def batcher_of(strategy: Strategy, queued: int, *sizes: int) -> Batcher:
    """32 rows a batch, one free lane, 2 ms; so many rows queued at 0 s."""
    batcher: Batcher = Batcher(BatchPolicy(32, 0.002, strategy, preferred_sizes=sizes))
    batcher.lane_added(0.0)
    for _ in range(queued):
        batcher.arrive(Request(0, "", 1, 1, Client(), 0.0, inf), 0.0)
    return batcher


@pytest.mark.parametrize(
    ("queued", "size"), [(3, 3), (4, 4), (7, 4), (8, 8), (31, 16), (32, 32), (40, 32)]
)
@pytest.mark.parametrize("strategy", [Strategy.WINDOW, Strategy.IMMEDIATE])
def test_an_early_batch_has_the_largest_preferred_size(
    strategy: Strategy, queued: int, size: int
) -> None:
    """With fewer than the smallest, what waits goes: holding it back would help nobody."""
    batcher = batcher_of(strategy, queued, 4, 8, 16)

    assert Release(size, "full" if size == 32 else "early") == next_action(batcher, 0.0)


def test_at_the_interval_everything_goes() -> None:
    """As in Triton: the delay is a promise to whoever waits, a preferred size is none."""
    batcher = batcher_of(Strategy.FIXED, 7, 4)

    assert Release(7, "interval") == next_action(batcher, 0.002)


def test_a_drain_takes_everything() -> None:
    """The process is about to end."""
    batcher = batcher_of(Strategy.WINDOW, 7, 4)
    batcher.draining = True

    assert Release(7, "drain") == next_action(batcher, 0.0)


def test_a_request_larger_than_the_preferred_size_goes_alone() -> None:
    """It cannot be cut here, and must not block the queue."""
    batcher: Batcher = Batcher(BatchPolicy(32, 0.0, Strategy.IMMEDIATE, preferred_sizes=(4, 16)))
    batcher.lane_added(0.0)
    large = Request(0, "", 10, 10, Client(), 0.0, inf)
    for request in (large, Request(0, "", 1, 1, Client(), 0.0, inf)):
        batcher.arrive(request, 0.0)

    assert Release(4, "early") == next_action(batcher, 0.0)
    assert ([large], []) == batcher.take(4, 0.0)


def test_immediate_releases_whatever_waits() -> None:
    """No rule, no learning: a lane is free."""
    assert Release(1, "early") == next_action(batcher_of(Strategy.IMMEDIATE, 1), 0.0)
