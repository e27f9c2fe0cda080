"""The work queue: one task a key, tried again for ever with capped back-off.

kopf does not retry what an `on.event` handler failed to do, so the handlers only put keys in here.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import ApplyError

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 0.5
LARGEST_BACKOFF: Final = 60.0
LARGEST_UNHEARD: Final = 5.0
"""Where the apiserver did not answer: once it does, everything is caught up with. What an apiserver
in need is asked meanwhile is bounded by how many keys are worked on at once."""
SPACING: Final = 0.2
"""Seconds between two runs of one key: a rollout's burst of pod events is worth one look."""
CONCURRENCY: Final = 8
"""Keys worked on at once: an operator that starts must not flood the apiserver."""

Work = Callable[[ObjectKey], Awaitable[float | None]]
"""Brings one key up to date; returns after how many seconds to look again, None for never."""
Result = Callable[[str, float], None]
"""Told `success` or `error` and the seconds that a run took."""


@dataclass(slots=True)
class _Entry:
    """A key and its task. Owned by the task; others set the events."""

    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    rest: float = 0.0
    """Seconds to wait after the last run failed."""
    unheard: bool = False
    """It failed because the apiserver did not answer."""
    paced: bool = False
    """A failed write is not sent again before its time, however often one looks."""
    task: asyncio.Task[None] | None = None

    def failed(self, error: Exception) -> None:
        """Once more."""
        self.failures += 1
        self.rest = rest_after(self.failures, error)
        self.unheard = isinstance(error, ApplyError) and error.unheard
        self.paced = isinstance(error, ApplyError) and error.rest is not None


class WorkQueue:
    """Runs `work` for each key that was enqueued, never twice at once for the same key."""

    def __init__(self, work: Work, result: Result = lambda _result, _seconds: None) -> None:
        self._work = work
        self._result = result
        self._entries: dict[ObjectKey, _Entry] = {}
        self._open = True
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._returned = float("-inf")
        """When the apiserver answered again."""

    def __len__(self) -> int:
        return len(self._entries)

    def enqueue(self, key: ObjectKey) -> None:
        """See to `key` soon; during back-off when the back-off is over."""
        if self._open:
            self._entry(key).wanted.set()

    def enqueue_fresh(self, key: ObjectKey) -> None:
        """See to `key` now, back-off or not: its user has changed it."""
        if self._open:
            entry = self._entry(key)
            entry.wanted.set()
            entry.fresh.set()

    def go_on(self) -> None:
        """End the back-off of those that the apiserver did not answer: it does again.

        What runs may still fail of that it did not, and does not rest either.
        """
        self._returned = time.monotonic()
        for entry in self._entries.values():
            if entry.failures and entry.unheard:
                entry.fresh.set()

    def open(self) -> None:
        """Take keys again."""
        self._open = True

    async def close(self) -> None:
        """Cancel what runs, and take no key until `open`: whoever works next begins with all."""
        self._open = False
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()

    def _entry(self, key: ObjectKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            entry.task = asyncio.create_task(self._serve(key, entry), name=f"reconcile {key}")
        return entry

    async def _serve(self, key: ObjectKey, entry: _Entry) -> None:
        """Work until nothing is wanted any more; then the entry is forgotten."""
        again: float | None = None
        while entry.wanted.is_set() or again is not None:
            if not entry.wanted.is_set():
                await first_of(entry.wanted, seconds=again)
            entry.wanted.clear()
            entry.fresh.clear()
            async with self._slots:
                started, again = time.monotonic(), None
                try:
                    again = await self._work(key)
                    entry.failures = 0
                except ApplyError as error:
                    entry.failed(error)
                    if entry.unheard and started < self._returned:
                        entry.rest = 0.0
                    log.warning("reconcile failed", extra={"api": str(key), "error": error.message})
                except Exception as error:  # behind kopf's handlers: one API must not stop others
                    entry.failed(error)
                    log.exception("reconcile failed unexpectedly", extra={"api": str(key)})
                result = "error" if entry.failures else "success"
                self._result(result, time.monotonic() - started)
            if not entry.failures or entry.paced:
                await asyncio.sleep(SPACING)
            if entry.failures:
                woken = entry.wanted if entry.paced else entry.fresh
                await first_of(woken, seconds=entry.rest)
                entry.wanted.set()
        del self._entries[key]


def backoff(
    failures: int, jitter: Callable[[], float] = random.random, *, largest: float = LARGEST_BACKOFF
) -> float:
    """Seconds to wait after `failures` >= 1 in a row: doubling, capped, at most a quarter off."""
    doubled = FIRST_BACKOFF * 2.0 ** min(failures - 1, 16)  # 16: beyond the cap, below overflow
    return min(largest, doubled) * (1.0 - 0.25 * jitter())


def rest_after(failures: int, error: Exception) -> float:
    """Seconds to wait after `failures` >= 1 in a row, the last of which was `error`."""
    if isinstance(error, ApplyError) and error.rest is not None:
        return error.rest
    unheard = isinstance(error, ApplyError) and error.unheard
    return backoff(failures, largest=LARGEST_UNHEARD if unheard else LARGEST_BACKOFF)


async def first_of(event: asyncio.Event, *, seconds: float | None) -> None:
    """Wait for `event`, for at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
