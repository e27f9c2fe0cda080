"""Whatever must go on as long as the replica ends it when it ends, and says why."""

import asyncio
from typing import Any

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.supervisor.lifecycle import CrashLoop, CrashLoopError, Life, exit_code


async def returns() -> None:
    """A loop that was left."""


async def raises() -> None:
    """A call that nobody expected to fail, in a group of tasks."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(3600))
        raise OSError(24, "Too many open files")


async def is_cancelled() -> None:
    """By whatever it awaited."""
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("keeper", "said"),
    [
        (returns, "keeper of models ended"),
        (raises, "keeper of models ended with OSError(24, 'Too many open files')"),
        (is_cancelled, "keeper of models ended"),
    ],
)
async def test_a_keeper_that_ends_in_any_way_ends_the_replica(keeper: Any, said: str) -> None:
    """A replica that nobody keeps would be ready for ever, and unable."""
    life = Life()

    life.kept("keeper of models", keeper())
    await life.draining.wait()

    assert isinstance(life.failure, CrashLoopError)
    assert said == str(life.failure)
    assert 70 == exit_code(life.failure)


async def test_what_ends_after_the_replica_was_asked_to_stop_is_no_failure() -> None:
    """It was asked to."""
    life = Life()
    life.draining.set()

    await asyncio.wait((life.kept("keeper of models", returns()),))

    assert life.failure is None


async def test_what_no_task_raised_ends_the_replica_too() -> None:
    """An error in a callback of the loop is otherwise a line in the log."""
    life, loop = Life(), asyncio.get_running_loop()
    loop.set_exception_handler(life.callback_failed)

    loop.call_soon(_fails)
    await life.draining.wait()

    assert "RuntimeError('no')" in str(life.failure)


def _fails() -> None:
    raise RuntimeError("no")


async def test_the_first_reason_counts() -> None:
    """The failures that follow from the first explain nothing."""
    life = Life()

    life.fail(LoadError("InitFailed", "no weights"))
    life.fail(CrashLoopError("its processes were killed"))

    assert "no weights" == str(life.failure)


def test_a_predictor_that_cannot_start_is_told_apart() -> None:
    """1 for the user's mistakes, 70 for what should not happen."""
    assert 1 == exit_code(LoadError("InitFailed", "no weights"))


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
