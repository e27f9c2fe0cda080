"""The autoscaler against a small fleet in virtual time: each test is a story with a beginning."""

import json
from dataclasses import dataclass, field, replace

import pytest

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import Cause, ScalingDecision
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.samples import Observation, PodSample, Unready
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

TICK = 2.0
SLEEPY = ServiceTime(fixed=0.010, per_row=0.0002)
SLEEPY_POLICY = ScalingPolicy(
    min_replicas=1, max_replicas=20, max_batch_size=8, batch_interval=0.010
)
ONE_REPLICA = 8 / 0.0116  # rows/s


@dataclass
class Pod:
    """One replica: counters that rise with its share of the load."""

    name: str
    started: float
    counters: dict[str, float] = field(default_factory=dict)
    queue: float = 0.0
    start_up: float | None = None

    def serve(self, rate: float, seconds: float, service: ServiceTime, size: int) -> None:
        """Batches of what arrives while the previous one runs, one row more or less."""
        received = rate * seconds
        rows = min(received + self.queue, size / service.seconds(size) * seconds)
        self.queue = min(self.queue + received - rows, 200.0)
        mean = size if self.queue > 0 else min(size, max(1.0, rate * service.seconds(size)))
        sizes = (size, size) if self.queue > 0 else (max(1.0, mean - 1), min(size, mean + 1))
        batches = rows / (sum(sizes) / 2)
        self._add("received", received)
        for one in sizes:
            half = batches / 2
            self._add("batches", half)
            self._add("rows", half * one)
            self._add("full", half if one >= size else 0.0)
            self._add("seconds", half * service.seconds(one))
            self._add("squared", half * one**2)
            self._add("row_seconds", half * one * service.seconds(one))

    def _add(self, name: str, amount: float) -> None:
        self.counters[name] = self.counters.get(name, 0.0) + amount

    def scrape(self, now: float) -> PodSample:
        """The pod's `/metrics` at that time."""
        get = self.counters.get
        return PodSample(
            pod=self.name,
            time=now,
            process_start=self.started,
            uptime=now - self.started,
            rows_received=get("received", 0.0),
            rows_rejected=0.0,
            batches=get("batches", 0.0),
            rows=get("rows", 0.0),
            full_batches=get("full", 0.0),
            batch_seconds=get("seconds", 0.0),
            rows_squared=get("squared", 0.0),
            row_seconds=get("row_seconds", 0.0),
            queue_rows=self.queue,
            lanes=1.0,
            startup=self.start_up,
        )


@dataclass
class World:
    """Pods behind an even balancer, an operator that looks every two seconds."""

    policy: ScalingPolicy = SLEEPY_POLICY
    start_up: float = 20.0
    now: float = 1000.0
    state: ScalingState = field(default_factory=ScalingState.empty)
    revision: str = "a"
    silent: set[str] = field(default_factory=set)
    room: int = 1000  # pods that get a node; the others are never ready
    fate: str = "unschedulable"  # what the cluster says of those; "": nothing
    desired: int = 1
    pods: list[Pod] = field(default_factory=list)
    decisions: list[ScalingDecision] = field(default_factory=list)
    born: int = 0

    def __post_init__(self) -> None:
        self._follow(ready_at_once=True)

    def _follow(self, *, ready_at_once: bool = False) -> None:
        while len(self.pods) < self.desired:
            started = self.now - (1000.0 if ready_at_once else 0.0)
            measured = None if ready_at_once else self.start_up
            self.pods.append(Pod(f"pod-{self.born}", started, start_up=measured))
            self.born += 1
        del self.pods[self.desired :]

    def ready(self) -> list[Pod]:
        """Pods whose model is loaded."""
        return [pod for pod in self.pods[: self.room] if self.now - pod.started >= self.start_up]

    def unready(self) -> Unready:
        """The cluster's account of the pods that are not ready."""
        ready = self.ready()
        ages = (self.now - pod.started for pod in self.pods if pod not in ready)
        stuck = max(0, len(self.pods) - self.room)
        told = {self.fate: stuck} if self.fate else {}
        return Unready(oldest=max(ages, default=0.0), **told)

    def tick(self, rate: float) -> ScalingDecision:
        """Two seconds of load, one look, and the replicas that follow from it."""
        serving = self.ready()
        for pod in serving:
            pod.serve(rate / len(serving), TICK, SLEEPY, self.policy.max_batch_size)
        self.now += TICK
        ready = self.ready()
        samples = tuple(pod.scrape(self.now) for pod in ready if pod.name not in self.silent)
        seen = Observation(samples, len(ready), self.desired, self.revision, self.unready())
        decision, self.state = step(self.policy, self.state, seen, self.now)
        assert decision.desired == replay(record(self.policy, decision))
        self.desired = decision.desired
        self.decisions.append(decision)
        self._follow()
        return decision

    def run(self, rate: float, seconds: float) -> list[int]:
        """Replicas after each tick of `seconds` at `rate` rows/s."""
        return [self.tick(rate).desired for _ in range(round(seconds / TICK))]


