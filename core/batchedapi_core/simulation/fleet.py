"""Replicas that start, serve and stop, and a controller that decides how many there are.

Second by second: the requests of the second go to the replicas that were ready at its beginning,
each to the one that the balancer says; then the controller is asked. A new replica is ready after a
time that is drawn uniformly. Of too many, those not ready go first, then the youngest, as a
ReplicaSet removes them; what they hold they still answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from batchedapi_core.simulation.replica import (
    Durations,
    NoisyService,
    ReplicaCounters,
    SimulatedReplica,
)
from batchedapi_core.simulation.trace import Arrivals, Trace

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class ReplicaChoice(NamedTuple):
    """One answer of the controller."""

    t: float  # seconds
    ready: int  # replicas at that time
    desired: int
    reason: str  # the controller's word; "" if it gives none


class Second(NamedTuple):
    """One simulated second, for tables and pictures."""

    t: float  # its beginning, in seconds
    rate: float  # rows/s that the trace says
    ready: int
    live: int  # ready or starting
    batches: int  # ended in it
    batch_rows: int  # rows in them
    answered: int  # requests; their latencies follow those of the second before
    missed: int  # requests answered too late, or rejected


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A run of a fleet; shares within 0..1, times in seconds."""

    seconds: float  # simulated
    requests: int  # answered or refused
    rejected: int  # requests refused, or expired before they ran
    missed: int  # requests answered later than the target, or rejected
    cost: float  # replica-seconds, from creation until drained
    scale_events: int
    mean_rows: float  # of a batch; 0 without batches
    batch_rows: dict[int, int]  # batches by their rows
    replicas: tuple[ReplicaChoice, ...]  # one each time that the controller answered
    timeline: tuple[Second, ...]
    latencies: Floats  # of the requests answered, in the order of `timeline`; what was answered
    # after its end is last

    @property
    def miss_fraction(self) -> float:
        """Share of all requests that missed the target; 0 of none."""
        return self.missed / self.requests if self.requests else 0.0

    @property
    def rejected_fraction(self) -> float:
        """Share of all requests that were rejected; 0 of none."""
        return self.rejected / self.requests if self.requests else 0.0

    @property
    def p50(self) -> float:
        """Median latency of the answered requests; nan of none."""
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        """90th percentile of the latency; nan without answers."""
        return self.quantile(0.9)

    @property
    def p99(self) -> float:
        """99th percentile of the latency; nan without answers."""
        return self.quantile(0.99)

    @property
    def max_replicas(self) -> int:
        """Most replicas, ready or starting, at any time."""
        return max((second.live for second in self.timeline), default=0)

    def quantile(self, share: float) -> float:
        """Latency that this share of the answered requests does not exceed; nan of none."""
        if not self.latencies.size:
            return float("nan")
        return float(np.quantile(self.latencies, share, method="higher"))


STARTUP: Final = (20.0, 40.0)
"""Seconds from the creation of a replica until it is ready, drawn uniformly."""
Balancer = Callable[[Sequence[int], int, np.random.Generator], Integers]
"""For each of so many requests of one second, the index of its replica, of those with these numbers
that are ready; asked once in each second with requests."""


def at_random(ready: Sequence[int], requests: int, rng: np.random.Generator) -> Integers:
    """Each request to any replica, as kube-proxy does for clients that connect anew."""
    return rng.integers(0, len(ready), requests)


class PinnedConnections:
    """So many connections that stay where they were opened, each with as much of the load.

    kube-proxy chooses a replica at random when a connection is opened, and clients with pools keep
    it: some replicas have several of a few connections, and some have none.
    """

    def __init__(self, connections: int, seed: int = 0) -> None:
        """`seed` is of the choice of replicas."""
        self._rng = np.random.default_rng(seed)
        self._places: list[int | None] = [None] * connections

    def __call__(self, ready: Sequence[int], requests: int, rng: np.random.Generator) -> Integers:
        """As Balancer; a connection to a replica that has gone is opened anew."""
        index = {number: place for place, number in enumerate(ready)}
        for connection, number in enumerate(self._places):
            if number not in index:
                self._places[connection] = ready[int(self._rng.integers(0, len(ready)))]
        places = np.asarray([index[number] for number in self._places if number is not None])
        return places[rng.integers(0, len(places), requests)]


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """One live replica (not stopping), as a source of metrics sees it at this moment."""

    name: str
    created: float  # seconds of simulated time, as every time here
    placed: float | None  # None: no node has room for it yet
    ready_at: float  # may be still to come
    ready: bool
    counters: ReplicaCounters  # as they are at this moment
    # Gauges.
    queue_rows: float
    in_flight: float  # requests, queued or in a batch
    lanes: float = 1.0
    fixed: float | None = None  # as of PodSample


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """All live replicas at one moment."""

    now: float  # seconds
    pods: tuple[SimulatedPod, ...]  # ready or starting
    min_replicas: int
    max_replicas: int
    rate: float  # the true rows/s of the trace: no metric shows it, only bounds are given it
    wanted: int = 0  # places for which pods of other fleets wait


