"""Learning t(n, L) from finished batches of rows of different lengths."""

import random

import pytest

from batchedapi_core.service_surface import ServiceSurface, SurfaceSamples

TRUTH = ServiceSurface(fixed=0.004, per_row=0.0001, per_padded=0.00002, per_own=0.000005)


def learned(
    truth: ServiceSurface, batches: int, *, noise: float = 0.0, seed: int = 1
) -> SurfaceSamples:
    """Batches of 1 to 32 rows, of which most are of like lengths, as the rule forms them."""
    samples = SurfaceSamples()
    observe(samples, truth, batches, noise=noise, seed=seed)
    return samples


def observe(
    samples: SurfaceSamples, truth: ServiceSurface, batches: int, *, noise: float, seed: int
) -> None:
    """More of them."""
    rng = random.Random(seed)
    for _ in range(batches):
        rows, longest = rng.randint(1, 32), max(4, min(512, int(rng.lognormvariate(3.6, 0.9))))
        own = sum(int(longest * rng.uniform(0.6, 1.0)) for _ in range(rows - 1)) + longest
        seconds = truth.seconds(rows, longest, own) * rng.lognormvariate(0.0, noise)
        samples.observe(rows, longest, own, seconds)


def test_nothing_is_known_before_the_first_batch() -> None:
    """Who asks must be able to fall back to t(n)."""
    samples = SurfaceSamples()

    assert not samples.known
    assert not samples.padding_matters
    assert 0.0 == samples.surface.seconds(8, 100, 400)


def test_one_batch_is_called_a_quarter_of_each() -> None:
    """One point tells nothing apart; the rule has to begin with something."""
    samples = SurfaceSamples()

    samples.observe(4, 100, 300, 0.040)

    assert samples.padding_matters
    assert pytest.approx(0.040, rel=0.02) == samples.surface.seconds(4, 100, 300)
    assert pytest.approx(0.010, rel=0.02) == samples.surface.fixed


@pytest.mark.parametrize("seed", range(8))
def test_a_surface_is_found_through_noise(seed: int) -> None:
    """Two hundred batches, 5 % noise; lengths and sizes that were hardly seen."""
    samples = learned(TRUTH, 200, noise=0.05, seed=seed)

    for rows, longest in ((1, 10), (32, 10), (1, 500), (16, 500), (32, 60)):
        expected = TRUTH.seconds(rows, longest, 0.8 * rows * longest)
        got = samples.surface.seconds(rows, longest, 0.8 * rows * longest)
        assert pytest.approx(expected, rel=0.1) == got


def test_none_of_the_four_is_negative() -> None:
    """Where a term is missing, noise would make it a gain."""
    samples = learned(ServiceSurface(0.0, 0.0, 0.00002, 0.0), 100, noise=0.2)

    surface = samples.surface

    assert min(surface.fixed, surface.per_row, surface.per_padded, surface.per_own) >= 0.0


def test_lengths_that_cost_nothing_do_not_matter() -> None:
    """The batches are then those of one queue, in turn."""
    assert not learned(ServiceSurface(0.004, 0.001, 0.0, 0.0), 200, noise=0.05).padding_matters


def test_rows_of_one_length_agree_with_what_was_seen() -> None:
    """n, n L and the sum are one direction then: whatever the split, it adds up."""
    samples = SurfaceSamples()

    for rows in (1, 4, 16, 32) * 20:
        samples.observe(rows, 50, 50 * rows, 0.004 + 0.001 * rows)

    for rows in (1, 8, 32):
        assert pytest.approx(0.004 + 0.001 * rows, rel=0.02) == samples.surface.seconds(
            rows, 50, 50 * rows
        )


def test_a_change_is_found() -> None:
    """A fixed cost that is five times as high, and rows that cost half."""
    samples = learned(TRUTH, 400, noise=0.05)
    now = ServiceSurface(0.020, 0.00005, 0.00001, 0.0)

    observe(samples, now, 400, noise=0.05, seed=2)

    for rows, longest in ((1, 30), (16, 100), (32, 300)):
        expected = now.seconds(rows, longest, rows * longest)
        assert pytest.approx(expected, rel=0.25) == samples.surface.seconds(
            rows, longest, rows * longest
        )


def test_an_hour_of_short_rows_leaves_what_is_known_of_long_ones() -> None:
    """What noise does to the short ones is no change."""
    samples, rng = learned(TRUTH, 200), random.Random(1)

    for _ in range(5000):
        rows = rng.randint(1, 32)
        seconds = TRUTH.seconds(rows, 20, 16 * rows) * rng.lognormvariate(0.0, 0.05)
        samples.observe(rows, 20, 16 * rows, seconds)

    expected = TRUTH.seconds(16, 500, 6400)
    assert pytest.approx(expected, rel=0.15) == samples.surface.seconds(16, 500, 6400)


def test_a_pause_of_the_machine_counts_for_three_batches() -> None:
    """As in t(n)."""
    samples = learned(TRUTH, 400)
    before = samples.surface.seconds(16, 60, 800)

    samples.observe(16, 60, 800, 60.0)

    assert samples.surface.seconds(16, 60, 800) < 1.5 * before


def test_beyond_what_was_seen_time_is_not_refused_on() -> None:
    """Nobody is refused on a guess: larger batches take at least as long as the largest seen."""
    samples = SurfaceSamples()
    for rows in (1, 4):
        samples.observe(rows, 100, 100 * rows, 0.004 + 0.002 * rows)

    assert samples.at_least(4, 100, 400) == samples.surface.seconds(4, 100, 400)
    assert samples.at_least(40, 100, 4000) < 0.5 * samples.surface.seconds(40, 100, 4000)


def test_batches_of_no_time_teach_nothing() -> None:
    """A clock may be too coarse."""
    samples = SurfaceSamples()

    samples.observe(1, 10, 10, 0.0)

    assert ServiceSurface(0.0, 0.0, 0.0, 0.0) == samples.surface


def test_a_backlog_takes_what_such_rows_took_of_late() -> None:
    """Admission: rows, and all their lengths, at the pace of the batches that ran."""
    samples = SurfaceSamples()
    for _ in range(100):
        samples.observe(10, 50, 400, 0.020)

    assert pytest.approx(0.200, rel=0.02) == samples.backlog(100, 4000)
