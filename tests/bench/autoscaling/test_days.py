"""Twelve days whose jumps the clock repeats are what their program says."""

import numpy as np

from autoscaling.days import (
    CLOCKS_SET,
    DAY,
    DAYS,
    ENDS,
    FIRST,
    HOLIDAY,
    HOUR,
    Hour,
    base,
    hours,
    jumps,
    levels,
    marks,
    table,
)


def test_most_jumps_are_at_fixed_seconds_and_the_holiday_has_chance_alone() -> None:
    """Nine in ten of 24 + 24 + 12 + 6 a day, and 16 by chance."""
    by_day = np.bincount([jump.start // DAY for jump in jumps(0)], minlength=DAYS)

    assert 60 < by_day[0] < 85
    assert by_day[HOLIDAY] < 30
    assert by_day[ENDS + 1] < by_day[ENDS] - 10


def test_a_schedule_of_the_day_comes_an_hour_earlier_once_clocks_are_set() -> None:
    """That of the hour stays: its second is the same."""
    mark = next(
        one for one in marks(np.random.default_rng(0)) if one.period == DAY and not one.ends
    )
    starts = [jump.start for jump in jumps(0)]

    def near(day: int, second: int) -> bool:
        return any(abs(start - day * DAY - second) <= 20 for start in starts)

    assert sum(near(day, mark.second) for day in range(HOLIDAY)) >= HOLIDAY - 2
    assert any(near(day, mark.second - HOUR) for day in range(CLOCKS_SET, DAYS))


def test_jumps_are_on_a_load_that_is_not_generated_and_the_same_in_every_run() -> None:
    """Between jumps it is the week's."""
    once, again = levels("m-small", 1), levels("m-small", 1)

    assert (once == again).all()
    assert np.median(once / base("m-small")) == 1.0
    assert 12.0 < (once / base("m-small")).max() * 4 < 28.0


def test_hours_that_count_are_spread_over_the_days_from_the_fourth_on() -> None:
    """Before, nobody can know what most days bring."""
    drawn = hours(0, 2)

    assert sorted([*range(FIRST, DAYS)] * 2) == [start // DAY for start in drawn]
    assert all(start % HOUR == 0 for start in drawn)


def test_late_requests_are_of_all_and_costs_of_a_clairvoyants() -> None:
    """An hour with many requests counts for more."""
    found = [
        Hour("m-large", 0, day, 9, requests=many, late=late, cost=30.0, least=least, most=4)
        for day, many, late, least in ((3, 100, 10, 10.0), (4, 900, 10, 20.0))
    ]

    rows = table(found).rows

    assert ["4", "1", "10.00 %", "3.000", "4"] == rows[0]
    assert ["all", "2", "2.00 %", "2.000", "4"] == rows[-1]
