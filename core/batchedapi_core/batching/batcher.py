"""The one owner of a method's queue, of its lanes' state and of what is learned from both."""

from bisect import insort
from collections.abc import Sequence
from math import inf
from typing import Generic

from batchedapi_core.batching.actions import Action
from batchedapi_core.batching.bursts import Bursts
from batchedapi_core.batching.decision import next_action
from batchedapi_core.batching.entry import Client, Entry, P, Taken
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.batching.request_queue import RequestQueue
from batchedapi_core.batching.returning import ReturningClients
from batchedapi_core.service_model.samples import ServiceTimeSamples

HORIZON = 4.0  # durations of a full batch after which a client that returns is a stranger
BURST_WINDOW = 0.5  # fixed costs that a burst may last: waiting longer could not pay


class Batcher(Generic[P]):
    """Queue, lanes and traffic of one method.

    The caller reports what happens (arrivals, cancellations, batches, lanes), asks `next_action`
    and does what it says:

        arrive -> next_action -> Dispatch(size, reason)
        taken = take(size, now) -> started(sum of their sizes, now)
        ... -> finished(taken.entries, seconds, now) -> next_action

    On `finished`, ask for the next action before writing the answers: the lane is idle until then.
    A batch whose lane died was not finished: report `lane_removed(was_free=False)` and `lost`,
    then `started` again if it is run again, on whichever lane takes it.
    """

    __slots__ = (
        "_expected_ends",
        "_queue",
        "bursts",
        "draining",
        "free_lanes",
        "free_since",
        "lanes",
        "policy",
        "returning",
        "running_size",
        "service",
    )

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.service = ServiceTimeSamples()
        self.returning = ReturningClients()
        self.bursts = Bursts()
        self.lanes = self.free_lanes = 0
        self.free_since = -inf  # seconds; when the first of the lanes now free became free
        self.running_size = 0  # of batches now executing
        self.draining = False  # set by the caller: nothing waits any more
        self._queue: RequestQueue[P] = RequestQueue()
        self._expected_ends: list[float] = []  # seconds, ascending, one for each running batch

    # ------------------------------------------------------------ what can be read

    @property
    def queued_size(self) -> int:
        """Size of the live entries in the queue."""
        return self._queue.size

    @property
    def queued_rows(self) -> int:
        """Rows of the live entries in the queue."""
        return self._queue.rows

    @property
    def oldest_arrival(self) -> float:
        """When the oldest queued entry arrived, in seconds; inf if none is queued."""
        return self._queue.oldest_arrival

    @property
    def next_free(self) -> float:
        """When a busy lane is expected to be free, in seconds; may be past; inf: none is busy."""
        return self._expected_ends[0] if self._expected_ends else inf

    def next_action(self, now: float) -> Action:
        """What to do now; changes nothing."""
        return next_action(self, self.policy, now)

    # ------------------------------------------------------------ requests

    def arrive(self, entry: Entry[P], now: float) -> None:
        """Queue a request and learn from its coming.

        Raises:
            ValueError: It can never fit a batch.
        """
        self._check_fits(entry)
        self._learn_arrival(entry.client, entry.size, now)
        self._queue.append(entry)

    def arrive_parts(self, entries: Sequence[Entry[P]], now: float) -> None:
        """Queue the parts of one oversize request: one arrival, one answer with the last part.

        Raises:
            ValueError: A part can never fit a batch; none of them is queued.
        """
        for entry in entries:
            self._check_fits(entry)
        total = sum(entry.size for entry in entries)
        self._learn_arrival(entries[0].client, total, now)
        for entry in entries:
            entry.returning = 0
            self._queue.append(entry)
        entries[-1].returning = total

    def cancel(self, entry: Entry[P]) -> None:
        """Nobody waits for the answer: never hand it out, and do not await its client's return."""
        self._queue.cancel(entry)

    def take(self, size: int, now: float) -> Taken[P]:
        """Hand out the oldest entries, in order, together at most `size`; may be empty.

        Entries whose deadline is at or before `now` come in `expired`, uncounted.
        """
        return self._queue.take(size, now)

    def disconnected(self, client: Client) -> None:
        """Its connection closed: nobody waits for its next request."""
        self.returning.gone(client)

    # ------------------------------------------------------------ batches and lanes

    def started(self, size: int, now: float) -> None:
        """A free lane runs a batch of `size`."""
        self.free_lanes -= 1
        self.running_size += size
        insort(self._expected_ends, now + self.service.seconds(size))

    def finished(self, entries: Sequence[Entry[P]], seconds: float | None, now: float) -> None:
        """A batch is done and its lane free; `entries` is all of it, cancelled ones too.

        `seconds` is its execution time; None: it failed, and nothing is learned from it.
        """
        size = 0
        for entry in entries:
            size += entry.size
        self.lost(size)
        self._lane_freed(now)
        if seconds is None:
            return
        service = self.service
        service.observe(size, seconds)
        self.returning.horizon = HORIZON * service.seconds(self.policy.max_batch_size)
        self.bursts.window = BURST_WINDOW * service.line.fixed
        self.returning.answered(entries, now)

    def lost(self, size: int) -> None:
        """A batch of `size` no longer runs and its lane is not back: the lane died."""
        self.running_size -= size
        # Which of several batches it was is not asked: the one expected first is near enough.
        del self._expected_ends[:1]

    def lane_added(self, now: float) -> None:
        """A free lane more: a model process is ready."""
        self.lanes += 1
        self._lane_freed(now)

    def lane_removed(self, *, was_free: bool, now: float) -> None:  # noqa: ARG002 - every event has it
        """A lane less; if it was busy its batch is to be reported `lost`."""
        self.lanes -= 1
        if was_free:
            self.free_lanes -= 1

    def _lane_freed(self, now: float) -> None:
        if self.free_lanes == 0:
            self.free_since = now
        self.free_lanes += 1

    def _learn_arrival(self, client: Client, size: int, now: float) -> None:
        if not self.returning.returned(client, now):
            idle = self.free_lanes > 0 and not self._queue.size
            self.bursts.arrived(size, now, idle=idle)

    def _check_fits(self, entry: Entry[P]) -> None:
        if not 1 <= entry.size <= self.policy.max_batch_size:
            raise ValueError(
                f"entry.size: expected 1 to {self.policy.max_batch_size} (max_batch_size), "
                f"got {entry.size}; split larger requests with split_rows"
            )
