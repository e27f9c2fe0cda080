"""Batches to run again, and which of them ran in a process when it died may have killed it."""

from collections import deque
from collections.abc import Sequence

from batchedapi_serving.dispatch.batch import Batch
from batchedapi_serving.dispatch.lanes import Runner


def blamed(runners: Sequence[Runner]) -> Sequence[Runner]:
    """Those of a dead process's busy runners whose batch may be at fault.

    A process runs several batches at once, and dies with all of them. If one of them is on trial
    for earlier deaths it is that one's fault, and the others are as innocent as can be.
    """
    on_trial = [runner for runner in runners if runner.batch is not None and runner.batch.on_trial]
    return on_trial or runners


class Trial:
    """Whether a batch on trial runs now; one for all groups: a process dies with what all run."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs = False


class Again:
    """Batches of one group to run again, before what is queued.

    Those on trial run one at a time: beside each other, all would be blamed for the next death.
    Searches for a culprit among the rows of a request are the exception: they take turns with what
    is queued, which goes first, so that nobody waits for more than one run of another's search.
    """

    def __init__(self, trial: Trial) -> None:
        """The owner sets `trial.runs` while it runs one of those on trial."""
        self._plain: deque[Batch] = deque()
        self._on_trial: deque[Batch] = deque()
        self._searches: deque[Batch] = deque()
        self._turn_of_searches = False
        self.trial = trial
        self.any = False
        """Whether any is left; it is read for every batch, and mostly there is none."""

    def __bool__(self) -> bool:
        """Whether there is a next one."""
        return bool(self._next())

    def next(self) -> Batch:
        """The next to run; only if there is one."""
        queue = self._next()
        batch = queue.popleft()
        if queue is self._searches:
            self._turn_of_searches = False
        self.any = bool(self._plain or self._on_trial or self._searches)
        return batch

    def others_had_their_turn(self) -> None:
        """What is queued ran, or is not to run yet: a search is next."""
        self._turn_of_searches = True

    def _next(self) -> deque[Batch]:
        """Where the next one is; empty if there is none."""
        if self._plain:
            return self._plain
        if self._on_trial and not self.trial.runs:
            return self._on_trial
        return self._searches if self._turn_of_searches else deque()

    def first(self, batches: Sequence[Batch]) -> None:
        """Run these before others; they are what is left of a batch that failed."""
        for batch in reversed(batches):
            (self._on_trial if batch.on_trial else self._plain).appendleft(batch)
            self.any = True

    def search(self, halves: Sequence[Batch]) -> None:
        """Run these, in turn with what is queued.

        After all others: the larger parts of a request first, so that what is left in the end is
        small.
        """
        for batch in halves:
            (self._on_trial if batch.on_trial else self._searches).append(batch)
            self.any = True

    def last(self, batches: Sequence[Batch]) -> None:
        """Run these after others."""
        for batch in batches:
            (self._on_trial if batch.on_trial else self._plain).append(batch)
            self.any = True
