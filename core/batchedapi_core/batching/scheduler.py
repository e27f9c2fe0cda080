"""The next action of a replica: the one rule of the serving loop and of the simulator.

    arrive, cancel, lane_added, drain          what happens outside
    next    -> Dispatch | Ahead | Begins | Expired | WaitUntil | Idle
    finished, process_lost -> Verdict          what became of a batch

It decides

- the order: of a queue's requests the oldest or the earliest deadline first; of the methods whose
  batch may start the one with the oldest request;
- the wait: `decision.next_action`; a wait stands until its time has come, so much is queued, or
  several shapes are;
- who is too late: requests that a batch would answer after their deadline are not run;
- the size: what the policy says, and what memory was found to have no room for;
- what a busy lane gets ahead: a full batch, so that the lane is not idle while its answer travels;
- what of a failed batch runs again, and when: `request.Isolation`, `reruns`.

It knows requests by what they are, never by what is in them, and lanes by their process. Time is an
argument, and after everything that happened the caller asks `next` until it says to wait:

    while True:
        match scheduler.next(now):
            case Dispatch(batch, expired): run it on batch.lane; answer the expired as too late
            case Ahead(batch, expired): send it to batch.lane, where it waits; the expired as above
            case Begins(batch): it runs there now, its time counts from now on
            case Expired(requests): answer each as too late
            case WaitUntil(at): ask again then, or when `arrive` says so; break
            case Idle(): ask again when something happens; break
"""

import enum
from collections.abc import Hashable, Iterable, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias, cast

from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.decision import IDLE, Action, Idle, Release, WaitUntil, next_action
from batchedapi_core.batching.lanes import RETRY, Batch, Lane, LanePool, Lanes
from batchedapi_core.batching.lengths import lengths_in, padding_class
from batchedapi_core.batching.policy import BatchPolicy, QueueOrder
from batchedapi_core.batching.queue import Buckets
from batchedapi_core.batching.request import Isolation, Request, RowSpan, split_parts
from batchedapi_core.batching.reruns import MemoryLimits, Reruns, Trial, blamed
from batchedapi_core.batching.traffic import Client

LONGEST_AHEAD = 0.1
"""Seconds that a batch takes behind which another waits at the lane. A lane is idle for about 1 ms
between two: where they take longer, that is less than a hundredth."""


class Dispatch(NamedTuple):
    """Run the batch on its lane, from now on."""

    batch: Batch
    expired: Sequence[Request] = ()
    """See Expired; they left the queue before it."""


class Ahead(NamedTuple):
    """Send the batch to its lane, which runs another: it runs from `Begins` on.

    If the lane is lost before, it is back in its queue, and nobody is told.
    """

    batch: Batch
    expired: Sequence[Request] = ()
    """As of Dispatch."""


class Begins(NamedTuple):
    """The batch that was sent ahead runs from now on: its lane gave back the one before."""

    batch: Batch


class Expired(NamedTuple):
    """Nothing else was queued: they would be answered too late, their deadlines are too near."""

    requests: Sequence[Request]


Decision: TypeAlias = Dispatch | Ahead | Begins | Expired | WaitUntil | Idle


class Result(enum.Enum):
    """A lane's report of its batch."""

    SUCCEEDED = enum.auto()
    ITEM_ERROR = enum.auto()
    """One row was refused: the only one, or nobody knows which."""
    FAILED = enum.auto()
    OUT_OF_MEMORY = enum.auto()


class BatchEnd(NamedTuple):
    """The meaning of a batch's end for the requests in it."""

    answered: bool = True
    """Now, as the lane said; False: what is left of it runs again."""
    limit: int | None = None
    """Largest size that batches of its shape have from now on, as memory ran out."""


_ANSWERED: Final = BatchEnd()


