"""How large a batch may be without running out of memory, from those that did."""

from collections.abc import Hashable
from typing import Final

from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.reruns import Halves

_SUSPECTED_SHAPES: Final = 256


class MemoryLimits:
    """Of one method, by shape.

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
