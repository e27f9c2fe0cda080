"""Ray Serve's delays and its look back."""

from autoscaling.fleets import answers, with_in_flight
from autoscaling.ray_serve import RayServe


def test_it_goes_up_after_30_seconds_of_the_same_wish() -> None:
    """upscale_delay_s; it then begins to count anew."""
    found = answers(RayServe(2.0), lambda _: 8.0, replicas=2, until=61)

    assert [31] == list(found)
    assert 4 == found[31]


def test_one_second_of_another_wish_makes_it_count_anew() -> None:
    """Only the same wish without a break counts."""
    controller = RayServe(2.0)
    for now in range(1, 31):
        controller(with_in_flight(float(now), 8.0, 2))
    controller(with_in_flight(31.0, 8.0, 4))  # as many as wished for

    assert all(controller(with_in_flight(float(now), 8.0, 2)) is None for now in range(32, 62))
    assert 4 == controller(with_in_flight(62.0, 8.0, 2))


def test_it_goes_down_after_600_seconds_of_the_same_wish() -> None:
    """downscale_delay_s."""
    found = answers(RayServe(2.0), lambda _: 2.0, replicas=4, until=700)

    assert {601: 1} == found


def test_it_looks_30_seconds_back() -> None:
    """A peak of one second is a thirtieth of itself: 60 requests are two, one replica's worth."""
    found = answers(RayServe(2.0), lambda t: 60.0 if t == 100 else 0.0, replicas=1, until=200)

    assert {} == found


def test_a_new_level_counts_once_the_look_back_holds_enough_of_it() -> None:
    """8 for 8 s are a mean of 2.1 over 30 s, more than one replica's; 31 wishes later it acts."""
    found = answers(RayServe(2.0), lambda t: 8.0 if t >= 100 else 0.0, replicas=1, until=140)

    assert {137: 4} == found


def test_it_never_wishes_for_more_than_it_may_have() -> None:
    """At the limit a wish for more would start the count again and again."""
    found = answers(RayServe(2.0), lambda _: 9000.0, replicas=40, until=100)

    assert {} == found
