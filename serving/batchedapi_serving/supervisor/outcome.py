"""What the keepers of processes tell the supervisor, and it them."""

import asyncio

from batchedapi_serving.errors import LoadError

EXIT_FAILED = 1
"""Exit code of a replica whose predictor could not be started at all."""
EXIT_CRASH_LOOP = 70
"""Exit code, sysexits' "internal software error", of one whose processes cannot be kept alive."""


class CrashLoopError(LoadError):
    """A process failed to start again and again in a replica that was ready before."""

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
