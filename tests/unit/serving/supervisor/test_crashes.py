"""When the replica gives up on a process."""

from batchedapi_serving.errors import LoadError
from batchedapi_serving.supervisor.crashes import CrashLoop
from batchedapi_serving.supervisor.outcome import CrashLoopError, exit_code


def test_the_fifth_failed_start_within_a_minute_is_the_last() -> None:
    """S21: a longer and longer wait inside a pod is a failure that nobody sees."""
    crashes = CrashLoop()

    assert [False, False, False, False, True] == [crashes.failed(t) for t in (0, 1, 3, 10, 60)]


def test_failures_further_apart_are_not_a_loop() -> None:
    """S21: one in fifteen seconds, and the others serve meanwhile."""
    crashes = CrashLoop()

    assert [False] * 20 == [crashes.failed(15.1 * i) for i in range(20)]


def test_a_start_that_succeeds_is_forgiven_everything() -> None:
    """S2: requests that kill a process that has loaded must not end the replica."""
    crashes = CrashLoop()
    for _ in range(20):
        for t in range(4):
            assert not crashes.failed(t)
        crashes.succeeded()


def test_the_exit_codes_tell_a_loop_from_a_model_that_does_not_load() -> None:
    """S21: 70 is sysexits' internal software error."""
    assert exit_code(CrashLoopError("again")) == 70
    assert exit_code(LoadError("InitFailed", "no")) == 1
