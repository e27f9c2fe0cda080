"""The one owner of a method's queue and of what is learned from its traffic, and admission to it.

With a latency target admission refuses what would be answered too late. By expected completion,
never by the worst case, and before it queues: dropping late rows only at dispatch leaves every
batch full of rows that are nearly late, and goodput collapses. Nobody is refused on a guess: a
batch larger than any that was seen is expected to take as long as that one.
"""

from collections.abc import Hashable, Sequence
from math import exp
from typing import Final, cast

from batchedapi_core.batching.lanes import Lanes
from batchedapi_core.batching.lengths import lengths_in, lengths_of
from batchedapi_core.batching.policy import BatchPolicy, PolicyInEffect
from batchedapi_core.batching.queue import (
    Buckets,
    LengthQueue,
    OneShape,
    RequestQueue,
    queue_of,
)
from batchedapi_core.batching.request import Handout, Request
from batchedapi_core.batching.traffic import Bursts, Client, ReturningClients
from batchedapi_core.service_model import WARM_UP, ServiceTimeSamples
from batchedapi_core.service_surface import SurfaceSamples

ADMISSION_MARGIN: Final = 1.05  # on the expected time to an answer
HORIZON = 4.0  # durations of a full batch after which a client that returns is a stranger
BURST_WINDOW = 0.5  # fixed costs that a burst may last: waiting longer could not pay
NO_LENGTHS: Final = (0, 0, 0)


