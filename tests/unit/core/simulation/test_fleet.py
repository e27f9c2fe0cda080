"""A fleet: who is started, who goes first, who is paid for, and that nothing is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from batchedapi_core.batching import Strategy
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.simulation import (
    CapacityController,
    Fleet,
    NoisyService,
    Outcome,
    PinnedConnections,
    Places,
    PoissonTrace,
    RecordedTrace,
    SimulatedFleet,
    StepTrace,
    simulate,
    simulate_together,
)

EMB = NoisyService(0.025, 0.005, 32, 0.020, 0.500)
STEP = StepTrace((0.0, 60.0, 180.0), (100.0, 600.0, 100.0), 300.0)
EASY = StepTrace((0.0, 60.0, 180.0), (10.0, 60.0, 10.0), 300.0)
"""Where only births and ends of replicas are looked at."""


@dataclass
class Scripted:
    """A controller that asks for what a function of time says, and remembers what it saw."""

    choice: Callable[[float], int | None]
    seen: list[SimulatedFleet] = field(default_factory=list)

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """See Controller."""
        self.seen.append(fleet)
        return self.choice(fleet.now)


def run(controller: Scripted) -> Outcome:
    """Five minutes of an easy load."""
    return simulate(EMB, EASY, controller, startup=(20.0, 40.0), max_replicas=10)


@pytest.mark.parametrize("strategy", [Strategy.FIXED, Strategy.WINDOW])
def test_the_same_seed_gives_the_same_outcome(strategy: Strategy) -> None:
    """Deterministic: an assertion in CI holds or fails for a reason."""
    service = replace(EMB, strategy=strategy)
    trace = StepTrace((0.0, 10.0), (50.0, 200.0), 40.0)
    one, same, other = (
        simulate(service, trace, Scripted(lambda now: 3 if now > 10 else 1), seed=seed)
        for seed in (1, 1, 2)
    )

    assert one.latencies.tolist() == same.latencies.tolist()
    assert (one.cost, one.missed, one.replicas, one.timeline) == (
        same.cost,
        same.missed,
        same.replicas,
        same.timeline,
    )
    assert one.latencies.tolist() != other.latencies.tolist()


def test_every_request_is_answered_or_refused() -> None:
    """Also those that wait when the trace ends."""
    times = [i / 1000 for i in range(10_000)]
    trace = RecordedTrace(times, [1 + i % 3 for i in range(10_000)])

    outcome = simulate(replace(EMB, queue_limit=50), trace, None, replicas=2)

    assert 10_000 == outcome.requests == outcome.rejected + len(outcome.latencies)
    assert outcome.rejected > 0
    assert outcome.latencies.min() > 0
    answered = sum(second.answered for second in outcome.timeline)
    assert answered < len(outcome.latencies)  # the rest after the end
    batches = sum(rows * count for rows, count in outcome.batch_rows.items())
    assert batches / sum(outcome.batch_rows.values()) == pytest.approx(outcome.mean_rows)


def test_a_replica_is_ready_after_its_start_up_and_not_before() -> None:
    """It is paid for from its creation."""
    controller = Scripted(lambda now: 3 if now >= 60 else None)

    outcome = run(controller)

    first = next(f.now for f in controller.seen if sum(pod.ready for pod in f.pods) > 1)
    every = next(f.now for f in controller.seen if sum(pod.ready for pod in f.pods) == 3)
    assert 80 <= first <= every <= 100
    assert 1 == outcome.scale_events
    assert 60 + 3 * 240 == outcome.cost
    assert (60.0, 1, 3, "") == outcome.replicas[0]
    assert 3 == outcome.max_replicas
    slow = [pod for pod in controller.seen[-1].pods if pod.created > 0]
    assert all(20.0 <= pod.ready_at - pod.created <= 40.0 for pod in slow)


def test_of_too_many_those_not_ready_go_first_then_the_youngest() -> None:
    """As a ReplicaSet does; those that were asked for in error cost next to nothing."""
    sizes = {5.0: 3, 100.0: 6, 110.0: 4, 200.0: 2}
    controller = Scripted(sizes.get)

    run(controller)

    names = {f.now: [pod.name for pod in f.pods] for f in controller.seen}
    assert ["pod-0", "pod-1", "pod-2"] == names[100.0]
    assert 6 == len(names[110.0])
    left = names[111.0]
    assert {"pod-0", "pod-1", "pod-2"} < set(left)
    assert 4 == len(left)
    assert 2 == len(names[201.0])
    assert "pod-0" in names[201.0]


def test_a_replica_that_is_removed_still_answers_what_it_holds() -> None:
    """And is paid for until then."""
    service = NoisyService(10.0, 0.0, 1, 0.0, latency_target=60.0, noise=0.0)
    trace = RecordedTrace([0.5, 0.6, 0.7, 0.8, 59.0], [1] * 5)

    kept = simulate(service, trace, None, replicas=2)
    cut = simulate(service, trace, Scripted(lambda _: 1), replicas=2)

    assert 5 == len(cut.latencies) == len(kept.latencies)
    assert 10 <= cut.cost - cut.seconds <= 41
    assert 120 == kept.cost


def test_fleets_that_share_places_wait_for_each_other() -> None:
    """A start begins with a place; one that is cancelled before wants none."""
    first = Scripted({5.0: 3, 100.0: 1}.get)
    second = Scripted({10.0: 4, 20.0: 2}.get)
    places = Places(3)
    fleets = [
        Fleet(EMB, EASY, one, seed=seed, startup=(7.0, 7.0), places=places)
        for seed, one in enumerate((first, second))
    ]

    outcomes = simulate_together(fleets, places, 150)

    waits = {at: [pod.placed for pod in second.seen[at].pods] for at in (9, 30, 140)}
    assert {9: [0.0], 30: [0.0, None], 140: [0.0, 101.0]} == waits
    assert [1, 1] == [first.seen[30].wanted, second.seen[30].wanted]
    assert [(7.0, 1.0)] == [
        (pod.ready_at - 101.0, float(pod.ready)) for pod in second.seen[140].pods[1:]
    ]
    assert 150 * 3 >= sum(one.cost for one in outcomes)


def test_a_start_up_is_learned_from_the_place_on() -> None:
    """The wait for it is known apart, and whose pods have none is told."""
    policy = ScalingPolicy(1, 9, 32, 0.02, 0.5)
    ours, told = CapacityController(policy), dict[float, tuple[int, float]]()

    def remembered(fleet: SimulatedFleet) -> int | None:
        desired = ours(fleet)
        if ours.decision is not None:
            terms = ours.decision.terms
            told[fleet.now] = (terms.unschedulable, terms.start_up)
        return desired

    places, load = Places(5), StepTrace((0.0, 30.0), (50.0, 300.0), 200.0)
    fleets = [
        Fleet(EMB, EASY, Scripted({2.0: 4, 100.0: 1}.get), startup=(7.0, 7.0), places=places),
        Fleet(EMB, load, remembered, seed=2, startup=(7.0, 7.0), places=places),
    ]

    simulate_together(fleets, places, 160)

    assert (True, 30.0) == (told[90.0][0] > 0, told[90.0][1])
    assert (0, 7.0) == told[150.0]


def test_limits_bind_whatever_the_controller_asks_for() -> None:
    """A baseline needs no clamps of its own."""
    controller = Scripted(lambda now: 1000 if now < 100 else -5)

    outcome = simulate(EMB, EASY, controller, replicas=3, min_replicas=2, max_replicas=7)

    assert {7, 2} == {choice.desired for choice in outcome.replicas}
    assert (2, 7) == (controller.seen[0].min_replicas, controller.seen[0].max_replicas)


def test_without_a_ready_replica_everything_is_refused() -> None:
    """A load balancer without endpoints answers 503."""
    outcome = simulate(EMB, STEP, None, replicas=0, seconds=10)

    assert outcome.requests > 900
    assert outcome.requests == outcome.rejected == outcome.missed
    assert 1.0 == outcome.miss_fraction == outcome.rejected_fraction
    assert outcome.p99 != outcome.p99
    assert 0.0 == outcome.cost == outcome.mean_rows


def test_nothing_happens_to_an_api_that_nobody_asks() -> None:
    """No division by zero requests."""
    outcome = simulate(EMB, StepTrace((0.0,), (0.0,), 10.0), None)

    assert 0 == outcome.requests
    assert 0.0 == outcome.miss_fraction == outcome.rejected_fraction
    assert 0 == simulate(EMB, STEP, None, seconds=0).max_replicas


def test_two_replicas_share_the_load_evenly_at_random() -> None:
    """Counters of a pod are what its metrics page would say."""
    controller = Scripted(lambda _: None)
    simulate(EMB, PoissonTrace(lambda _: 200.0, 60.0), controller, replicas=2)

    one, two = (pod.counters for pod in controller.seen[-1].pods)
    assert one.received == pytest.approx(two.received, rel=0.1)
    assert one.received + two.received == pytest.approx(12_000, rel=0.05)
    assert one.rows <= one.received
    assert one.rows_squared >= one.rows**2 / one.batches
    assert one.batch_seconds == pytest.approx(0.025 * one.batches + 0.005 * one.rows, rel=0.05)
    assert one.row_seconds > 0.0
    assert one.sizes == one.rows
    assert 200.0 == controller.seen[-1].rate


def test_the_reason_of_the_controller_is_written_beside_its_answer() -> None:
    """`--json` prints it as the fourth of each entry."""
    outcome = simulate(EMB, STEP, Scripted(lambda _: 1), seconds=3, why=lambda: "Because")

    assert [(1.0, 1, 1, "Because"), (2.0, 1, 1, "Because"), (3.0, 1, 1, "Because")] == list(
        outcome.replicas
    )


def test_without_a_target_only_what_is_refused_is_missed() -> None:
    """Nobody said what late is."""
    outcome = simulate(replace(EMB, latency_target=None), STEP, None, seconds=120)

    assert outcome.p99 > 10.0
    assert 0.0 == outcome.miss_fraction
    assert outcome.p50 <= outcome.p90 <= outcome.p99


def test_a_pinned_connection_stays_with_its_replica_until_that_has_gone() -> None:
    """As clients with pools stay behind kube-proxy: a few connections are not spread evenly."""
    rng = np.random.default_rng(1)
    pinned = PinnedConnections(8, seed=3)
    first = np.bincount(pinned([0, 1, 2, 3], 8000, rng), minlength=4)
    again = np.bincount(pinned([0, 1, 2, 3], 8000, rng), minlength=4)

    shares = [round(float(one) / 1000) for one in first]
    assert shares == [round(float(one) / 1000) for one in again]
    assert 8 == sum(shares)
    assert len(set(shares)) > 1
    assert {0, 1} == set(pinned([7, 2], 8000, rng).tolist())