class ScheduledMethod:
    """One method: its queue, what was learned of its traffic and of its failures."""

    __slots__ = ("batcher", "counts_rows", "isolation", "memory", "name")

    def __init__(self, name: str, policy: BatchPolicy, lanes: Lanes, *, counts_rows: bool) -> None:
        self.name = name
        self.counts_rows = counts_rows
        """Whether sizes are of rows; else each request counts for one."""
        self.batcher = Batcher(policy, lanes)
        self.isolation = Isolation()
        self.memory = MemoryLimits(self.batcher)

    def size_of(self, rows: int, sizes: Sequence[int] | None = None) -> int:
        """Size of a request of so many rows, each of which costs so much; None: 1."""
        if not self.counts_rows:
            return 1
        return rows if sizes is None else sum(sizes)

    def arrive(
        self,
        request: Request,
        sizes: Sequence[int] | None,
        shapes: Sequence[Hashable] | None,
        now: float,
    ) -> None:
        """Queue a request that is perhaps too large for a batch, or of several shapes."""
        if self.batcher.policy.pads_to:
            self._arrive_padded(request, sizes, shapes, now)
            return
        shape = None if shapes is None else shapes[0]
        alike = shapes is None or all(other == shape for other in shapes)
        if alike and request.size <= self.memory.limit_of(shape):
            request.shape = shape
            self.batcher.arrive(request, now)
            return
        spans = self._spans(request.rows, sizes, shapes, shapes or (None,))
        split = request.splitting()
        split.parts = [request.part(*span) for span in spans]
        self.batcher.arrive_parts(split.parts, now)

    def _spans(
        self,
        rows: int,
        sizes: Sequence[int] | None,
        kinds: Sequence[Hashable] | None,
        shapes: Iterable[Hashable],
    ) -> list[RowSpan]:
        """Parts of `rows` rows, each of one of their `kinds`, and none above the limit of all."""
        if self.counts_rows:
            limit = min(map(self.memory.limit_of, shapes))
            return split_parts(rows if sizes is None else sizes, kinds, limit)
        return [span._replace(size=1) for span in split_parts(rows, kinds, rows)]

    def _arrive_padded(
        self,
        request: Request,
        sizes: Sequence[int] | None,
        shapes: Sequence[Hashable] | None,
        now: float,
    ) -> None:
        """Queue a request whose rows have lengths: in parts of one length each."""
        free = self.batcher.policy.pads_to
        lengths: Sequence[int] = lengths_in(sizes, shapes) or [0] * request.rows
        sides = cast("Sequence[Sequence[int]]", shapes or [()] * request.rows)
        classes = [padding_class(one, free) for one in sides]
        each = list(zip(classes, lengths, sides, strict=True))
        if each.count(each[0]) == len(each) and request.size <= self.memory.limit_of(classes[0]):
            request.shape, request.length, request.sides = each[0]
            self.batcher.arrive(request, now)
            return
        split = request.splitting()
        parts = []
        for start, stop, size, _ in self._spans(request.rows, sizes, each, classes):
            part = request.part(start, stop, size, each[start][0])
            _, part.length, part.sides = each[start]
            parts.append(part)
        split.parts = parts
        self.batcher.arrive_parts(parts, now)

    def is_over(self, wait: WaitUntil, now: float) -> bool:
        """Whether a wait of this method is to be thought over."""
        batcher = self.batcher
        return (
            now >= wait.at or batcher.queue.size >= wait.size or isinstance(batcher.queue, Buckets)
        )


