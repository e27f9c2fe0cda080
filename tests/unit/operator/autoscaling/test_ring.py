"""The operator's memory of its decisions."""

import json
from datetime import UTC, datetime, timedelta

from tests.unit.operator.worlds import KEY

from batchedapi_core import contract
from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import replay
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.watched import DecisionRing
from batchedapi_operator.cluster import ObjectKey

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def decided(replicas: int) -> tuple[ScalingPolicy, ScalingDecision]:
    """A decision for as many as the user's minimum is."""
    policy = ScalingPolicy(
        min_replicas=replicas, max_replicas=500, max_batch_size=8, batch_interval=0.01
    )
    nothing = Observation(samples=(), ready=0, current=1, revision="r")
    return policy, step(policy, ScalingState.empty(), nothing, 0.0)[0]


def ring_of(*replicas: int) -> DecisionRing:
    """A decision every five seconds."""
    ring = DecisionRing()
    for number, one in enumerate(replicas):
        ring.add(KEY, BEGIN + timedelta(seconds=5 * number), *decided(one))
    return ring


def test_decisions_that_came_to_the_same_are_one_entry() -> None:
    """A quiet hour would else push out the one decision that somebody asks about."""
    ring = ring_of(3, 3, 3, 5, 3)

    assert [
        (3, 1, "2026-01-02T03:04:25Z", "2026-01-02T03:04:25Z"),
        (5, 1, "2026-01-02T03:04:20Z", "2026-01-02T03:04:20Z"),
        (3, 3, "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z"),
    ] == [(one["desired"], one["count"], one["since"], one["time"]) for one in ring.last(KEY, 10)]


def test_an_entry_can_be_taken_again() -> None:
    """F3: replay(record) == desired, also of those that are no longer in the status."""
    (newest, *_) = json.loads(json.dumps(ring_of(3, 7).last(KEY, 2)))

    assert newest["desired"] == replay(newest["record"]) == 7


def test_it_is_bounded() -> None:
    """An API that flaps for a week must not fill the operator's memory."""
    ring = ring_of(*(2 + n % 2 for n in range(10 * contract.DECISIONS_KEPT)))

    kept = ring.last(KEY, 1000)

    assert len(kept) == contract.DECISIONS_KEPT


def test_no_more_than_asked_for_and_nothing_of_others() -> None:
    """The newest first."""
    ring = ring_of(3, 4, 5)

    assert [5, 4] == [one["desired"] for one in ring.last(KEY, 2)]
    assert [] == ring.last(ObjectKey("demo", "other"), 5)


def test_a_deleted_api_is_forgotten() -> None:
    """Its successor of the same name has other replicas for other reasons."""
    ring = ring_of(3, 4)

    ring.forget(KEY)

    assert [] == ring.last(KEY, 5)
