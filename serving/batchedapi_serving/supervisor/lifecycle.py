"""How long a replica goes on: what its keepers and the supervisor tell each other.

Whether a process still runs, and the replica is able to answer, is counted in looks instead of
seconds: while the machine sleeps, or the container is frozen, nobody looks in vain.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from batchedapi_serving.errors import LoadError

BEAT_CHECK_SECONDS: Final = 1.0
BEATS_MISSED: Final = 8
"""Checks without a new beat after which a process is given up. A beat comes twice a second."""
BEATS_MISSED_AT_START: Final = 60
"""The same before the first beat: imports take long on a busy machine."""
READINESS_CHECK_SECONDS: Final = 0.5
"""Between looks; the web process renews its beat about as often."""
LOOKS_MISSED: Final = 6
"""Looks in a row at a replica that is not able to answer, after which it says so: 3 s. A process
that dies is mostly replaced in less, and requests wait for it."""


class Pulse:
    """The pulse of one process; look at it every BEAT_CHECK_SECONDS."""

    def __init__(self) -> None:
        self._last = 0.0
        self._missed = 0

    @property
    def seen(self) -> bool:
        """Whether there was ever a beat."""
        return self._last > 0.0

    def blocked(self, beat: float) -> bool:
        """Whether the process is to be given up.

        Args:
            beat: Its figure, 0.0 until the first beat.
        """
        if beat != self._last:
            self._last, self._missed = beat, 0
            return False
        self._missed += 1
        return self._missed >= (BEATS_MISSED if self.seen else BEATS_MISSED_AT_START)


class Readiness:
    """Look at the replica every READINESS_CHECK_SECONDS from when its first model was loaded."""

    def __init__(self, *, waits: bool = False) -> None:
        """`waits`: it is not able before the first look that finds it so."""
        self._beat = 0.0
        self._missed = LOOKS_MISSED if waits else 0

    @property
    def able(self) -> bool:
        """Whether the replica answers, or did a moment ago."""
        return self._missed < LOOKS_MISSED

    def look(self, beat: float, lanes: float) -> None:
        """Note what is seen.

        Args:
            beat: Of the web process with the queue: another figure whenever its loop has run.
            lanes: Of the method that has the fewest.
        """
        runs, self._beat = beat != self._beat, beat
        self._missed = 0 if runs and lanes > 0 else self._missed + 1


log = logging.getLogger(__name__)

EXIT_FAILED = 1
"""Exit code of a replica whose predictor could not be started at all."""
EXIT_CRASH_LOOP = 70
"""Exit code, sysexits' "internal software error", of one whose processes cannot be kept alive."""


class CrashLoopError(LoadError):
    """The processes of a replica cannot be kept alive.

    One failed to start again and again, or the task of the supervisor ended that keeps it.
    """

    def __init__(self, message: str) -> None:
        super().__init__("CrashLooping", message)


def exit_code(error: LoadError) -> int:
    """With which a replica that could not be kept up ends."""
    return EXIT_CRASH_LOOP if isinstance(error, CrashLoopError) else EXIT_FAILED


class Life:
    """The life of a replica: events that its keepers wait for, and why it ends early."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        """Asked to stop, or failed."""
        self.stopping = asyncio.Event()
        """Drained: model processes are not replaced any more."""
        self.failure: LoadError | None = None

    def fail(self, error: LoadError) -> None:
        """End the replica; the first reason counts."""
        if not self.draining.is_set():
            self.failure = error
        self.draining.set()

    def kept(self, what: str, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run what must go on as long as the replica: if it ends, however, so does the replica."""
        task = asyncio.create_task(coroutine, name=what)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task ended", extra={"task": task.get_name()}, exc_info=error)
        if not self.draining.is_set():
            how = "ended" if error is None else f"ended with {_cause(error)!r}"
            self.fail(CrashLoopError(f"{task.get_name()} {how}"))

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's handler of what no task raised: nobody else would ever know of it."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if error is not None:
            self.fail(CrashLoopError(f"{context['message']}: {_cause(error)!r}"))


def _cause(error: BaseException) -> BaseException:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


STARTS: Final = 5
SECONDS: Final = 60.0


class CrashLoop:
    """The failed starts of one process.

    A start fails when the process ends before it was up: a model process before its model was
    loaded and warmed up, or for want of a device before a batch succeeded; a web process before its
    event loop ran. A process that came up and then died otherwise is no failed start, or a few
    requests that kill their process would end the replica.
    """

    def __init__(self) -> None:
        self._failed: deque[float] = deque(maxlen=STARTS)

    def failed(self, now: float) -> bool:
        """Note a failed start; whether it was the fifth in a row within a minute."""
        self._failed.append(now)
        return len(self._failed) == STARTS and now - self._failed[0] <= SECONDS

    def succeeded(self) -> None:
        """The process came up: what was before does not count."""
        self._failed.clear()
