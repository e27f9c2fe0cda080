"""What the keepers of processes tell the supervisor, and it them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from batchedapi_serving.errors import LoadError

log = logging.getLogger(__name__)

EXIT_FAILED = 1
"""Exit code of a replica whose predictor could not be started at all."""
EXIT_CRASH_LOOP = 70
"""Exit code, sysexits' "internal software error", of one whose processes cannot be kept alive."""
EXIT_UNFIT = 71
"""Exit code, sysexits' "system error", of a model process in which no batch can succeed."""


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
    """Of a replica: events that its keepers wait for, and why it ends early."""

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
