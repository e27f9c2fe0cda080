"""Errors of the own forecasts, and the margin that they make for."""

import random

import pytest

from batchedapi_core.scaling.forecast import Foresight, Point
from batchedapi_core.scaling.numbers import MOST_SAVED


def test_what_is_saved_after_a_long_hold_can_be_restored() -> None:
    """Nothing is looked at while nothing is known; the rest of the state is not lost for it."""
    memory, _ = Foresight().looked(0.0, lead=30.0, base=100.0, forecast=0.0)

    restored = Foresight.restored(memory.to_saved(601.0))

    assert Foresight() == restored


def test_a_forecast_from_before_a_hold_is_not_compared() -> None:
    """It was for another minute."""
    memory, _ = Foresight().looked(0.0, lead=30.0, base=100.0, forecast=0.0)

    _, late = memory.looked(100.0, lead=30.0, base=300.0, forecast=0.0)
    _, due = memory.looked(40.0, lead=30.0, base=300.0, forecast=0.0)

    assert (None, 2.0) == (late, due)


def watched(rates: list[float], *, every: float = 2.0, lead: float = 30.0) -> Foresight:
    """After looks at demands that no trend was seen in."""
    memory = Foresight()
    for look, rate in enumerate(rates):
        memory, _ = memory.looked(every * look, lead=lead, base=rate, forecast=0.0)
    return memory


def test_steady_demand_needs_no_margin() -> None:
    """A forecast that came true was good enough."""
    assert 0.0 == watched([100.0] * 300).margin


def test_demand_that_wanders_gets_what_would_have_covered_most_of_it() -> None:
    """All but the worst 15 % of the time; a start-up ahead is as far as it has to last."""
    chance = random.Random(2)
    rates = [100.0 * chance.uniform(0.8, 1.2) for _ in range(300)]

    margin = watched(rates).margin

    errors = [later / sooner - 1.0 for sooner, later in zip(rates, rates[15:], strict=False)]
    covered = sum(error <= margin for error in errors) / len(errors)
    assert 0.84 < covered < 0.88


def test_no_margin_before_a_minute_of_errors() -> None:
    """Three errors have no quantile; a margin that was learned before a restart goes on."""
    memory = watched([100.0 * 1.05**n for n in range(40)])

    assert 0.0 == memory.margin
    assert 0.4 == Foresight(inherited=0.4).margin


def test_a_margin_is_at_most_as_much_again() -> None:
    """Above, it is bursts, and those have a memory of their own."""
    assert 1.0 == watched([2.0 ** (n / 5) for n in range(300)]).margin


def test_the_error_is_that_of_the_forecast_one_start_up_ago() -> None:
    """Forecast and trend together were expected."""
    memory, first = Foresight().looked(0.0, lead=30.0, base=100.0, forecast=50.0)
    memory, early = memory.looked(28.0, lead=30.0, base=120.0, forecast=0.0)
    memory, due = memory.looked(30.0, lead=30.0, base=300.0, forecast=0.0)

    assert (None, None) == (first, early)
    assert 1.0 == pytest.approx(due)
    assert [Point(30.0, 1.0)] == list(memory.errors)


def test_the_highest_level_is_forgotten_after_ten_minutes() -> None:
    """Nothing above it is planned for by a margin."""
    memory = watched([900.0, 100.0, 300.0, 200.0])

    assert [900.0, 300.0, 200.0] == [one.value for one in memory.highs]
    memory, _ = memory.looked(601.0, lead=30.0, base=50.0, forecast=0.0)
    assert 300.0 == memory.highest
    assert 0.0 == Foresight().highest


def test_a_start_of_an_hour_does_not_make_it_remember_every_look() -> None:
    """Sixty forecasts are waited for, however long that takes."""
    assert 60 >= len(watched([100.0] * 1800, lead=3600.0).expected)


def test_what_is_saved_is_as_high_and_as_late() -> None:
    """A status has room for little, and a restart must not forget a level too early."""
    memory = watched([1000.0 - n for n in range(100)])

    saved: dict[object, object] = dict(memory.to_saved(198.0).items())
    after = Foresight.restored(saved)

    assert after is not None
    assert MOST_SAVED >= len(after.highs)
    assert memory.highest == after.highest
    for one in memory.highs:
        age = one.time - 198.0
        assert any(kept.value >= one.value and kept.time >= age for kept in after.highs)
