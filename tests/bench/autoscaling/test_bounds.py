"""Knowledge of the perfect one, and contents of the windows."""

import pytest

from autoscaling.fleets import fleet, pod
from autoscaling.perfect import PerfectReactive
from autoscaling.trailing import Trailing


def test_the_perfect_one_follows_the_true_rate_up_at_once_and_down_after_180_seconds() -> None:
    """It reacts to what is, told without delay, and holds as long as ours."""
    controller = PerfectReactive(capacity=10.0)
    found = {
        now: controller(fleet(float(now), [pod("a", float(now))], rate=45.0 if now <= 20 else 10.0))
        for now in range(1, 211)
    }

    assert {5: 5, 195: 5, 200: 1} == {t: found[t] for t in (5, 195, 200)}


def test_a_window_forgets_what_is_as_old_as_it_is_long() -> None:
    """60 s that are sampled each second have 60 values, not 61."""
    window = Trailing(3.0)
    for now, value in enumerate([100.0, 1.0, 2.0, 6.0]):
        window.add(float(now), value)

    assert (3.0, 4.0) == (window.mean(), window.mean(2.0))
    assert (6.0, 1.0, 2.5) == (window.largest(), window.smallest(), window.slope())


def test_the_slope_of_one_value_is_unknown() -> None:
    """Unknown is not zero: an autoscaler that saw one look must not go down."""
    window = Trailing(3.0)
    window.add(0.0, 5.0)

    assert window.slope() is None


def test_the_slope_is_per_second() -> None:
    """Looks need not be a second apart."""
    window = Trailing(30.0)
    window.add(0.0, 5.0)
    window.add(4.0, 25.0)

    assert pytest.approx(5.0) == window.slope()
