"""Replicas that batch Poisson arrivals, and the autoscaler over them: a small closed loop.

One lane a replica; a batch leaves when it is full, when the next request does not fit, or when
its oldest has waited for the batch interval. Replicas are ready at once, so that what a test sees
is the policy and not a start-up time.
"""

import random
from dataclasses import dataclass, field, replace

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

TICK = 5.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A service and what is asked of it; seconds and rows."""

    name: str
    service: ServiceTime
    max_batch_size: int
    batch_interval: float
    latency_target: float
    most_rows: int = 1  # of a request; each number from 1 is as likely

    def policy(self, target: float = 0.8) -> ScalingPolicy:
        """The policy that the operator would go by."""
        return ScalingPolicy(
            min_replicas=1,
            max_replicas=300,
            max_batch_size=self.max_batch_size,
            batch_interval=self.batch_interval,
            latency_target=self.latency_target,
            target_utilization=target,
        )


A = Scenario("A", ServiceTime(0.008, 0.0005), 32, 0.020, 0.060)
B = Scenario("B", ServiceTime(0.008, 0.001), 128, 0.020, 0.080)
C = Scenario("C", ServiceTime(0.008, 0.0005), 64, 0.020, 0.090, most_rows=16)
D = Scenario("D", ServiceTime(0.005, 0.0002), 64, 0.150, 0.250)


@dataclass(slots=True)
class Replica:
    """Counters of one replica and the requests it has not begun with."""

    name: str
    created: float
    free: float = 0.0  # when its lane is
    queue: list[tuple[float, int]] = field(default_factory=list)  # (arrival, rows)
    running: int = 0  # requests in the batch that began last
    received: float = 0.0
    batches: float = 0.0
    rows: float = 0.0
    requests: float = 0.0
    full: float = 0.0
    seconds: float = 0.0
    squared: float = 0.0
    row_seconds: float = 0.0

    def advance(
        self,
        scenario: Scenario,
        arrivals: list[tuple[float, int]],
        end: float,
        noise: random.Random,
    ) -> list[float]:
        """Begin every batch that is due before `end`; the latencies of their requests."""
        self.received += sum(rows for _, rows in arrivals)
        waiting, latencies, first = [*self.queue, *arrivals], [], 0
        while first < len(waiting):
            last, rows, filled_at = first, 0, float("inf")
            while last < len(waiting):
                arrival, size = waiting[last]
                if rows + size > scenario.max_batch_size:
                    filled_at = arrival
                    break
                rows, last = rows + size, last + 1
                if rows == scenario.max_batch_size:
                    filled_at = arrival
                    break
            due = min(waiting[first][0] + scenario.batch_interval, filled_at)
            start = max(self.free, due)
            if start >= end:
                break
            taken = [one for one in waiting[first:last] if one[0] <= start]
            latencies += self._run(scenario, taken, start, noise, full=filled_at <= start)
            first += len(taken)
        self.queue = waiting[first:]
        return latencies

    def _run(
        self,
        scenario: Scenario,
        taken: list[tuple[float, int]],
        start: float,
        noise: random.Random,
        *,
        full: bool,
    ) -> list[float]:
        rows = sum(size for _, size in taken)
        seconds = scenario.service.seconds(rows) * max(0.5, noise.gauss(1.0, 0.05))
        self.free = start + seconds
        self.running = len(taken)
        self.batches += 1
        self.rows += rows
        self.requests += len(taken)
        self.full += full
        self.seconds += seconds
        self.squared += rows * rows
        self.row_seconds += rows * seconds
        return [self.free - arrival for arrival, _ in taken]

    def scrape(self, now: float) -> PodSample:
        """The pod's `/metrics` at that time."""
        running = self.running if self.free > now else 0
        return PodSample(
            pod=self.name,
            time=now,
            process_start=self.created,
            uptime=now - self.created,
            rows_received=self.received,
            rows_rejected=0.0,
            batches=self.batches,
            rows=self.rows,
            full_batches=self.full,
            batch_seconds=self.seconds,
            rows_squared=self.squared,
            row_seconds=self.row_seconds,
            queue_rows=float(sum(rows for _, rows in self.queue)),
            lanes=1.0,
            requests=self.requests,
            in_flight=float(len(self.queue) + running),
        )


class Loop:
    """A fleet of replicas behind a random balancer, an autoscaler that looks every five seconds."""

    def __init__(
        self,
        scenario: Scenario,
        replicas: int,
        *,
        policy: ScalingPolicy | None = None,
        seed: int = 1,
    ) -> None:
        """Begins with `replicas` that have run for long."""
        self.scenario = scenario
        self.policy = policy or scenario.policy()
        self.state = ScalingState.empty()
        self.now = 10_000.0
        self.decisions: list[ScalingDecision] = []
        self.latencies: list[float] = []
        self._chance = random.Random(seed)
        self._born = 0
        self._replicas: list[Replica] = []
        self._follow(replicas, age=1000.0)

    @property
    def desired(self) -> int:
        """Replicas at present."""
        return len(self._replicas)

    def tick(self, requests_per_second: float) -> ScalingDecision:
        """Five seconds of load, one look, and the replicas that follow from it."""
        begin, self.now = self.now, self.now + TICK
        arrivals: list[list[tuple[float, int]]] = [[] for _ in self._replicas]
        at = begin + self._chance.expovariate(requests_per_second)
        while at < self.now:
            rows = self._chance.randint(1, self.scenario.most_rows)
            arrivals[self._chance.randrange(len(arrivals))].append((at, rows))
            at += self._chance.expovariate(requests_per_second)
        for one, came in zip(self._replicas, arrivals, strict=True):
            self.latencies += one.advance(self.scenario, came, self.now, self._chance)
        samples = tuple(one.scrape(self.now) for one in self._replicas)
        seen = Observation(samples, self.desired, self.desired, "a")
        decision, self.state = step(self.policy, self.state, seen, self.now)
        assert decision.desired == replay(record(self.policy, decision))
        self.decisions.append(decision)
        self._follow(decision.desired, age=0.0)
        return decision

    def run(self, requests_per_second: float, seconds: float) -> list[int]:
        """Replicas after each look."""
        looks = round(seconds / TICK)
        return [self.tick(requests_per_second).desired for _ in range(looks)]

    def p99(self, requests_per_second: float, seconds: float) -> float:
        """The 99th percentile of the latencies in those seconds, in seconds."""
        self.latencies.clear()
        self.run(requests_per_second, seconds)
        return sorted(self.latencies)[int(0.99 * len(self.latencies))]

    def _follow(self, replicas: int, age: float) -> None:
        while len(self._replicas) < replicas:
            self._replicas.append(Replica(f"pod-{self._born}", self.now - age, free=self.now))
            self._born += 1
        del self._replicas[replicas:]


def p99_of(scenario: Scenario, requests_per_second: float, replicas: int, seconds: float) -> float:
    """With a count that is fixed."""
    policy = replace(scenario.policy(), min_replicas=replicas, max_replicas=replicas)
    loop = Loop(scenario, replicas, policy=policy, seed=7)
    loop.run(requests_per_second, 2 * TICK)
    return loop.p99(requests_per_second, seconds)
