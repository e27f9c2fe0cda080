"""The KPA's two windows and its panic."""

from autoscaling.fleets import answers
from autoscaling.kpa import KnativePodAutoscaler


def test_it_decides_every_2_seconds() -> None:
    """Its tick."""
    found = answers(KnativePodAutoscaler(10.0), lambda _: 5.0, replicas=1, until=6)

    assert [2, 4, 6] == list(found)


def test_it_averages_over_a_minute() -> None:
    """12 s of 15 in the last 60 of 5: 7 in the mean, one replica, though 6 s ask for two of one."""
    found = answers(
        KnativePodAutoscaler(10.0), lambda t: 15.0 if t > 108 else 5.0, replicas=2, until=120
    )

    assert 1 == found[120]


def test_it_panics_when_6_seconds_ask_for_twice_the_replicas() -> None:
    """The mean over the minute would still say one."""
    found = answers(
        KnativePodAutoscaler(10.0), lambda t: 40.0 if t > 100 else 5.0, replicas=1, until=106
    )

    assert {100: 1, 106: 4} == {t: found[t] for t in (100, 106)}


def test_it_does_not_panic_below_twice_the_replicas() -> None:
    """Three of two are one and a half times: the mean over the minute decides."""
    found = answers(
        KnativePodAutoscaler(10.0), lambda t: 25.0 if t > 100 else 5.0, replicas=2, until=106
    )

    assert 1 == found[106]


def test_it_does_not_go_down_while_in_panic() -> None:
    """Panic lasts until 60 s after the last second over the threshold; then it falls at once."""
    found = answers(
        KnativePodAutoscaler(10.0), lambda t: 80.0 if 100 < t <= 110 else 5.0, replicas=1, until=240
    )

    most = max(found.values())
    ended = next(t for t in sorted(found) if t > 110 and found[t] < most)
    assert 8 == most
    assert 170 < ended <= 180
    assert 1 == found[240]


def test_it_gives_up_at_most_half_of_the_ready_replicas_at_once() -> None:
    """max-scale-down-rate 2."""
    found = answers(
        KnativePodAutoscaler(10.0), lambda t: 80.0 if t <= 60 else 0.0, replicas=8, until=300
    )

    assert 4 == found[300]


def test_it_starts_in_panic_with_more_than_one_replica() -> None:
    """A new autoscaler knows no history, and keeps what is there for a minute."""
    found = answers(KnativePodAutoscaler(10.0), lambda _: 0.0, replicas=8, until=70)

    assert {60: 8, 70: 4} == {t: found[t] for t in (60, 70)}
