"""The policy Concurrency is Cortex's: formula, factors, tolerances and stabilization."""

import math
import random
from dataclasses import dataclass, field

import pytest

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import Cause, ScalingDecision
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy, default_behaviors
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from thorough import examples

CORTEX_TICK = 10.0
UP, DOWN = default_behaviors(PolicyKind.CONCURRENCY)


def policy_of(target: float, least: int = 1, most: int = 50) -> ScalingPolicy:
    """Concurrency with Cortex's defaults."""
    return ScalingPolicy(
        min_replicas=least,
        max_replicas=most,
        max_batch_size=1,
        batch_interval=0.0,
        kind=PolicyKind.CONCURRENCY,
        target_concurrency=target,
        up=UP,
        down=DOWN,
    )


@dataclass
class Fleet:
    """As many pods as were asked for, with the requests in flight split among them."""

    policy: ScalingPolicy
    tick: float = CORTEX_TICK
    now: float = 0.0
    replicas: int = 1
    state: ScalingState = field(default_factory=ScalingState.empty)
    pods: dict[str, float] = field(default_factory=dict)  # name -> started
    born: int = 0

    def look(self, in_flight: float) -> ScalingDecision:
        """One look with so many requests in flight."""
        while len(self.pods) < self.replicas:
            self.pods[f"pod-{self.born}"] = self.now - 1.0
            self.born += 1
        for name in list(self.pods)[self.replicas :]:
            del self.pods[name]
        samples = tuple(
            PodSample(
                pod=name,
                time=self.now,
                process_start=started,
                uptime=self.now - started,
                rows_received=0.0,
                rows_rejected=0.0,
                batches=0.0,
                rows=0.0,
                full_batches=0.0,
                batch_seconds=0.0,
                rows_squared=0.0,
                row_seconds=0.0,
                queue_rows=0.0,
                lanes=1.0,
                in_flight=in_flight / self.replicas,
            )
            for name, started in self.pods.items()
        )
        seen = Observation(samples, self.replicas, self.replicas, "a")
        decision, self.state = step(self.policy, self.state, seen, self.now)
        assert decision.desired == replay(record(self.policy, decision))
        self.now += self.tick
        self.replicas = decision.desired
        return decision


@dataclass
class Cortex:
    """`pkg/autoscaler/autoscaler.go` of Cortex 0.20, one call a tick."""

    target: float
    least: int
    most: int
    in_flight: list[tuple[float, float]] = field(default_factory=list)
    recommended: list[tuple[float, int]] = field(default_factory=list)

    def tick(self, now: float, current: int, in_flight: float) -> int:
        """Replicas to request; the autoscaler started at 0."""
        self.in_flight.append((now, in_flight))
        recent = [load for at, load in self.in_flight if at > now - 60.0]
        raw = sum(recent) / len(recent) / self.target
        wanted = math.ceil(raw - 1e-9)
        if current * 0.95 <= raw < current or current < raw <= current * 1.05:
            wanted = current
        wanted = max(wanted, min(current - 1, math.ceil(current * 0.75)))
        wanted = min(wanted, max(current + 1, math.ceil(current * 1.5)))
        wanted = min(max(wanted, 1, self.least), self.most)
        self.recommended.append((now, wanted))
        if wanted < current:
            held = max(count for at, count in self.recommended if at > now - 300.0)
            return current if now < 300.0 else min(current, max(wanted, held))
        if wanted > current:
            low = min(count for at, count in self.recommended if at > now - 60.0)
            return current if now < 60.0 else max(current, min(wanted, low))
        return wanted


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(min(12, examples(4))))
def test_replicas_are_those_of_cortex_tick_by_tick(seed: int) -> None:
    """An hour of load that wanders, jumps and pauses, looked at as often as Cortex does."""
    chance = random.Random(seed)
    target = chance.choice((0.5, 1.0, 8.0))
    fleet, cortex = Fleet(policy_of(target, 1, 40)), Cortex(target, 1, 40)
    fleet.look(target)  # nothing to compare with yet; Cortex has nothing to average
    level = 4.0 * target
    expected, found = [], []
    for tick in range(1, 360):
        level = max(0.0, level * chance.choice((1.0, 1.0, 1.0, 1.1, 0.9)))
        if chance.random() < 0.02:
            level = chance.uniform(0.0, 30.0) * target
        expected.append(cortex.tick(tick * CORTEX_TICK, fleet.replicas, level))
        found.append(fleet.look(level).desired)

    assert expected == found
    assert len(set(found)) > 3


def test_nothing_moves_before_a_whole_stabilization_period_was_watched() -> None:
    """Neither up within the first minute nor down within the first five."""
    up, down = Fleet(policy_of(1.0), tick=5.0), Fleet(policy_of(1.0), tick=5.0, replicas=8)

    rising = [up.look(10.0).desired for _ in range(13)]
    falling = [down.look(0.0).desired for _ in range(61)]

    assert {1} == set(rising[:12])
    assert 2 == rising[12]
    assert {8} == set(falling[:60])
    assert 6 == falling[60]


def test_the_sentence_has_requests_in_flight_and_their_target() -> None:
    """Rows and service times play no part in it."""
    fleet = Fleet(policy_of(4.0), tick=5.0, replicas=3)
    decisions = [fleet.look(11.0) for _ in range(20)]

    assert (3, Cause.DEMAND) == (decisions[-1].desired, decisions[-1].reason)
    assert (
        "3 replicas (Demand): 11.0 requests in flight over 60 s; 4 are the target of one "
        "replica => 2.75"
    ) == explain(fleet.policy, decisions[-1])


def test_no_look_without_measurements_moves_anything() -> None:
    """As with the other policy: unknown is not zero."""
    fleet = Fleet(policy_of(1.0), tick=5.0, replicas=4)
    for _ in range(80):
        fleet.look(4.0)

    dark = []
    for _ in range(720):
        decision, fleet.state = step(
            fleet.policy, fleet.state, Observation((), 4, 4, "a"), fleet.now
        )
        fleet.now += 5.0
        dark.append((decision.desired, decision.reason))

    assert {(4, Cause.NO_METRICS)} == set(dark)