class Batcher:
    """Queue and traffic of one method, and its share in the lanes of its replica.

    The caller reports what happens (arrivals, cancellations, batches, lanes), asks
    `decision.next_action` and does what it says:

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
    was begun before is over then: ask again when `queue` has become Buckets.
    """

    __slots__ = (
        "bursts",
        "draining",
        "fixed",
        "lanes",
        "policies",
        "policy",
        "policy_in_effect",
        "queue",
        "returning",
        "running_size",
        "service",
        "shape",
        "surface",
    )

    def __init__(self, policy: BatchPolicy, lanes: Lanes | None = None) -> None:
        self.policy = policy  # the user's
        self.service = ServiceTimeSamples()
        self.surface = SurfaceSamples() if policy.pads_to else None
        """t(n, L); None: rows of different lengths share no batch."""
        self.fixed = 0.0  # seconds of a batch that more rows do not cost; 0 while nothing is known
        self.returning = ReturningClients()
        self.bursts = Bursts()
        self.running_size = 0  # of this method's batches now executing, and ahead
        self.draining = False  # set by the caller: nothing waits any more
        self.shape: Hashable = None  # of everything queued, or queued last; of one, if several are
        self.lanes = Lanes() if lanes is None else lanes
        self.policies = PolicyInEffect(policy)  # by shape; Adaptive and `limit` move them
        self.policy_in_effect = policy  # that of `shape`
        self.queue: OneShape | Buckets = queue_of(policy)  # Buckets: of several shapes

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
        self.queue.append(request)

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
            self.queue.append(request)
        requests[-1].returning = total

    def cancel(self, request: Request) -> None:
        """Nobody waits for the answer: never hand it out, and do not await its client's return."""
        self.queue.cancel(request)
        if isinstance(self.queue, Buckets) and len(self.queue.queues) == 1:
            self._only(*self.queue.queues.popitem())

    def take(
        self,
        size: int,
        now: float,
        shape: Hashable = None,
        margin: float = 0.0,
        group: Sequence[Request] | None = None,
    ) -> Handout:
        """Hand out the first requests of a shape, together at most `size`; may be empty.

        `size`, `shape` and `group` are those of the Release (while only one shape is queued, it is
        that one). In order: the oldest, or the earliest deadline, first; or the group, whatever
        their turn. Requests that are too late if they take `margin` seconds come in `expired`,
        uncounted; see `RequestQueue.take`. A request that alone is larger than `size`, because a
        limit came after it, is handed out alone.
        """
        queue = self.queue
        if group is not None:
            taken = cast("LengthQueue | Buckets", queue).take_these(group, now, margin)
        else:
            taken = queue.take(size, now, shape, margin)
        if isinstance(self.queue, Buckets) and len(self.queue.queues) == 1:
            self._only(*self.queue.queues.popitem())
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
        self.policies.limit(shape, size)
        self._policy_changed()

    def limit_of(self, shape: Hashable) -> int:
        """Largest size that a request of this shape may have without being split."""
        return self.policies.limit_of(shape)

    def _policy_changed(self) -> None:
        self.policy_in_effect = self.policies.of(self.shape)

    # ------------------------------------------------------------ batches and lanes

    def at_least(self, size: int, requests: Sequence[Request]) -> float:
        """Seconds that a batch of these requests takes at the least; `size` is theirs."""
        surface = self.surface
        if surface is None or not requests or not surface.known:
            return self.service.at_least(size)
        rows, longest, own = lengths_of(requests)
        return surface.at_least(rows, longest, own)

    def learned(self, size: float) -> tuple[float, float, float]:
        """Seconds of a batch, of each of its rows, and of each unit of the length of a row.

        `size` is that of the mean row, since t(n) is learned of sizes and t(n, L) of rows.
        """
        if self.surface is None or not self.surface.known:
            return self.service.line.fixed, self.service.line.per_row * size, 0.0
        found = self.surface.surface
        return found.fixed, found.per_row, found.per_padded + found.per_own

    def group(self, shape: Hashable, most: int) -> Sequence[Request] | None:
        """The next batch of a shape, of like lengths, while others are left; see `lengths`.

        None: those whose turn it is, or all of that shape.
        """
        surface, queue = self.surface, self.queue
        if surface is None or not surface.padding_matters:
            return None
        of_shape = queue.queues[shape] if isinstance(queue, Buckets) else queue
        return cast("LengthQueue", of_shape).group(surface.surface, most)

    def longest(self, sizes: Sequence[int] | None, shapes: Sequence[Hashable] | None) -> int:
        """Length of the longest row of a request; 0: rows are alike."""
        return 0 if self.surface is None else max(lengths_in(sizes, shapes), default=0)

    def seconds_queued(self) -> float:
        """Expected seconds of a batch of all that is queued, which is of one shape."""
        surface, queue = self.surface, self.queue
        if surface is None or not surface.known:
            return self.service.seconds(queue.size)
        of_lengths = cast("LengthQueue", queue)
        return surface.surface.seconds(queue.rows, of_lengths.longest, of_lengths.own)

    def started(self, size: int, now: float, requests: Sequence[Request] = ()) -> None:
        """A free lane runs a batch of `size` of this method; `requests` are known if not alike."""
        self.running_size += size
        alike = self.surface is None  # no call more for each batch
        seconds = self.service.at_least(size) if alike else self.at_least(size, requests)
        self.lanes.taken(now + seconds)

    def sent_ahead(self, size: int, requests: Sequence[Request] = ()) -> None:
        """A batch of `size` waits at the lane that is free next, and `left_ahead` follows."""
        self.running_size += size
        self.lanes.ahead = self.at_least(size, requests)

    def left_ahead(self, size: int) -> None:
        """It does not wait there any more: its lane is free, which is to be told, or is gone."""
        self.running_size -= size
        self.lanes.ahead = 0.0

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue first again requests that were taken and did not run, but for those who left."""
        live = [request for request in requests if not request.cancelled]
        if not live:
            return
        if live[0].shape != self.shape:
            self._other_shape(live[0].shape)
        # In order of deadlines nothing goes ahead.
        cast("RequestQueue | LengthQueue | Buckets", self.queue).put_back(live)

    def finished(self, requests: Sequence[Request], seconds: float | None, now: float) -> None:
        """A batch is done and its lane free; `requests` is all of it, cancelled ones too.

        `seconds` is its execution time; None: it failed, and nothing is learned from it.
        """
        size, answers = 0, []
        for request in requests:
            size += request.size
            if request.returning and not request.cancelled:
                answers.append((request.client, request.returning))
        self.running_size -= size
        self.lanes.freed(now)
        if seconds is None:
            return
        self._observe(size, seconds, NO_LENGTHS if self.surface is None else lengths_of(requests))
        self.returning.answered(answers, now)
        if self.policies.adaptive is None:
            return
        latency = now - requests[0].arrived
        if self.policies.executed(size, self.service, latency=latency, now=now):
            self._policy_changed()

    def warmed_up(self, size: int, seconds: float, rows: int = 1, length: int = 0) -> None:
        """A warm-up batch of `size` took so long: what to expect before there were others.

        Its rows are `length` long each; 0: rows are alike.
        """
        self._observe(size, seconds, (rows, length, rows * length), WARM_UP)

    def _observe(
        self, size: int, seconds: float, lengths: tuple[int, int, int], weight: float = 1.0
    ) -> None:
        service, surface = self.service, self.surface
        service.observe(size, seconds, weight)
        self.fixed = service.line.fixed
        rows, longest, own = lengths
        if surface is not None and longest:
            surface.observe(rows, longest, own, seconds, weight)
            self.fixed = surface.surface.fixed
        self.returning.horizon = HORIZON * service.seconds(self.policy.max_batch_size)
        self.bursts.window = BURST_WINDOW * self.fixed

    def lost(self, size: int) -> None:
        """A batch of `size` no longer runs and its lane is not back: the lane died."""
        self.running_size -= size
        self.lanes.batch_lost()

    def lane_added(self, now: float) -> None:
        """A free lane more: a model process is ready. Once for all methods that share it."""
        self.lanes.added(now)

    def lane_removed(self, *, was_free: bool, now: float) -> None:  # noqa: ARG002 - every event has it
        """A lane less; if it was busy its batch is to be reported `lost`. Once, as `lane_added`."""
        self.lanes.removed(was_free=was_free)

    def _learn_arrival(self, client: Client, size: int, now: float) -> None:
        if not self.returning.returned(client, now):
            idle = self.lanes.free > 0 and not self.queue.size
            self.bursts.arrived(size, now, idle=idle)

    def _does_not_fit(self, request: Request) -> ValueError:
        return ValueError(
            f"request.size: expected 1 to {self.policy.max_batch_size} (max_batch_size), "
            f"got {request.size}; split larger requests with split_parts"
        )

    # ------------------------------------------------------------ shapes

    def _other_shape(self, shape: Hashable) -> None:
        """A request of this shape, which is not the Batcher's, is about to be queued."""
        queue = self.queue
        if isinstance(queue, Buckets):
            return
        if not queue.size:
            self._only(shape, queue)
            return
        self.queue = Buckets(lambda: queue_of(self.policy), self.policies.largest)
        self.queue.adopt(self.shape, queue)

    def _only(self, shape: Hashable, queue: OneShape) -> None:
        self.shape, self.queue = shape, queue
        self.policy_in_effect = self.policies.of(shape)


