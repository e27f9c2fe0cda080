"""Hindrances that keep a pod from being ready, in the order of its start; pure, of its body.

Told are containers beside ours, gates, and the node. What our own container ended with, and how
long a node may take to create it, is told by `conditions`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batchedapi_core.redaction import without_secrets
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.resources.deployment import CONTAINER

CREATING: Final = "ContainerCreating"
_INITIALIZING: Final = "PodInitializing"
_AWAITED: Final = (CREATING, _INITIALIZING, "")
"""Reasons of a kubelet for a container that has not had its turn."""
BACK_OFF: Final = "CrashLoopBackOff"
_BY_KUBELET: Final = ("ContainersNotReady", "ReadinessGatesNotReady", "PodCompleted", "PodFailed")
"""Reasons of a pod that is not ready; whoever marks the pods of a lost node gives none of them."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a pod is not ready, if not for its model."""

    reason: str
    """A reason of the condition ModelLoaded."""
    seen: str
    failed: bool = True
    """It does not get on by itself, as far as can be seen."""


def unplaced(body: JsonObject, scheduled: str, reason: str) -> str:
    """The reason of Scheduled for a pod without a node; empty for one that has one.

    Args:
        scheduled: Status of PodScheduled; empty without that condition.
    """
    if scheduled == "False":
        return reason if reason == "SchedulingGated" else "Unschedulable"
    spec, status = section(body, "spec"), section(body, "status")
    by_node = status.get("containerStatuses") or status.get("phase", "") not in {"", "Pending"}
    return "" if scheduled or spec.get("nodeName") or by_node else "NotScheduled"


def is_creating(body: JsonObject) -> bool:
    """Whether a pod that has a node has no container of ours yet."""
    status = section(body, "status")
    for one in listed(status, "containerStatuses"):
        if one["name"] == CONTAINER:
            waiting = section(section(one, "state"), "waiting")
            return waiting.get("reason") in {CREATING, _INITIALIZING}
    return status.get("phase") == "Pending"


def before_ours(body: JsonObject) -> Hindrance | None:
    """The first step before our container that is not done."""
    spec, status = section(body, "spec"), section(body, "status")
    sidecars = {
        one["name"]
        for one in listed(spec, "initContainers")
        if one.get("restartPolicy") == "Always"
    }
    for one in listed(status, "initContainerStatuses"):
        name, state = one["name"], section(one, "state")
        sidecar = name in sidecars
        ended = section(state, "terminated")
        if one.get("started") if sidecar else ended.get("exitCode") == 0:
            continue
        what = f"sidecar {name}" if sidecar else f"init container {name}"
        problem = _problem(one)
        if problem:
            reason = "SidecarFailed" if sidecar else "InitContainerFailed"
            return Hindrance(reason, f"{what}: {problem}")
        if "running" not in state:
            return None  # its turn has not come, or its image has not: as of ours
        if sidecar:
            return Hindrance("SidecarNotReady", f"{what} runs, and has not started", failed=False)
        return Hindrance("InitContainerRunning", f"{what} runs", failed=False)
    return None


def beside_ours(body: JsonObject, reason: str) -> Hindrance | None:
    """A hindrance besides our container, or in spite of its start.

    Args:
        reason: Of its condition Ready, which is False.
    """
    containers = list(_others(body))
    for what, one in containers:
        problem = _problem(one)
        if problem:
            return Hindrance("SidecarFailed", f"{what}: {problem}")
    statuses = listed(section(body, "status"), "containerStatuses")
    ours: JsonObject = next((one for one in statuses if one["name"] == CONTAINER), {})
    state = section(ours, "state")
    if (waiting := section(state, "waiting")).get("reason", "") not in {*_AWAITED, BACK_OFF}:
        told = ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
        return Hindrance("ContainerNotStarted", told)
    if waiting or "terminated" in state or not ours.get("started"):
        return None
    if not ours.get("ready"):
        return Hindrance("NotAnswering", "it was started, and its /readyz says no", failed=False)
    for what, one in containers:
        if not one.get("ready"):
            return Hindrance("SidecarNotReady", f"{what} is not ready", failed=False)
    return _beyond_containers(body, reason)


def _beyond_containers(body: JsonObject, reason: str) -> Hindrance | None:
    spec, status = section(body, "spec"), section(body, "status")
    met = {one["type"] for one in listed(status, "conditions") if one["status"] == "True"}
    gates = [one["conditionType"] for one in listed(spec, "readinessGates")]
    closed = ", ".join(gate for gate in gates if gate not in met)
    if closed:
        return Hindrance("ReadinessGateNotMet", f"{closed} is not True", failed=False)
    if reason in _BY_KUBELET:
        return None  # it is about to say that it is
    node = spec.get("nodeName") or "its node"
    return Hindrance("NodeNotReady", f"its containers were ready, and {node} does not answer")


def _others(body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """(what it is, its status) of containers that run beside ours."""
    spec, status = section(body, "spec"), section(body, "status")
    for one in listed(spec, "initContainers"):
        if one.get("restartPolicy") == "Always":
            for found in listed(status, "initContainerStatuses"):
                if found["name"] == one["name"]:
                    yield f"sidecar {one['name']}", found
    for found in listed(status, "containerStatuses"):
        if found["name"] != CONTAINER:
            yield f"container {found['name']}", found


def _problem(container: JsonObject) -> str:
    """Why a container that is not ours does not run, or does not stay; empty where nothing says."""
    if container.get("ready"):
        return ""
    state = section(container, "state")
    waiting = section(state, "waiting")
    last = section(container, "lastState").get("terminated")
    ended = state.get("terminated") or last or {}
    word = waiting.get("reason", "")
    if word not in {*_AWAITED, BACK_OFF}:
        return ": ".join(filter(None, (word, waiting.get("message"))))
    if not ended or ("running" in state and ended.get("exitCode") == 0):
        return ""
    words = ended.get("reason", ""), f"exit code {ended.get('exitCode')}"
    return ": ".join(
        filter(None, (*words, without_secrets(ended.get("message", ""))[-500:].strip()))
    )
