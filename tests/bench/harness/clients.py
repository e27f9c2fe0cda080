"""Clients in virtual time before the product's own Scheduler: who asks, and when again.

Nothing is timed: the same seed gives the same figures on any machine. Times are seconds.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias, cast
from unittest import mock

from batchedapi_core.batching import (
    Action,
    Batch,
    Batcher,
    BatchPolicy,
    Begins,
    Client,
    Decision,
    Request,
    Scheduler,
    next_action,
    scheduler,
)
from batchedapi_core.simulation import virtual_replica
from batchedapi_core.simulation.virtual_replica import End, Plan, Run, VirtualReplica

METHOD = "predict"
WARM_UP = 0.1
"""Share of the rows that comes first and does not count."""
AFTER_REFUSAL = 0.1
"""Seconds until a client that was refused thinks of its next request."""

Rule: TypeAlias = Callable[..., Action]
"""In the place of `decision.next_action`."""
Load: TypeAlias = Callable[["World"], None]
"""Schedules the first requests; what follows is scheduled by their answers."""


@dataclass(frozen=True, slots=True)
class Server:
    """One replica of one method."""

    policy: BatchPolicy
    seconds: Callable[[int], float]
    """Of a batch of so many rows."""
    lanes: int = 1
    handover: float = 0.0
    """Seconds that a lane is idle between two batches, if the second was not ahead."""
    sends_ahead: bool = True
    told_of_closing: bool = True
    """Whether it is told when a connection closes."""
    rule: Callable[[], Rule] | None = None  # None: the product's
    prepare: Callable[[Batcher], None] = lambda _: None
    noise: float = 0.05
    """Deviation of the logarithm of a batch's time."""


@dataclass(slots=True)
class Outcome:
    """What became of the requests after the first."""

    latencies: list[float] = field(default_factory=list)  # of the answered
    rows: int = 0  # answered
    refused: int = 0
    expired: int = 0
    span: float = 0.0
    late: int = 0  # answered after the policy's target

    @property
    def throughput(self) -> float:
        """Rows/s."""
        return self.rows / self.span

    @property
    def mean(self) -> float:
        """Seconds to an answer."""
        return math.fsum(self.latencies) / len(self.latencies)

    @property
    def in_time(self) -> float:
        """Share of the requests that were answered within the target."""
        answered = len(self.latencies)
        return (answered - self.late) / (answered + self.refused + self.expired)


class _Watched(Scheduler):
    """Knows whether what begins was ahead."""

    was_ahead = False

    def next(self, now: float) -> Decision:
        decision = super().next(now)
        self.was_ahead = isinstance(decision, Begins)
        return decision


