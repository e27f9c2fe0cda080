"""The rate that one lane sustains within a latency target."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.service_model import Capacity, ServiceTime, lane_capacity

SLEEPY = ServiceTime(fixed=0.010, per_row=0.0002)


def capacity_of(
    service: ServiceTime,
    *,
    largest_batch: int = 32,
    batch_interval: float = 0.020,
    latency_target: float | None = None,
) -> Capacity:
    """Capacity at p99."""
    return lane_capacity(
        service,
        largest_batch=largest_batch,
        batch_interval=batch_interval,
        latency_target=latency_target,
        quantile=0.99,
    )


def rate_by_hand(
    service: ServiceTime, rows: int, interval: float, target: float, largest: int
) -> float:
    """The formula as written in the module's docstring."""
    seconds = service.seconds(rows)
    slack = target - max(interval, seconds) - seconds
    z = math.log(1 / (1 - 0.99)) / 2
    price = seconds / rows if rows == largest else service.per_row
    return rows / seconds * slack / (slack + z * price) if slack > 0 else 0.0


def test_without_a_target_full_batches_are_the_capacity() -> None:
    """8 rows in 11.6 ms."""
    capacity = capacity_of(SLEEPY, largest_batch=8)

    assert 8 / 0.0116 == pytest.approx(capacity.rows_per_second)
    assert (8, True) == (capacity.batch_size, capacity.feasible)


def test_rows_that_arrive_together_need_more_room() -> None:
    """A queue of clumps has a longer tail: by hand, the noise of one row times their number."""
    service, seconds = ServiceTime(0.008, 0.0005), 0.008 + 0.0005 * 41
    alone, clumps = (
        lane_capacity(
            service,
            largest_batch=64,
            batch_interval=0.020,
            latency_target=0.090,
            quantile=0.99,
            rows_per_request=rows,
        )
        for rows in (1.0, 8.5)
    )

    noise = math.log(100) / 2 * 0.0005 * 8.5
    slack = 0.090 - 2 * seconds
    assert 41 == clumps.batch_size < alone.batch_size
    assert 41 / seconds * slack / (slack + noise) == pytest.approx(clumps.rows_per_second)
    assert clumps.rows_per_second < 0.8 * alone.rows_per_second


@pytest.mark.parametrize(
    ("service", "size", "interval", "target", "rows_per_second"),
    [
        (ServiceTime(0.008, 0.00015), 32, 0.005, 0.100, 2483),
        (ServiceTime(0.025, 0.005), 32, 0.020, 0.500, 164),
        (ServiceTime(0.001, 0.004), 8, 0.005, 0.250, 236),
    ],
    ids=["gpu", "embedding", "cpu"],
)
def test_the_three_reference_services_are_within_five_percent_of_simulated_truth(
    service: ServiceTime, size: int, interval: float, target: float, rows_per_second: float
) -> None:
    """Simulation of each gave 2483, 164 and 236 rows/s."""
    capacity = capacity_of(
        service, largest_batch=size, batch_interval=interval, latency_target=target
    )

    assert rows_per_second == pytest.approx(capacity.rows_per_second, rel=0.05)


def test_a_target_that_one_row_misses_is_infeasible_and_planned_at_half() -> None:
    """Something must run meanwhile, and the user must be told."""
    capacity = capacity_of(SLEEPY, largest_batch=8, latency_target=0.021)

    assert not capacity.feasible
    assert 0.5 * 8 / 0.0116 == pytest.approx(capacity.rows_per_second)


def test_a_tight_target_chooses_smaller_batches() -> None:
    """The largest batch is worth nothing when it arrives too late."""
    service = ServiceTime(fixed=0.008, per_row=0.001)

    loose = capacity_of(service, batch_interval=0.005, latency_target=0.5)
    tight = capacity_of(service, batch_interval=0.005, latency_target=0.040)

    assert 32 == loose.batch_size
    assert 12 >= tight.batch_size
    assert tight.feasible


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    fixed=st.floats(0, 0.2),
    per_row=st.floats(1e-7, 0.05),
    size=st.integers(1, 300),
    interval=st.floats(0, 0.5),
    target=st.floats(0.001, 2.0),
)
def test_bisection_finds_what_trying_every_size_finds(
    fixed: float, per_row: float, size: int, interval: float, target: float
) -> None:
    """65 536 sizes each tick for each API would be felt; the rate has one peak."""
    service = ServiceTime(fixed, per_row)
    best = max(rate_by_hand(service, rows, interval, target, size) for rows in range(1, size + 1))

    capacity = capacity_of(
        service, largest_batch=size, batch_interval=interval, latency_target=target
    )

    assert (best > 0) == capacity.feasible
    if capacity.feasible:
        assert best == pytest.approx(capacity.rows_per_second, rel=1e-9)
