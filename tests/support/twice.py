"""The same traffic through the product's dispatcher and through the simulated replica.

Both get the same arrivals, timeouts, cancellations and deaths at the same times, and the same
model: what becomes of a batch follows from the rows in it. No sockets and no event loop: time is a
number.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from batchedapi_core.batching import Batch, BatchPolicy, Client, Request, Result, SizeUnit
from batchedapi_core.simulation.virtual_replica import (
    BatchRun,
    Books,
    Death,
    End,
    Refused,
    ReplicaPlan,
    VirtualReplica,
)
from batchedapi_serving.codecs import Answer, DecodedRequest
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.replies import INSTANCES
from batchedapi_serving.codecs.results import (
    ItemResults,
)
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.executor import Done
from batchedapi_serving.dispatch.requests import InFlightRequest
from batchedapi_serving.errors import LateError, QueueFullError
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.oom import OomKills
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.tracing.spans import Span

SEED: Final = 7
"""Of the choice among lanes."""
RESTART: Final = 0.7  # seconds
_OK: Final = 200


@dataclass(frozen=True)
class Arrival:
    """A request; `rows` says what each of them does to its batch."""

    at: float
    rows: tuple[str, ...]
    method: str = "predict"
    client: int | None = None
    timeout: float | None = None
    sizes: tuple[int, ...] | None = None
    shapes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Leaves:
    """The client of the request that came as `which`-th leaves."""

    at: float
    which: int


@dataclass(frozen=True)
class Kill:
    """The oldest process ends, or the one after it."""

    at: float
    which: int


@dataclass(frozen=True)
class Drain:
    """The replica is stopping."""

    at: float


Event = Arrival | Leaves | Kill | Drain


@dataclass
class Seen:
    """The record of a run."""

    batches: list[tuple[float, str, str, int, tuple[tuple[int, int, int], ...]]] = field(
        default_factory=list
    )
    """When it began, method, reason, process, and of each request id, first row and rows."""
    ended: dict[int, tuple[End, float]] = field(default_factory=dict)
    """By id."""
    refused: list[tuple[int, Refused]] = field(default_factory=list)
    """Of the arrivals, by number."""

    def begun(self, batch: Batch, now: float) -> None:
        """A batch began."""
        rides = tuple((request.id, request.first, request.rows) for request in batch.requests)
        self.batches.append((now, batch.method, batch.reason, batch.lane.process, rides))


class Script:
    """The course of each batch: t(n) = fixed + per_row * n, and the fate of its rows."""

    def __init__(self, fixed: float, per_row: float, memory: int) -> None:
        """`memory` is how many rows it has room for; of the shape "b", half as many."""
        self._fixed = fixed
        self._per_row = per_row
        self._memory = memory
        self.rows: dict[int, tuple[str, ...]] = {}
        """By the id of their request."""

    def run(self, batch: Batch) -> BatchRun:
        """See Model."""
        seconds = self._fixed + self._per_row * batch.rows
        rows = {
            what
            for request in batch.requests
            for what in self.rows[request.id][request.first : request.first + request.rows]
        }
        if "hang" in rows:
            return BatchRun(inf)
        if "die" in rows:
            return BatchRun(seconds, Death.DIED)
        if "killed" in rows:
            return BatchRun(seconds, Death.OUT_OF_MEMORY)
        room = self._memory // 2 if batch.requests[0].shape == "b" else self._memory
        if batch.rows > room:
            return BatchRun(seconds, Result.OUT_OF_MEMORY)
        if "raise" in rows:
            return BatchRun(seconds, Result.FAILED)
        return BatchRun(seconds, Result.ITEM_ERROR if "refuse" in rows else Result.SUCCEEDED)


# ------------------------------------------------------------ the simulated replica


class _Books(Books):
    def __init__(self) -> None:
        self.seen = Seen()

    def started(self, batch: Batch, now: float) -> None:
        self.seen.begun(batch, now)

    def ended(self, request: Request, how: End, now: float) -> None:
        assert request.id not in self.seen.ended
        self.seen.ended[request.id] = (how, now)


def simulated(plan: ReplicaPlan, script: Script, events: Sequence[Event]) -> Seen:
    """The record of a run in the simulator."""
    books = _Books()
    replica = VirtualReplica(plan, script.run, books, random.Random(SEED))
    clients: dict[int, Client] = {}
    taken: list[Request | None] = []
    for event in events:
        while replica.next_event < event.at:
            replica.step(replica.next_event)
        match event:
            case Arrival(at, rows, method, client, timeout, sizes, shapes):
                script.rows[_next_id(taken)] = rows
                who = Client() if client is None else clients.setdefault(client, Client())
                came = replica.arrive(
                    method, len(rows), at, client=who, timeout=timeout, sizes=sizes, shapes=shapes
                )
                if isinstance(came, Refused):
                    books.seen.refused.append((len(taken), came))
                taken.append(came if isinstance(came, Request) else None)
            case Leaves(_, which):
                leaving = taken[which] if which < len(taken) else None
                if leaving is not None and leaving.id not in books.seen.ended:
                    replica.cancel(leaving)
            case Kill(at, which) if which < len(replica.processes):
                replica.kill(replica.processes[which], at)
            case Drain(at):
                replica.drain(at)
            case _:
                pass
    while replica.next_event < inf:
        replica.step(replica.next_event)
    assert (0, 0, 0) == (replica.in_flight, replica.queue_rows, replica.running)
    return books.seen


def _next_id(taken: Sequence[object]) -> int:
    return 1 + sum(one is not None for one in taken)


# ------------------------------------------------------------ the product


class Loop:
    """As much of an event loop as a dispatcher needs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, _Handle]] = []
        self._tie = itertools.count()

    def time(self) -> float:
        """See asyncio."""
        return self.now

    def call_at(self, at: float, call: Callable[..., None], *args: Any) -> "_Handle":
        """See asyncio."""
        handle = _Handle(call, args)
        heappush(self._calls, (at, next(self._tie), handle))
        return handle

    def run(self) -> None:
        """Until nothing is left to call."""
        while self._calls:
            self.now, _, handle = heappop(self._calls)
            handle.call()


