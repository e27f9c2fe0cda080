"""The timers of the dispatcher: who is over the timeout, and which process hangs."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from batchedapi_core.batching import Scheduler
from batchedapi_serving.dispatch.in_flight import InFlight

log = logging.getLogger(__name__)
_TIMER_ROUNDING: Final = 0.0005
"""Seconds. uvloop rounds timers to whole milliseconds; half of one more makes that rounding up, so
that a wait is over when its timer fires and is not asked for again and again."""


class Clock:
    """Time and timers; not the loop's time.

    uvloop's stands still within an iteration and counts whole milliseconds, and clients that come
    back within one are what batches are formed of.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self.now = now

    def call_at(self, at: float, now: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call when it is `at`, in seconds; it is `now`."""
        return self._loop.call_later(max(0.0, at - now) + _TIMER_ROUNDING, call)


class HangWatch(Protocol):
    """Who replaces a process that hangs."""

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""


class Deadlines:
    """Answers 504 to whoever is over the timeout, and has processes replaced that hang."""

    def __init__(
        self,
        clock: Clock,
        jobs: InFlight,
        schedulers: Callable[[], Iterable[Scheduler]],
        watch: HangWatch,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._schedulers = schedulers
        self._watch = watch
        self._timer: asyncio.TimerHandle | None = None
        self.at = math.inf
        """Seconds: when it looks next; tell it of every deadline that is earlier."""

    def look_at(self, deadline: float, now: float) -> None:
        """A request with an earlier deadline than all before was admitted."""
        if self._timer is not None:
            self._timer.cancel()
        self.at = deadline
        self._timer = self._clock.call_at(deadline, now, self._look)

    def _look(self) -> None:
        self._timer = None
        self.at = math.inf
        now, timeout = self._clock.now(), self._jobs.timeout
        late, following = self._jobs.overdue(now)
        for job in late:
            self._jobs.expire(job, now)
        hanging: set[int] = set()
        for scheduler in self._schedulers():
            hanging |= scheduler.hanging(now, timeout)
            # A batch that began late, or whose clients have all left, may hang as well.
            following = min(following, scheduler.next_hang(now, timeout))
        for pid in hanging:
            log.warning("model process hangs", extra={"pid": pid, "timeout": timeout})
            self._watch.replace(pid)
        if following < self.at:  # a client that was just answered may have asked again
            self.look_at(following, now)
