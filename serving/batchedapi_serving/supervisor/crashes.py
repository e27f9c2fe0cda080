"""When starting a process again has no prospect: the replica then ends, and says why."""

from collections import deque
from typing import Final

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
        """Note a failed start; whether it was the fifth in a row within a minute.

        Args:
            now: Monotonic time in seconds.
        """
        self._failed.append(now)
        return len(self._failed) == STARTS and now - self._failed[0] <= SECONDS

    def succeeded(self) -> None:
        """The process came up: what was before does not count."""
        self._failed.clear()
