"""When an event loop counts as blocked."""

import itertools

from batchedapi_serving.supervisor.beats import MISSED, MISSED_AT_START, Pulse


def test_a_loop_that_beats_is_never_blocked() -> None:
    """Whatever its figure is."""
    pulse = Pulse()

    assert not any(pulse.blocked(float(beat)) for beat in range(1, 500))


def test_a_loop_that_stops_is_blocked_after_eight_looks() -> None:
    """S23: replaced within ten seconds."""
    pulse = Pulse()
    pulse.blocked(1.0)

    looks = list(itertools.takewhile(lambda _: not pulse.blocked(1.0), itertools.count()))

    assert MISSED - 1 == len(looks) == 7


def test_one_beat_among_missed_ones_begins_the_count_anew() -> None:
    """A machine with nothing to spare is slow, not blocked."""
    pulse = Pulse()
    for beat in range(1, 50):
        assert not any(pulse.blocked(float(beat)) for _ in range(MISSED))


def test_the_first_beat_has_time() -> None:
    """Imports on a busy machine take long; and a process that never comes up is given up too."""
    pulse = Pulse()

    looks = [pulse.blocked(0.0) for _ in range(MISSED_AT_START)]

    assert [False] * (MISSED_AT_START - 1) + [True] == looks
    assert not pulse.seen
