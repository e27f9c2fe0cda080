"""Medians, ranges and ratios of interleaved rounds."""

import math

import pytest
from harness.rounds import Spread, mean_and_error, percentile, ratio


def test_a_spread_is_the_median_and_both_ends() -> None:
    """One slow round must show in the range, and not move the middle."""
    assert Spread(3.0, 1.0, 9.0) == Spread.of([9.0, 1.0, 3.0])


def test_a_spread_of_nothing_is_refused() -> None:
    """A cell without rounds would otherwise print as a result."""
    with pytest.raises(ValueError, match="at least one value"):
        Spread.of([])


def test_a_ratio_is_of_medians_and_its_range_of_neighbouring_rounds() -> None:
    """Noise that hits both servers of a round cancels only within that round."""
    spread = ratio([100.0, 200.0, 300.0], [100.0, 100.0, 200.0])

    assert Spread(2.0, 1.0, 2.0) == spread


def test_a_ratio_of_unequal_rounds_is_refused() -> None:
    """Rounds that are not pairs were not interleaved."""
    with pytest.raises(ValueError, match="pairs of rounds"):
        ratio([1.0], [1.0, 2.0])


def test_a_ratio_to_a_server_that_answered_nothing_is_infinite() -> None:
    """A peer that is down must not end the run after a quarter of an hour."""
    assert math.inf == ratio([1.0], [0.0]).median


def test_a_mean_says_how_far_it_may_be_off() -> None:
    """The deviation of three is 0.1, by the root of three; of one nothing is known."""
    assert "1.100 +- 0.058" == mean_and_error([1.0, 1.1, 1.2])
    assert "1.000 +- nan" == mean_and_error([1.0])


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.0), (75, 3.0), (99, 4.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    """Nearest rank: interpolation would print latencies that nobody had."""
    assert expected == percentile([4.0, 2.0, 1.0, 3.0], percent)
