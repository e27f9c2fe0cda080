"""Learning t(n) from finished batches."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.service_model import ServiceTimeSamples

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=100)


def samples_of(*sizes: int, fixed: float, per_row: float) -> ServiceTimeSamples:
    """Sixteen batches of each size on an exact line."""
    samples = ServiceTimeSamples()
    for size in sizes:
        for _ in range(16):
            samples.observe(size, fixed + per_row * size)
    return samples


def test_nothing_is_known_before_the_first_batch() -> None:
    """A caller that divides by, or waits for, an unknown time must be able to tell."""
    samples = ServiceTimeSamples()

    assert not samples.known
    assert samples.seconds(64) == 0.0


def test_one_size_is_called_half_fixed() -> None:
    """One point has no slope; half keeps waiting and not waiting possible until more is seen."""
    samples = samples_of(16, fixed=0.010, per_row=0.0)

    assert samples.known
    assert pytest.approx(0.005) == samples.line.fixed
    assert pytest.approx(0.010) == samples.seconds(16)


def test_an_exact_line_is_found() -> None:
    """Three sizes on a line give back the line."""
    samples = samples_of(1, 16, 64, fixed=0.010, per_row=0.0002)

    assert pytest.approx(0.010) == samples.line.fixed
    assert pytest.approx(0.0002) == samples.line.per_row


def test_constant_batches_do_not_erase_the_fixed_cost() -> None:
    """Steady load runs one size for hours; forgetting the others would forget why to wait."""
    samples = samples_of(1, 16, 64, fixed=0.010, per_row=0.0002)

    for _ in range(10_000):
        samples.observe(64, 0.0228)

    assert pytest.approx(0.010, abs=0.001) == samples.line.fixed


def test_one_hiccup_hardly_moves_the_line() -> None:
    """A pause of the machine a thousand times a batch's length counts as three."""
    samples = samples_of(1, 16, 64, fixed=0.010, per_row=0.0002)

    samples.observe(16, 13.2)

    assert samples.seconds(64) < 1.2 * 0.0228


def test_a_model_that_became_slower_is_followed() -> None:
    """The bound on outliers must delay a lasting change, not hide it."""
    samples = samples_of(64, fixed=0.010, per_row=0.0002)

    for _ in range(200):
        samples.observe(64, 0.228)

    assert pytest.approx(0.228, rel=0.01) == samples.seconds(64)


def test_time_never_falls_with_size() -> None:
    """Noise that makes large batches look faster must not make waiting look free."""
    samples = ServiceTimeSamples()

    samples.observe(1, 0.020)
    samples.observe(64, 0.010)

    assert samples.line.per_row == 0.0
    assert samples.line.fixed > 0.0


def test_time_is_never_owed_at_size_zero() -> None:
    """Superlinear times put the intercept of a plain least squares fit below zero."""
    samples = ServiceTimeSamples()

    samples.observe(1, 0.0001)
    samples.observe(64, 1.0)

    assert samples.line.fixed >= 0.0


@SETTINGS
@given(
    st.lists(
        st.tuples(st.integers(1, 100_000), st.floats(0.0, 1e6, allow_subnormal=False)),
        min_size=1,
        max_size=40,
    )
)
def test_whatever_is_observed_the_line_is_finite_and_not_negative(
    batches: list[tuple[int, float]],
) -> None:
    """A NaN here would make every comparison false and stop dispatching for good."""
    samples = ServiceTimeSamples()

    for size, seconds in batches:
        samples.observe(size, seconds)

        assert 0.0 <= samples.line.fixed < math.inf
        assert 0.0 <= samples.line.per_row < math.inf


def test_larger_sizes_of_long_ago_can_be_forgotten() -> None:
    """A model that was slow when it last ran 64 rows must not seem so for ever."""
    samples = ServiceTimeSamples()
    for _ in range(8):
        samples.observe(64, 1.0)
        for size in (4, 16):
            samples.observe(size, 0.010 + 0.0002 * size)

    samples.forget_above(16)
    samples.observe(16, 0.0132)

    assert pytest.approx(0.0228) == samples.seconds(64)


def test_beyond_the_sizes_seen_time_is_not_guessed() -> None:
    """A refusal goes by a sure bound: a larger batch takes no less than the largest seen."""
    samples = ServiceTimeSamples()
    samples.observe(1, 0.010)

    assert pytest.approx(0.010) == samples.at_least(64) == samples.at_least(1)

    samples.observe(16, 0.025)
    assert pytest.approx(0.025) == samples.at_least(64)
    assert samples.at_least(8) < 0.025
    assert samples.at_least(64) < samples.seconds(64)


def test_a_warm_up_counts_for_little() -> None:
    """Clients' batches take another time, if the machine was busy at the start."""
    samples = ServiceTimeSamples()
    samples.observe(16, 0.100, 0.25)
    assert pytest.approx(0.100) == samples.seconds(16)

    samples.observe(16, 0.020)

    assert pytest.approx((0.25 * 0.100 + 0.020) / 1.25) == samples.seconds(16)
