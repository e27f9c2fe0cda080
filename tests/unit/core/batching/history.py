"""A batcher driven as by a dispatcher, and every law of batching checked after each step."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Idle,
    QueueOrder,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.traffic import TICK

MAX_SIZE: Final = 8
TIMEOUT: Final = 0.3  # seconds
SHAPES: Final = (None, "other")


@dataclass
class History:
    """Plays steps against a batcher as a dispatcher would, and keeps its own books."""

    policy: BatchPolicy
    batcher: Batcher = field(init=False)
    clients: list[Client] = field(default_factory=lambda: [Client() for _ in range(6)])
    live: list[Request] = field(default_factory=list)
    arrived: int = 0
    cancelled: set[int] = field(default_factory=set)
    expired: list[int] = field(default_factory=list)
    dispatched: list[int] = field(default_factory=list)
    held: list[float] = field(default_factory=list)  # seconds, of every batch while a lane was free
    limits: dict[Hashable, int] = field(default_factory=lambda: dict.fromkeys(SHAPES, MAX_SIZE))
    running: list[tuple[float, list[Request]]] = field(default_factory=list)
    free_since: float = 0.0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.policy)
        self.batcher.lane_added(0.0)

    def play(self, kind: str, which: int, size: int) -> None:  # noqa: C901 - one case for each step
        """One step and, as after everything that happens, a decision."""
        match kind:
            case "arrive":
                self.batcher.arrive(self.request(which, size), self.now)
            case "other shape":
                self.batcher.arrive(self.request(which, size, "other"), self.now)
            case "limit":
                self.limits[SHAPES[which]] = min(size, self.limits[SHAPES[which]])
                self.batcher.limit(SHAPES[which], size)
            case "oversize":
                parts = [self.request(which, MAX_SIZE), self.request(which, size)]
                self.batcher.arrive_parts(parts, self.now)
            case "cancel" if self.live:
                request = self.live.pop(which % len(self.live))
                self.cancelled.add(request.id)
                self.batcher.cancel(request)
            case "disconnect":
                self.batcher.disconnected(self.clients[which])
                self.clients[which] = Client()
            case "pass":
                self.pass_time(self.now + which / 1000)
            case "finish" | "fail" if self.running:
                self.finish(which % len(self.running), failed=kind == "fail")
            case "lane" if self.batcher.lanes.total < 3:
                self.freed()
                self.batcher.lane_added(self.now)
            case "lane dies" if self.batcher.lanes.free:
                self.batcher.lane_removed(was_free=True, now=self.now)
        self.act()
        self.check_sizes()

    def request(self, client: int, size: int, shape: str | None = None) -> Request:
        """The next request; its id is its number. Odd clients wait for half as long."""
        deadline = self.now + TIMEOUT / (1 + client % 2)
        who = self.clients[client]
        request = Request(self.arrived, "", 2 * size, size, who, self.now, deadline, shape)
        self.arrived += 1
        self.live.append(request)
        return request

    def freed(self) -> None:
        """A lane is about to be free."""
        if not self.batcher.lanes.free:
            self.free_since = self.now

    def finish(self, which: int, *, failed: bool = False) -> None:
        """One of the running batches ends."""
        started, requests = self.running.pop(which)
        self.freed()
        self.batcher.finished(requests, None if failed else self.now - started, self.now)

    def pass_time(self, until: float) -> None:
        """Move the clock, stopping wherever a decision asked for it."""
        while True:
            action = self.act()
            if not isinstance(action, WaitUntil) or action.at > until:
                break
            self.now = action.at
        self.now = until

    def act(self) -> Idle | WaitUntil:
        """Follow the decisions until one is to wait."""
        while True:
            action = next_action(self.batcher, self.now)
            assert action == next_action(self.batcher, self.now)
            match action:
                case Release():
                    self.dispatch(action)
                case WaitUntil():
                    self.check_wait(action)
                    return action
                case Idle():
                    assert not self.batcher.queue.size or not self.batcher.lanes.free
                    return action

    def dispatch(self, action: Release) -> None:
        """Take a batch, and run it if anything is left of it."""
        size, shape = action.size, action.shape
        self.check_reason(action)
        oldest = min(request.arrived for request in self.live)
        self.held.append(self.now - max(oldest, self.free_since))
        waiting = sorted((e for e in self.live if e.shape == shape), key=self.turn)
        requests, expired = self.batcher.take(size, self.now, shape)
        taken = sum(request.size for request in requests)
        assert 1 <= size <= self.limits[shape]
        assert taken <= size or len(requests) == 1
        assert all(request.deadline > self.now and not request.cancelled for request in requests)
        assert all(request.deadline <= self.now for request in expired)
        left = {*requests, *expired}
        assert left == set(waiting[: len(left)])
        assert requests == sorted(requests, key=self.turn)
        self.live = [request for request in self.live if request not in left]
        self.dispatched += [request.id for request in requests]
        self.expired += [request.id for request in expired]
        assert requests or expired
        if requests:
            self.batcher.started(taken, self.now)
            self.running.append((self.now, requests))

    def turn(self, request: Request) -> tuple[float, int]:
        """The request's place in the queue order; the smallest goes first."""
        fifo = self.policy.queue_order is QueueOrder.FIFO
        return (0.0 if fifo else request.deadline, request.id)

    def check_reason(self, action: Release) -> None:
        """It is true, and a full batch overtakes only who has not waited for the interval."""
        size, reason, shape, _ = action
        queued = sum(request.size for request in self.live if request.shape == shape)
        fifo = self.policy.queue_order is QueueOrder.FIFO
        turns = [(0.0 if fifo else e.deadline, e.arrived, e.shape == shape) for e in self.live]
        (*first, _), mine = min(turns), min(turn[:2] for turn in turns if turn[2])
        several = len({request.shape for request in self.live}) > 1
        patient = self.now < first[1] + self.policy.batch_interval
        assert mine == tuple(first) or (reason == "full" and patient)
        assert several or reason != "shape"
        assert not several or reason in {"full", "shape", "drain"}
        assert size == queued or reason in {"full", "shape", "early"}
        match reason:
            case "full":
                assert queued >= size
            case "early":
                assert self.policy.strategy is not Strategy.FIXED
            case "interval" if self.policy.strategy is Strategy.FIXED:
                oldest = min(request.arrived for request in self.live)
                share = 1 if self.limits[shape] == MAX_SIZE else 0  # a limit shortens the interval
                assert self.now >= oldest + self.policy.batch_interval * share

    def check_wait(self, wait: WaitUntil) -> None:
        """Later than now, never beyond the interval, and not for what is already here."""
        oldest, fixed = self.live[0].arrived, self.policy.strategy is Strategy.FIXED
        until = oldest if fixed else max(oldest, self.free_since) + TICK
        assert self.now < wait.at <= until + self.policy.batch_interval + 1e-12  # rounding
        assert wait.size == 0 or self.batcher.queue.size < wait.size <= MAX_SIZE
        assert len({request.shape for request in self.live}) == 1

    def check_sizes(self) -> None:
        """The batcher's counts are those of the live requests."""
        live = self.live
        assert sum(request.size for request in live) == self.batcher.queue.size
        assert sum(request.rows for request in live) == self.batcher.queue.rows
        assert (live[0].arrived if live else inf) == self.batcher.queue.oldest_arrival
        assert len(self.running) == self.batcher.lanes.total - self.batcher.lanes.free
        running = sum(request.size for _, requests in self.running for request in requests)
        assert running == self.batcher.running_size
        assert (self.batcher.lanes.next_free < inf) == bool(self.running)

    def drain(self) -> None:
        """Stop: nothing waits, everything ends."""
        self.batcher.draining = True
        if not self.batcher.lanes.total:
            self.batcher.lane_added(self.now)
        self.act()
        while self.running:
            self.now += 0.01
            self.finish(0)
            self.act()
