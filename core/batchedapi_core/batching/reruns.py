"""When what is left of a failed batch runs again, and what is learned if memory ran out."""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final

from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.lanes import Batch, Halves

_SUSPECTED_SHAPES: Final = 256


def blamed(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The batches that may be at fault, of those that ran in a process when it died.

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


class MemoryLimits:
    """How large a batch of one method may be without running out of memory, by shape.

    A batch that ran out of memory was too large, or a row of it was. So half of its size is only
    suspected to be the limit, until both of its halves have run.
    """

    __slots__ = ("_batcher", "_suspected", "any")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._suspected: dict[Hashable, int] = {}  # longest ago first
        self.any = False
        """Whether memory ever ran out, of whatever shape; until then at_most changes nothing."""

    def limit_of(self, shape: Hashable) -> int:
        """Size of the largest batch of that shape."""
        return self.at_most(self._batcher.limit_of(shape), shape)

    def at_most(self, size: int, shape: Hashable) -> int:
        """`size`, or what is suspected to be the most that memory has room for."""
        return min(size, self._suspected.get(shape, size)) if self._suspected else size

    def exceeded(self, shape: Hashable, size: int) -> int | None:
        """A batch of `size` and several rows did; the limit from now on, if it is another."""
        half = (size + 1) // 2
        if size == 1 or half >= self.limit_of(shape):  # 1: one request of many rows
            return None
        if len(self._suspected) >= _SUSPECTED_SHAPES:
            del self._suspected[next(iter(self._suspected))]
        self._suspected[shape] = half
        self.any = True
        return half

    def exceeded_alone(self, shape: Hashable) -> None:
        """One row was at fault, and not the size: a client must not shrink everybody's batches."""
        self._suspected.pop(shape, None)

    def ran(self, halves: Halves) -> None:
        """A half of what ran out of memory did not; after the other half, the size was at fault."""
        halves.missing -= 1
        whole = halves.whole
        shape, half = whole.requests[0].shape, (whole.size + 1) // 2
        if halves.missing == 0 and whole.size > 1 and half < self._batcher.limit_of(shape):
            self._batcher.limit(shape, half)
