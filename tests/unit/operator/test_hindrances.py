"""Each thing that keeps a pod from being ready has a name of its own, whoever is behind it."""

from copy import deepcopy
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, NOW, api_body, deployment_body, pod_body

from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_operator.reconcile.conditions import load_failure
from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.views import DeploymentView, Observed, PodView

LATE: Final = "2026-01-02T03:04:35Z"
"""30 s after NOW."""
RUNS: Final[dict[str, Any]] = {"running": {"startedAt": NOW}}
LOADING: Final[dict[str, Any]] = {"name": "serving", "state": RUNS, "started": False}
STARTED: Final[dict[str, Any]] = {"name": "serving", "state": RUNS, "started": True, "ready": False}
READY: Final[dict[str, Any]] = {**STARTED, "ready": True}
INITIALIZING: Final[dict[str, Any]] = {
    "name": "serving", "state": {"waiting": {"reason": "PodInitializing"}},
}  # fmt: skip
BACK_OFF: Final[dict[str, Any]] = {"waiting": {"reason": "CrashLoopBackOff", "message": "10s"}}


def ended(code: int, **more: Any) -> dict[str, Any]:
    """A state, or the last one."""
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **more}}


def waits(reason: str, message: str = "why") -> dict[str, Any]:
    """A state."""
    return {"waiting": {"reason": reason, "message": message}}


def pod(
    *containers: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    sidecars: tuple[str, ...] = (),
    gates: tuple[str, ...] = (),
    conditions: tuple[dict[str, Any], ...] = (),
    reason: str = "ContainersNotReady",
    **status: Any,
) -> dict[str, Any]:
    """A pod on a node that is not ready; without containers its node has none of it."""
    body = deepcopy(pod_body(ready=False))
    body["spec"] = {
        "nodeName": "node-1",
        "initContainers": [{"name": name, "restartPolicy": "Always"} for name in sidecars],
        "readinessGates": [{"conditionType": gate} for gate in gates],
    }
    told = {"type": "Ready", "status": "False", "reason": reason}
    body["status"] |= {
        "phase": "Pending", "conditions": [told, *conditions], "initContainerStatuses": list(init),
        "containerStatuses": list(containers), **status,
    }  # fmt: skip
    return body


def homeless(*conditions: dict[str, Any]) -> dict[str, Any]:
    """A pod without a node."""
    body = pod(conditions=conditions)
    del body["spec"]["nodeName"]
    return body


def held(reason: str, message: str = "why") -> dict[str, Any]:
    """The condition that the scheduler or the apiserver gives a pod without a node."""
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


