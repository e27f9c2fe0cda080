"""Cortex' factors and its stabilization in both directions."""

import pytest

from autoscaling.cortex import Cortex, recommendation
from autoscaling.fleets import answers


@pytest.mark.parametrize(
    ("raw", "current", "expected"),
    [
        pytest.param(38.5, 40, 40, id="within 5 % below"),
        pytest.param(10.4, 10, 10, id="within 5 % above"),
        pytest.param(10.6, 10, 11, id="more than 5 % above"),
        pytest.param(37.5, 40, 38, id="more than 5 % below"),
        pytest.param(100.0, 10, 15, id="at most half as many again"),
        pytest.param(0.0, 10, 8, id="at least three quarters"),
        pytest.param(9.0, 1, 2, id="one more is always allowed"),
        pytest.param(0.1, 2, 1, id="one less is always allowed"),
    ],
)
def test_the_recommendation_is_limited(raw: float, current: int, expected: int) -> None:
    """Defaults: tolerance 0.05, factors 1.5 and 0.75."""
    assert expected == recommendation(raw, current)


def test_it_decides_every_10_seconds() -> None:
    """Its tick interval."""
    found = answers(Cortex(10.0), lambda _: 10.0, replicas=1, until=30)

    assert [10, 20, 30] == list(found)


def test_it_goes_up_once_60_seconds_agree() -> None:
    """The least recommended in the stabilization period counts."""
    found = answers(Cortex(10.0), lambda t: 40.0 if t <= 400 else 400.0, replicas=4, until=500)

    # The mean exceeds four by 5 % within the first tick after 400: 60 s later none says four.
    assert {460: 4, 470: 6} == {t: found[t] for t in (460, 470)}


def test_it_does_not_go_up_in_its_first_60_seconds() -> None:
    """It knows no recommendation of before."""
    found = answers(Cortex(10.0), lambda _: 400.0, replicas=4, until=70)

    assert {60: 4, 70: 6} == {t: found[t] for t in (60, 70)}


def test_it_goes_down_once_300_seconds_agree() -> None:
    """The most recommended in the stabilization period counts."""
    found = answers(Cortex(10.0), lambda t: 40.0 if t <= 400 else 0.0, replicas=4, until=800)

    assert {700: 4, 710: 4, 720: 3} == {t: found[t] for t in (700, 710, 720)}


def test_it_does_not_go_down_in_its_first_300_seconds() -> None:
    """It knows no recommendation of before."""
    found = answers(Cortex(10.0), lambda _: 0.0, replicas=4, until=310)

    assert {300: 4, 310: 3} == {t: found[t] for t in (300, 310)}


def test_a_past_wish_for_more_does_not_make_a_wish_for_less_go_up() -> None:
    """The past only holds it where it is."""
    found = answers(
        Cortex(10.0),
        lambda t: 40.0 if t <= 400 else 80.0 if t <= 430 else 0.0,
        replicas=4,
        until=600,
    )

    assert {4} == {found[t] for t in range(500, 610, 10)}