def test_constant_load_converges_and_stays() -> None:
    """Three replicas' worth needs 3.23 at 93 %; what the overload started is given back."""
    world = World()

    world.run(3 * ONE_REPLICA, 600)
    settled = world.run(3 * ONE_REPLICA, 300)

    assert {4} == set(settled)
    assert Cause.DEMAND is world.decisions[-1].reason
    assert 14 >= max(decision.desired for decision in world.decisions)


def test_one_to_several_and_back_to_one() -> None:
    """Up within seconds; down after 60 s and at most by half in 60 s."""
    world = World()
    world.run(20, 300)
    assert 1 == world.desired

    rise = world.run(3 * ONE_REPLICA, 30)
    world.run(3 * ONE_REPLICA, 270)
    peak = world.desired
    fall = world.run(0, 600)

    assert 9 <= max(rise) <= 20
    assert 3 <= peak <= 6
    assert {peak} == set(fall[: int(26 / TICK)])
    assert 1 == fall[-1]
    minute = int(60 / TICK)
    assert all(after >= before / 2 for before, after in zip(fall, fall[minute - 1 :], strict=False))


def test_what_overload_asked_for_is_cancelled_once_enough_are_ready() -> None:
    """The first of three times as many are ready sooner; the others would only cost."""
    world = World()
    world.run(20, 300)

    counts = world.run(3 * ONE_REPLICA, 100)

    assert 9 <= max(counts)
    assert 4 == counts[-1]


def test_a_capacity_learned_from_batches_is_the_true_one() -> None:
    """690 rows/s, within the few percent that the ridge costs."""
    world = World()
    world.run(3 * ONE_REPLICA, 600)

    assert ONE_REPLICA == pytest.approx(world.decisions[-1].terms.capacity, rel=0.05)


def test_a_pod_that_restarts_under_load_moves_nothing() -> None:
    """Its counters fall to zero, which is neither a lull nor a spike."""
    world = World()
    world.run(3 * ONE_REPLICA, 600)
    before = world.desired

    world.pods[0].counters.clear()
    world.pods[0].started = world.now
    world.start_up = 0.0
    after = world.run(3 * ONE_REPLICA, 300)

    assert {before} == set(after)


def test_a_model_that_takes_minutes_to_load_does_not_double_the_demand() -> None:
    """A pod seen first at 120 s of age was not ready before; the others did not serve for it."""
    world = World(start_up=120.0)
    world.run(0.5 * ONE_REPLICA, 300)
    world.policy = replace(SLEEPY_POLICY, min_replicas=2)

    world.run(0.5 * ONE_REPLICA, 300)

    most = max(decision.terms.base for decision in world.decisions[3:])
    assert most < 0.55 * ONE_REPLICA
    assert 2 == len(world.ready())
    assert 2 == max(decision.desired for decision in world.decisions)


def test_the_first_look_after_an_operator_restart_decides_nothing() -> None:
    """Old counters that were never seen before say nothing about now."""
    world = World(desired=4)

    first = world.tick(2 * ONE_REPLICA)

    assert (4, Cause.NO_METRICS) == (first.desired, first.reason)


def test_an_operator_that_restarts_keeps_its_model_and_removes_nothing_for_one_window() -> None:
    """Knowledge of an hour is in the status; knowledge of a start-up's time is gathered again."""
    world = World()
    world.run(3 * ONE_REPLICA, 900)
    held = world.desired

    world.state = ScalingState.restored(world.state.to_saved())
    watched = world.run(0, 28)
    later = world.run(0, 300)

    assert {held} == set(watched)
    assert ONE_REPLICA == pytest.approx(world.decisions[-1].terms.capacity, rel=0.05)
    assert 1 == later[-1]


def test_an_operator_that_restarts_again_and_again_still_scales_down() -> None:
    """Its recommendations and observations are in the status: no restart begins the wait anew."""
    world = World()
    world.run(3 * ONE_REPLICA, 900)
    held = world.desired

    watched = []
    for _ in range(20):
        watched += world.run(0, 6)
        world.state = ScalingState.restored(json.loads(json.dumps(world.state.to_saved())))

    assert watched[-1] < held
    assert {held} == set(watched[: int(26 / TICK)])


