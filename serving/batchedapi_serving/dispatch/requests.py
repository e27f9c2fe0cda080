"""The requests that were admitted and are not yet answered, and the timers of their deadlines.

Each is answered exactly once.
"""

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from batchedapi_core.batching import Request, Scheduler
from batchedapi_serving.codecs import Answer, Codec, DecodedRequest, Receipt, Results
from batchedapi_serving.codecs.results import OK
from batchedapi_serving.dispatch.engine import Caller
from batchedapi_serving.errors import DeadlineExceededError, ServingError
from batchedapi_serving.metrics.recorder import MethodRecorder
from batchedapi_serving.tracing.spans import Span

log = logging.getLogger(__name__)
_TIMER_ROUNDING: Final = 0.0005
"""Seconds. uvloop rounds timers to whole milliseconds; half of one more makes that rounding up, so
that a wait is over when its timer fires and is not asked for again and again."""
_FEW_ANSWERED: Final = 64
"""Answered requests that may stay among the hurried before those are swept."""


class Cancels(Protocol):
    """The owner of waiting requests, as far as one is cancelled."""

    def cancel(self, request: Request) -> int:
        """Nobody waits for it any more; the rows of it that were still queued."""


class WaitingQueue(Protocol):
    """The queue of a method, as a request that stands in it sees it."""

    @property
    def scheduler(self) -> Cancels:
        """Takes it out."""

    codec: Codec
    recorder: MethodRecorder


class InFlightRequest:
    """One request from admission to answer; `request` is what the scheduler knows of it."""

    __slots__ = (
        "caller", "done", "hurried", "payload", "pieces", "queue", "reply", "request", "span"
    )  # fmt: skip

    def __init__(
        self,
        queue: WaitingQueue,
        request: Request,
        decoded: DecodedRequest,
        caller: Caller,
        *,
        hurried: bool,
    ) -> None:
        self.queue = queue
        self.request = request
        self.payload: Any
        """All its rows; None once it is answered."""
        _, self.payload, self.reply, _, _ = decoded
        self.caller = caller
        self.hurried = hurried
        """Its deadline is its own, and not the replica's."""
        self.done = False
        self.span: Span | None = None
        """Its own, from admission on; None: it is not traced."""
        self.pieces: Pieces | None = None
        """The answered parts of a request in parts; None until there is one."""

    def part_answered(
        self, part: Request, results: Results, start: int, stop: int, receipt: Receipt | None
    ) -> Answer | None:
        """Take rows [start, stop) of `results` for a part of it.

        Returns:
            The whole answer once no row is missing.

        Raises:
            ServingError: the parts do not fit together, or the answer cannot be written.
        """
        rows = self.request.rows
        pieces = self.pieces = self.pieces or Pieces(rows)
        slices = pieces.slices
        slices[part.first] = (results, start, stop)
        pieces.missing -= stop - start
        if pieces.missing:
            return None
        (results, start, stop), *others = (slices[key] for key in sorted(slices))
        return self.reply.answer(results.joined(start, stop, others), 0, rows, receipt)


class Pieces:
    """The answered parts of a request."""

    __slots__ = ("missing", "slices")

    def __init__(self, rows: int) -> None:
        self.missing = rows
        """Rows not yet answered."""
        self.slices: dict[int, tuple[Results, int, int]] = {}
        """By their first row."""


