"""The rate that one lane sustains within a latency target."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.service_model import ONE_ROW, Capacity, RequestRows, ServiceTime, lane_capacity

SLEEPY = ServiceTime(fixed=0.010, per_row=0.0002)
REFERENCE = {  # t(n), largest batch, interval, target
    "gpu": (ServiceTime(0.008, 0.00015), 32, 0.005, 0.100),
    "embedding": (ServiceTime(0.025, 0.005), 32, 0.020, 0.500),
    "cpu": (ServiceTime(0.001, 0.004), 8, 0.005, 0.250),
}


def capacity_of(
    service: ServiceTime,
    *,
    largest_batch: int = 32,
    batch_interval: float = 0.020,
    latency_target: float | None = None,
    requests: RequestRows = ONE_ROW,
) -> Capacity:
    """Capacity at p99."""
    return lane_capacity(
        service,
        largest_batch=largest_batch,
        batch_interval=batch_interval,
        latency_target=latency_target,
        quantile=0.99,
        requests=requests,
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
        capacity_of(service, largest_batch=64, latency_target=0.090, requests=RequestRows(k, k))
        for k in (1.0, 8.5)
    )

    noise = math.log(100) / 2 * 0.0005 * 8.5
    slack = 0.090 - 2 * seconds
    assert 41 == clumps.batch_size < alone.batch_size
    assert 41 / seconds * slack / (slack + noise) == pytest.approx(clumps.rows_per_second)
    assert clumps.rows_per_second < 0.8 * alone.rows_per_second


def test_a_request_larger_than_the_batch_rides_in_several() -> None:
    """16 rows take two batches of 8, so 33 ms more of 250 ms are gone."""
    service = ServiceTime(0.001, 0.004)
    capacity = capacity_of(
        service, largest_batch=8, latency_target=0.250, requests=RequestRows(16.0, 16.0)
    )

    slack = 0.250 - 0.033 - 2 * 0.033
    noise = math.log(100) / 2 * 0.033 / 8 * 16
    assert 8 == capacity.batch_size
    assert 8 / 0.033 * slack / (slack + noise) == pytest.approx(capacity.rows_per_second)


def test_a_full_batch_of_unlike_requests_ends_before_the_one_that_does_not_fit() -> None:
    """One in ten has 16 rows, the others one: 32 rows hold 28 of them on average."""
    mixed = RequestRows(2.5, 10.6)

    assert 28 == capacity_of(SLEEPY, requests=mixed).batch_size
    assert 28 / SLEEPY.seconds(28) == capacity_of(SLEEPY, requests=mixed).rows_per_second
    assert 32 == capacity_of(SLEEPY, requests=RequestRows(32.0, 32.0)).batch_size


@pytest.mark.parametrize(
    ("service", "sizes", "truth"),
    [
        ("cpu", (1,) * 9 + (16,), 143),
        ("cpu", (1,) * 19 + (32,), 89),
        ("cpu", tuple(range(1, 9)), 183),
        ("embedding", (1,) * 9 + (16,), 110),
        ("embedding", (1,) * 19 + (32,), 68),
        ("embedding", tuple(range(1, 9)), 136),
        ("gpu", (1,) * 9 + (16,), 1703),
        ("gpu", (1,) * 19 + (32,), 1338),
        ("gpu", (32,), 1780),
    ],
)
def test_mixed_requests_are_within_a_fifth_of_simulated_truth(
    service: str, sizes: tuple[int, ...], truth: float
) -> None:
    """Means of three simulations each, which differ by a tenth; by the mean request up to 2.4."""
    at_once = RequestRows(sum(sizes) / len(sizes), sum(size**2 for size in sizes) / sum(sizes))
    line, size, interval, target = REFERENCE[service]

    capacity = capacity_of(
        line, largest_batch=size, batch_interval=interval, latency_target=target, requests=at_once
    )

    assert truth == pytest.approx(capacity.rows_per_second, rel=0.2)


@pytest.mark.parametrize(
    ("name", "rows_per_second"), [("gpu", 2483), ("embedding", 164), ("cpu", 236)]
)
def test_the_three_reference_services_are_within_five_percent_of_simulated_truth(
    name: str, rows_per_second: float
) -> None:
    """Simulation of each gave 2483, 164 and 236 rows/s."""
    service, size, interval, target = REFERENCE[name]
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
