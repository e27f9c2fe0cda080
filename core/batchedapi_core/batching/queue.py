"""Requests that wait in one method: their turns, the late ones, and a bucket for each shape."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias, cast

from batchedapi_core.batching.lengths import SAVED, Entry, Span, cheapest_group, filled, span_of
from batchedapi_core.batching.policy import BatchPolicy, QueueOrder
from batchedapi_core.batching.request import Handout, Request
from batchedapi_core.service_surface import ServiceSurface

FEW_GONE = 16  # requests that left may stay in the middle up to this many before a sweep

Turn: TypeAlias = tuple[float, float]
"""(deadline or 0, arrival) in seconds: the least goes first."""
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
        """Turn of the head."""
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
        request.queued = False
        self.size -= request.size
        self.rows -= request.rows
        self._cancelled += 1
        self._drop_cancelled_heads()
        if self._cancelled > FEW_GONE and 2 * self._cancelled > len(self._requests):
            self._requests = deque(e for e in self._requests if not e.cancelled)
            self._cancelled = 0

    def take(self, size: int, now: float, shape: Hashable = None, margin: float = 0.0) -> Handout:  # noqa: ARG002 - as Buckets
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
            request.queued = False
            self.size -= request.size
            self.rows -= request.rows
            if self._cancelled:
                self._drop_cancelled_heads()
        return Handout(requests, expired)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue first, in their order, what was handed out and did not run; none is cancelled."""
        for request in requests:
            request.queued = True
            self.size += request.size
            self.rows += request.rows
        self._requests.extendleft(reversed(requests))

    def _drop_cancelled_heads(self) -> None:
        queue = self._requests
        while queue and queue[0].cancelled:
            queue.popleft()
            self._cancelled -= 1


