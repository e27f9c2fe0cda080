"""When an event loop counts as blocked, and when a replica as ready."""

import itertools
from collections.abc import Iterable

from batchedapi_serving.supervisor.lifecycle import (
    BEATS_MISSED,
    BEATS_MISSED_AT_START,
    LOOKS_MISSED,
    Pulse,
    Readiness,
)


def test_a_loop_that_beats_is_never_blocked() -> None:
    """Whatever its figure is."""
    pulse = Pulse()

    assert not any(pulse.blocked(float(beat)) for beat in range(1, 500))


def test_a_loop_that_stops_is_blocked_after_eight_looks() -> None:
    """S23: replaced within ten seconds."""
    pulse = Pulse()
    pulse.blocked(1.0)

    looks = list(itertools.takewhile(lambda _: not pulse.blocked(1.0), itertools.count()))

    assert BEATS_MISSED - 1 == len(looks) == 7


def test_one_beat_among_missed_ones_begins_the_count_anew() -> None:
    """A machine with nothing to spare is slow, not blocked."""
    pulse = Pulse()
    for beat in range(1, 50):
        assert not any(pulse.blocked(float(beat)) for _ in range(BEATS_MISSED))


def test_the_first_beat_has_time() -> None:
    """Imports on a busy machine take long; and a process that never comes up is given up too."""
    pulse = Pulse()

    looks = [pulse.blocked(0.0) for _ in range(BEATS_MISSED_AT_START)]

    assert [False] * (BEATS_MISSED_AT_START - 1) + [True] == looks
    assert not pulse.seen


def seen(looks: Iterable[tuple[float, float]]) -> list[bool]:
    """Whether it is able after each look at (beat, lanes)."""
    readiness = Readiness()
    able = []
    for look in looks:
        readiness.look(*look)
        able.append(readiness.able)
    return able


def test_who_takes_from_a_queue_is_not_ready_before_it_is_reached() -> None:
    """It was for 3 s, as if it had been reached before."""
    readiness = Readiness(waits=True)
    able = [readiness.able]
    for look in ((1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (4.0, 0.0)):
        readiness.look(*look)
        able.append(readiness.able)

    assert [False, False, False, True, True] == able


def test_a_replica_without_a_lane_is_not_ready_after_a_while() -> None:
    """Its model hangs while it is loaded again, say; it is ready as soon as a lane is there."""
    looks = [(float(beat), 0.0) for beat in range(1, LOOKS_MISSED + 2)]

    assert [True] * (LOOKS_MISSED - 1) + [False, False, True] == seen([*looks, (99.0, 1.0)])


def test_a_quick_replacement_is_not_seen() -> None:
    """Requests wait for it; an endpoint that goes and comes costs more than that."""
    looks = [(float(beat), float(beat % LOOKS_MISSED == 0)) for beat in range(1, 5 * LOOKS_MISSED)]

    assert all(seen(looks))


def test_lanes_of_a_web_process_that_does_not_run_count_for_nothing() -> None:
    """It wrote them before it stopped."""
    assert not seen([(7.0, 4.0)] * (LOOKS_MISSED + 1))[-1]