class _Handle:
    def __init__(self, call: Callable[..., None], args: Sequence[Any]) -> None:
        self._call: Callable[..., None] | None = call
        self._args = args

    def cancel(self) -> None:
        self._call = None

    def call(self) -> None:
        if self._call is not None:
            self._call(*self._args)


class ExactClock:
    """As Clock, without its rounding to the milliseconds of uvloop."""

    def __init__(self, loop: Loop, now: Callable[[], float]) -> None:
        self._loop = loop
        self.now = now

    def call_at(self, at: float, now: float, call: Callable[[], None]) -> _Handle:
        """See Clock."""
        return self._loop.call_at(max(at, now), call)


class _Asker:
    span: Span | None = None

    def __init__(self, product: "_Product") -> None:
        self._product = product
        self.pending: InFlightRequest | None = None

    def request_id(self) -> str | None:
        return None

    def deliver(self, answer: Answer) -> None:
        self._product.answered(self, answer)


class _FakeLane:
    def __init__(self, product: "_Product", pid: int) -> None:
        self._product = product
        self.pid = pid
        self.worker_index = 0
        self.closed = False
        self._sent: deque[tuple[Batch, Done]] = deque()  # the first of them runs

    def run(
        self, batch: Batch, meta: Mapping[str, Any], payload: Sequence[bytes], done: Done
    ) -> None:
        del meta, payload
        self._sent.append((batch, done))
        if len(self._sent) == 1:
            self._begin()

    def _begin(self) -> None:
        product, (batch, done) = self._product, self._sent[0]
        # The dispatcher says when it began a moment later, in no time.
        product.loop.call_at(product.loop.now, product.seen.begun, batch, product.loop.now)
        run = product.script.run(batch)
        if run.seconds < inf:
            product.loop.call_at(product.loop.now + run.seconds, self._end, batch, run.result, done)

    def close(self) -> None:
        self.closed = True

    def _end(self, batch: Batch, result: Result | Death, done: Done) -> None:
        if self.closed:
            return
        if isinstance(result, Death):
            self._product.kills += result is Death.OUT_OF_MEMORY
            self._product.replace(self.pid)
            return
        self._sent.popleft()
        if self._sent:
            self._begin()
        meta, parts = _frame(batch, result)
        done(self, batch, meta, b"".join(parts))


def _frame(batch: Batch, result: Result) -> tuple[dict[str, Any], Sequence[bytes]]:
    """As a model process answers."""
    if result is Result.SUCCEEDED:
        rows = ItemResults([Item(_OK, "json", b"1")] * batch.rows)
        meta, parts = rows.to_frame(0, batch.rows)
        return {**meta}, parts
    if result is Result.ITEM_ERROR and batch.rows == 1:
        meta, parts = ItemResults([Item(410, "json", b"{}")]).to_frame(0, 1)
        return {**meta, "raised": True}, parts
    error: dict[str, Any] = {
        "kind": "error",
        "error": "raised E",
        "oom": result is Result.OUT_OF_MEMORY,
    }
    if result is Result.ITEM_ERROR:
        error |= {"of_a_row": True, "status": 410, "message": "gone"}
    return error, ()


