"""Who waits for whose place."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import (
    KEY,
    WALL,
    api_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_operator.autoscaling.watched import LONGEST_WAIT, FullCluster
from batchedapi_operator.cluster import ObjectKey, rfc3339
from batchedapi_operator.views import PodView

NOW = datetime(2026, 1, 2, 3, tzinfo=UTC)
FULL: Final = "0/3 nodes are available: 3 Insufficient cpu."
READY = PodView.of(pod_body("ready"))
WAITS = replace(READY, ready=False, unschedulable=FULL, created=NOW - timedelta(seconds=9))
A, B, C = (ObjectKey("x", name) for name in "abc")


@pytest.mark.parametrize(
    "otherwise",
    [
        {"unschedulable": ""},
        {"unschedulable": "0/3 nodes are available: 3 had no such label."},
        {"gone": True},
        {"created": None},
        {"created": NOW - timedelta(seconds=LONGEST_WAIT + 1.0)},
    ],
)
def test_pods_wait_for_a_place_if_one_that_goes_would_leave_it(otherwise: dict[str, Any]) -> None:
    """Not for a volume or a label of a node, and not for ever."""
    full = FullCluster()
    full.look(A, [READY, WAITS, replace(WAITS, **otherwise)], NOW, gpu=False)

    assert 1 == full.wanted(B, [READY], gpu=False)


def test_a_device_that_a_claim_asks_for_is_a_place() -> None:
    """In the words of the scheduler of Kubernetes 1.34."""
    full = FullCluster()
    claims = "0/2 nodes are available: 2 cannot allocate all claims."
    full.look(A, [replace(WAITS, unschedulable=claims)], NOW, gpu=True)

    assert (0, 1) == (full.wanted(B, [READY], gpu=False), full.wanted(B, [READY], gpu=True))


def test_nobody_gives_way_to_a_lower_priority_or_what_the_others_have_no_use_for() -> None:
    """A replica without a GPU leaves no place for one with it."""
    full, first = FullCluster(), replace(WAITS, priority=5)
    full.look(A, [WAITS, WAITS], NOW, gpu=False)
    full.look(B, [WAITS, WAITS, first], NOW, gpu=True)
    ordinary, high = [READY], [READY, replace(READY, priority=5)]

    assert [2, 5, 3, 3, 2] == [
        full.wanted(C, ordinary, gpu=False),
        full.wanted(C, ordinary, gpu=True),
        full.wanted(C, high, gpu=True),
        full.wanted(A, [], gpu=True),
        full.wanted(B, [], gpu=True),
    ]


def test_who_has_got_a_place_or_is_gone_waits_no_more() -> None:
    """Of each API the last look counts."""
    full = FullCluster()
    for key in (A, B):
        full.look(key, [WAITS], NOW, gpu=False)
    full.look(A, [READY], NOW, gpu=False)
    full.forget(B)

    assert 0 == full.wanted(C, [READY], gpu=False)


@pytest.mark.parametrize("mode", ["Native", "External"])
async def test_replicas_that_are_held_go_while_pods_of_another_api_wait(mode: str) -> None:
    """Whoever scales that one. What is needed stays, and the sentence says who waits."""
    situation = Situation(replicas=1)
    situation.rate = 2000.0
    await situation.run(120.0)
    situation.pods = situation.replicas
    situation.refresh()
    situation.rate = 200.0
    await situation.run(20.0)
    held = situation.replicas

    other(situation, mode, WALL + timedelta(seconds=situation.now))
    await situation.run(10.0)
    text = situation.status["autoscaling"]["lastDecision"]["text"]

    assert situation.replicas < held, text
    assert "; nothing is held as 1 pod of another API waits for a place" in text


def other(situation: Situation, mode: str, created: datetime) -> None:
    """One of the same name in another namespace, whose only pod has no node."""
    key, body = ObjectKey("else", KEY.name), api_body(autoscaling={"mode": mode})
    body["metadata"]["namespace"] = key.namespace
    situation.store.put_api(body)
    situation.store.put_deployment(key, deployment_body(replicas=1, ready=0))
    situation.store.put_replica_set(key, replica_set_body())
    pod = pod_body("other-0", ready=False)
    pod["metadata"]["creationTimestamp"] = rfc3339(created)
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FULL}
    ]
    situation.store.put_pod(key, pod)
