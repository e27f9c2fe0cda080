"""A scheduler, and requests for it; the test says when."""

import random
from math import inf

from batchedapi_core.batching import (
    Ahead,
    Batch,
    BatchPolicy,
    Begins,
    Client,
    Dispatch,
    Lane,
    LaneChoice,
    LanePool,
    Request,
    Scheduler,
    Strategy,
    Trial,
)


class Replica:
    """A scheduler, and a count of requests."""

    def __init__(self, *intervals: float, lanes: int = 1, isolates: bool = True) -> None:
        """Fixed, 4 rows a batch; one method for each interval, and a process for each lane."""
        pool = LanePool(LaneChoice.LEAST_LOADED, random.Random(1))
        self.scheduler = Scheduler(pool, Trial(), isolates=isolates)
        self.requests = 0
        self.ahead: Batch | None = None
        """What was sent ahead last, if it has not begun."""
        for number, interval in enumerate(intervals or (1.0,)):
            self.scheduler.add_method(str(number), BatchPolicy(4, interval, Strategy.FIXED))
        for process in range(lanes):
            self.scheduler.lane_added(Lane(process), 0.0)

    def arrive(
        self,
        at: float,
        method: int = 0,
        *,
        rows: int = 1,
        timeout: float = inf,
        shapes: str | None = None,
    ) -> tuple[Request, bool]:
        """A request; and whether to ask what is next."""
        self.requests += 1
        request = Request(self.requests, str(method), rows, rows, Client(), at, at + timeout)
        return request, self.scheduler.arrive(request, at, None, shapes)

    def run(self, now: float) -> list[list[int]]:
        """Start what starts now; the ids in each batch."""
        return [ids_of(batch) for batch in self.start(now)]

    def start(self, now: float) -> list[Batch]:
        """All batches that start now."""
        batches = []
        while isinstance((decision := self.scheduler.next(now)), Dispatch | Begins | Ahead):
            match decision:
                case Ahead(batch):
                    self.ahead = batch
                case Begins(batch):
                    assert batch is self.ahead
                    self.ahead = None
                    batches.append(batch)
                case Dispatch(batch):
                    batches.append(batch)
        return batches

    def only(self, now: float) -> Batch:
        """The one batch that starts now."""
        (batch,) = self.start(now)
        return batch


def ids_of(batch: Batch) -> list[int]:
    """The ids of its requests."""
    return [request.id for request in batch.requests]