def test_an_operator_that_restarts_does_not_hurry_a_scale_down() -> None:
    """Half in a minute, also when the minute began before the restart."""
    world = World()
    world.run(6 * ONE_REPLICA, 900)
    half = -(-world.desired // 2)
    while world.desired > half:
        world.tick(0)

    world.state = ScalingState.restored(world.state.to_saved())
    after = world.run(0, 15)

    assert {half} == set(after)


def test_a_rollout_forgets_the_model_and_keeps_the_recommendations() -> None:
    """Demand is the same for the new revision; how fast it serves is not known yet."""
    world = World()
    world.run(3 * ONE_REPLICA, 600)
    held = world.desired
    world.run(0, 20)

    world.revision = "b"
    counts = world.run(0, 120)

    assert {held} == set(counts[:4])
    assert counts[-1] < held


def test_replicas_are_started_before_a_rising_demand_needs_them() -> None:
    """A start takes a minute here, and the forecast looks as far ahead as starts take."""
    policy = replace(SLEEPY_POLICY, max_replicas=40)
    forward, blind = (
        World(policy=one, start_up=60.0) for one in (policy, replace(policy, forecast_cap=0.0))
    )
    short = {}
    for name, world in (("forward", forward), ("blind", blind)):
        world.run(ONE_REPLICA, 600)
        rates = [ONE_REPLICA * (1 + tick * TICK / 40) for tick in range(48)]
        lacking = 0.0
        for rate in rates:
            world.tick(rate)
            lacking += max(0.0, rate - len(world.ready()) * ONE_REPLICA)
        short[name] = lacking

    assert Cause.TREND in {decision.reason for decision in forward.decisions}
    assert Cause.TREND not in {decision.reason for decision in blind.decisions}
    assert short["forward"] < 0.5 * short["blind"]


def test_the_start_up_time_is_measured() -> None:
    """Until then thirty seconds are taken for it."""
    world = World()
    world.run(20, 60)
    before = world.decisions[-1].terms.start_up
    world.run(3 * ONE_REPLICA, 100)

    assert 30.0 == before
    assert world.start_up == world.decisions[-1].terms.start_up


def test_a_new_revision_is_learned_from_nothing() -> None:
    """Another model has another service time; the old one would size it wrongly."""
    world = World()
    world.run(3 * ONE_REPLICA, 600)
    state = world.state

    world.revision = "b"
    world.silent = {pod.name for pod in world.pods}
    world.tick(3 * ONE_REPLICA)
    world.silent = set()
    decision = world.tick(3 * ONE_REPLICA)

    assert state.model.largest_mean_batch > 2.0
    assert 0.0 < decision.terms.capacity
    assert world.state.model.sums.batches < 0.2 * state.model.sums.batches


def test_an_unknown_model_holds_what_there_is() -> None:
    """The first batches of a process are not representative, so nothing is known yet."""
    world = World(desired=3)
    for pod in world.pods:
        pod.started = world.now

    world.start_up = 0.0
    decision = world.tick(30)

    assert (3, Cause.MODEL_UNKNOWN) == (decision.desired, decision.reason)


@pytest.mark.no_cover
def test_metrics_that_are_gone_for_an_hour_move_nothing() -> None:
    """F10: unknown is not zero; and when they come back a whole window is watched first."""
    world = World()
    world.run(3 * ONE_REPLICA, 600)
    before = world.desired

    world.silent = {pod.name for pod in world.pods}
    dark = world.run(0, 3600)
    assert Cause.NO_METRICS is world.decisions[-1].reason
    world.silent = set()
    back = world.run(0, 26)

    assert {before} == set(dark)
    assert {before} == set(back)
    assert 1 == world.run(0, 600)[-1]


def test_demand_hidden_upstream_is_found_by_growing() -> None:
    """The rate served is more than replicas are planned with, whatever else would arrive."""
    world = World(policy=replace(SLEEPY_POLICY, drain_seconds=1e6))
    world.run(0.9 * ONE_REPLICA, 300)
    assert 1 == world.desired

    world.pods[0].queue = 100.0
    world.run(ONE_REPLICA, 30)

    assert {0.0} == {decision.terms.forecast for decision in world.decisions}
    assert 2 == world.desired


def test_every_sentence_names_count_and_reason() -> None:
    """A user reads it in the status, and nothing else."""
    world = World()
    world.run(3 * ONE_REPLICA, 300)
    world.run(0, 300)

    for decision in world.decisions:
        sentence = explain(world.policy, decision)
        assert sentence.startswith(f"{decision.desired} replica")
        assert f"({decision.reason.value}): " in sentence