Controller = Callable[[SimulatedFleet], int | None]
"""Decides replicas, once a simulated second: how many to have from now on, clamped by the fleet's
limits; None: as many as now."""


_NOBODY: Final = Arrivals(np.zeros(0), None)


class _Collector:
    """Requests answered and refused, and costs; filled second by second, read at the end."""

    def __init__(self, target: float | None) -> None:
        """`target` in seconds; None: only a refused request is a miss."""
        self._target = target
        self._rejected = self._late = self._paid = 0
        self._answered = 0  # requests
        self._booked = (0, 0)  # answered, missed: until the last second
        self._latencies: list[Floats] = []
        self._batch_rows = np.zeros(0, dtype=np.int64)  # batches by rows
        self._batches = (0, 0)  # since the last second: batches, rows
        self._timeline: list[Second] = []
        self.replicas: list[ReplicaChoice] = []
        self.scale_events = 0

    def turned_away(self, requests: int) -> None:
        """They found no replica that is ready."""
        self._rejected += requests

    def collect(self, replicas: Sequence[SimulatedReplica]) -> None:
        """Take over what was answered and refused since the last time."""
        ends: list[float] = []
        requests: list[int] = []
        arrived: list[float] = []
        rows: list[int] = []
        for replica in replicas:
            answers = replica.answers
            self._rejected += answers.refused
            ends += answers.ends
            requests += answers.requests
            arrived += answers.arrived
            rows += answers.rows
            answers.clear()
        if not ends:
            return
        latencies = np.repeat(np.asarray(ends), np.asarray(requests)) - np.asarray(arrived)
        if self._target is not None:
            self._late += int((latencies > self._target).sum())
        self._latencies.append(latencies)
        self._answered += len(latencies)
        counts = np.bincount(rows, minlength=len(self._batch_rows))
        counts[: len(self._batch_rows)] += self._batch_rows
        self._batch_rows = counts
        batches, total = self._batches
        self._batches = batches + len(rows), total + sum(rows)

    def second(self, start: float, rate: float, ready: int, *, live: int, paid: int) -> None:
        """A second from `start` is over, in which `paid` replicas were not yet drained."""
        self._paid += paid
        answered, missed = self._booked
        self._booked = (self._answered, self._late + self._rejected)
        booked = (self._booked[0] - answered, self._booked[1] - missed)
        self._timeline.append(Second(start, rate, ready, live, *self._batches, *booked))
        self._batches = (0, 0)

    def outcome(self) -> Outcome:
        """The books as they are."""
        empty = np.zeros(0)
        latencies = np.concatenate([empty, *self._latencies])
        batches = int(self._batch_rows.sum())
        rows = int((self._batch_rows * np.arange(len(self._batch_rows))).sum())
        return Outcome(
            seconds=float(len(self._timeline)),
            requests=len(latencies) + self._rejected,
            rejected=self._rejected,
            missed=self._late + self._rejected,
            cost=float(self._paid),
            scale_events=self.scale_events,
            mean_rows=rows / batches if batches else 0.0,
            batch_rows={n: int(k) for n, k in enumerate(self._batch_rows) if k},
            replicas=tuple(self.replicas),
            timeline=tuple(self._timeline),
            latencies=latencies,
        )


