"""What waits in one method and one shape, whose turn it is, and who is too late."""

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from batchedapi_core.batching.choices import QueueOrder
from batchedapi_core.batching.request import Request, Taken

FEW_GONE = 16  # requests that left may stay in the middle up to this many before a sweep

Turn: TypeAlias = tuple[float, float]
"""Whose is less goes first: (deadline or 0, arrival) in seconds."""
NOBODY: Turn = (inf, inf)


class RequestQueue:
    """Requests in order of arrival; the head is always live, sizes count live requests only."""

    __slots__ = ("_cancelled", "_requests", "rows", "size")

    def __init__(self) -> None:
        self.size = 0
        self.rows = 0
        self._requests: deque[Request] = deque()
        self._cancelled = 0  # requests in the middle that nobody waits for

    @property
    def oldest_arrival(self) -> float:
        """Arrival of the head in seconds; inf if empty."""
        return self._requests[0].arrived if self._requests else inf

    @property
    def turn(self) -> Turn:
        """Of the head."""
        return (0.0, self._requests[0].arrived) if self._requests else NOBODY

    def append(self, request: Request) -> None:
        """Queue it last."""
        request.queued = True
        self._requests.append(request)
        self.size += request.size
        self.rows += request.rows

    def cancel(self, request: Request) -> None:
        """Never hand it out; it stops counting at once. Twice, or after it left, is harmless.

        O(1) amortised: it stays in the middle until the head reaches it or half of all is such.
        """
        request.cancelled = True
        if not request.queued:
            return
        self._forget(request)
        self._cancelled += 1
        self._drop_cancelled_heads()
        if self._cancelled > FEW_GONE and 2 * self._cancelled > len(self._requests):
            self._requests = deque(e for e in self._requests if not e.cancelled)
            self._cancelled = 0

    def take(self, size: int, now: float, shape: Hashable = None, margin: float = 0.0) -> Taken:  # noqa: ARG002 - as Buckets
        """Hand out the first, at most `size` and none of them split, and all heads too late.

        A head that is larger than `size` > 0 is handed out alone: it cannot be smaller. Too late is
        a deadline within `margin` seconds: in an overload the oldest, whose turn it is, are those
        about to expire; run too late they would be answered 504, and take the place of others that
        could be answered. But nobody is given up in the first half of its own timeout, so that a
        wrong estimate cannot refuse everything for ever.
        """
        requests: list[Request] = []
        expired: list[Request] = []
        late = now + margin
        queue = self._requests
        while queue:
            request = queue[0]
            if request.deadline <= late and 2.0 * (request.deadline - now) <= (
                request.deadline - request.arrived
            ):
                expired.append(request)
            elif request.size <= size or (size > 0 and not requests):
                requests.append(request)
                size -= request.size
            else:
                break
            queue.popleft()
            self._forget(request)
            if self._cancelled:
                self._drop_cancelled_heads()
        return Taken(requests, expired)

    def _forget(self, request: Request) -> None:
        request.queued = False
        self.size -= request.size
        self.rows -= request.rows

    def _drop_cancelled_heads(self) -> None:
        queue = self._requests
        while queue and queue[0].cancelled:
            queue.popleft()
            self._cancelled -= 1


class DeadlineQueue:
    """Requests in order of their deadlines, of arrival among equals; else as RequestQueue.

    O(log n) a request. A second list in order of arrival knows the oldest. In both lists a request
    that left stays until it is first or more than half of the list is such. `take` repeats the rule
    of the other queue: shared, it would be a call for every request.
    """

    __slots__ = ("_arrivals", "_count", "_heap", "_live", "rows", "size")

    def __init__(self) -> None:
        self.size = 0
        self.rows = 0
        self._heap: list[tuple[float, int, Request]] = []  # (deadline, number, request)
        self._arrivals: deque[Request] = deque()
        self._live = 0
        self._count = 0  # of all requests ever: their number, in order of arrival

    @property
    def oldest_arrival(self) -> float:
        """Earliest arrival of all that are queued, in seconds; inf if empty."""
        return self._arrivals[0].arrived if self._arrivals else inf

    @property
    def turn(self) -> Turn:
        """Of the head, whose deadline is the earliest."""
        if not self._heap:
            return NOBODY
        deadline, _, request = self._heap[0]
        return deadline, request.arrived

    def append(self, request: Request) -> None:
        """Queue it behind those whose deadlines are not later."""
        request.queued = True
        self._count += 1
        heappush(self._heap, (request.deadline, self._count, request))
        self._arrivals.append(request)
        self.size += request.size
        self.rows += request.rows
        self._live += 1

    def cancel(self, request: Request) -> None:
        """Never hand it out; it stops counting at once. Twice, or after it left, is harmless."""
        request.cancelled = True
        if request.queued:
            self._forget(request)
            self._tidy()

    def take(self, size: int, now: float, shape: Hashable = None, margin: float = 0.0) -> Taken:  # noqa: ARG002 - as Buckets
        """Hand out the first, at most `size` and none of them split, and all heads too late.

        A head that is larger than `size` > 0 is handed out alone: it cannot be smaller.
        """
        requests: list[Request] = []
        expired: list[Request] = []
        late = now + margin
        heap = self._heap
        while heap:
            request = heap[0][2]
            if not request.queued:
                heappop(heap)
                continue
            if request.deadline <= late and 2.0 * (request.deadline - now) <= (
                request.deadline - request.arrived
            ):
                expired.append(request)
            elif request.size <= size or (size > 0 and not requests):
                requests.append(request)
                size -= request.size
            else:
                break
            heappop(heap)
            self._forget(request)
        self._tidy()
        return Taken(requests, expired)

    def _forget(self, request: Request) -> None:
        request.queued = False
        self.size -= request.size
        self.rows -= request.rows
        self._live -= 1

    def _tidy(self) -> None:
        """The first of both lists is live, and so is at least half of each."""
        heap, arrivals = self._heap, self._arrivals
        while heap and not heap[0][2].queued:
            heappop(heap)
        while arrivals and not arrivals[0].queued:
            arrivals.popleft()
        most = max(FEW_GONE, 2 * self._live)
        if len(heap) > most:
            self._heap = [item for item in heap if item[2].queued]
            heapify(self._heap)
        if len(arrivals) > most:
            self._arrivals = deque(request for request in arrivals if request.queued)


OneShape: TypeAlias = RequestQueue | DeadlineQueue


def queue_in(order: QueueOrder) -> OneShape:
    """An empty queue of one shape."""
    return RequestQueue() if order is QueueOrder.FIFO else DeadlineQueue()
