"""When a process is started again, and what becomes of one that ends."""

import asyncio
import os
from pathlib import Path

import pytest

from batchedapi_serving.processes import Backoff, Child


def test_the_wait_doubles_up_to_five_seconds() -> None:
    """A process that dies at once must not take the machine with it."""
    backoff = Backoff()

    waits = [backoff.take() for _ in range(8)]

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] == waits


def test_after_something_good_the_wait_is_short_again() -> None:
    """One death a day is not a crash loop."""
    backoff = Backoff()
    for _ in range(5):
        backoff.take()

    backoff.reset()

    assert backoff.take() == 0.1


async def test_a_child_that_ended_has_no_pid_and_takes_no_signals() -> None:
    """Its number may belong to somebody else by then."""
    child = Child("test", "this")

    child.start([])
    code = await child.ended()
    child.signal(9)

    assert code == 0
    assert child.pid is None


async def test_a_child_that_was_killed_ends_with_the_signal() -> None:
    """The signal tells lack of memory from a mistake; the environment is ours plus additions."""
    child = Child("test", "http.server")

    child.start(["--bind", "127.0.0.1", "0"], {"ADDED": "1"})
    pid = child.pid
    assert pid is not None
    file = Path(f"/proc/{pid}/environ")
    while not (environment := await asyncio.to_thread(file.read_bytes)):  # noqa: ASYNC110 - it is within exec
        await asyncio.sleep(0.01)
    child.signal(9)

    assert await child.ended() == -9
    assert b"ADDED=1" in environment
    assert b"PATH=" in environment


async def test_a_child_that_was_never_started_cannot_end() -> None:
    """A wait for such a child would never end."""
    with pytest.raises(AssertionError, match="test was never started"):
        await Child("test", "this").ended()


def test_what_a_process_left_behind_is_why_it_ended(tmp_path: Path) -> None:
    """The file goes, so that the next end is not explained by this one."""
    file = tmp_path / "failure-0.json"
    file.write_text('{"reason": "InitFailed", "message": "no weights"}')

    failure = Child("model-0", "this").failure(file, 1)

    assert ("InitFailed", "no weights") == (failure.reason, str(failure))
    assert not file.exists()


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (-9, "OutOfMemory", "model process 0 was ended by signal 9"),
        (-11, "CrashLooping", "model process 0 was ended by signal 11"),
        (3, "CrashLooping", "model process 0 was ended with exit code 3"),
    ],
)
def test_without_a_file_the_exit_code_says_how(
    tmp_path: Path, code: int, reason: str, message: str
) -> None:
    """SIGKILL of nobody we know is mostly the kernel's, for memory."""
    failure = Child("model-0", "this").failure(tmp_path / "none", code)

    assert (reason, message) == (failure.reason, str(failure))


@pytest.mark.parametrize("text", ['{"reason": "Init', "[]", '"text"', "{}", "\xff", "[" * 9999])
def test_a_reason_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """The disk was full, or the process was killed while it wrote."""
    file = tmp_path / "failure-0.json"
    file.write_text(text, "latin-1")

    failure = Child("model-0", "this").failure(file, 3)

    assert "model process 0 was ended with exit code 3" == str(failure)
    assert not file.exists()


async def test_a_signal_that_cannot_be_sent_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs must not outlive a moment in which the machine has nothing left."""
    child, kill, failures = Child("test", "http.server"), os.kill, [OSError(11, "no")]

    def refused(pid: int, number: int) -> None:
        if failures:
            raise failures.pop()
        kill(pid, number)

    child.start(["--bind", "127.0.0.1", "0"])
    monkeypatch.setattr(os, "kill", refused)
    child.signal(9)

    assert -9 == await child.ended()


async def test_an_end_is_seen_without_a_descriptor_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for then."""

    def none_left(pid: int) -> int:
        raise OSError(24, f"Too many open files: {pid}")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    child = Child("test", "this")
    child.start([])

    assert 0 == await child.ended()
