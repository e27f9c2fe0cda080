"""Batches to run again, and which of them ran in a process when it died may have killed it."""

from collections import deque
from collections.abc import Sequence

from batchedapi_serving.dispatch.batch import Batch
from batchedapi_serving.dispatch.lanes import Runner
from batchedapi_serving.dispatch.line import MethodLine


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
    """Batches of one group to run again, in turn with what is queued.

    The next one's turn is when a method would get its second batch since the last one: nobody waits
    for more than one run of another's failures, and of many methods with work none gives up more
    than its share. Methods take turns with theirs, too; of one method's, the larger parts of a
    batch are first. Those on trial run one at a time: beside each other, all would be
    blamed for the next death.
    """

    def __init__(self, trial: Trial) -> None:
        """The owner sets `trial.runs` while it runs one of those on trial."""
        self._parts: dict[MethodLine, deque[Batch]] = {}  # whose turn was longest ago first
        self._on_trial: deque[Batch] = deque()
        self._served: set[MethodLine] = set()  # since the last one
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
                self._parts.setdefault(batch.line, deque()).append(batch)

    def is_next(self, line: MethodLine | None) -> bool:
        """Whether one is to run before what is queued in `line`; None: nothing is to start."""
        runnable = self._parts or (self._on_trial and not self.trial.runs)
        return bool(runnable) and (line is None or line in self._served)

    def served(self, line: MethodLine) -> None:
        """A batch that was queued in `line` runs."""
        self._served.add(line)

    def next(self) -> Batch:
        """The next to run; only if `is_next` said so."""
        self._served.clear()
        if self._on_trial and not self.trial.runs:
            batch = self._on_trial.popleft()
        else:
            line = next(iter(self._parts))
            parts = self._parts.pop(line)
            batch = parts.popleft()
            if parts:
                self._parts[line] = parts
        self.any = bool(self._parts or self._on_trial)
        return batch