@dataclass(slots=True)
class _Member:
    """A replica and its place in the fleet; times in seconds."""

    number: int
    created: float
    startup: float
    replica: SimulatedReplica
    placed: float | None
    stopping: bool = False
    removed: bool = False

    @property
    def ready_at(self) -> float:
        """As far as is known: never, while no node has room for it."""
        return math.inf if self.placed is None else self.placed + self.startup


class Places:
    """Room of a cluster, each place for one replica of any fleet; the first to ask is served."""

    def __init__(self, count: int) -> None:
        """`count` places."""
        self._count = count
        self._asked: list[_Member] = []
        """In order: those that have a place, then those that wait."""

    def ask(self, member: _Member) -> None:
        """Place it as soon as there is room."""
        self._asked.append(member)

    def fill(self, now: float) -> None:
        """Give what is free at `now` to those that wait."""
        self._asked = [one for one in self._asked if not one.removed]
        for member in self._asked[: self._count]:
            if member.placed is None:
                member.placed = now

    @property
    def waiting(self) -> int:
        """Replicas without a place."""
        return sum(one.placed is None and not one.removed for one in self._asked)


class _Members:
    """The replicas of a fleet; owner of their births and ends."""

    def __init__(
        self,
        service: NoisyService,
        startup: tuple[float, float],
        seed: int,
        places: Places | None,
    ) -> None:
        self._service = service
        self._startup = startup
        self._seed = seed
        self._places = places
        self._born = 0
        self.rng = np.random.default_rng(seed)
        self.all: list[_Member] = []

    def live(self) -> list[_Member]:
        """Members that are to stay."""
        return [member for member in self.all if not member.stopping]

    def add_ready(self, now: float) -> None:
        """One that was there before."""
        self._add(now, 0.0, cold=0)

    def scale(self, replicas: int, now: float) -> bool:
        """Have so many; whether that is a change."""
        live = self.live()
        for _ in range(replicas - len(live)):
            startup = float(self.rng.uniform(*self._startup))
            self._add(now, startup, cold=self._service.cold_batches)
        if replicas < len(live):
            live.sort(key=lambda member: (member.ready_at <= now, -member.number))
            for member in live[: len(live) - replicas]:
                member.stopping = True
                if member.ready_at > now:
                    member.removed = True
                else:
                    member.replica.drain(now)
        return replicas != len(live)

    def clear(self) -> None:
        """Forget those that are drained."""
        for member in self.all:
            member.removed |= member.stopping and member.replica.drained
        self.all = [member for member in self.all if not member.removed]

    def _add(self, now: float, startup: float, *, cold: int) -> None:
        number = self._born
        durations = Durations(self._service, (self._seed, number), cold=cold, number=number)
        replica = SimulatedReplica(self._service, durations, now + startup)
        member = _Member(number, now, startup, replica, now if self._places is None else None)
        self.all.append(member)
        if self._places is not None:
            self._places.ask(member)
        self._born += 1


class Fleet:
    """The replicas of one API, second by second; `simulate` is for one that is alone."""

    def __init__(
        self,
        service: NoisyService,
        trace: Trace,
        controller: Controller | None,
        *,
        seed: int = 0,
        startup: tuple[float, float] = STARTUP,
        replicas: int = 1,
        limits: tuple[int, int] = (1, 40),
        balancer: Balancer = at_random,
        why: Callable[[], str] = str,
        places: Places | None = None,
    ) -> None:
        """See `simulate`; `limits` are the fewest and the most replicas.

        With `places` replicas wait until there is room for them; else there always is.
        """
        self._trace = trace
        self._controller = controller
        self._limits = limits
        self._balancer = balancer
        self._why = why
        self._places = places
        self._lanes = service.lanes
        self._members = _Members(service, startup, seed, places)
        for _ in range(replicas):
            self._members.add_ready(0.0)
        self._collector = _Collector(service.latency_target)

    def serve(self, start: float) -> None:
        """The second that begins at `start`."""
        members, collector = self._members, self._collector
        ready = [m for m in members.live() if m.ready_at <= start]
        arrivals = self._trace.arrivals(start, members.rng)
        if not ready:
            collector.turned_away(len(arrivals[0]))
        shares = _split(arrivals, ready, self._balancer, members.rng)
        _serve([m for m in members.all if m.ready_at <= start], shares, start, collector)
        members.clear()
        paid = sum(member.placed is not None for member in members.all)
        live = len(members.live())
        collector.second(start, self._trace.rate(start), len(ready), live=live, paid=paid)

    def choose(self, now: float) -> None:
        """Have as many replicas as the controller says at `now`."""
        if self._controller is None:
            return
        live, (least, most) = self._members.live(), self._limits
        waiting = sum(member.placed is None for member in live)
        fleet = SimulatedFleet(
            now,
            _pods(live, now, self._lanes),
            least,
            most,
            self._trace.rate(now),
            0 if self._places is None else self._places.waiting - waiting,
        )
        desired = self._controller(fleet)
        if desired is not None:
            desired = max(least, min(most, desired))
            here = sum(member.ready_at <= now for member in live)
            self._collector.replicas.append(ReplicaChoice(now, here, desired, self._why()))
            self._collector.scale_events += self._members.scale(desired, now)

    def close(self) -> Outcome:
        """Serve what still waits, and close the books."""
        for member in self._members.all:
            member.replica.serve((), None, float("inf"))
        self._collector.collect([member.replica for member in self._members.all])
        return self._collector.outcome()


