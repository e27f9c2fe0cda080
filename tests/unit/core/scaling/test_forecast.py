"""When demand counts as rising, and what is expected of it."""

import random

import pytest

from batchedapi_core.scaling.forecast import forecast, slope_and_error, trend
from batchedapi_core.scaling.load import BatchTotals, LoadInterval
from batchedapi_core.service_model import RequestRows


def intervals(*rates: float) -> list[LoadInterval]:
    """Arrival rates of two seconds each."""
    return [
        LoadInterval.of(2.0 * (n + 1), 2.0, rate, BatchTotals()) for n, rate in enumerate(rates)
    ]


RAMP = [1000.0 + 20.0 * n for n in range(30)]


def test_a_steady_rise_is_seen_but_for_its_standard_error() -> None:
    """Ten rows/s each second; the Poisson error of such counts is a third of one."""
    slope, error = slope_and_error(intervals(*RAMP[:-1]))

    assert 10.0 == pytest.approx(slope)
    assert 0.0 < error < 0.5
    assert 10.0 - error == pytest.approx(trend(intervals(*RAMP)))


@pytest.mark.parametrize(
    "rates",
    [
        [1000.0] * 12,
        [*RAMP, *[RAMP[-1]] * 7],
        [*RAMP[:-1], 0.0],
        [1000.0] * 29 + [5000.0],
        RAMP[:3],
        list(reversed(RAMP)),
        [10.0 + (n % 2) for n in range(30)],
        [1000.0 + 4.0 * (n % 5) for n in range(20)] + [4000.0 + 9.0 * (n % 7) for n in range(10)],
        [1000.0 + 4.0 * (n % 5) for n in range(27)] + [4000.0, 4009.0, 4005.0],
    ],
    ids=[
        "flat",
        "no longer",
        "collapsed",
        "one jump",
        "too short",
        "falling",
        "noise",
        "a step",
        "a late step",
    ],
)
def test_what_may_be_chance_is_no_trend(rates: list[float]) -> None:
    """A replica started for nothing is paid for a minute."""
    assert 0.0 == trend(intervals(*rates))


def test_what_starts_suddenly_is_seen_within_ten_seconds() -> None:
    """A steep rise cannot wait until a minute shows it, and is far above the noise."""
    sudden = [1000.0] * 25 + [1000.0 + 400.0 * n for n in range(1, 6)]

    assert 150.0 < trend(intervals(*sudden)) < 200.0


def test_a_rise_that_began_with_a_step_goes_on() -> None:
    """Two levels explain the minute better than a line does, and still demand rises."""
    opened = [*[200.0] * 12, *(3000.0 + 40.0 * n for n in range(18))]

    assert 10.0 < trend(intervals(*opened)) < 20.0


def test_the_last_seconds_bound_how_fast_it_goes_on() -> None:
    """Demand that levels off is not extrapolated at the pace it had."""
    slowing = trend(intervals(*RAMP, *(RAMP[-1] + 4.0 * n for n in range(1, 8))))

    assert 0.0 < slowing < 3.0


def test_a_slow_look_still_sees_a_slow_rise() -> None:
    """An operator with very many APIs may need ten seconds for a round."""
    slow = [LoadInterval.of(10.0 * n, 10.0, 1000.0 + 100.0 * n, BatchTotals()) for n in range(6)]

    assert 8.0 < trend(slow) < 10.0


def test_more_rows_in_the_last_interval_never_make_the_forecast_smaller() -> None:
    """Else an autoscaler would remove replicas because more came."""
    chance = random.Random(1)
    for _ in range(500):
        rates = [chance.uniform(0.5, 1.0) * 100 * n for n in range(chance.randint(1, 13))]
        last = chance.uniform(0.0, 3000.0)

        less, more = (trend(intervals(*rates, last * k)) for k in (1.0, chance.uniform(1.0, 3.0)))

        assert less <= more


def test_a_rise_of_few_large_requests_may_be_chance() -> None:
    """The same rows in a fiftieth of the requests."""
    rising = intervals(*(100.0 + 10.0 * n for n in range(10)))
    lumpy = [
        LoadInterval.of(
            one.time, one.seconds, one.arrival, one.totals, came=RequestRows(50.0, 50.0)
        )
        for one in rising
    ]

    assert trend(rising) > 0.0
    assert 0.0 == trend(lumpy)


def test_intervals_at_one_time_have_no_slope() -> None:
    """A clock that stands still must not divide by zero."""
    assert (0.0, 0.0) == slope_and_error(intervals(5.0)[:1] * 4)


def test_a_forecast_is_the_rise_until_a_new_replica_is_ready() -> None:
    """And no more than as much again, however long that takes."""
    assert 350.0 == forecast(10.0, base=1000.0, lead=35.0, cap=1.0)
    assert 1000.0 == forecast(10.0, base=1000.0, lead=350.0, cap=1.0)