class Admission:
    """Accepts a request if it is expected to be answered within `target` seconds."""

    __slots__ = ("_asked_at", "_offered", "_target")

    def __init__(self, target: float) -> None:
        self._target = target
        self._offered = 0.0  # size a second that asked for service, accepted or not
        self._asked_at = 0.0

    def accepts(
        self, batcher: Batcher, size: int, now: float, rows: int = 1, longest: int = 0
    ) -> bool:
        """Whether to take a request of `size`; ask once for every request, before it queues.

        `longest` is its longest row's length; 0: rows are alike.
        """
        target, service, lanes = self._target, batcher.service, batcher.lanes
        elapsed, self._asked_at = now - self._asked_at, now
        self._offered = self._offered * exp(-elapsed / target) + size / target
        if not service.known or (lanes.free > 0 and not batcher.queue.size):
            return True  # an idle server always tries, else a bad estimate could never be corrected
        surface = batcher.surface
        if longest and surface is not None and surface.late.count:
            return (
                ADMISSION_MARGIN * self._by_length(batcher, surface, now, rows, longest) <= target
            )
        max_size = batcher.policies.largest(None)
        full, rest = divmod(batcher.queue.size, max_size)
        wait = full * service.at_least(max_size) / max(1, lanes.total)
        if lanes.free <= 0 < lanes.total:
            wait += max(0.0, lanes.next_free - now)
        batch = min(
            max_size, rest + size + self._offered * wait
        )  # who comes until then rides along
        return ADMISSION_MARGIN * (wait + service.at_least(batch)) <= target

    def _by_length(
        self, batcher: Batcher, surface: SurfaceSamples, now: float, rows: int, longest: int
    ) -> float:
        """Expected seconds to the answer: twice the queue at the pace of late, then its own batch.

        Half of the rows that come while it waits have lengths that ride before it, and under
        overload as much is admitted as is served: wait = queue + wait / 2. One more batch may be
        running or ahead. tests/bench/results/lengths.md says who is late for all that.
        """
        lanes, queue = batcher.lanes, batcher.queue
        queues = queue.queues.values() if isinstance(queue, Buckets) else (queue,)
        more = rows - 1  # of its own, that may be in batches before its last
        own = sum([cast("LengthQueue", one).own for one in queues]) + more * longest
        wait = 2.0 * surface.backlog(queue.rows + more, own) / max(1, lanes.total)
        if lanes.free <= 0 < lanes.total:
            wait += max(0.0, lanes.next_free - now)
        of_late = surface.late.seconds
        return wait + of_late + max(of_late, surface.at_least(1, longest, longest))


def retry_after(batcher: Batcher) -> float:
    """Seconds in which the lanes can work off what is queued and running: backlog over capacity."""
    max_size = batcher.policies.largest(None)
    seconds_per_size = batcher.service.seconds(max_size) / max_size / max(1, batcher.lanes.total)
    return (batcher.queue.size + batcher.running_size) * seconds_per_size