class DeadlineQueue:
    """Requests in order of their deadlines, of arrival among equals; else as RequestQueue.

    Where traffic comes and goes, with timeouts of 0.1 s and 2 s, all are answered in time; in order
    of arrival 80 % are.

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
        """Turn of the head, whose deadline is the earliest."""
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

    def take(self, size: int, now: float, shape: Hashable = None, margin: float = 0.0) -> Handout:  # noqa: ARG002 - as Buckets
        """Hand out the first, at most `size` and none of them split, and all heads too late.

        A head that is larger than `size` > 0 is handed out alone: it cannot be smaller.
        """
        requests: list[Request] = []
        expired: list[Request] = []
        heap = self._heap
        while heap:
            request = heap[0][2]
            if not request.queued:
                heappop(heap)
                continue
            if request.is_late(now, margin):
                expired.append(request)
            elif request.size <= size or (size > 0 and not requests):
                requests.append(request)
                size -= request.size
            else:
                break
            heappop(heap)
            self._forget(request)
        self._tidy()
        return Handout(requests, expired)

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


class LengthQueue(DeadlineQueue):
    """Requests of one shape and different lengths: their turns, and their order by length.

    O(log n) a request but for moving pointers. The heap of the other queue holds the turns: those
    of arrivals are (0, number). `own` is the sum of the lengths of all rows.
    """

    __slots__ = ("_by_deadline", "_order", "_put_back", "_spans", "own")

    def __init__(self, order: QueueOrder) -> None:
        super().__init__()
        self.own = 0
        self._by_deadline = order is QueueOrder.DEADLINE
        self._order: list[Entry] = []
        self._spans: dict[int, Span] = {}  # by span_of; none is empty
        self._put_back = 0  # times that a request was: each is before all that were numbered

    @property
    def longest(self) -> int:
        """Length of the longest row; 0 if empty."""
        return self._order[-1][0] if self._order else 0

    def append(self, request: Request) -> None:
        """Queue it in its turn."""
        self._count += 1
        self._arrivals.append(request)
        self._insert(request, self._count)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue first, in their order, what was handed out and did not run; none is cancelled."""
        for request in reversed(requests):
            self._put_back += 1
            self._arrivals.appendleft(request)
            self._insert(request, -self._put_back)

    def _insert(self, request: Request, number: int) -> None:
        request.queued = True
        turn = request.deadline if self._by_deadline else 0.0
        heappush(self._heap, (turn, number, request))
        insort(self._order, (request.length, request.id, request.first, request))
        self.size += request.size
        self.rows += request.rows
        self.own += request.length * request.rows
        self._live += 1
        number = span_of(request.length)
        span = self._spans.get(number)
        if span is None:
            span = self._spans[number] = Span()
        span.requests += 1
        span.rows += request.rows
        span.size += request.size

    def _forget(self, request: Request) -> None:
        super()._forget(request)
        self.own -= request.length * request.rows
        del self._order[self._place(request)]
        number = span_of(request.length)
        span = self._spans[number]
        span.requests -= 1
        span.rows -= request.rows
        span.size -= request.size
        if not span.requests:
            del self._spans[number]

    def _place(self, request: Request) -> int:
        # A tuple that is shorter is less than its like: none compares requests.
        return bisect_left(self._order, (request.length, request.id, request.first))

    def group(self, surface: ServiceSurface, most: int) -> Sequence[Request] | None:
        """The next batch; `most` is the size of a full one, and padding costs something.

        None: those whose turn it is, as all lengths are alike, or as all fit together best.
        O(log n) however long the queue is, and the square of the spans.
        """
        order = self._order
        if not order or order[0][0] == order[-1][0]:
            return None
        numbers = sorted(self._spans)
        spans = [self._spans[number] for number in numbers]
        stops, longest = [0], []  # places in `order`
        for span in spans:
            stops.append(stops[-1] + span.requests)
            longest.append(order[stops[-1] - 1][0])
        request, worth = self._heap[0][2], surface.fixed / surface.per_padded
        at = bisect_left(numbers, span_of(request.length))
        first, stop = cheapest_group(spans, longest, at, most, SAVED * worth)
        top, share = longest[stop - 1], worth / most  # padded length that one of size pays for
        nearly = bisect_left(
            order, True, key=lambda at: (top - at[0]) * at[3].rows <= share * at[3].size
        )
        low, high = filled(
            order, self._place(request), min(stops[first], nearly), stops[stop], most
        )
        return None if high - low == len(order) else [entry[3] for entry in order[low:high]]

    def take_these(self, requests: Sequence[Request], now: float, margin: float) -> Handout:
        """Hand out these, which are queued, without those too late; heads too late come along."""
        taken: list[Request] = []
        expired: list[Request] = []
        for request in sorted(requests, key=_arrival):
            (expired if request.is_late(now, margin) else taken).append(request)
            self._forget(request)
        self._tidy()
        expired += super().take(0, now, None, margin).expired
        return Handout(taken, expired)


def _arrival(request: Request) -> float:
    return request.arrived


OneShape: TypeAlias = RequestQueue | DeadlineQueue


def queue_of(policy: BatchPolicy) -> OneShape:
    """An empty queue of one shape."""
    order = policy.queue_order
    if policy.pads_to:
        return LengthQueue(order)
    return RequestQueue() if order is QueueOrder.FIFO else DeadlineQueue()


