"""Batches, and what of one runs again after it failed: what, and when its turn is."""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from batchedapi_core.batching.isolation import Isolation, Parts, Search
from batchedapi_core.batching.lanes import Lane
from batchedapi_core.batching.request import Request

RETRY: Final = "retry"
_TRIAL: Final = 2  # deaths
_HALVES: Final = 2


class Halves:
    """The two halves of a batch that ran out of memory."""

    __slots__ = ("missing", "whole")

    def __init__(self, whole: "Batch") -> None:
        self.whole = whole
        self.missing = _HALVES
        """Halves that have not yet run with success."""


class Batch:
    """Requests of one method and one shape that run together.

    Attributes:
        reason: Why it was released, one of contract.RELEASE_REASONS.
        deaths: Model processes that died while they ran these requests.
        search: Of the failed batch that it is a part of.
        halves: What it is one half of, if that ran out of memory.
        number: What the caller calls it in receipts; empty without them.
        lane: On which it was dispatched; not before.
        started: When it began to run, in seconds; inf until then.
    """

    __slots__ = (
        "deaths",
        "halves",
        "lane",
        "method",
        "number",
        "reason",
        "requests",
        "rows",
        "search",
        "size",
        "started",
    )

    lane: Lane

    def __init__(
        self,
        method: str,
        requests: Sequence[Request],
        reason: str,
        deaths: int = 0,
        search: Search | None = None,
    ) -> None:
        self.method = method
        self.requests = requests
        self.reason = reason
        self.deaths = deaths
        self.search = search
        self.halves: Halves | None = None
        self.number = ""
        self.started = inf
        rows = size = 0
        for request in requests:
            rows += request.rows
            size += request.size
        self.rows = rows
        self.size = size

    @property
    def on_trial(self) -> bool:
        """Whether it is to run with no other such batch beside it."""
        return self.deaths > 1

    def after_failure(self, isolation: Isolation) -> "list[Batch]":
        """What to run again, so that in the end only the culprit fails; nothing if it is alone."""
        live = self._live()
        if len(live) <= 1:
            return [self._again(live)] if live and len(self.requests) > 1 else []
        search = self.search or Search(len(live))
        return [
            self._again(live[start:stop], search)
            for start, stop in isolation.apart(search, len(live))
        ]

    def after_item_error(self, isolation: Isolation) -> "list[Batch]":
        """What to run again of a batch of which one row was refused; a lone request's row is found.

        Nothing if it is one row, or its request was halved as often as is allowed: its rows are one
        client's, and are not run one by one.
        """
        lone = self._lone()
        if lone is not None:
            parts = lone.splitting().search.halves(lone.rows)
            if parts:
                return self._rows_apart(lone, parts)
        return self.after_failure(isolation)

    def after_memory_error(self, isolation: Isolation) -> "list[Batch]":
        """What to run again, of a lone request its rows; nothing if it is one row.

        What is learned of the size waits for both halves.
        """
        lone = self._lone()
        if lone is None:
            again = self.after_failure(isolation)
        else:
            parts = isolation.apart(lone.splitting().search, lone.rows)
            again = self._rows_apart(lone, parts)
        if len(again) == _HALVES:
            halves = Halves(self)
            for half in again:
                half.halves = halves
        return again

    def after_death(self, *, alone: bool) -> "list[Batch]":
        """What to run again: all of it once, then each alone and on trial, then nothing.

        A lone request is not tried a third time if it was `alone` in the process that died.
        """
        live, deaths = self._live(), self.deaths + 1
        if deaths == 1 and live:
            return [Batch(self.method, live, RETRY, deaths, self.search)]
        if len(self.requests) > 1 or (deaths == _TRIAL and not alone):
            return [Batch(self.method, [request], RETRY, _TRIAL) for request in live]
        return []

    def after_anothers_death(self) -> "list[Batch]":
        """What to run again if the process died of something else: all of it, unblamed."""
        live = self._live()
        return [self._again(live, self.search)] if live else []

    def still_wanted(self, now: float) -> "Batch | None":
        """The batch without those nobody waits for any more; None if that is all of them."""
        wanted = [r for r in self.requests if not r.cancelled and r.deadline > now]
        if len(wanted) == len(self.requests):
            return self
        if not wanted:
            return None
        batch = Batch(self.method, wanted, self.reason, self.deaths, self.search)
        batch.halves = self.halves
        return batch

    def _lone(self) -> Request | None:
        """The only request that is left of it, if that has several rows."""
        live = self._live()
        return live[0] if len(live) == 1 and live[0].rows > 1 else None

    def _rows_apart(self, lone: Request, parts: Parts) -> "list[Batch]":
        search = lone.splitting().search
        return [self._again([part], search) for part in lone.divide(parts)]

    def _again(self, requests: Sequence[Request], search: Search | None = None) -> "Batch":
        return Batch(self.method, requests, RETRY, self.deaths, search)

    def _live(self) -> list[Request]:
        return [request for request in self.requests if not request.cancelled]


def blamed(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Those of the batches that ran in a process when it died that may be at fault.

    A process runs several batches at once, and dies with all of them. If one of them is on trial
    for earlier deaths it is that one's fault, and the others are as innocent as can be.
    """
    return [batch for batch in batches if batch.on_trial] or batches


class Trial:
    """Whether a batch on trial runs now; one for all that a process runs: it dies with all."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs = False


class Reruns:
    """Batches to run again, in turn with what is queued.

    The next one's turn is when a method would get its second batch since the last one: nobody waits
    for more than one run of another's failures, and of many methods with work none gives up more
    than its share. Methods take turns with theirs, too; of one method's, the larger parts of a
    batch are first. Those on trial run one at a time: beside each other, all would be
    blamed for the next death.
    """

    __slots__ = ("_on_trial", "_parts", "_served", "any", "trial")

    def __init__(self, trial: Trial) -> None:
        """The owner sets `trial.runs` while it runs one of those on trial."""
        self._parts: dict[str, deque[Batch]] = {}  # by method; whose turn was longest ago first
        self._on_trial: deque[Batch] = deque()
        self._served: set[str] = set()  # methods, since the last one
        self.trial = trial
        self.any = False
        """Whether any is left; it is read for every batch, and mostly there is none."""

    def add(self, batches: Sequence[Batch]) -> None:
        """Run these, which are what is left of one that failed, after those that are there."""
        for batch in batches:
            if not self.any:
                self.any = True
                self._served.clear()
            if batch.on_trial:
                self._on_trial.append(batch)
            else:
                self._parts.setdefault(batch.method, deque()).append(batch)

    def is_next(self, method: str | None) -> bool:
        """Whether one is to run before what is queued of `method`; None: nothing is to start."""
        runnable = self._parts or (self._on_trial and not self.trial.runs)
        return bool(runnable) and (method is None or method in self._served)

    def served(self, method: str) -> None:
        """A batch that was queued of `method` runs."""
        self._served.add(method)

    def next(self) -> Batch:
        """The next to run; only if `is_next` said so."""
        self._served.clear()
        if self._on_trial and not self.trial.runs:
            batch = self._on_trial.popleft()
        else:
            method = next(iter(self._parts))
            parts = self._parts.pop(method)
            batch = parts.popleft()
            if parts:
                self._parts[method] = parts
        self.any = bool(self._parts or self._on_trial)
        return batch