class _Product:
    def __init__(
        self, settings: ReplicaSettings, methods: Sequence[MethodSpec], script: Script
    ) -> None:
        self.loop = Loop()
        self.script = script
        self.seen = Seen()
        self.kills = 0
        self._methods = methods
        self._settings = settings
        self._pids = itertools.count(1)
        self._clients: dict[int, Client] = {}
        self._taken: list[InFlightRequest | None] = []
        self._lanes: dict[int, list[_FakeLane]] = {}
        loop: Any = self.loop
        memory = memoryview(bytearray(slots.BYTES)).cast("d")
        self.dispatcher = Dispatcher(
            settings, Recorder(memory), loop, self, self.loop.time, OomKills(lambda: self.kills)
        )
        self.dispatcher._sync.scheduler._pool._random.seed(SEED)
        for _ in range(settings.processes):
            self._start_process()

    # ------------------------------------------------------------ Supervision

    def replace(self, pid: int) -> None:
        """The process ends, and another takes its place."""
        (lane, *_) = self._lanes.pop(pid)
        self.loop.call_at(self.loop.now + RESTART, self._start_process)
        ended: Any = lane
        self.dispatcher.lane_lost(ended)

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """See Supervision."""

    # ------------------------------------------------------------ events

    def happens(self, event: Event) -> None:
        match event:
            case Arrival():
                self._arrives(event)
            case Leaves(_, which):
                pending = self._taken[which] if which < len(self._taken) else None
                if pending is not None:
                    self.dispatcher.cancel(pending)
            case Kill(_, which) if which < len(self._lanes):
                self.replace(sorted(self._lanes)[which])
            case Drain():
                self.dispatcher.drain()
            case _:
                pass

    def answered(self, caller: _Asker, answer: Answer) -> None:
        how = {_OK: End.ANSWERED, 504: End.EXPIRED}.get(answer.status, End.FAILED)
        # Answered before `submit` returned: as the next in served.
        number = _next_id(self._taken) if caller.pending is None else caller.pending.request.id
        assert number not in self.seen.ended
        self.seen.ended[number] = (how, self.loop.now)

    def _arrives(self, event: Arrival) -> None:
        self.script.rows[_next_id(self._taken)] = event.rows
        client = Client()
        if event.client is not None:
            client = self._clients.setdefault(event.client, client)
        caller, rows = _Asker(self), len(event.rows)
        decoded = DecodedRequest(rows, [b"0"] * rows, INSTANCES, event.sizes, event.shapes)
        served = self.dispatcher.served(event.method)
        try:
            caller.pending = self.dispatcher.submit(served, decoded, client, caller, event.timeout)
        except QueueFullError:
            self.seen.refused.append((len(self._taken), Refused.QUEUE_FULL))
        except LateError:
            self.seen.refused.append((len(self._taken), Refused.LATE))
        self._taken.append(caller.pending)

    def _start_process(self) -> None:
        pid = next(self._pids)
        hello = {"worker_index": 0, "pid": pid, "methods": [m.to_json() for m in self._methods]}
        self._lanes[pid] = [_FakeLane(self, pid) for _ in range(self._settings.threads)]
        for lane in self._lanes[pid]:
            connection: Any = lane
            self.dispatcher.lane_ready(connection, hello)


def served(
    settings: ReplicaSettings,
    methods: Sequence[MethodSpec],
    script: Script,
    events: Sequence[Event],
) -> Seen:
    """The record of a run in the product."""
    product = _Product(settings, methods, script)
    for event in events:
        product.loop.call_at(event.at, product.happens, event)
    product.loop.run()
    assert 0 == len(product.dispatcher._in_flight.by_id)
    return product.seen


def plan_of(settings: ReplicaSettings, methods: Sequence[MethodSpec]) -> ReplicaPlan:
    """The plan that a simulation gets for the same settings."""
    batching = settings.batching
    return ReplicaPlan(
        {
            method.name: BatchPolicy(
                batching.max_batch_size or method.max_batch_size,
                batching.batch_interval,
                batching.strategy,
                batching.max_latency,
                queue_order=batching.queue_order,
            )
            for method in methods
        },
        counts_rows=batching.size_unit is SizeUnit.ROWS,
        processes=settings.processes,
        threads=settings.threads,
        timeout=settings.timeout or inf,
        max_in_flight=settings.max_concurrency,
        isolates=settings.item_errors.value == "Isolate",
        lane_choice=settings.lane_choice,
        restart=RESTART,
    )
