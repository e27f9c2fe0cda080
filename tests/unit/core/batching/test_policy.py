"""The settings a user may choose, and those that are refused."""

import math

import pytest

from batchedapi_core.batching import BatchPolicy, Strategy


def test_window_is_the_strategy_unless_another_is_chosen() -> None:
    """The manifest's default and the code's must not drift apart."""
    policy = BatchPolicy(max_batch_size=32, batch_interval=0.010)

    assert Strategy.WINDOW is policy.strategy
    assert policy.latency_target is None


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused(size: int) -> None:
    """A maximum below one could never dispatch."""
    with pytest.raises(ValueError, match=f"max_batch_size: expected at least 1, got {size}"):
        BatchPolicy(max_batch_size=size, batch_interval=0.0)


@pytest.mark.parametrize("interval", [-0.001, math.inf, math.nan])
def test_an_interval_that_is_no_duration_is_refused(interval: float) -> None:
    """NaN compares false with every time: a request would be held for ever."""
    with pytest.raises(ValueError, match="batch_interval: expected finite seconds >= 0"):
        BatchPolicy(max_batch_size=1, batch_interval=interval)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_latency_target_that_is_no_duration_is_refused(target: float) -> None:
    """No target is written None, not infinity: one way to say it."""
    with pytest.raises(ValueError, match="latency_target: expected finite seconds > 0 or None"):
        BatchPolicy(max_batch_size=1, batch_interval=0.0, latency_target=target)


def test_adaptive_needs_a_target() -> None:
    """Without one every size is as good as full."""
    with pytest.raises(ValueError, match="latency_target: expected seconds under the Adaptive"):
        BatchPolicy(max_batch_size=32, batch_interval=0.0, strategy=Strategy.ADAPTIVE)