class InFlightRequests:
    """Owner of the requests in flight. Times are seconds of the dispatcher's clock.

    Deadlines ascend in the order of arrival, but for requests that bring a timeout of their own:
    only those are kept in a heap, so that whoever brings none pays nothing for it.
    """

    def __init__(self, timeout: float, *, traces: bool = False) -> None:
        """`timeout` is the replica's, in seconds; inf: none. `traces`: requests may have spans."""
        self.timeout: Final = timeout
        self._traces = traces
        self.ids: Final = itertools.count(1)
        """For requests that are yet to come."""
        self.by_id: dict[int, InFlightRequest] = {}
        """All of them, by the ids of their requests; to be changed only here."""
        self._steady: dict[int, InFlightRequest] = {}
        """In order of arrival, which is that of deadlines."""
        self._hurried = 0
        """Requests with deadlines of their own."""
        self._by_deadline: list[tuple[float, int, InFlightRequest]] = []
        """Heap; answered ones leave late."""

    def add(self, pending: InFlightRequest) -> None:
        """It was admitted."""
        request = pending.request
        self.by_id[request.id] = pending
        if self._traces:
            pending.span = pending.caller.span
        if not pending.hurried:
            self._steady[request.id] = pending
            return
        self._hurried += 1
        heappush(self._by_deadline, (request.deadline, request.id, pending))

    def by_queue(self) -> Counter[WaitingQueue]:
        """How many there are of each method; O(requests), so not to be asked for each of them."""
        return Counter(pending.queue for pending in self.by_id.values())

    def overdue(self, now: float) -> tuple[Sequence[InFlightRequest], float]:
        """Jobs whose deadline is at or before `now`, and the deadline of the next; inf: none."""
        late: list[InFlightRequest] = []
        following = math.inf
        for pending in self._steady.values():
            if pending.request.deadline > now:
                following = pending.request.deadline
                break
            late.append(pending)
        heap = self._by_deadline
        while heap and (heap[0][2].done or heap[0][0] <= now):
            _, _, pending = heappop(heap)
            if not pending.done:
                late.append(pending)
        return late, min(following, heap[0][0]) if heap else following

    def answer(self, answers: Sequence[tuple[InFlightRequest, Answer]], now: float) -> None:
        """Deliver the answers of one batch. All is counted before any client hears of it."""
        seconds, by_id, steady = [], self.by_id, self._steady
        for pending, answer in answers:
            if answer.status == OK:
                seconds.append(now - pending.request.arrived)
            else:
                recorder = pending.queue.recorder
                recorder.answered(answer.status, [now - pending.request.arrived])
        if seconds:
            pending.queue.recorder.answered(OK, seconds)
        for pending, answer in answers:
            if pending.hurried:
                self._remove(pending)
            else:  # as _remove does; this is on the hot path
                pending.done = True
                pending.payload = None
                number = pending.request.id
                del by_id[number], steady[number]
            pending.caller.deliver(answer)

    def fail(
        self, pending: InFlightRequest, error: ServingError, now: float, rejected: str | None = None
    ) -> None:
        """Answer with an error; what is queued of it is not run, and counts as `rejected`."""
        if pending.done:
            return
        queued = self._drop(pending)
        recorder = pending.queue.recorder
        if rejected is not None:
            recorder.rejected(rejected, queued)
        answer = pending.reply.problem(error, pending.caller.request_id())
        recorder.answered(error.status, [now - pending.request.arrived])
        pending.caller.deliver(answer)

    def expire(self, pending: InFlightRequest, now: float) -> None:
        """Answer 504; what is queued of it is not run."""
        request = pending.request
        timeout = request.deadline - request.arrived
        error = DeadlineExceededError.after(timeout, hurried=pending.hurried)
        self.fail(pending, error, now, "expired")

    def left(self, pending: InFlightRequest, status: int) -> None:
        """The client is gone, or was told `status`: what is queued is not run."""
        recorder = pending.queue.recorder
        recorder.rejected("disconnected", self._drop(pending))
        recorder.answered(status)

    def _drop(self, pending: InFlightRequest) -> int:
        """Take it out unanswered; the rows of it that were still queued."""
        self._remove(pending)
        return pending.queue.scheduler.cancel(pending.request)

    def _remove(self, pending: InFlightRequest) -> None:
        pending.done = True
        pending.payload = None
        del self.by_id[pending.request.id]
        if not pending.hurried:
            del self._steady[pending.request.id]
            return
        self._hurried -= 1
        if not self._hurried:
            self._by_deadline.clear()
        elif len(self._by_deadline) > _FEW_ANSWERED + 2 * self._hurried:
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapify(self._by_deadline)


class Clock:
    """Time and timers; not the loop's time.

    uvloop's stands still within an iteration and counts whole milliseconds, and clients that come
    back within one are what batches are formed of.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self.now = now

    def call_at(self, at: float, now: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call when it is `at`, in seconds; it is `now`."""
        return self._loop.call_later(max(0.0, at - now) + _TIMER_ROUNDING, call)


class Deadlines:
    """Answers 504 to whoever is over the timeout, and has processes replaced that hang."""

    def __init__(
        self,
        clock: Clock,
        in_flight: InFlightRequests,
        schedulers: Callable[[], Iterable[Scheduler]],
        replace: Callable[[int], None],
    ) -> None:
        """`replace` is told the pid of a process that hangs."""
        self._clock = clock
        self._in_flight = in_flight
        self._schedulers = schedulers
        self._replace = replace
        self._timer: asyncio.TimerHandle | None = None
        self.at = math.inf
        """Seconds: when it looks next; tell it of every deadline that is earlier."""

    def look_at(self, deadline: float, now: float) -> None:
        """A request with an earlier deadline than all before was admitted."""
        if self._timer is not None:
            self._timer.cancel()
        self.at = deadline
        self._timer = self._clock.call_at(deadline, now, self._look)

    def _look(self) -> None:
        self._timer = None
        self.at = math.inf
        now, timeout = self._clock.now(), self._in_flight.timeout
        late, following = self._in_flight.overdue(now)
        for pending in late:
            self._in_flight.expire(pending, now)
        hanging: set[int] = set()
        for scheduler in self._schedulers():
            hanging |= scheduler.hanging(now, timeout)
            # A batch that began late, or whose clients have all left, may hang as well.
            following = min(following, scheduler.next_hang(now, timeout))
        for pid in hanging:
            log.warning("model process hangs", extra={"pid": pid, "timeout": timeout})
            self._replace(pid)
        if following < self.at:  # a client that was just answered may have asked again
            self.look_at(following, now)
