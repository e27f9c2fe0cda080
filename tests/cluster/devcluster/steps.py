"""One printed line per step, and commands that say what went wrong."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from . import paths

TAIL_LINES = 60
POLL_SECONDS = 0.1


class ClusterError(Exception):
    """A step failed; the message says which, why, and what to do."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print ``what`` at once, and how long it took (or that it failed) when it is over."""
    started = time.monotonic()
    print(f"{what:<64}", end="", flush=True)
    try:
        yield
    except BaseException:
        print("  failed", flush=True)
        raise
    print(f"{time.monotonic() - started:6.1f} s", flush=True)


def tail(text: str) -> str:
    """Give the end of a log, indented, for an error message."""
    return "\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:])


def run(
    *command: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Args:
        command: Program and arguments.
        env: Added to this process's environment.
        stdin: Text for its standard input; nothing by default.
        cwd: Folder it runs in.

    Raises:
        ClusterError: It was not found or ended with another status than 0.
    """
    words = [os.fspath(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin or "",
            env={**os.environ, **(env or {})},
            cwd=cwd,
            text=True,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]}: not found; install it first") from error
    if done.returncode:
        output = tail(done.stdout + done.stderr)
        raise ClusterError(f"{' '.join(words)}: expected status 0, got {done.returncode}\n{output}")
    return done.stdout


def succeeds(*command: str | os.PathLike[str]) -> bool:
    """Say whether a command exists and ends with status 0."""
    try:
        run(*command)
    except ClusterError:
        return False
    return True


def wait_until(
    condition: Callable[[], bool], what: str, *, seconds: float, check: Callable[[], None]
) -> None:
    """Poll until ``condition`` holds.

    Args:
        condition: What is waited for.
        what: The same in words, for the error.
        seconds: How long at most.
        check: Called on every turn; raises when waiting has become pointless.

    Raises:
        ClusterError: Time is up.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s; see {paths.LOGS}")
        time.sleep(POLL_SECONDS)


def command(main: Callable[[], None]) -> None:
    """Run one of the commands: an error it foresaw is a line, not a traceback."""
    try:
        main()
    except ClusterError as error:
        sys.exit(f"error: {error}")