def simulate(
    service: NoisyService,
    trace: Trace,
    controller: Controller | None,
    *,
    seconds: float | None = None,
    seed: int = 0,
    startup: tuple[float, float] = STARTUP,
    replicas: int = 1,
    min_replicas: int = 1,
    max_replicas: int = 40,
    balancer: Balancer = at_random,
    why: Callable[[], str] = str,
) -> Outcome:
    """Run a fleet under a load; the same arguments give the same outcome.

    Args:
        controller: Asked after every second; None: the replicas stay as they are.
        seconds: Whole seconds to simulate; None: the whole trace.
        seed: Of the arrivals, the balancing, the start-up times and the noise.
        startup: Least and most seconds from creation to readiness.
        replicas: Ready at the beginning.
        balancer: Says which replica a request goes to.
        why: The controller's reason for its last answer.

    Returns:
        Every request until the end is in it; what waits then is served before the books close.
    """
    fleet = Fleet(
        service,
        trace,
        controller,
        seed=seed,
        startup=startup,
        replicas=replicas,
        limits=(min_replicas, max_replicas),
        balancer=balancer,
        why=why,
    )
    for tick in range(int(trace.seconds if seconds is None else seconds)):
        fleet.serve(float(tick))
        fleet.choose(tick + 1.0)
    return fleet.close()


def simulate_together(fleets: Sequence[Fleet], places: Places, seconds: int) -> list[Outcome]:
    """Run fleets that share `places` for `seconds` seconds."""
    for tick in range(seconds):
        places.fill(float(tick))
        for fleet in fleets:
            fleet.serve(float(tick))
        for fleet in fleets:
            fleet.choose(tick + 1.0)
    return [fleet.close() for fleet in fleets]


def _split(
    arrivals: Arrivals, ready: list[_Member], balancer: Balancer, rng: np.random.Generator
) -> dict[int, Arrivals]:
    """The requests of one second, by the number of their replica."""
    times, rows = arrivals
    if not ready or not len(times):
        return {}
    chosen = balancer([member.number for member in ready], len(times), rng)
    order = np.argsort(chosen, kind="stable")
    cuts = np.searchsorted(chosen[order], np.arange(1, len(ready)))
    parts = zip(ready, np.split(order, cuts), strict=True)
    return {
        member.number: Arrivals(times[part], None if rows is None else rows[part])
        for member, part in parts
    }


def _serve(
    active: list[_Member], shares: dict[int, Arrivals], start: float, collector: _Collector
) -> None:
    """One second of all replicas that were ever ready."""
    for member in active:
        times, rows = shares.get(member.number, _NOBODY)
        member.replica.serve(times.tolist(), None if rows is None else rows.tolist(), start + 1.0)
    collector.collect([member.replica for member in active])


def _pods(live: list[_Member], now: float, lanes: int) -> tuple[SimulatedPod, ...]:
    return tuple(
        SimulatedPod(
            f"pod-{member.number}",
            member.created,
            member.placed,
            member.ready_at,
            member.ready_at <= now,
            replace(member.replica.counters),
            member.replica.queue_rows,
            member.replica.in_flight,
            lanes,
            member.replica.fixed,
        )
        for member in live
    )
