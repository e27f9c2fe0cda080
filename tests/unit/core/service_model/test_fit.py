"""The line through batches: exact where it can be, pessimistic where it cannot."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.service_model import LEAST_PER_ROW, BatchSums, ServiceTime, fit

TRUE = ServiceTime(fixed=0.010, per_row=0.0002)


def sums_of(batches: list[tuple[int, float]]) -> BatchSums:
    """Sums over (rows, seconds), as a replica's counters hold them."""
    return BatchSums(
        batches=len(batches),
        rows=sum(rows for rows, _ in batches),
        rows_squared=sum(rows**2 for rows, _ in batches),
        seconds=sum(seconds for _, seconds in batches),
        row_seconds=sum(rows * seconds for rows, seconds in batches),
    )


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(0, 0.010), (1, 0.0102), (64, 0.0228), (0.5, 0.0101)],
    ids=["no rows", "one row", "a batch", "an expected fraction"],
)
def test_seconds_are_fixed_cost_plus_cost_per_row(rows: float, seconds: float) -> None:
    """Everything that predicts latency or throughput multiplies out this one formula."""
    assert pytest.approx(seconds) == TRUE.seconds(rows)


def test_varied_batches_without_noise_give_the_line_back() -> None:
    """With many batches the ridge of three is forgotten."""
    batches = [(rows, TRUE.seconds(rows)) for rows in range(1, 33)] * 1000

    learned = fit(sums_of(batches))

    assert learned is not None
    assert TRUE.fixed == pytest.approx(learned.fixed, rel=1e-2)
    assert TRUE.per_row == pytest.approx(learned.per_row, rel=1e-2)


def test_a_ridge_of_zero_is_plain_least_squares() -> None:
    """The ridge is the only thing between this and the textbook."""
    batches = [(rows, TRUE.seconds(rows)) for rows in (1, 4, 9)]

    learned = fit(sums_of(batches), ridge=0.0)

    assert learned is not None
    assert TRUE.fixed == pytest.approx(learned.fixed, rel=1e-9)
    assert TRUE.per_row == pytest.approx(learned.per_row, rel=1e-9)


def test_few_batches_promise_less_gain_than_they_show_and_meet_the_time_they_took() -> None:
    """The ridge of three halves the count's weight here; the price per row takes the rest."""
    batches = [(rows, TRUE.seconds(rows)) for rows in (1, 4, 9)]

    learned = fit(sums_of(batches))

    assert learned is not None
    assert 0.010 * (3 * 98 - 14**2) / (6 * 98 - 14**2) == pytest.approx(learned.fixed)
    assert sum(seconds for _, seconds in batches) == pytest.approx(
        3 * learned.fixed + 14 * learned.per_row
    )


def test_five_percent_noise_costs_less_than_ten_percent_of_error() -> None:
    """F2 promises it, over the sizes that were seen."""
    chance = random.Random(7)
    batches = [
        (rows, TRUE.seconds(rows) * chance.gauss(1.0, 0.05))
        for rows in (chance.randint(1, 32) for _ in range(500))
    ]

    learned = fit(sums_of(batches))

    assert learned is not None
    for rows in (1, 8, 32):
        assert TRUE.seconds(rows) == pytest.approx(learned.seconds(rows), rel=0.10)


@pytest.mark.parametrize("rows", [1, 8])
def test_batches_of_one_size_promise_no_gain_from_batching(rows: int) -> None:
    """Half of the time would be taken for fixed by a minimum-norm fit; nobody saw that."""
    learned = fit(sums_of([(rows, TRUE.seconds(rows))] * 1000))

    assert learned is not None
    assert 0.0 == pytest.approx(learned.fixed, abs=1e-12)
    assert TRUE.seconds(rows) == pytest.approx(learned.seconds(rows))


@pytest.mark.parametrize(
    "sums",
    [
        BatchSums(),
        BatchSums(2.9, 10, 40, 0.1, 0.4),
        BatchSums(10, 9.9, 10, 0.1, 0),
        BatchSums(10, 10, 10, 0, 0),
    ],
    ids=["nothing", "too few batches", "batches without rows", "no time"],
)
def test_too_little_gives_no_line(sums: BatchSums) -> None:
    """None is honest; a line through nothing would be believed."""
    assert fit(sums) is None


def test_without_moments_the_histogram_of_several_windows_still_carries_the_fit() -> None:
    """Other exporters have only the sum and count of sizes and of durations."""
    windows = [
        BatchSums(batches=100, rows=100 * n, seconds=100 * TRUE.seconds(n)).with_moments()
        for n in (2, 5, 11)
    ]

    learned = fit(windows[0].plus(windows[1]).plus(windows[2]))

    assert learned is not None
    assert TRUE.seconds(6) == pytest.approx(learned.seconds(6), rel=0.02)


def test_moments_that_were_exported_are_left_alone() -> None:
    """Filling in is for what is missing, and for batches that happened."""
    exported = sums_of([(1, 0.01), (3, 0.02)])

    assert exported == exported.with_moments()
    assert BatchSums() == BatchSums().with_moments()


def test_the_row_weighted_mean_is_the_batch_of_the_average_row() -> None:
    """One batch of 1 and one of 3: three rows of four travelled in a batch of 3."""
    assert 2.5 == sums_of([(1, 0.0), (3, 0.0)]).row_weighted_mean()
    assert 0.0 == BatchSums().row_weighted_mean()


def test_scaling_forgets_every_sum_alike() -> None:
    """A half-life must not bend the line."""
    sums = sums_of([(1, 0.010), (3, 0.011)])

    half = sums.scaled(0.5)

    assert (1.0, 2.0, 5.0) == (half.batches, half.rows, half.rows_squared)
    assert (0.0105, 0.0215) == pytest.approx((half.seconds, half.row_seconds))


amounts = st.floats(0, 1e24)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.builds(BatchSums, amounts, amounts, amounts, amounts, amounts))
def test_no_sums_give_a_line_that_is_negative_or_infinite(sums: BatchSums) -> None:
    """A status can be edited and an exporter can be wrong; capacity stays a positive number."""
    learned = fit(sums)

    assert learned is None or 0.0 <= learned.fixed < float("inf")
    assert learned is None or LEAST_PER_ROW <= learned.per_row < float("inf")


@pytest.mark.parametrize(("known", "fixed"), [(0.01, 0.01), (1.0, 0.02)])
def test_a_fixed_cost_that_is_known_is_taken_and_the_total_time_met(
    known: float, fixed: float
) -> None:
    """Short rows ride in larger batches here: n alone would say that rows cost nothing."""
    sums = sums_of([(1, 0.03), (3, 0.02), (8, 0.01)])

    learned = fit(sums, known_fixed=known)

    assert learned is not None
    assert pytest.approx(fixed) == learned.fixed
    assert pytest.approx(sums.seconds, rel=1e-4) == sums.modelled(learned)
