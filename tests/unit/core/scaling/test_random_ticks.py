"""F3: whatever a fleet goes through, decisions repeat, keep the bounds, and grow with demand."""

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import Cause
from batchedapi_core.scaling.policy import (
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
    default_behaviors,
)
from batchedapi_core.scaling.record import record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from thorough import FACTOR

WORLDS, TICKS = 25, 100


@dataclass(slots=True)
class Pod:
    """Counters that only ever rise, and gauges that wander."""

    name: str
    started: float
    start_up: float | None
    slowness: float
    rows_per_request: float  # inf: it does not count requests
    received: float = 0.0
    answered: float = 0.0
    batches: float = 0.0
    rows: float = 0.0
    full: float = 0.0
    seconds: float = 0.0
    squared: float = 0.0
    row_seconds: float = 0.0
    queue: float = 0.0

    def serve(self, chance: random.Random, rows: float, *, crowded: bool) -> None:
        """Five seconds in which `rows` came and were served, and a queue that came and went."""
        self.received += rows
        self.answered += rows / self.rows_per_request
        size = 8.0 if crowded else chance.uniform(1.0, 8.0)
        batches = rows / size
        seconds = 5.0 / batches if crowded else self.slowness * (0.008 + 0.0005 * size)
        self.batches += batches
        self.rows += rows
        self.full += batches * (1.0 if crowded else chance.choice((0.0, 0.3, 1.0)))
        self.seconds += batches * seconds
        self.squared += rows * size
        self.row_seconds += rows * seconds
        self.queue = chance.choice((0.0, 0.0, chance.uniform(0.0, 300.0)))
        self.received = max(self.received, self.rows + self.queue)

    def scrape(self, now: float, received: float) -> PodSample:
        """Its page, with another number of rows received."""
        return PodSample(
            pod=self.name,
            time=now,
            process_start=self.started,
            uptime=now - self.started,
            rows_received=received,
            rows_rejected=0.0,
            batches=self.batches,
            rows=self.rows,
            full_batches=self.full,
            batch_seconds=self.seconds,
            rows_squared=self.squared,
            row_seconds=self.row_seconds,
            queue_rows=self.queue,
            lanes=1.0,
            in_flight=self.queue / 2,
            answered=self.answered,
            startup=self.start_up,
        )


def behavior(chance: random.Random, default: Behavior) -> Behavior:
    """The default, or anything that a manifest may ask for."""
    if chance.random() < 0.5:
        return default
    steps = tuple(
        StepPolicy(chance.choice(list(StepKind)), chance.randint(1, 100), chance.uniform(1.0, 90.0))
        for _ in range(chance.randint(0, 3))
    )
    window, tolerance = chance.choice((0.0, 15.0, 60.0)), chance.choice((0.0, 0.1))
    return Behavior(window, steps, chance.choice(list(Select)), tolerance)


def policy_of(chance: random.Random) -> ScalingPolicy:
    """Anything that a manifest may ask for."""
    kind = chance.choice(list(PolicyKind))
    up, down = default_behaviors(kind)
    least = chance.randint(1, 4)
    return ScalingPolicy(
        min_replicas=least,
        max_replicas=least + chance.randint(0, 30),
        max_batch_size=8,
        batch_interval=0.010,
        latency_target=chance.choice((None, 0.010, 0.05, 0.5)),
        target_utilization=chance.choice((0.5, 0.8, 1.0)),
        kind=kind,
        target_concurrency=chance.choice((1.0, 16.0)),
        up=behavior(chance, up),
        down=behavior(chance, down),
    )


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(min(4, FACTOR)))
def test_random_ticks_repeat_and_keep_the_bounds_and_grow_with_demand(seed: int) -> None:
    """Load that drifts and jumps, pods that are silent, uneven or restart, and a restart of us."""
    chance, reasons = random.Random(seed), Counter[Cause]()
    for _ in range(WORLDS):
        policy, state, pods = policy_of(chance), ScalingState.empty(), dict[str, Pod]()
        current, rate = policy.min_replicas, 300.0
        for tick in range(TICKS):
            now = 1000.0 + 5.0 * tick + chance.uniform(0.0, 0.5)
            rate = chance.choice((rate, rate, 1.1 * rate, 0.9 * rate, chance.uniform(1.0, 9000.0)))
            if chance.random() < 0.02:
                state = ScalingState.restored(json.loads(json.dumps(state.to_saved())))
            plain, more = look(chance, pods, current, rate, now)

            decision, after = step(policy, state, plain, now)
            above, _ = step(policy, state, more, now)

            assert policy.min_replicas <= decision.desired <= policy.max_replicas
            assert decision.desired <= above.desired
            recorded = record(policy, decision)
            if not tick % 10:
                recorded = json.loads(json.dumps(recorded))
                pause = replace(policy, paused=True)
                paused, _ = step(pause, state, plain, now)
                assert current == paused.desired == replay(record(pause, paused))
            assert decision.desired == replay(recorded)
            reasons[decision.reason] += 1
            state, current = after, decision.desired
    rare = {Cause.PAUSED, Cause.NO_READY_PODS, Cause.TREND, Cause.IDLE, Cause.FIRST_REPLICA}
    rare |= {Cause.BURSTS, Cause.HOT_REPLICA, Cause.OVERLOAD, Cause.MARGIN, Cause.SCHEDULE}
    assert {*Cause} - rare <= {*reasons}


def look(
    chance: random.Random, pods: dict[str, Pod], current: int, rate: float, now: float
) -> tuple[Observation, Observation]:
    """Five seconds later: what is seen, and what would be with more arrivals, all else equal."""
    while len(pods) < current:
        start_up = chance.choice((None, chance.uniform(5.0, 90.0)))
        name = f"pod-{chance.getrandbits(60)}"
        slowness, rows = chance.choice((1.0, 1.0, 2.0)), chance.choice((1.0, 3.0, math.inf))
        pods[name] = Pod(name, now - 3.0, start_up, slowness, rows)
    for name in list(pods)[current:]:
        del pods[name]
    ready = [pod for pod in pods.values() if chance.random() < 0.95]
    crowded = now % 300.0 < 30.0
    factor = chance.choice((1.0, 1.01, 1.5, 10.0))
    plain, more = [], []
    for pod in ready:
        if chance.random() < 0.01:
            fresh = Pod(pod.name, now - 2.0, pod.start_up, pod.slowness, pod.rows_per_request)
            pods[pod.name] = pod = fresh  # noqa: PLW2901 - the same pod with a new process
        rows = 5.0 * rate / len(ready) * chance.uniform(0.8, 1.2)
        pod.serve(chance, rows, crowded=crowded)
        if chance.random() < 0.95:
            plain.append(pod.scrape(now, pod.received))
            more.append(pod.scrape(now, pod.received + (factor - 1.0) * rows))
    sizes = (len(ready), current, "a")
    return Observation(tuple(plain), *sizes), Observation(tuple(more), *sizes)
