"""Several shapes queued at once: a bucket each, and whose turn it is.

Rows of different shapes cannot share a batch. While only one shape is queued the Batcher uses its
queue as it is; this stands in its place from the moment another shape waits too, until one is left.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush

from batchedapi_core.batching.request import Request, Taken
from batchedapi_core.batching.request_queue import FEW_GONE, OneShape, Turn


class Buckets:
    """Queues of one shape each, never empty ones; their sizes and rows together.

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

    def take(self, size: int, now: float, shape: Hashable, margin: float = 0.0) -> Taken:
        """Hand out the first of a shape; see RequestQueue."""
        queue = self.queues.get(shape)
        if queue is None:
            return Taken([], [])
        turn, size_before, rows_before = queue.turn, queue.size, queue.rows
        taken = queue.take(size, now, shape, margin)
        self._left(shape, queue, size_before - queue.size, rows_before - queue.rows, turn)
        return taken

    def next(self, now: float, patience: float) -> Hashable:
        """The shape whose batch is next.

        The one with the oldest request, or with the earliest deadline. A full batch overtakes it,
        but only while that request has waited for less than `patience` seconds: however much comes
        of other shapes, it is its turn then.
        """
        first, (_, arrived) = self._first()
        if now < arrived + patience:
            while self._full:
                shape = next(iter(self._full))
                if self.queues[shape].size >= self._largest(shape):
                    return shape
                del self._full[shape]
        return first

    def _first(self) -> tuple[Hashable, Turn]:
        turns, queues = self._turns, self.queues
        while True:
            turn, _, shape = turns[0]
            queue = queues.get(shape)
            if queue is not None and queue.turn == turn:
                return shape, turn
            heappop(turns)

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
