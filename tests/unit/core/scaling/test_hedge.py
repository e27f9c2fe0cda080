"""Ordered is not ready: more is ordered than needed only where that makes replicas ready sooner."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth
from tests.unit.core.scaling.test_stories import ONE_REPLICA, SLEEPY_POLICY, World

from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Cause, Evidence
from batchedapi_core.scaling.need import NODE_MEMORY, hedge_of
from batchedapi_core.scaling.policy import ScalingPolicy, Select
from batchedapi_core.scaling.record import explain
from batchedapi_core.scaling.state import ScalingState

OVERLOADED = evidence_of(worth(2.9), ready=2)


def twenty_minutes(world: World, replicas: float, seed: int) -> list[int]:
    """Replicas after each look, at a load that is as uneven as 2,000 requests a second are."""
    chance = random.Random(seed)
    rates = (replicas * ONE_REPLICA * chance.gauss(1.0, 0.02) for _ in range(600))
    return [world.tick(rate).desired for rate in rates]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("replicas", "fate"), [(3.4, "unschedulable"), (5.0, "failing"), (5.0, "")]
)
def test_pods_that_never_get_ready_are_not_ordered_again_and_again(
    replicas: float, fate: str
) -> None:
    """Three are ready, the rest never is: 70 scale writes and 283 pods in 20 minutes once were."""
    world = World(policy=SLEEPY_POLICY, room=3, fate=fate)
    world.run(20, 300)
    born = world.born

    counts = twenty_minutes(world, replicas, seed=1)

    assert 3 >= sum(before != after for before, after in pairwise([1, *counts]))
    assert 20 >= world.born - born
    assert replicas <= counts[-1] <= 1.2 * replicas + 1


def test_what_was_hedged_is_held_for_a_start_up_and_then_given_up() -> None:
    """A scheduler that needs a moment is no reason to order and cancel in turn."""
    world = World(policy=SLEEPY_POLICY, room=3)
    world.run(20, 300)

    counts = world.run(3.4 * ONE_REPLICA, 60)

    assert {10} == set(counts[:15])
    assert 4 == counts[-1]
    assert "10 were a hedge within the last 20 s and 3 of 4 are ready" in explain(
        world.policy, world.decisions[-20]
    )


def test_without_a_hedge_the_need_is_ordered_and_no_more() -> None:
    """The field's 1, on a cluster where each node is bought."""
    world = World(policy=replace(SLEEPY_POLICY, hedge=1.0))
    world.run(20, 300)

    assert 5 >= max(world.run(3.4 * ONE_REPLICA, 100))
    assert 4 == world.desired


@pytest.mark.no_cover
def test_a_cluster_that_had_no_node_free_is_not_bet_on_for_an_hour() -> None:
    """Nodes that a hedge buys are kept when its pods are cancelled; a restart forgets no wait."""
    world = World(policy=SLEEPY_POLICY, room=1)
    world.run(20, 300)
    world.run(3 * ONE_REPLICA, 10)
    world.room = 1000
    world.run(0.5 * ONE_REPLICA, 600)
    world.state = ScalingState.restored(json.loads(json.dumps(world.state.to_saved())))

    assert 4 >= max(world.run(3 * ONE_REPLICA, 60))
    assert "waited for a node" in world.decisions[-1].terms.hedge_rule

    world.run(0.5 * ONE_REPLICA, NODE_MEMORY)
    assert 9 <= max(world.run(3 * ONE_REPLICA, 60))


@pytest.mark.parametrize(
    ("policy", "evidence", "factor", "rule"),
    [
        (POLICY, OVERLOADED, 3.0, "autoscaling.hedge is not set"),
        (replace(POLICY, hedge=2.0, gpu=True), OVERLOADED, 2.0, "autoscaling.hedge is 2"),
        (
            replace(POLICY, hedge=2.0),
            replace(OVERLOADED, waited_for_node=True),
            2.0,
            "autoscaling.hedge is 2",
        ),
        (
            replace(POLICY, gpu=True),
            OVERLOADED,
            1.0,
            "replicas ask for GPUs or claims and autoscaling.hedge is not set",
        ),
        (
            POLICY,
            replace(OVERLOADED, waited_for_node=True),
            1.0,
            "pods waited for a node within 3600 s and autoscaling.hedge is not set",
        ),
        (
            replace(POLICY, hedge=2.0),
            replace(OVERLOADED, unschedulable=1),
            1.0,
            "no node has room for 1 ordered pod",
        ),
        (POLICY, replace(OVERLOADED, failing=4), 1.0, "4 ordered pods cannot start"),
        (
            POLICY,
            replace(OVERLOADED, oldest_start=41.0, late_after=40.0),
            1.0,
            "an ordered pod is not ready after 41 s, 40 s are expected",
        ),
        (POLICY, replace(OVERLOADED, oldest_start=40.0, late_after=40.0), 3.0, "autoscaling"),
        (
            replace(POLICY, down=replace(POLICY.down, select=Select.DISABLED)),
            OVERLOADED,
            1.0,
            "behavior.scaleDown is Disabled",
        ),
    ],
)
def test_each_rule_has_its_factor_and_says_so(
    policy: ScalingPolicy, evidence: Evidence, factor: float, rule: str
) -> None:
    """A current problem outranks a written setting, and that outranks knowledge of the cluster."""
    found = hedge_of(policy, evidence)
    decision = conclude(policy, evidence)

    assert factor == found.factor
    assert found.rule.startswith(rule)
    assert (factor, factor) == (decision.terms.hedge, decision.terms.boost)
    assert (Cause.OVERLOAD is decision.reason) is (factor > 1.0)
    sentence = explain(policy, decision)
    assert (f"not hedged although 2 ready cannot keep up: {rule}" in sentence) is (factor == 1.0)


def test_a_hedge_of_none_is_refused() -> None:
    """Below 1 it would order less than is needed."""
    with pytest.raises(ValueError, match="hedge >= 1"):
        replace(POLICY, hedge=0.5)
