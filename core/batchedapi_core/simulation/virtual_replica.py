"""A replica in virtual time: the serving image's own Scheduler and Admission, event by event.

Arrivals, ends of batches, of waits and of timeouts, deaths and restarts are events, in order of
time. At the same moment an arrival is before the end of a wait, so that it rides along. What the
serving image does with rows, lanes and clients is left out; what it decides is the same code.
"""

import enum
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple, TypeAlias, assert_never

from batchedapi_core.batching import (
    Admission,
    Ahead,
    Batch,
    BatchPolicy,
    Begins,
    Client,
    Dispatch,
    Expired,
    Idle,
    Lane,
    LaneChoice,
    LanePool,
    Request,
    Result,
    ScheduledMethod,
    Scheduler,
    Trial,
    WaitUntil,
    process_lost,
)


class Death(enum.Enum):
    """How a model process ends while it runs a batch."""

    DIED = enum.auto()
    OUT_OF_MEMORY = enum.auto()
    """The kernel ended it."""


class BatchRun(NamedTuple):
    """The fate of a batch on its lane."""

    seconds: float  # inf: it hangs
    result: Result | Death = Result.SUCCEEDED


Model: TypeAlias = Callable[[Batch], BatchRun]
"""Runs a batch that begins now."""


class End(enum.Enum):
    """How a request ended."""

    ANSWERED = enum.auto()
    FAILED = enum.auto()  # for all of its rows, or for one
    EXPIRED = enum.auto()  # 504


class Books:
    """The books, which are told of every event; by themselves they keep nothing."""

    __slots__ = ()

    def started(self, batch: Batch, now: float) -> None:
        """A batch begins to run."""

    def ended(self, request: Request, how: End, now: float) -> None:
        """A request, in all its parts."""

    def expired(self, rows: int) -> None:
        """So many left the queue, as their time was over."""

    def ran(self, batch: Batch, now: float) -> None:
        """A batch came back, and those who ended with it were told."""


class Refused(enum.Enum):
    """Why a request was not taken."""

    QUEUE_FULL = enum.auto()
    LATE = enum.auto()


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """A replica, as its manifest describes it."""

    methods: Mapping[str, BatchPolicy]
    counts_rows: bool = True  # sizes are of rows, else of requests
    processes: int = 1
    threads: int = 1  # lanes of each process
    timeout: float = inf  # seconds
    max_in_flight: float = inf  # requests
    isolates: bool = True
    lane_choice: LaneChoice = LaneChoice.RANDOM
    restart: float = 0.0  # seconds from the end of a process until another took its place


