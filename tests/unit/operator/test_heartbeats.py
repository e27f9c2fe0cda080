"""Liveness: which loop stands still."""

from batchedapi_operator.admin import Heartbeats


def test_a_loop_that_stands_still_is_overdue_after_its_own_time() -> None:
    """One that follows a watch goes round rarely, and is not dead for that."""
    now = [0.0]
    beats = Heartbeats(lambda: now[0])
    quick, slow = beats.of("quick", 60.0), beats.of("slow", 300.0)

    now[0] = 59.0
    assert beats.all_live()
    now[0] = 61.0
    assert not beats.all_live()
    quick()
    assert beats.all_live()
    now[0] = 301.0
    quick()
    assert not beats.all_live()
    slow()
    assert beats.all_live()