class World:
    """A server and its clients."""

    def __init__(self, server: Server, load: Load, seed: int, *, one_address: bool) -> None:
        """`one_address`: all connections that close after their answer count as one client."""
        self.random = random.Random(seed)
        self.now = 0.0
        self._noise = random.Random(seed + 1)
        self._server = server
        self._peer = Client() if one_address else None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = count()
        self._replies: dict[int, Callable[[], None]] = {}
        self._done = 0  # rows of requests that were taken
        self._warm = 0
        self._began: float | None = None
        self._target = server.policy.latency_target or math.inf
        self.outcome = Outcome()
        made = partial(_Watched, sends_ahead=server.sends_ahead)
        with mock.patch.object(virtual_replica, "Scheduler", made):
            self._replica = VirtualReplica(
                Plan({METHOD: server.policy}, processes=server.lanes), self, self, self.random
            )
        self._scheduler = cast("_Watched", self._replica.scheduler)
        server.prepare(self._scheduler.methods[METHOD].batcher)
        load(self)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let something happen."""
        heappush(self._events, (when, next(self._tie), what))

    def ask(
        self,
        rows: int = 1,
        client: Client | None = None,
        reply: Callable[[], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        """A request comes now; `client` None: of a connection that closes after it."""
        who = client or self._peer
        made = self._replica.arrive(METHOD, rows, self.now, client=who, timeout=timeout)
        if not isinstance(made, Request):
            self.outcome.refused += self._began is not None
            if reply is not None:
                self.at(self.now + AFTER_REFUSAL, reply)
        elif reply is not None:
            self._replies[made.id] = reply

    def closes(self, client: Client) -> None:
        """A connection ends."""
        if self._server.told_of_closing:
            self._scheduler.disconnected(client)

    def until(self, rows: int) -> Outcome:
        """Let things happen until so many rows are done; those that are refused do not count."""
        self._warm = int(WARM_UP * rows)
        events, replica = self._events, self._replica
        rule = self._server.rule
        with mock.patch.object(scheduler, "next_action", rule() if rule else next_action):
            while self._done < rows:
                if events and events[0][0] <= replica.next_event:
                    self.now, _, what = heappop(events)
                    what()
                else:
                    self.now = replica.next_event
                    replica.step(self.now)
        assert self._began is not None
        self.outcome.span = self.now - self._began
        return self.outcome

    # ------------------------------------------------------------ Model and Books

    def run(self, batch: Batch) -> Run:
        """See Model."""
        server = self._server
        seconds = server.seconds(batch.rows) * math.exp(self._noise.gauss(0.0, server.noise))
        return Run(seconds if self._scheduler.was_ahead else seconds + server.handover)

    def started(self, batch: Batch, now: float) -> None:
        """See Books."""

    def ended(self, request: Request, how: End, now: float) -> None:
        """See Books."""
        self._done += request.rows
        outcome = self.outcome
        if self._began is None:
            pass
        elif how is End.ANSWERED:
            took = now - request.arrived
            outcome.latencies.append(took)
            outcome.rows += request.rows
            outcome.late += took > self._target
        else:
            outcome.expired += 1
        reply = self._replies.pop(request.id, None)
        if reply is not None:
            reply()

    def expired(self, rows: int) -> None:
        """See Books."""

    def ran(self, batch: Batch, now: float) -> None:  # noqa: ARG002 - as Books
        """See Books."""
        if self._began is None and self._done >= self._warm:
            self._began = now


# ---------------------------------------------------------------- loads

Rows: TypeAlias = tuple[int, int]
"""Of a request, from and to, each as likely."""


def closed(
    clients: int,
    think: float | Callable[[int], float],
    *,
    deviation: float = 0.3,
    exponential: bool = False,
    rows: Rows = (1, 1),
    keeps: float = math.inf,
) -> Load:
    """Each asks again some time after its answer; all begin at once.

    Args:
        clients: How many.
        think: Seconds from answer to request, or of each client.
        deviation: Of that, as a share of it.
        exponential: It is, else normal.
        rows: Of a request.
        keeps: Requests of one connection, drawn with this mean; 0: each closes after its answer,
            and nobody says so.
    """

    def go(world: World) -> None:
        chance = world.random

        def gap(number: int) -> float:
            mean = think(number) if callable(think) else think
            if exponential:
                return chance.expovariate(1 / mean)
            return max(0.2 * mean, chance.gauss(mean, deviation * mean))

        def ask(number: int, client: Client | None) -> None:
            size = chance.randint(*rows) if rows[1] > 1 else 1
            world.ask(size, client, partial(answered, number, client))

        def answered(number: int, client: Client | None) -> None:
            after = world.now + gap(number)
            if client is not None and keeps < math.inf and chance.random() < 1 / keeps:
                world.at(world.now + 1e-4, partial(world.closes, client))
                client, after = Client(), after + 100 * gap(number)  # another comes
            world.at(after, partial(ask, number, client))

        for number in range(clients):
            client = Client() if keeps else None
            world.at(chance.random() * 1e-4, partial(ask, number, client))

    return go


def poisson(
    rate: float,
    *,
    rows: Rows = (1, 1),
    pool: str = "",
    burst: Rows = (1, 1),
    spread: float = 0.0,
    share: Callable[[float], float] = lambda _: 1.0,
    timeouts: Sequence[float] = (),
) -> Load:
    """Open loop.

    Args:
        rate: Of arrivals a second.
        rows: Of a request.
        pool: "": each request has a connection of its own; "lifo" or "fifo": a proxy's kept ones.
        burst: Requests that arrive together.
        spread: Seconds within which they do.
        share: Of the rate, at a time.
        timeouts: Of the requests in seconds, each as likely; none: they have none.
    """

    def go(world: World) -> None:
        chance = world.random
        free: deque[Client] = deque()

        def arrive() -> None:
            client = None
            if pool:
                client = Client() if not free else free.pop() if pool == "lifo" else free.popleft()
            timeout = chance.choice(timeouts) if timeouts else None
            reply = None if client is None else partial(free.append, client)
            world.ask(chance.randint(*rows) if rows[1] > 1 else 1, client, reply, timeout)

        def some() -> None:
            for _ in range(chance.randint(*burst) if burst[1] > 1 else 1):
                if spread:
                    world.at(world.now + chance.random() * spread, arrive)
                else:
                    arrive()
            following()

        def following() -> None:
            when = world.now
            while True:
                when += chance.expovariate(rate)
                if chance.random() < share(when):
                    break
            world.at(when, some)

        following()

    return go


def on_and_off(
    on: float, off: float, seconds_on: float, seconds_off: float, timeouts: Sequence[float] = ()
) -> Load:
    """Open loop at two rates in turn, for exponential times of these means."""

    def go(world: World) -> None:
        chance = world.random
        rates = ((on, seconds_on), (off, seconds_off))
        state = 0
        until = chance.expovariate(1 / seconds_on)

        def arrive() -> None:
            world.ask(timeout=chance.choice(timeouts) if timeouts else None)
            following()

        def following() -> None:
            nonlocal state, until
            when = world.now
            while True:
                rate = rates[state][0]
                ends = when + chance.expovariate(rate) if rate else math.inf
                if ends <= until:
                    world.at(ends, arrive)
                    return
                when, state = until, 1 - state
                until += chance.expovariate(1 / rates[state][1])

        following()

    return go


def together(*loads: Load) -> Load:
    """All of them."""

    def go(world: World) -> None:
        for load in loads:
            load(world)

    return go