class VirtualReplica:
    """See the module."""

    __slots__ = (
        "_alive",
        "_books",
        "_events",
        "_failed",
        "_hurried",
        "_ids",
        "_in_flight",
        "_look",
        "_methods",
        "_missing",
        "_model",
        "_plan",
        "_processes",
        "_stranger",
        "_tie",
        "_wait",
        "scheduler",
    )

    def __init__(
        self,
        plan: ReplicaPlan,
        model: Model,
        books: Books,
        random: random.Random,
        ready_at: float = 0.0,
    ) -> None:
        """Its processes are there at `ready_at`, in seconds."""
        self.scheduler = Scheduler(
            LanePool(plan.lane_choice, random), Trial(), isolates=plan.isolates
        )
        self._methods: dict[str, tuple[ScheduledMethod, Admission | None]] = {}
        for name, policy in plan.methods.items():
            method = self.scheduler.add_method(name, policy, counts_rows=plan.counts_rows)
            target = policy.latency_target
            self._methods[name] = method, None if target is None else Admission(target)
        self._plan = plan
        self._model = model
        self._books = books
        self._stranger = Client()
        self._ids = count(1)
        self._in_flight: dict[int, Request] = {}  # in order of arrival
        self._hurried: list[tuple[float, int]] = []  # heap: (deadline, id) of timeouts of their own
        self._missing: dict[int, int] = {}  # rows that are not answered, of requests in parts
        self._failed: set[int] = set()  # requests in parts of which a row failed
        # Ends of batches, and starts of processes: a heap of (seconds, tie, batch or None, run).
        self._events: list[tuple[float, int, Batch | None, BatchRun | None]] = []
        self._tie = count()
        self._wait = inf  # when to ask again, in seconds
        self._look = inf  # when to look for requests and batches over the timeout
        self._alive: set[int] = set()  # processes
        self._processes = count(1)
        for _ in range(plan.processes):
            self._start_process(ready_at)

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return len(self._in_flight)

    @property
    def queue_rows(self) -> int:
        """Rows that wait, be it at a lane."""
        return sum(map(self.scheduler.waiting_rows, self._methods))

    @property
    def running(self) -> int:
        """Batches that run."""
        lanes = self.scheduler.lanes
        return lanes.total - lanes.free

    @property
    def next_event(self) -> float:
        """When something happens next, if nothing arrives; in seconds."""
        at = min(self._look, self._wait)
        events = self._events
        return events[0][0] if events and events[0][0] < at else at

    def step(self, now: float) -> None:
        """Let the first event happen; it is `next_event`."""
        events = self._events
        if events and events[0][0] <= now:
            _, _, batch, run = heappop(events)
            if batch is None:
                self._start_process(now)
            elif run is not None and batch in batch.lane.batches:
                self._end(batch, run, now)
        elif self._wait <= now:
            self._decide(now)
        else:
            self._look_for_overdue(now)

    # ------------------------------------------------------------ from outside

    def arrive(
        self,
        method: str,
        rows: int,
        now: float,
        *,
        client: Client | None = None,
        timeout: float | None = None,
        sizes: Sequence[int] | None = None,
        shapes: Sequence[Hashable] | None = None,
    ) -> Request | Refused:
        """A request comes; `client` None: a stranger, of whom nobody expects another.

        `timeout` is its own, in seconds; the plan's holds as well.
        """
        plan, (of, admission) = self._plan, self._methods[method]
        size = rows if of.counts_rows and sizes is None else of.size_of(rows, sizes)
        if len(self._in_flight) >= plan.max_in_flight:
            return Refused.QUEUE_FULL
        if admission is not None:
            longest = of.batcher.longest(sizes, shapes)
            if not admission.accepts(of.batcher, size, now, rows, longest):
                return Refused.LATE
        hurried = timeout is not None and timeout < plan.timeout
        deadline = now + (timeout if timeout is not None and hurried else plan.timeout)
        who = self._stranger if client is None else client
        request = Request(next(self._ids), method, rows, size, who, now, deadline)
        self._in_flight[request.id] = request
        if hurried:
            heappush(self._hurried, (deadline, request.id))
        if deadline < self._look:  # noqa: PLR1730 - for each request, and `min` takes longer
            self._look = deadline
        if client is None:
            request.returning = 0
        ask = self.scheduler.arrive(request, now, sizes, shapes)
        if request.split is not None:
            self._missing[request.id] = rows
            if client is None:
                request.parts[-1].returning = 0
        if ask:
            self._decide(now)
        return request

    def cancel(self, request: Request) -> None:
        """Its client leaves; too late if it was answered."""
        if self._forget(request):
            self.scheduler.cancel(request)
            self.scheduler.disconnected(request.client)

    def kill(self, process: int, now: float) -> None:
        """A process ends, if it has not before, and is replaced."""
        if process in self._alive:
            self._process_ends(process, now, out_of_memory=False)

    @property
    def processes(self) -> Sequence[int]:
        """Processes that are alive, the oldest first."""
        return sorted(self._alive)

    def drain(self, now: float) -> None:
        """Nothing waits for a fuller batch any more."""
        self.scheduler.drain()
        self._decide(now)

    # ------------------------------------------------------------ batches

    def _decide(self, now: float) -> None:
        self._wait = inf
        scheduler = self.scheduler
        while True:
            decision = scheduler.next(now)
            match decision:
                case Dispatch(batch, expired):
                    self._start(batch, now)
                    self._told_late(expired, now)
                case Begins(batch):
                    self._start(batch, now)
                case Ahead(_, expired) | Expired(expired):
                    self._told_late(expired, now)
                case WaitUntil():
                    self._wait = decision.at
                    return
                case Idle():
                    return
                case _:
                    assert_never(decision)

    def _told_late(self, expired: Sequence[Request], now: float) -> None:
        for request in expired:
            self._books.expired(request.rows)
            self._expire(request, now)

    def _start(self, batch: Batch, now: float) -> None:
        run = self._model(batch)
        if run.seconds < inf:
            heappush(self._events, (now + run.seconds, next(self._tie), batch, run))
        self._books.started(batch, now)

    def _end(self, batch: Batch, run: BatchRun, now: float) -> None:
        result = run.result
        if isinstance(result, Death):
            killed = result is Death.OUT_OF_MEMORY
            self._process_ends(batch.lane.process, now, out_of_memory=killed)
            return
        if self.scheduler.finished(batch, result, now).answered:
            if result is Result.SUCCEEDED:
                in_flight, books = self._in_flight, self._books
                for request in batch.requests:
                    if request.split is not None:
                        self._part_ended(request, now)
                    elif in_flight.pop(request.id, None) is not None:
                        books.ended(request, End.ANSWERED, now)
            else:  # without isolation nobody is told of a refusal whose row is not known
                refused = result is Result.ITEM_ERROR and (batch.rows == 1 or self._plan.isolates)
                self._fail(batch, now, rows=refused)
        self._books.ran(batch, now)
        self._decide(now)

    def _fail(self, batch: Batch, now: float, *, rows: bool) -> None:
        """`rows`: each has an error of its own; else their requests fail."""
        for request in batch.requests:
            if rows and request.split is not None:
                self._failed.add(request.id)
                self._part_ended(request, now)
            elif self._forget(request):
                self.scheduler.cancel(request)
                self._books.ended(request, End.FAILED, now)

    def _part_ended(self, part: Request, now: float) -> None:
        """Its rows are answered; so is the request if no row is missing."""
        whole = self._in_flight.get(part.id)
        if whole is None:
            return
        missing = self._missing.get(part.id, whole.rows) - part.rows
        self._missing[part.id] = missing
        if not missing:
            how = End.FAILED if part.id in self._failed else End.ANSWERED
            self._forget(whole)
            self._books.ended(whole, how, now)

    def _expire(self, request: Request, now: float) -> None:
        whole = self._in_flight.get(request.id)
        if whole is not None:
            self._forget(whole)
            self._books.expired(self.scheduler.cancel(whole))
            self._books.ended(whole, End.EXPIRED, now)

    def _forget(self, request: Request) -> bool:
        """It is no longer in flight; whether it was."""
        self._missing.pop(request.id, None)
        self._failed.discard(request.id)
        return self._in_flight.pop(request.id, None) is not None

    # ------------------------------------------------------------ time and processes

    def _look_for_overdue(self, now: float) -> None:
        """Answer whoever is over its timeout, and replace processes that hang."""
        self._look = inf
        timeout, hurried = self._plan.timeout, self._hurried
        late = []
        for request in self._in_flight.values():
            if request.deadline <= now:
                late.append(request)
            elif request.deadline == request.arrived + timeout:
                self._look = request.deadline
                break
        while hurried and (hurried[0][0] <= now or hurried[0][1] not in self._in_flight):
            _, number = heappop(hurried)
            if number in self._in_flight:
                late.append(self._in_flight[number])
        for request in late:
            self._expire(request, now)
        hanging = self.scheduler.hanging(now, timeout)
        self._look = min(
            self._look, self.scheduler.next_hang(now, timeout), hurried[0][0] if hurried else inf
        )
        for process in sorted(hanging):
            self._process_ends(process, now, out_of_memory=False)

    def _start_process(self, now: float) -> None:
        process = next(self._processes)
        self._alive.add(process)
        for _ in range(self._plan.threads):
            self.scheduler.lane_added(Lane(process), now)
            self._decide(now)

    def _process_ends(self, process: int, now: float, *, out_of_memory: bool) -> None:
        self._alive.remove(process)
        heappush(self._events, (now + self._plan.restart, next(self._tie), None, None))
        lost = process_lost([self.scheduler], process, now, out_of_memory=out_of_memory)
        for batch, verdict in lost:
            if verdict.answered:
                self._fail(batch, now, rows=False)
        self._decide(now)