class Buckets:
    """Queues of one shape each, never empty ones; their sizes and rows together.

    Rows of different shapes cannot share a batch. While only one shape is queued the Batcher uses
    its queue as it is; this stands in its place from the moment another shape waits too, until one
    is left.

    An arrival, a cancellation or a batch costs O(log shapes) more than in a queue of one shape.

    Args:
        new_queue: An empty queue.
        largest: Size of a full batch of a shape.
    """

    __slots__ = ("_count", "_full", "_largest", "_new_queue", "_turns", "queues", "rows", "size")

    def __init__(
        self, new_queue: Callable[[], OneShape], largest: Callable[[Hashable], int]
    ) -> None:
        self.size = self.rows = 0
        self.queues: dict[Hashable, OneShape] = {}
        self._new_queue = new_queue
        self._largest = largest
        # The turn of every bucket, and former turns of some: (turn, number of this item, shape).
        self._turns: list[tuple[Turn, int, Hashable]] = []
        self._count = 0  # of all turns ever: FIFO among equals
        self._full: dict[Hashable, None] = {}  # shapes that were full, first first; some no more

    @property
    def oldest_arrival(self) -> float:
        """Earliest arrival of all requests, in seconds; O(shapes)."""
        return min(queue.oldest_arrival for queue in self.queues.values())

    def adopt(self, shape: Hashable, queue: OneShape) -> None:
        """Start with the queue that was the only one; it is not empty."""
        self.queues[shape] = queue
        self.size += queue.size
        self.rows += queue.rows
        self._note(shape, queue)

    def append(self, request: Request) -> None:
        """Queue it with its like."""
        shape = request.shape
        queue = self.queues.get(shape)
        if queue is None:
            queue = self.queues[shape] = self._new_queue()
        turn = queue.turn
        queue.append(request)
        self.size += request.size
        self.rows += request.rows
        if queue.turn != turn:
            self._note(shape, queue)
        elif queue.size >= self._largest(shape):
            self._full[shape] = None

    def cancel(self, request: Request) -> None:
        """Never hand it out; it stops counting at once. Twice, or after it left, is harmless."""
        request.cancelled = True
        if not request.queued:
            return
        queue = self.queues[request.shape]
        turn = queue.turn
        queue.cancel(request)
        self._left(request.shape, queue, request.size, request.rows, turn)

    def take(self, size: int, now: float, shape: Hashable, margin: float = 0.0) -> Handout:
        """Hand out the first of a shape; see RequestQueue."""
        queue = self.queues.get(shape)
        if queue is None:
            return Handout([], [])
        turn, size_before, rows_before = queue.turn, queue.size, queue.rows
        taken = queue.take(size, now, shape, margin)
        self._left(shape, queue, size_before - queue.size, rows_before - queue.rows, turn)
        return taken

    def take_these(self, these: Sequence[Request], now: float, margin: float) -> Handout:
        """Hand out these of one shape; see LengthQueue."""
        shape = these[0].shape
        queue = cast("LengthQueue", self.queues[shape])
        turn, size, rows = queue.turn, queue.size, queue.rows
        taken = queue.take_these(these, now, margin)
        self._left(shape, queue, size - queue.size, rows - queue.rows, turn)
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue first what was handed out of one shape and did not run; see RequestQueue."""
        shape = requests[0].shape
        queue = self.queues.get(shape)
        if queue is None:
            queue = self.queues[shape] = self._new_queue()
        size, rows = queue.size, queue.rows
        # Nothing else is handed out so early.
        cast("RequestQueue | LengthQueue", queue).put_back(requests)
        self.size += queue.size - size
        self.rows += queue.rows - rows
        self._note(shape, queue)

    def next(self, now: float, longest_wait: float) -> Hashable:
        """The shape whose batch is next.

        The one with the oldest request, or with the earliest deadline. A full batch overtakes it,
        but only while that request has waited for less than `longest_wait` seconds: however much
        comes of other shapes, it is its turn then.
        """
        turns, queues = self._turns, self.queues
        while True:
            turn, _, first = turns[0]
            queue = queues.get(first)
            if queue is not None and queue.turn == turn:
                break
            heappop(turns)
        if now < turn[1] + longest_wait:
            while self._full:
                shape = next(iter(self._full))
                if queues[shape].size >= self._largest(shape):
                    return shape
                del self._full[shape]
        return first

    def _left(self, shape: Hashable, queue: OneShape, size: int, rows: int, turn: Turn) -> None:
        self.size -= size
        self.rows -= rows
        if not queue.size:
            del self.queues[shape]
            self._full.pop(shape, None)
        elif queue.turn != turn:
            self._note(shape, queue)

    def _note(self, shape: Hashable, queue: OneShape) -> None:
        """Another request is the first of its shape."""
        self._count += 1
        heappush(self._turns, (queue.turn, self._count, shape))
        if len(self._turns) > FEW_GONE + 2 * len(self.queues):
            self._turns = [(q.turn, n, s) for n, (s, q) in enumerate(self.queues.items())]
            heapify(self._turns)
        if queue.size >= self._largest(shape):
            self._full[shape] = None
