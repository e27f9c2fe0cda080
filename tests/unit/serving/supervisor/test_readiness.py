"""Ready means able to answer."""

from collections.abc import Iterable

from batchedapi_serving.supervisor.readiness import MISSED, Readiness


def seen(looks: Iterable[tuple[float, float]]) -> list[bool]:
    """Whether it is able after each look at (beat, lanes)."""
    readiness = Readiness()
    able = []
    for look in looks:
        readiness.look(*look)
        able.append(readiness.able)
    return able


def test_a_replica_without_a_lane_is_not_ready_after_a_while() -> None:
    """Its model hangs while it is loaded again, say; it is ready as soon as a lane is there."""
    looks = [(float(beat), 0.0) for beat in range(1, MISSED + 2)]

    assert [True] * (MISSED - 1) + [False, False, True] == seen([*looks, (99.0, 1.0)])


def test_a_quick_replacement_is_not_seen() -> None:
    """Requests wait for it; an endpoint that goes and comes costs more than that."""
    looks = [(float(beat), float(beat % MISSED == 0)) for beat in range(1, 5 * MISSED)]

    assert all(seen(looks))


def test_lanes_of_a_web_process_that_does_not_run_count_for_nothing() -> None:
    """It wrote them before it stopped."""
    assert not seen([(7.0, 4.0)] * (MISSED + 1))[-1]