class Scheduler:
    """Scheduler of the methods that share lanes.

    All sync methods of a replica share the lanes of its processes; each async one has lanes of its
    own, and so a Scheduler. Those of one replica share a `Trial`.
    """

    __slots__ = (
        "_ahead",
        "_isolates",
        "_pool",
        "_reruns",
        "_sends_ahead",
        "_waits",
        "lanes",
        "methods",
    )

    def __init__(
        self, pool: LanePool, trial: Trial, *, isolates: bool, sends_ahead: bool = True
    ) -> None:
        """`isolates`: failed batches are run again; else nothing is run twice.

        `sends_ahead`: its lanes keep what is sent to them while they run another batch.
        """
        self.lanes = Lanes()
        self.methods: dict[str, ScheduledMethod] = {}
        self._pool = pool
        self._isolates = isolates
        self._sends_ahead = sends_ahead
        self._ahead: Batch | None = None  # sent, and not begun
        self._reruns = Reruns(trial)
        self._waits: dict[str, WaitUntil] = {}  # by method: those that stand

    def add_method(
        self, name: str, policy: BatchPolicy, *, counts_rows: bool = True
    ) -> ScheduledMethod:
        """A method more; see ScheduledMethod."""
        method = self.methods[name] = ScheduledMethod(
            name, policy, self.lanes, counts_rows=counts_rows
        )
        return method

    # ------------------------------------------------------------ what is next

    def next(self, now: float) -> Decision:
        """The action to take now; the batch of a Dispatch runs."""
        ahead = self._ahead
        if ahead is not None and not ahead.lane.batches:
            return self._begin(ahead, now)
        if not self._pool.with_room:
            return self._next_ahead(now)
        methods = self.methods
        action: Action
        if len(methods) == 1:
            (method,) = methods.values()
            action = next_action(method.batcher, now)
            self._waits = {method.name: action} if isinstance(action, WaitUntil) else {}
        elif methods:
            method, action = self._choose(now)
        else:
            return IDLE
        batch: Batch | None = None
        expired: Sequence[Request] = ()
        if self._reruns.any:
            batch = self._again(method.name if isinstance(action, Release) else None, now)
        if batch is None:
            if not isinstance(action, Release):
                return action
            batch, expired = self._release(method, action, now)
            if batch is None:
                return Expired(expired)
        batch.lane = self._pool.take(batch)
        batch.started = now
        self.methods[batch.method].batcher.started(batch.size, now, batch.requests)
        return Dispatch(batch, expired)

    def has_work(self) -> bool:
        """Whether anything could be the next batch."""
        if self._ahead is not None:
            return True
        for method in self.methods.values():
            if method.batcher.queue.size:
                return True
        return self._reruns.any

    def waiting_rows(self, method: str) -> int:
        """Rows of a method that do not run yet, be they queued or ahead."""
        ahead, queued = self._ahead, self.methods[method].batcher.queue.rows
        return queued if ahead is None or ahead.method != method else queued + ahead.rows

    def _choose(self, now: float) -> tuple[ScheduledMethod, Action]:
        """The method with the oldest request whose batch may start; else the earliest wait.

        No method starves: whatever the others bring, its oldest request becomes the oldest of all,
        and no wait outlasts the interval. Waits that are not over stand: a wait is mostly for
        everybody who is known, and thinking it over in between would give up on the last ones.
        """
        methods, waits = self.methods, self._waits
        first, release, oldest = next(iter(methods.values())), None, inf
        earliest: Action = IDLE
        at = inf
        for method in methods.values():
            action: Action = waits.get(method.name, IDLE)
            if not isinstance(action, WaitUntil) or method.is_over(action, now):
                action = next_action(method.batcher, now)
                waits.pop(method.name, None)
            if isinstance(action, Release):
                arrival = method.batcher.queue.oldest_arrival
                if release is None or arrival < oldest:
                    first, release, oldest = method, action, arrival
            elif isinstance(action, WaitUntil):
                waits[method.name] = action
                if action.at < at:
                    earliest, at = action, action.at
        return first, earliest if release is None else release

    def _again(self, method: str | None, now: float) -> Batch | None:
        """A batch of `method` that runs again before its queue, if there is any."""
        reruns = self._reruns
        while reruns.any and reruns.is_next(method):
            batch = reruns.next().still_wanted(now)
            if batch is not None:
                if batch.on_trial:
                    reruns.trial.runs = True
                return batch
        return None

    def _release(
        self, method: ScheduledMethod, release: Release, now: float, wait: float = 0.0
    ) -> tuple[Batch | None, Sequence[Request]]:
        """A batch from the queue of a method, and the requests that are too late to be in it.

        `wait`: seconds in which it is expected to begin.
        """
        size, reason, shape, group = release
        batcher = method.batcher
        if group is None:
            margin = wait + batcher.service.at_least(size)
        else:
            margin = wait + batcher.at_least(size, group)
        if method.memory.any:
            most = method.memory.at_most(size, shape)
            size, group = most, group if most == size else None
        requests, expired = batcher.take(size, now, shape, margin, group)
        if not requests:
            return None, expired
        if self._reruns.any:
            self._reruns.served(method.name)
        return Batch(method.name, requests, reason), expired

    # ------------------------------------------------------------ a batch ahead

    def _next_ahead(self, now: float) -> Decision:
        """A batch to wait at a busy lane, so that it is not idle while its answer travels.

        Where that is 1 ms of 24, 256 clients are served 4 % faster.

        It is what a lane would get if one were free now: a full batch of the method whose request
        is the oldest of all. So nobody waits for rows that came after its own, but for those that
        a full batch of another shape overtakes in any case. One batch of all methods is ahead at
        most, at the lane that is expected free first. If another is free before, what is ahead
        waits all the same: so of several lanes each must have a full batch to run meanwhile.

        Nothing is sent to a lane whose batch takes long, as what was sent is run, though all who
        asked for it may leave; to one that is overdue, as it may hang; if the deadline of one in it
        comes before its turn; while anything is run again, which has its turns; and of what is
        queued by deadline, as nobody overtakes it.
        """
        method, oldest = None, inf
        for other in self.methods.values():
            queue = other.batcher.queue
            if queue.size and queue.oldest_arrival < oldest:
                method, oldest = other, queue.oldest_arrival
        if method is None or not self._may_go_ahead(method.batcher):
            return IDLE
        if self._reruns.any or self._reruns.trial.runs or method.isolation.systemic:
            return IDLE
        release, busy = next_action(method.batcher, now, ahead=True), self._free_next(now)
        if not isinstance(release, Release) or busy is None:
            return IDLE
        lane, wait = busy
        batch, expired = self._release(method, release, now, wait)
        if batch is not None and all(r.deadline > now + wait for r in batch.requests):
            batch.lane = lane
            self._ahead = batch
            method.batcher.sent_ahead(batch.size, batch.requests)
            return Ahead(batch, expired)
        if batch is not None:
            method.batcher.put_back(batch.requests)
        return Expired(expired) if expired else IDLE

    def _may_go_ahead(self, batcher: Batcher) -> bool:
        """Whether a batch of a method may, if no lane is free; mostly so much is not queued."""
        lanes = self.lanes.total
        return (
            batcher.queue.size >= batcher.policy_in_effect.max_batch_size * lanes > 0
            and self._ahead is None
            and self._sends_ahead
            and batcher.policy.queue_order is QueueOrder.FIFO
        )

    def _free_next(self, now: float) -> tuple[Lane, float] | None:
        """The lane that is expected free first, and in how many seconds; see _next_ahead."""
        first, end = None, inf
        for lane, batch in self._pool.running():
            seconds = self.methods[batch.method].batcher.at_least(batch.size, batch.requests)
            ends = batch.started + seconds
            if seconds <= LONGEST_AHEAD and now < ends < end and batch.reason != RETRY:
                first, end = lane, ends
        return None if first is None else (first, end - now)

    def _begin(self, batch: Batch, now: float) -> Begins:
        self._ahead = None
        self._pool.take_own(batch)
        batch.started = now
        batcher = self.methods[batch.method].batcher
        batcher.left_ahead(batch.size)
        batcher.started(batch.size, now, batch.requests)
        if self._reruns.any:
            self._reruns.served(batch.method)
        return Begins(batch)

    # ------------------------------------------------------------ requests

    def arrive(
        self,
        request: Request,
        now: float,
        sizes: Sequence[int] | None = None,
        shapes: Sequence[Hashable] | None = None,
    ) -> bool:
        """Queue a request; whether to ask what is next.

        It is split if it is too large for a batch, or its rows differ in shape. `sizes` are what
        its rows cost, None: 1 each; `shapes` are theirs, None: all are alike.
        """
        method = self.methods[request.method]
        batcher = method.batcher
        if (
            shapes is None
            and not batcher.policy.pads_to
            and not method.memory.any
            and request.size <= batcher.policy.max_batch_size
        ):
            batcher.arrive(request, now)
        else:
            method.arrive(request, sizes, shapes, now)
        if self.lanes.free <= 0:
            return self._ahead is None and self._may_go_ahead(batcher)
        wait = self._waits.get(request.method)
        return wait is None or batcher.queue.size >= wait.size or isinstance(batcher.queue, Buckets)

    def cancel(self, request: Request) -> int:
        """Nobody waits for its answer any more; rows of it that were still queued."""
        batcher = self.methods[request.method].batcher
        queued = 0
        for part in request.parts:
            if part.queued:
                queued += part.rows
            batcher.cancel(part)
        if not batcher.queue.size:  # there is nobody who waits
            self._waits.pop(request.method, None)
        return queued

    def disconnected(self, client: Client) -> None:
        """Its connection closed: nobody waits for its next request."""
        for method in self.methods.values():
            method.batcher.disconnected(client)

    def drain(self) -> None:
        """From now on nothing waits for a fuller batch."""
        self._waits.clear()
        for method in self.methods.values():
            method.batcher.draining = True

    # ------------------------------------------------------------ batches

    def finished(self, batch: Batch, result: Result, now: float) -> BatchEnd:
        """The lane gave it back.

        Ask what is next before writing answers, if anything is: the lane is idle until then.
        """
        method = self.methods[batch.method]
        self._pool.release(batch, batch.lane, now)
        self._waits.clear()  # everybody thinks anew
        if batch.on_trial:
            self._reruns.trial.runs = False
        succeeded = result is Result.SUCCEEDED
        method.batcher.finished(batch.requests, now - batch.started if succeeded else None, now)
        if not succeeded and (result is not Result.ITEM_ERROR or batch.rows > 1):
            return self._failed(method, batch, result)
        if batch.halves is not None:
            method.memory.ran(batch.halves)
        if succeeded and (batch.search is not None or method.isolation.systemic):
            method.isolation.succeeded(batch.search)
        return _ANSWERED

    def lost(
        self, batch: Batch, now: float, *, out_of_memory: bool, blamed: bool, alone: bool
    ) -> BatchEnd:
        """Its process died: run it again, whole, then one by one.

        Halved at once if the kernel ended the process for memory: whole it would end the next.
        Unless it is `blamed`, it is run again as if nothing had happened. `alone`: nothing else
        ran in that process.
        """
        method = self.methods[batch.method]
        self._pool.release(batch, batch.lane, now)
        self._waits.clear()
        if batch.on_trial:
            self._reruns.trial.runs = False
        method.batcher.lost(batch.size)
        if out_of_memory and batch.rows > 1:
            return self._failed(method, batch, Result.OUT_OF_MEMORY)
        again: Sequence[Batch] = ()
        if self._isolates:
            again = batch.after_death(alone=alone) if blamed else batch.after_anothers_death()
        self._reruns.add(again)
        return BatchEnd(not again)

    def _failed(self, method: ScheduledMethod, batch: Batch, result: Result) -> BatchEnd:
        limit = None
        if result is Result.OUT_OF_MEMORY:
            shape = batch.requests[0].shape
            if batch.rows == 1:
                method.memory.exceeded_alone(shape)
            else:
                limit = method.memory.exceeded(shape, batch.size)
        again: Sequence[Batch] = ()
        if self._isolates:
            match result:
                case Result.ITEM_ERROR:
                    again = batch.after_item_error(method.isolation)
                case Result.OUT_OF_MEMORY:
                    again = batch.after_memory_error(method.isolation)
                case _:
                    again = batch.after_failure(method.isolation)
        self._reruns.add(again)
        return BatchEnd(not again, limit)

    # ------------------------------------------------------------ lanes

    def lane_added(self, lane: Lane, now: float) -> None:
        """A model process opened it."""
        self._waits.clear()
        self._pool.add(lane)
        for _ in range(lane.at_once):
            self.lanes.added(now)

    def lanes_lost(self, process: int) -> Sequence[Batch]:
        """A process is gone with its lanes; what ran on them is to be reported `lost`.

        What was ahead there has not begun: it is back in its queue.
        """
        self._waits.clear()
        ahead = self._ahead
        if ahead is not None and ahead.lane.process == process:
            self._ahead = None
            batcher = self.methods[ahead.method].batcher
            batcher.left_ahead(ahead.size)
            batcher.put_back(ahead.requests)
        batches: list[Batch] = []
        for lane in self._pool.of_process(process):
            self._pool.remove(lane)
            for number in range(lane.at_once):
                self.lanes.removed(was_free=number >= len(lane.batches))
            batches += lane.batches
        return batches

    def hanging(self, now: float, timeout: float) -> set[int]:
        """See LanePool."""
        return self._pool.hanging(now, timeout)

    def next_hang(self, now: float, timeout: float) -> float:
        """See LanePool."""
        return self._pool.next_hang(now, timeout)


def process_lost(
    schedulers: Iterable[Scheduler], process: int, now: float, *, out_of_memory: bool
) -> list[tuple[Batch, BatchEnd]]:
    """A model process died, and all that was on its lanes is lost.

    `schedulers` are those of the replica. `out_of_memory`: the kernel ended it for memory.
    """
    lost = [(of, batch) for of in schedulers for batch in of.lanes_lost(process)]
    at_fault = set(blamed([batch for _, batch in lost]))
    return [
        (
            batch,
            of.lost(
                batch,
                now,
                out_of_memory=out_of_memory,
                blamed=batch in at_fault,
                alone=len(lost) == 1,
            ),
        )
        for of, batch in lost
    ]
