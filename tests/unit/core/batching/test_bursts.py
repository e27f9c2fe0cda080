"""Strangers that come in bursts."""

from batchedapi_core.batching.traffic import Bursts


def bursts_of(size: int, *, apart: float = 20e-6, rounds: int = 30) -> Bursts:
    """Bursts a second apart, each of `size` requests."""
    bursts = Bursts()
    bursts.window = 0.005
    for start in range(rounds):
        for i in range(size):
            bursts.arrived(1, start + i * apart, idle=i == 0)
    return bursts


def test_before_the_first_burst_nothing_is_expected() -> None:
    """The server's first request must not wait for a guess."""
    bursts = Bursts()

    assert bursts.expected == 0.0
    assert bursts.end < 0.0


def test_the_rest_of_a_usual_burst_is_expected() -> None:
    """Half of it is trusted: bursts are guesses."""
    bursts = bursts_of(50)

    bursts.arrived(1, 100.0, idle=True)

    assert 20.0 < bursts.expected < 24.5
    assert 100.0009 < bursts.end < 100.002
    assert bursts.seen == 1


def test_lone_requests_are_no_bursts() -> None:
    """A slow open stream would otherwise wait after each request."""
    assert bursts_of(1).expected == 0.0


def test_requests_that_find_a_queue_or_no_lane_begin_no_burst() -> None:
    """They wait for other reasons, and their spacing says nothing."""
    bursts = bursts_of(50)
    end = bursts.end

    bursts.arrived(1, 100.0, idle=False)

    assert end == bursts.end
