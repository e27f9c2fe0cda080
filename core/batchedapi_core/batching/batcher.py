"""The one owner of a method's queue and of what is learned from its traffic."""

from collections.abc import Hashable, Sequence

from batchedapi_core.batching.actions import DRAIN, FULL, SHAPE, Action, Release
from batchedapi_core.batching.adaptive import Effective
from batchedapi_core.batching.bursts import Bursts
from batchedapi_core.batching.decision import IDLE, next_action
from batchedapi_core.batching.in_effect import PolicyInEffect, effective
from batchedapi_core.batching.lanes import Lanes
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.batching.preferred import preferred
from batchedapi_core.batching.request import Client, Request, Taken
from batchedapi_core.batching.request_queue import OneShape, queue_in
from batchedapi_core.batching.returning import ReturningClients
from batchedapi_core.batching.shapes import Buckets
from batchedapi_core.service_model.service_time import WARM_UP, ServiceTimeSamples

HORIZON = 4.0  # durations of a full batch after which a client that returns is a stranger
BURST_WINDOW = 0.5  # fixed costs that a burst may last: waiting longer could not pay


class Batcher:
    """Queue and traffic of one method, and its share in the lanes of its replica.

    The caller reports what happens (arrivals, cancellations, batches, lanes), asks `next_action`
    and does what it says:

        arrive -> next_action -> Release(size, reason, shape)
        taken = take(size, now, shape) -> started(sum of their sizes, now)
        ... -> finished(taken.requests, seconds, now) -> next_action

    On `finished`, ask for the next action before writing the answers: the lane is idle until then.
    A batch whose lane died was not finished: report `lane_removed(was_free=False)` and `lost`,
    then `started` again if it is run again, on whichever lane takes it.

    Several methods share one `Lanes`: report `started`, `finished` and `lost` to the Batcher whose
    batch it is, and each lane that comes or goes once, to any one of them (`lane_added`,
    `lane_removed`) or to the Lanes itself (`added`, `removed`). Which of them goes first is the
    Scheduler's to say.

    Requests of different shapes never share a batch. While several shapes wait nothing is held
    back: the shape of the oldest request (of the earliest deadline) is released with the reason
    `shape`, unless a full batch of another shape goes before it; see `Buckets.next`. A wait that
    was begun before is over then: ask again when `several_shapes` has become true.
    """

    __slots__ = (
        "_in_effect",
        "_policy",
        "_queue",
        "_several",
        "bursts",
        "draining",
        "effective",
        "policy",
        "replica_lanes",
        "returning",
        "running_size",
        "service",
        "shape",
    )

    def __init__(self, policy: BatchPolicy, lanes: Lanes | None = None) -> None:
        self.policy = policy  # the user's
        self.effective = Effective(policy.max_batch_size, policy.batch_interval)
        """Of requests whose shape is None. Adaptive moves it, and so does `limit`."""
        self.service = ServiceTimeSamples()
        self.returning = ReturningClients()
        self.bursts = Bursts()
        self.running_size = 0  # of this method's batches now executing
        self.draining = False  # set by the caller: nothing waits any more
        self.shape: Hashable = None  # of everything queued, or queued last; of one, if several are
        self.replica_lanes = Lanes() if lanes is None else lanes
        self._in_effect = PolicyInEffect(policy)
        self._policy = policy  # in effect for `shape`
        self._queue: OneShape | Buckets = queue_in(policy.queue_order)
        self._several: Buckets | None = None  # the queue itself while several shapes are queued

    # ------------------------------------------------------------ what can be read

    @property
    def queued_size(self) -> int:
        """Size of the live requests in the queue, of all shapes."""
        return self._queue.size

    @property
    def queued_rows(self) -> int:
        """Rows of the live requests in the queue, of all shapes."""
        return self._queue.rows

    @property
    def oldest_arrival(self) -> float:
        """When the oldest queued request of any shape arrived, in seconds; inf if none is queued.

        O(shapes), and under the order Deadline it need not be the one whose turn it is.
        """
        return self._queue.oldest_arrival

    @property
    def several_shapes(self) -> bool:
        """Whether requests of more than one shape are queued."""
        return self._several is not None

    @property
    def lanes(self) -> int:
        """Lanes of the replica, free or busy."""
        return self.replica_lanes.total

    @property
    def free_lanes(self) -> int:
        """Lanes of the replica that run no batch."""
        return self.replica_lanes.free

    @property
    def free_since(self) -> float:
        """When the first of the lanes now free became free, in seconds."""
        return self.replica_lanes.free_since

    @property
    def next_free(self) -> float:
        """When a busy lane is expected to be free, in seconds; may be past; inf: none is busy."""
        return self.replica_lanes.next_free

    def next_action(self, now: float) -> Action:
        """What to do now; changes nothing."""
        if self._several is None:
            return next_action(self, self._policy, now)
        if self.replica_lanes.free <= 0:
            return IDLE
        return self._next_of(self._several, now)

    def _next_of(self, several: Buckets, now: float) -> Release:
        shape = several.next(now, self.policy.batch_interval)
        queued, policy = several.queues[shape].size, self._in_effect.of(shape)
        if queued >= policy.max_batch_size:
            return Release(policy.max_batch_size, FULL, shape)
        if self.draining:
            return Release(queued, DRAIN, shape)
        return Release(preferred(policy, queued), SHAPE, shape)

    # ------------------------------------------------------------ requests

    def arrive(self, request: Request, now: float) -> None:
        """Queue a request and learn from its coming.

        Raises:
            ValueError: It can never fit a batch.
        """
        if not 1 <= request.size <= self.policy.max_batch_size:
            raise self._does_not_fit(request)
        self._learn_arrival(request.client, request.size, now)
        if request.shape != self.shape:
            self._other_shape(request.shape)
        self._queue.append(request)

    def arrive_parts(self, requests: Sequence[Request], now: float) -> None:
        """Queue the parts of one oversize request: one arrival, one answer with the last part.

        Raises:
            ValueError: A part can never fit a batch; none of them is queued.
        """
        for request in requests:
            if not 1 <= request.size <= self.policy.max_batch_size:
                raise self._does_not_fit(request)
        total = sum(request.size for request in requests)
        self._learn_arrival(requests[0].client, total, now)
        for request in requests:
            request.returning = 0
            if request.shape != self.shape:
                self._other_shape(request.shape)
            self._queue.append(request)
        requests[-1].returning = total

    def cancel(self, request: Request) -> None:
        """Nobody waits for the answer: never hand it out, and do not await its client's return."""
        self._queue.cancel(request)
        if self._several is not None:
            self._one_shape_again(self._several)

    def take(self, size: int, now: float, shape: Hashable = None, margin: float = 0.0) -> Taken:
        """Hand out the first requests of a shape, together at most `size`; may be empty.

        `size` and `shape` are those of the Release (while only one shape is queued, it is that
        one). In order: the oldest, or the earliest deadline, first. Requests that are too late if
        they take `margin` seconds come in `expired`, uncounted; see `RequestQueue.take`. A request
        that alone is larger than `size`, because a limit came after it, is handed out alone.
        """
        taken = self._queue.take(size, now, shape, margin)
        if self._several is not None:
            self._one_shape_again(self._several)
        return taken

    def disconnected(self, client: Client) -> None:
        """Its connection closed: nobody waits for its next request."""
        self.returning.gone(client)

    # ------------------------------------------------------------ limits

    def limit(self, shape: Hashable, size: int) -> None:
        """Batches of this shape have at most `size` from now on, and as much less time to fill.

        For a batch that did not fit in memory. It never grows again; the newest few hundred shapes
        are remembered. What is queued and larger runs alone; `limit_of` says how to split the next.

        Raises:
            ValueError: `size` is less than 1.
        """
        self._in_effect.limit(shape, size)
        self._policy_changed()

    def limit_of(self, shape: Hashable) -> int:
        """Largest size that a request of this shape may have without being split."""
        return self._in_effect.limit_of(shape)

    def _policy_changed(self) -> None:
        self._policy = self._in_effect.of(self.shape)
        self.effective = effective(self._in_effect.of(None))

    # ------------------------------------------------------------ batches and lanes

    def started(self, size: int, now: float) -> None:
        """A free lane runs a batch of `size` of this method."""
        self.running_size += size
        self.replica_lanes.taken(now + self.service.at_least(size))

    def finished(self, requests: Sequence[Request], seconds: float | None, now: float) -> None:
        """A batch is done and its lane free; `requests` is all of it, cancelled ones too.

        `seconds` is its execution time; None: it failed, and nothing is learned from it.
        """
        size = 0
        for request in requests:
            size += request.size
        self.running_size -= size
        self.replica_lanes.freed(now)
        if seconds is None:
            return
        self._observe(size, seconds)
        self.returning.answered(requests, now)
        if self._in_effect.adaptive is not None and self._in_effect.executed(size, self.service):
            self._policy_changed()

    def warmed_up(self, size: int, seconds: float) -> None:
        """A warm-up batch of `size` took so long: what to expect before there were others."""
        self._observe(size, seconds, WARM_UP)

    def _observe(self, size: int, seconds: float, weight: float = 1.0) -> None:
        service = self.service
        service.observe(size, seconds, weight)
        self.returning.horizon = HORIZON * service.seconds(self.policy.max_batch_size)
        self.bursts.window = BURST_WINDOW * service.line.fixed

    def lost(self, size: int) -> None:
        """A batch of `size` no longer runs and its lane is not back: the lane died."""
        self.running_size -= size
        self.replica_lanes.batch_lost()

    def lane_added(self, now: float) -> None:
        """A free lane more: a model process is ready. Once for all methods that share it."""
        self.replica_lanes.added(now)

    def lane_removed(self, *, was_free: bool, now: float) -> None:  # noqa: ARG002 - every event has it
        """A lane less; if it was busy its batch is to be reported `lost`. Once, as `lane_added`."""
        self.replica_lanes.removed(was_free=was_free)

    def _learn_arrival(self, client: Client, size: int, now: float) -> None:
        if not self.returning.returned(client, now):
            idle = self.replica_lanes.free > 0 and not self.queued_size
            self.bursts.arrived(size, now, idle=idle)

    def _does_not_fit(self, request: Request) -> ValueError:
        return ValueError(
            f"request.size: expected 1 to {self.policy.max_batch_size} (max_batch_size), "
            f"got {request.size}; split larger requests with split_parts"
        )

    # ------------------------------------------------------------ shapes

    def _other_shape(self, shape: Hashable) -> None:
        """A request of this shape, which is not the Batcher's, is about to be queued."""
        queue = self._queue
        if isinstance(queue, Buckets):
            return
        if not queue.size:
            self._only(shape, queue)
            return
        order = self.policy.queue_order
        self._several = Buckets(lambda: queue_in(order), self._in_effect.largest)
        self._several.adopt(self.shape, queue)
        self._queue = self._several

    def _one_shape_again(self, several: Buckets) -> None:
        if len(several.queues) == 1:
            self._several = None
            self._only(*several.queues.popitem())

    def _only(self, shape: Hashable, queue: OneShape) -> None:
        self.shape, self._queue = shape, queue
        self._policy = self._in_effect.of(shape)