def told(body: dict[str, Any], now: str = NOW) -> dict[str, tuple[str, str, str]]:
    """(status, reason, message) by type, of an API whose only pod that is."""
    deployment = DeploymentView.of(deployment_body(replicas=1, ready=0))
    observed = Observed(status={}, deployment=deployment, pods=(PodView.of(body),))
    found = plan(api_body(), observed, IMAGE, now).status["conditions"]
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in found}


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        (pod(INITIALIZING, init=({"name": "i", "state": RUNS},)),
         ("Unknown", "InitContainerRunning"), "init container i runs"),
        (pod(INITIALIZING, init=({"name": "i", "state": BACK_OFF, "lastState": ended(3)},)),
         ("False", "InitContainerFailed"), "init container i: Error: exit code 3"),
        (pod(INITIALIZING, init=({"name": "i", "state": RUNS, "lastState": ended(3)},)),
         ("False", "InitContainerFailed"), "exit code 3"),
        (pod(INITIALIZING, init=({"name": "i", "state": waits("ImagePullBackOff", "no x:1")},)),
         ("False", "InitContainerFailed"), "init container i: ImagePullBackOff: no x:1"),
        (pod(INITIALIZING, init=({"name": "a", "state": ended(0)}, {"name": "b", "state": RUNS})),
         ("Unknown", "InitContainerRunning"), "init container b runs"),
        (pod(INITIALIZING, init=({"name": "s", "state": BACK_OFF, "lastState": ended(1)},),
             sidecars=("s",)), ("False", "SidecarFailed"), "sidecar s: Error: exit code 1"),
        (pod(INITIALIZING, init=({"name": "s", "state": RUNS, "started": False},),
             sidecars=("s",)), ("Unknown", "SidecarNotReady"), "sidecar s runs, and has not"),
        (pod(READY, init=({"name": "s", "state": RUNS, "started": True, "ready": False},),
             sidecars=("s",)), ("Unknown", "SidecarNotReady"), "sidecar s is not ready"),
        (pod(READY, {"name": "proxy", "state": RUNS, "ready": False}),
         ("Unknown", "SidecarNotReady"), "container proxy is not ready"),
        (pod(LOADING, {"name": "proxy", "state": waits("ErrImagePull")}),
         ("False", "SidecarFailed"), "container proxy: ErrImagePull: why"),
        (pod(READY, {"name": "proxy", "state": ended(0)}),
         ("False", "SidecarFailed"), "container proxy: Completed: exit code 0"),
        (pod(READY, gates=("lb/ready",), reason="ReadinessGatesNotReady"),
         ("Unknown", "ReadinessGateNotMet"), "lb/ready is not True"),
        (pod(READY, reason=""), ("False", "NodeNotReady"), "node-1 does not answer"),
        (pod(READY), ("Unknown", "ModelLoading"), ""),
        (pod(STARTED), ("Unknown", "NotAnswering"), "its /readyz says no"),
        (pod(LOADING), ("Unknown", "ModelLoading"), ""),
        (pod(), ("Unknown", "ContainerCreating"), "its node creates its container"),
        (pod({"name": "serving", "state": waits("ContainerCreating")}),
         ("Unknown", "ContainerCreating"), "its node creates its container"),
        (pod(INITIALIZING, init=({"name": "i", "state": waits("PodInitializing")},)),
         ("Unknown", "ContainerCreating"), "its node creates its container"),
        (pod({"name": "serving", "state": waits("OfANewKubelet")}),
         ("False", "ContainerNotStarted"), "OfANewKubelet: why"),
        (pod({"name": "serving", "state": BACK_OFF, "lastState": ended(0)}),
         ("False", "CrashLooping"), "exit code 0"),
        (pod({**LOADING, "lastState": ended(0)}), ("Unknown", "ModelLoading"), ""),
        (homeless(held("SchedulingGated")), ("Unknown", "NotStarted"), "has no node"),
        (homeless(), ("Unknown", "NotStarted"), "has no node"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_being_ready_has_a_name_of_its_own(
    body: dict[str, Any], expected: tuple[str, str], words: str
) -> None:
    """A model was said to load while a container that somebody had added was failing."""
    status, reason, message = told(body)["ModelLoaded"]

    assert expected == (status, reason)
    assert words in message
    assert message.endswith(REASONS[ConditionType.MODEL_LOADED][reason].remedy)
    assert (status == "False") is (load_failure(PodView.of(body)) is not None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (homeless(), ("Unknown", "NotScheduled")),
        (homeless(held("Unschedulable")), ("False", "Unschedulable")),
        (homeless(held("SchedulingGated")), ("False", "SchedulingGated")),
        (homeless(held("SchedulerError")), ("False", "Unschedulable")),
        (homeless({"type": "PodScheduled", "status": "True"}), ("True", "Scheduled")),
        (pod(), ("True", "Scheduled")),
    ],
)
def test_a_pod_without_a_node_is_never_scheduled(
    body: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Nobody may have looked at it yet, or a gate may hold it."""
    found = told(body)

    assert expected == found["Scheduled"][:2]
    assert expected[0] == "True" or ("False", expected[1]) == found["Ready"][:2]


def test_a_node_that_does_not_begin_with_a_pod_is_told() -> None:
    """It has died since it was chosen."""
    body = pod(conditions=({"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW},))

    assert "ContainerCreating" == told(body)["ModelLoaded"][1]
    late = told(body, LATE)["ModelLoaded"]

    assert ("False", "NodeNotReady") == late[:2]
    assert "has not begun with it after 30 s" in late[2]


def test_a_ready_pod_is_hindered_by_nothing() -> None:
    """Whatever its containers did before."""
    body = pod({**READY, "lastState": ended(1)}, {"name": "proxy", "state": RUNS, "ready": False})
    body["status"]["conditions"][0]["status"] = "True"

    assert "Loaded" == told(body)["ModelLoaded"][1]


def test_a_paused_rollout_is_told_until_it_is_complete() -> None:
    """`kubectl rollout pause` of the child: it looked as if it would go on."""

    def told_of(updated: int) -> tuple[str, str]:
        paused = {"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}
        body = deployment_body(replicas=2, ready=2, conditions=[paused])
        body["spec"]["paused"] = True
        body["status"] |= {"updatedReplicas": updated, "replicas": 2}
        observed = Observed(status={}, deployment=DeploymentView.of(body))
        status = plan(api_body(), observed, IMAGE, NOW).status
        (one,) = (one for one in status["conditions"] if one["type"] == "Progressing")
        return one["reason"], status["message"]

    assert "RolloutPaused" == told_of(1)[0]
    assert "Deployment iris: 1 of 2 replicas updated; `kubectl rollout resume`" in told_of(1)[1]
    assert "RolloutComplete" == told_of(2)[0]


def test_a_pod_that_should_be_gone_and_is_not_is_told() -> None:
    """A finalizer holds it, or its node has died."""
    body = pod(READY, phase="Running")
    body["metadata"]["deletionTimestamp"] = NOW
    deployment = DeploymentView.of(deployment_body(replicas=0, ready=0))
    observed = Observed(status={}, deployment=deployment, pods=(PodView.of(body),))

    def ready(now: str) -> tuple[str, float | None]:
        made = plan(api_body(), observed, IMAGE, now)
        (one,) = (one for one in made.status["conditions"] if one["type"] == "Ready")
        return one["reason"], made.retry_after

    assert ("Draining", 8.0) == ready(NOW)
    assert ("NotEnding", None) == ready(LATE)
