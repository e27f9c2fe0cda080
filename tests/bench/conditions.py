"""Failures induced one by one: how soon each is told by a condition of its own, and taken back.

    python tests/bench/conditions.py
    python tests/bench/conditions.py --quick --objects statuses.json

etcd and kube-apiserver run on ports of their own. Deployments and pods are objects whose status is
written here as controllers and kubelets write it; what replicas say of a failed start comes from
real replicas with predictors that fail so; pages come from a process that answers on local
addresses. Counted are seconds from the moment the apiserver or the replica's page says it until the
status does, and from the mend. `--quick` leaves out what needs a window of load.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness.control_plane import ADMIN, control_plane
from harness.induced import PATIENCE, Api, Pages, ended, replica_that_fails
from harness.operated import CRD, Rig
from harness.report import Table, environment, help_of, out_option, report
from kubernetes.aio import client, config

from batchedapi_core import contract
from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    SERVICES,
    JsonObject,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from ports import free_port

SECONDS: Final = 10.0
LATE: Final = (25.0, 100.0)
"""To be told that requests are late, and that they no longer are: for the latter the window of a
minute has to pass, and ten seconds of being sure."""
ALONE: Final = (120.0, 120.0)
"""The same of batches, which are to be other than said for half a minute."""
AT_ONCE: Final = 8
NAMESPACE: Final = "failing"
HOLDER: Final = "example.com/keep"
BROKEN: Final = "unexpectedly"
"""Words that the log of an operator must not have."""

Step = Callable[[Api], Awaitable[None]]


@dataclass(frozen=True)
class Failure:
    """A failure: how it is induced, the condition it must give, and how it is mended."""

    name: str
    kind: str
    reason: str
    induce: Step
    mend: Step
    cleared: str
    """The reason once it is mended; empty: the condition, or the whole API, is gone."""
    status: str = "False"
    prepare: Step | None = None
    """Before anything is timed."""
    words: str = ""
    """Text that the message has to have, besides the remedy."""
    spec: JsonObject = field(default_factory=dict)
    pod: JsonObject = field(default_factory=dict)
    """Further fields of its pods."""
    window: tuple[float, float] | None = None
    """Seconds to be told and taken back, where that needs a window of load."""


async def soon(ask: Callable[[], Awaitable[object]], wanted: object, what: str) -> None:
    """Ask until the answer is that."""
    began = time.monotonic()
    while await ask() != wanted:
        assert time.monotonic() - began < PATIENCE, f"waited {PATIENCE} s for {what}"
        await asyncio.sleep(0.1)


async def live(api: Api) -> None:
    """One replica that answers."""
    await api.create()
    await api.start()
    await api.until("Ready", lambda one: one.get("status") == "True")


async def live_pair(api: Api) -> None:
    """Two."""
    await api.create(autoscaling={"minReplicas": 2, "maxReplicas": 2})
    await api.start(2)
    await api.until("Ready", lambda one: one.get("status") == "True")


async def live_workers(api: Api) -> None:
    """One that has loaded its model, and web pods that are to be made."""
    await api.create()
    await api.start()
    await api.until("Ready", lambda one: one.get("reason") == "WebStarting")


async def looked_at(api: Api) -> None:
    """Two of which the autoscaler has seen figures."""
    await live_pair(api)
    await api.until("MetricsAvailable", lambda one: one.get("reason") == "AllPods")


async def judged(api: Api) -> None:
    """Two whose batches have been seen for long enough to say that they fill."""
    await looked_at(api)
    await api.until("BatchingEffective", lambda one: one.get("reason") == "Filling")


async def starting(api: Api) -> None:
    """One replica that has not been ready."""
    await api.create()
    await api.start(ready=False)
    await api.until("Ready", lambda one: one.get("reason") == "ModelLoading")


async def mended_pod(api: Api) -> None:
    """Its only replica is ready after all."""
    await api.pod(ready=True)
    await api.rolled(1, ready=1)


def waits(reason: str, message: str) -> Step:
    """The kubelet cannot start the container."""

    async def induce(api: Api) -> None:
        await api.pod(ready=False, state={"waiting": {"reason": reason, "message": message}})

    return induce


def stands(
    ours: JsonObject | None,
    *,
    beside: JsonObject | None = None,
    init: JsonObject | None = None,
    reason: str = "ContainersNotReady",
    condition: JsonObject | None = None,
) -> Step:
    """A pod that is not ready, for that reason, and the status of each container that it has."""

    async def induce(api: Api) -> None:
        blank = {"name": "i", "image": "i", "imageID": "i", "restartCount": 0, "ready": False}
        own = [{**blank, "name": "serving", **ours}] if ours is not None else []
        ready = {"type": "Ready", "status": "False", "reason": reason}
        status = {
            "phase": "Pending",
            "conditions": [ready, *([condition] if condition else [])],
            "containerStatuses": [*own, *([{**blank, **beside}] if beside else [])],
            "initContainerStatuses": [{**blank, **init}] if init else [],
        }
        await api.rig.merge(PODS, api.pods[-1], {"status": status}, "status")

    return induce


async def held_pod(api: Api) -> None:
    """Deleted, and held by a finalizer of somebody else's."""
    await last_ends(api)
    path = PODS.path(api.rig.namespace, api.pods[-1])
    await api.rig.kube._request("DELETE", path, {}, {"gracePeriodSeconds": 1})


async def rollout_paused(api: Api) -> None:
    """`kubectl rollout pause` of the Deployment, and then a change."""
    await api.rig.merge(DEPLOYMENTS, api.name, {"spec": {"paused": True}})
    before = await api.deployment()
    await api.edit(predictor={"config": {"version": 2}})
    await api.template_changed(before)
    paused = {"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}
    await api.rolled(0, ready=1, old=1, conditions=[{**paused, "message": "m"}])


async def rollout_resumed(api: Api) -> None:
    """By whoever paused it."""
    await api.rig.merge(DEPLOYMENTS, api.name, {"spec": {"paused": None}})
    await api.start()


async def none_ready(api: Api) -> None:
    """Both lose their readiness."""
    for number in range(2):
        await api.pod(number=number, ready=False)
    await api.rolled(2, ready=0)


async def all_ready(api: Api) -> None:
    """Again."""
    for number in range(2):
        await api.pod(number=number, ready=True)
    await api.rolled(2, ready=2)


def creates(sandbox: str = "") -> Step:
    """The kubelet has been creating the container for longer than is told; why it has no sandbox.

    Without a reason it is a kubelet that cannot tell a pull from a mount.
    """

    async def induce(api: Api) -> None:
        told = {"type": "PodReadyToStartContainers", "status": "False"}
        said = {"reason": "PodSandboxNotReady", "message": sandbox} if sandbox else {}
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60.0))
        await api.pod(
            ready=False, state={"waiting": {"reason": "ContainerCreating"}},
            conditions=({**told, **said},), phase="Pending", startTime=began,
        )  # fmt: skip

    return induce


async def evicted(api: Api) -> None:
    """Its node was short of memory."""
    state, why = ended(137, ""), "The node was low on resource: memory."
    await api.pod(ready=False, state=state, phase="Failed", reason="Evicted", message=why)


async def in_its_place(api: Api) -> None:
    """As the pod made instead; the one before is forgotten."""
    await api.pod(ready=True, phase="Running", reason="", message="")
    await api.rolled(1, ready=1)


def web_of(api: Api) -> Api:
    """Its web pods, as an API of their own."""
    return replace(api, name=f"{api.name}-web", pods=[*api.pods])


async def web_cannot_start(api: Api) -> None:
    """Workers answer the queue, and nobody fills it."""
    web = web_of(api)
    await web.start(ready=False)
    await waits("ErrImagePull", "manifest unknown")(web)


async def web_starts(api: Api) -> None:
    """After all."""
    web = web_of(api)
    deployment = await web.deployment()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    web.pods.append(f"{web.name}-{labels[contract.LABEL_REVISION]}-0")
    await web.pod(ready=True)
    await web.rolled(1, ready=1)


def ends(code: int, message: str, reason: str = "Error") -> Step:
    """The container has ended, and waits to be started again."""

    async def induce(api: Api) -> None:
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        await api.pod(ready=False, state=state, last=ended(code, message, reason))

    return induce


def pods_refused(message: str) -> Step:
    """The ReplicaSet controller may not create pods, and the Deployment says so."""

    async def induce(api: Api) -> None:
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
        await api.rolled(0, ready=0, conditions=[{**failure, "message": message}])

    return induce


async def created(api: Api) -> None:
    """With a Deployment that has no pods yet."""
    await api.create()
    await api.deployment()


async def pods_created(api: Api) -> None:
    """The controller could create them."""
    await api.rolled(0, ready=0)


def foreign(resource: Resource) -> tuple[Step, Step]:
    """(somebody else's object has the name of a child, it is deleted)."""

    async def induce(api: Api) -> None:
        labels = {"app": "theirs"}
        pod = {"containers": [{"name": "main", "image": "theirs"}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        deployment = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        service = {"selector": labels, "ports": [{"port": 80}]}
        spec = service if resource is SERVICES else deployment
        await api.rig.post(resource, {"metadata": {"name": api.name}, "spec": spec})
        await api.create()

    async def mend(api: Api) -> None:
        await api.delete(resource)

    return induce, mend


def source(api: Api) -> str:
    """Name of its ConfigMap."""
    return f"{api.name}-source"


async def create_source(api: Api, **more: str) -> None:
    """The ConfigMap with its code."""
    data = {"model.py": "class Model: ...", **more}
    await api.rig.post(CONFIG_MAPS, {"metadata": {"name": source(api)}, "data": data})


async def create_with_source(api: Api) -> None:
    """The API alone."""
    await api.create(predictor={"path": "model:Model", "source": {"configMap": source(api)}})


async def live_with_source(api: Api) -> None:
    """Both, and a replica."""
    await create_source(api)
    await create_with_source(api)
    await api.start()
    await api.until("Ready", lambda one: one.get("status") == "True")


async def delete_source(api: Api) -> None:
    """Somebody cleans up."""
    await api.delete(CONFIG_MAPS, source(api))


async def reserve_key(api: Api) -> None:
    """A file of the name that the replica's manifest has."""
    await api.rig.merge(CONFIG_MAPS, source(api), {"data": {"batchedapi.yaml": "x: y"}})


async def free_key(api: Api) -> None:
    """It is renamed."""
    await api.rig.merge(CONFIG_MAPS, source(api), {"data": {"batchedapi.yaml": None}})


_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"


async def forbid_deployment(api: Api) -> None:
    """By a policy of the cluster, once it is in force."""
    match = {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
             "operations": ["CREATE"], "resources": ["deployments"]}]}  # fmt: skip
    rule = {"expression": f"object.metadata.name != '{api.name}'", "message": "no such name here"}
    spec = {"matchConstraints": match, "validations": [rule], "failurePolicy": "Fail"}
    request, head = api.rig.kube._request, {"metadata": {"name": api.name}}
    group = {"apiVersion": "admissionregistration.k8s.io/v1"}
    await request(
        "POST", f"{_POLICIES}ies", {}, {**group, "kind": "ValidatingAdmissionPolicy", **head,
        "spec": spec},
    )  # fmt: skip
    binding = {"policyName": api.name, "validationActions": ["Deny"]}
    await request(
        "POST", f"{_POLICIES}ybindings", {}, {**group, "kind": "ValidatingAdmissionPolicyBinding",
        **head, "spec": binding},
    )  # fmt: skip
    await until_allowed(api, allowed=False)
    await api.create()


async def allow_deployment(api: Api) -> None:
    """The policy is taken away, and no longer in force."""
    for kind in ("ybindings", "ies"):
        await api.rig.kube._request("DELETE", f"{_POLICIES}{kind}/{api.name}", {})
    await until_allowed(api, allowed=True)


async def is_allowed(api: Api) -> bool:
    """Whether the apiserver takes a Deployment of that name."""
    labels = {"app": "probe"}
    pod = {"containers": [{"name": "main", "image": "probe"}]}
    spec = {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}  # fmt: skip
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": api.name},
            "spec": spec}  # fmt: skip
    path = DEPLOYMENTS.path(api.rig.namespace)
    try:
        await api.rig.kube._request("POST", path, {"dryRun": "All"}, body)
    except ApplyError as error:
        return "no such name here" not in error.message
    return True


async def until_allowed(api: Api, *, allowed: bool) -> None:
    """Wait for the apiserver, which reads its policies now and then."""
    await soon(lambda: is_allowed(api), allowed, f"the policy of {api.name}")


async def hold_deployment(api: Api) -> None:
    """Deleted, and held by a finalizer of somebody else's."""
    await api.rig.merge(DEPLOYMENTS, api.name, {"metadata": {"finalizers": [HOLDER]}})
    await api.delete(DEPLOYMENTS)


async def release_deployment(api: Api) -> None:
    """By whoever held it."""
    await api.rig.merge(DEPLOYMENTS, api.name, {"metadata": {"finalizers": None}})


async def hold_api(api: Api) -> None:
    """The API itself."""
    await api.rig.merge(BATCHED_APIS, api.name, {"metadata": {"finalizers": [HOLDER]}})
    await api.delete(BATCHED_APIS)


async def release_api(api: Api) -> None:
    """It goes."""
    await api.rig.merge(BATCHED_APIS, api.name, {"metadata": {"finalizers": None}})


async def stuck(api: Api) -> None:
    """As the Deployment's controller says after its deadline."""
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    await api.rolled(1, ready=0, conditions=[{**late, "message": "has timed out progressing"}])


async def no_node(api: Api) -> None:
    """As the scheduler says."""
    words = {"reason": "Unschedulable", "message": "0/3 nodes are available: insufficient cpu"}
    await api.pod(
        ready=False, conditions=({"type": "PodScheduled", "status": "False", **words},)
    )  # fmt: skip


async def external(api: Api) -> None:
    """Somebody else chooses the number of replicas."""
    await api.create(autoscaling={"mode": "External"}, replicas=1)
    await api.start()
    await api.until("Ready", lambda one: one.get("status") == "True")


async def scaled_to_nothing(api: Api) -> None:
    """Through spec.replicas, and the pods are gone."""
    await api.edit(replicas=0)
    await until_replicas(api, 0)
    await api.delete(PODS, api.pods[-1])
    await api.rolled(0, ready=0)


async def until_replicas(api: Api, count: int) -> None:
    """The operator has scaled the Deployment."""

    async def replicas() -> object:
        return (await api.deployment())["spec"].get("replicas")

    await soon(replicas, count, f"replicas of {api.name}")


async def scaled_to_one(api: Api) -> None:
    """Again, with a pod."""
    await api.edit(replicas=1)
    await until_replicas(api, 1)
    await api.rolled(1, ready=1)


async def last_ends(api: Api) -> None:
    """Scaled to nothing; the last replica ends, and answers what it has."""
    path = PODS.path(api.rig.namespace, api.pods[-1])
    await api.rig.merge(PODS, api.pods[-1], {"metadata": {"finalizers": [HOLDER]}})
    await api.edit(replicas=0)
    await until_replicas(api, 0)
    await api.rig.kube._request("DELETE", path, {}, {"gracePeriodSeconds": 60})
    await api.rolled(0, ready=0)


async def last_ended(api: Api) -> None:
    """Its kubelet has no more of it."""
    await api.rig.merge(PODS, api.pods[-1], {"metadata": {"finalizers": None}})
    await api.delete(PODS, api.pods[-1])


async def one_of_two_unready(api: Api) -> None:
    """Its probe fails."""
    await api.pod(ready=False)
    await api.rolled(2, ready=1)


async def both_ready(api: Api) -> None:
    """Again."""
    await api.pod(ready=True)
    await api.rolled(2, ready=2)


async def new_revision(api: Api) -> None:
    """A change that needs other pods, of which the first is starting."""
    before = await api.deployment()
    await api.edit(predictor={"config": {"version": 2}})
    await api.template_changed(before)
    await api.start(ready=False, old=1)


async def pause(api: Api) -> None:
    """By its user."""
    await api.edit(paused=True)


async def resume(api: Api) -> None:
    """By its user."""
    await api.edit(paused=False)


def mode(name: str) -> Step:
    """A step that changes the mode, which decides who chooses the number of replicas."""

    async def step(api: Api) -> None:
        replicas = None if name == "Native" else 1
        await api.edit(autoscaling={"mode": name}, replicas=replicas)

    return step


def pages(first: int, **changes: Any) -> Step:
    """A step that changes the metrics pages of all pods from number `first` on."""

    async def step(api: Api) -> None:
        for number in range(first, len(api.pods)):
            for name, value in changes.items():
                setattr(api.page(number), name, value)

    return step


def one_by_one(*, yes: bool) -> Step:
    """Whether batches of the method run request by request."""

    async def step(api: Api) -> None:
        for number in range(len(api.pods)):
            api.page(number).recorder.runs(one_by_one=yes)

    return step


def memory(size: float) -> Step:
    """Memory of a model process."""

    async def step(api: Api) -> None:
        for number in range(len(api.pods)):
            api.page(number).memory[SLOT_MEMORY] = size

    return step


async def many_processes(api: Api) -> None:
    """More than a replica of a fifth of a CPU can feed."""
    await api.edit(predictor={"processesPerReplica": 8})


async def one_process(api: Api) -> None:
    """As its user was advised."""
    await api.edit(predictor={"processesPerReplica": 1})


TARGET: Final[JsonObject] = {
    "serverSideBatching": {"maxLatency": "50ms", "maxBatchSize": 32},
}
CALM: Final = {"queue_wait": 0.002, "batch_seconds": 0.01, "shed": 0.0, "rows": 4, "batches": 4}
DEPLOYMENT, NO_DEPLOYMENT = foreign(DEPLOYMENTS)
SERVICE, NO_SERVICE = foreign(SERVICES)
VOLUME: Final[JsonObject] = {
    "pod": {"volumes": [{"name": "tokens", "secret": {"secretName": "tokens"}}]},
}
QUEUE: Final[JsonObject] = {"serverSideBatching": {"queue": {"redis": {}}}}
MODEL: Final = "ModelLoaded"
VALID: Final = "SpecValid"


RUNS: Final[JsonObject] = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
BACK_OFF: Final[JsonObject] = {"waiting": {"reason": "CrashLoopBackOff", "message": "10s"}}
NO_IMAGE: Final[JsonObject] = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
INITIALIZING: Final[JsonObject] = {"state": {"waiting": {"reason": "PodInitializing"}}}
ANSWERS: Final[JsonObject] = {"state": RUNS, "started": True, "ready": True}
ENDED: Final = ended(3, "")
ADDED: Final[JsonObject] = {"name": "i", "image": "i"}
"""A container that a webhook adds."""
LONG_AGO: Final = "2026-01-02T03:04:05Z"


def homeless(reason: str, message: str) -> JsonObject:
    """The condition of a pod without a node."""
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


async def first_pod(api: Api) -> None:
    """The controller makes one, and it answers."""
    await api.start()


def model(
    name: str, reason: str, induce: Step, words: str = "", *, pod: JsonObject | None = None
) -> Failure:
    """A replica that does not start."""
    return Failure(
        name, MODEL, reason, induce, mended_pod, "Loaded", prepare=starting, words=words,
        pod=pod or {},
    )  # fmt: skip


def waiting(
    name: str, reason: str, induce: Step, words: str = "", *, pod: JsonObject | None = None,
    prepare: Step = starting, mend: Step = mended_pod,
) -> Failure:  # fmt: skip
    """One that waits for something else than its model, which has not failed."""
    return Failure(
        name, MODEL, reason, induce, mend, "Loaded", status="Unknown", prepare=prepare,
        words=words, pod=pod or {},
    )  # fmt: skip


FAILURES: Final = (
    Failure("the source is missing", VALID, "SourceMissing", create_with_source, create_source,
            "Accepted", words="create it"),
    Failure("the source is deleted", VALID, "SourceMissing", delete_source, create_source,
            "Accepted", prepare=live_with_source),
    Failure("the source has a reserved key", VALID, "Invalid", reserve_key, free_key, "Accepted",
            prepare=live_with_source, words="rename that file"),
    Failure("the Deployment is somebody's", VALID, "NotOwned", DEPLOYMENT, NO_DEPLOYMENT,
            "Accepted", words="rename or delete one of them"),
    Failure("the Service is somebody's", VALID, "NotOwned", SERVICE, NO_SERVICE, "Accepted",
            words="rename or delete one of them"),
    Failure("a policy refuses the Deployment", VALID, "PodTemplateRefused", forbid_deployment,
            allow_deployment, "Accepted", words="no such name here"),
    Failure("a webhook refuses pods", VALID, "PodTemplateRefused",
            pods_refused('admission webhook "w" denied the request: no latest tags'),
            pods_created, "Accepted", prepare=created, words="no latest tags"),
    Failure("a quota has no room", VALID, "QuotaExceeded",
            pods_refused('pods "x" is forbidden: exceeded quota: compute, requested: pods=1'),
            pods_created, "Accepted", prepare=created, words="compute"),
    Failure("Pod Security refuses pods", VALID, "PodSecurityDenied",
            pods_refused('pods "x" is forbidden: violates PodSecurity "restricted:latest"'),
            pods_created, "Accepted", prepare=created),
    Failure("a child is held in deletion", "Progressing", "WaitingForDeletion", hold_deployment,
            release_deployment, "NewRevision", prepare=live, words=f"held by {HOLDER}"),
    Failure("the API is held in deletion", "Progressing", "Deleting", hold_api, release_api, "",
            prepare=live, words=f"held by {HOLDER}"),
    Failure("the rollout is paused", "Progressing", "RolloutPaused", rollout_paused,
            rollout_resumed, "RolloutComplete", prepare=live, words="replicas updated"),
    Failure("the rollout is stuck", "Progressing", "ProgressDeadlineExceeded", stuck, mended_pod,
            "RolloutComplete", prepare=starting),
    Failure("no node has room", "Scheduled", "Unschedulable", no_node, mended_pod, "Scheduled",
            prepare=starting, words="insufficient cpu"),
    Failure("a pod is gated", "Scheduled", "SchedulingGated",
            stands(None, condition=homeless("SchedulingGated", "gated")), mended_pod,
            "Scheduled", prepare=starting, pod={"schedulingGates": [{"name": "kueue.example/x"}]}),
    Failure("no scheduler looks", "Scheduled", "NotScheduled", stands(None), mended_pod,
            "Scheduled", status="Unknown", prepare=starting),
    waiting("no pod is there", "NotStarted", pods_created, prepare=created, mend=first_pod),
    waiting("a pod has no node", "NotStarted",
            stands(None, condition=homeless("SchedulingGated", "gated")), "has no node"),
    waiting("a container is being created", "ContainerCreating",
            stands({"state": {"waiting": {"reason": "ContainerCreating"}}}), "creates its"),
    waiting("an init container runs", "InitContainerRunning",
            stands(INITIALIZING, init={"state": RUNS}), "container i runs",
            pod={"initContainers": [ADDED]}),
    model("an init container fails", "InitContainerFailed",
          stands(INITIALIZING, init={"state": BACK_OFF, "lastState": ENDED}),
          "init container i: Error: exit code 3", pod={"initContainers": [ADDED]}),
    model("an init container's image is not there", "InitContainerFailed",
          stands(INITIALIZING, init={"state": NO_IMAGE}),
          "init container i: ErrImagePull: manifest unknown", pod={"initContainers": [ADDED]}),
    waiting("a native sidecar does not start", "SidecarNotReady",
            stands(INITIALIZING, init={"state": RUNS, "started": False}),
            "sidecar i runs, and has not started",
            pod={"initContainers": [{**ADDED, "restartPolicy": "Always"}]}),
    model("a native sidecar fails", "SidecarFailed",
          stands(INITIALIZING, init={"state": BACK_OFF, "lastState": ENDED}),
          "sidecar i: Error: exit code 3",
          pod={"initContainers": [{**ADDED, "restartPolicy": "Always"}]}),
    waiting("a container beside it is not ready", "SidecarNotReady",
            stands(ANSWERS, beside={"state": RUNS}), "container i is not ready",
            pod={"beside": [ADDED]}),
    model("a container beside it fails", "SidecarFailed",
          stands(ANSWERS, beside={"state": BACK_OFF, "lastState": ENDED}),
          "container i: Error: exit code 3", pod={"beside": [ADDED]}),
    model("a container beside it has no image", "SidecarFailed",
          stands(ANSWERS, beside={"state": NO_IMAGE}), "container i: ErrImagePull",
          pod={"beside": [ADDED]}),
    waiting("a readiness gate is closed", "ReadinessGateNotMet",
            stands(ANSWERS, reason="ReadinessGatesNotReady"), "lb.example/ready is not True",
            pod={"readinessGates": [{"conditionType": "lb.example/ready"}]}),
    waiting("a replica is not able to answer", "NotAnswering", stands({**ANSWERS, "ready": False}),
            "its /readyz says no"),
    model("its node is lost", "NodeNotReady", stands(ANSWERS, reason=""), "does not answer"),
    model("its node does not begin", "NodeNotReady",
          stands(None, condition={"type": "PodScheduled", "status": "True",
                                    "lastTransitionTime": LONG_AGO}), "has not begun"),
    model("a kubelet's reason that is new", "ContainerNotStarted",
          waits("OfANewKubelet", "no idea"), "OfANewKubelet: no idea"),
    model("it ends of its own will", "CrashLooping", ends(0, "", "Completed"), "exit code 0"),
    Failure("the last replica does not end", "Ready", "NotEnding", held_pod, last_ended,
            "NoReplicas", prepare=external, words="should have been gone"),
    Failure("no replica is ready", "MetricsAvailable", "NoneReady", none_ready, all_ready,
            "AllPods", prepare=looked_at),
    model("the image cannot be pulled", "ImagePullFailed",
          waits("ImagePullBackOff", 'Back-off pulling image "x:1"'), "x:1"),
    model("the image is not there", "ImagePullFailed",
          waits("ErrImagePull", "manifest unknown"), "manifest unknown"),
    model("the image's name is none", "ImagePullFailed",
          waits("InvalidImageName", "invalid reference format")),
    model("a Secret of env is missing", "CreateContainerConfigError",
          waits("CreateContainerConfigError", 'secret "s" not found'), 'secret "s" not found'),
    replace(model("a volume is missing", "VolumesNotMounted", creates("no pod sandbox exists"),
                  "(one of Secret tokens)"), spec=VOLUME),
    replace(model("a volume is missing, maybe", "ContainerCreating", creates(),
                  "or a volume cannot be mounted (Secret tokens)"), status="Unknown", spec=VOLUME),
    replace(model("a pod is evicted", "PodFailed", evicted, "Evicted: The node was low"),
            mend=in_its_place),
    Failure("web pods cannot start", "Ready", "WebNotStarting", web_cannot_start, web_starts,
            "MinimumReady", prepare=live_workers, words="manifest unknown", spec=QUEUE),
    model("the container cannot be run", "CrashLooping",
          waits("RunContainerError", "exec: not found"), "exec: not found"),
    model("killed for memory", "OutOfMemory", ends(137, "", "OOMKilled"), "spec.compute.mem"),
    model("it ends without a word", "CrashLooping", ends(139, "Segmentation fault"), "139"),
    Failure("the model is loading", "Ready", "ModelLoading", starting, mended_pod,
            "AllReplicasReady"),
    Failure("one of two is not ready", "Ready", "MinimumReady", one_of_two_unready, both_ready,
            "AllReplicasReady", status="True", prepare=live_pair),
    Failure("a new revision is starting", "Ready", "ModelLoading", new_revision, mended_pod,
            "AllReplicasReady", status="Unknown", prepare=live, words="of an earlier one"),
    Failure("no replicas are asked for", "Ready", "NoReplicas", scaled_to_nothing, scaled_to_one,
            "AllReplicasReady", prepare=external),
    Failure("the last replica ends", "Ready", "Draining", last_ends, last_ended, "NoReplicas",
            prepare=external),
    Failure("a rollout, for kstatus", "Reconciling", "NewRevision", new_revision, mended_pod, "",
            status="True", prepare=live),
    Failure("a crash, for kstatus", "Stalled", "OutOfMemory", ends(137, "", "OOMKilled"),
            mended_pod, "", status="True", prepare=starting),
    Failure("it is paused", "AutoscalingActive", "Paused", pause, resume, "Active",
            prepare=looked_at),
    Failure("others scale it", "AutoscalingActive", "External", mode("External"), mode("Native"),
            "Active", prepare=looked_at),
    Failure("nobody scales it", "AutoscalingActive", "Off", mode("Off"), mode("Native"), "Active",
            prepare=looked_at),
    Failure("a page does not come", "MetricsAvailable", "Partial", pages(1, answers=False),
            pages(1, answers=True), "AllPods", status="True", prepare=looked_at, words="1 of 2"),
    Failure("no page comes", "MetricsAvailable", "None", pages(0, answers=False),
            pages(0, answers=True), "AllPods", prepare=looked_at),
    Failure("nothing to scale by", "AutoscalingActive", "MetricsMissing",
            pages(0, answers=False), pages(0, answers=True), "Active", prepare=looked_at),
    Failure("too many processes", "SpecAdvice", "TooManyProcesses", many_processes, one_process,
            "NothingToSay", status="True", prepare=looked_at, words="lower it"),
    Failure("one request at a time", "SpecAdvice", "BatchedOneByOne", one_by_one(yes=True),
            one_by_one(yes=False), "NothingToSay", status="True", prepare=looked_at,
            words="@batched"),
    Failure("memory for fewer copies", "SpecAdvice", "MemoryMayNotHoldCopies", memory(3e9),
            memory(1e8), "NothingToSay", status="True", prepare=looked_at, words="raise it",
            spec={"compute": {"mem": "2Gi"}}),
    Failure("batching is off", "BatchingEffective", "Disabled", pages(0, max_batch_size=1),
            pages(0, max_batch_size=32), "Filling", prepare=judged),
    Failure("rows are shed", "SLOMet", "Shedding", pages(0, shed=1.0), pages(0, **CALM), "Met",
            prepare=judged, spec=TARGET, window=LATE),
    Failure("requests wait too long", "SLOMet", "QueueWait", pages(0, queue_wait=0.4),
            pages(0, **CALM), "Met", prepare=judged, spec=TARGET, window=LATE),
    Failure("batches take too long", "SLOMet", "ExecutionTime",
            pages(0, batch_seconds=0.24, batches=1), pages(0, **CALM), "Met", prepare=looked_at,
            spec=TARGET, window=LATE),
    Failure("requests come alone", "BatchingEffective", "Starved", pages(0, rows=1),
            pages(0, rows=16), "Filling", prepare=judged, window=ALONE),
)  # fmt: skip
STARTS: Final[dict[str, tuple[str, JsonObject, str]]] = {
    "ImportFailed": ("import nothing_of_that_name", {}, "nothing_of_that_name"),
    "InitFailed": ("{head}        raise OSError('no weights')\n{method}return x", {}, "no weights"),
    "ShapeProbeFailed": ("{head}        pass\n{method}return x[:, :1]", {}, "expected rows"),
    "WarmUpFailed": ("{head}        pass\n{method}return x.nothing", {}, "AttributeError"),
    "OutOfMemory": ("{head}        raise MemoryError\n{method}return x", {}, "ran out of memory"),
    "CrashLooping": ("import os; os._exit(4)", {}, "exit code 4"),
    "StartupTimeout": ("import time; time.sleep(60)",
                       {"predictor": {"startupTimeout": "10s"}}, "startupTimeout"),
    "DownloadFailed": ("import nothing",
                       {"predictor": {"model": {"uri": "file:///no/such/weights"}}}, "weights"),
    "DigestMismatch": ("import nothing", {"predictor": {"model": {
                       "uri": "file:///etc/hostname", "sha256": "0" * 64}}}, "expected 000"),
}  # fmt: skip
"""What a real replica is made to fail of: code, spec, and a word of what it says."""
_HEAD: Final = """
from batchedapi_serving import Tensor, batched
class Model:
    def __init__(self, config, context):
"""
_METHOD: Final = """
    @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]))
    def predict(self, x):
        """


def _slot_of_memory() -> int:
    from batchedapi_serving.metrics import slots  # noqa: PLC0415 - of the replica

    return int(slots.MODEL_MEMORY)


SLOT_MEMORY: Final = _slot_of_memory()


async def of_real_replicas(folder: Path) -> list[Failure]:
    """The failed starts, in the words of replicas that failed so."""
    limit = asyncio.Semaphore(2)

    async def one(reason: str) -> Failure:
        code, spec, word = STARTS[reason]
        text = code.replace("{head}", _HEAD.lstrip("\n")).replace("{method}", _METHOD.lstrip("\n"))
        async with limit:
            exit_code, said = await replica_that_fails(folder / reason, text, spec)
        return model(f"a real replica: {reason}", reason, ends(exit_code, said), word)

    return list(await asyncio.gather(*map(one, STARTS)))


@dataclass
class Seen:
    """How one failure went."""

    failure: Failure
    told: float
    cleared: float
    message: str
    faults: list[str]
    objects: dict[str, JsonObject]


async def induced(failure: Failure, api: Api, seconds: float) -> Seen:
    """Prepare, induce, mend, with the seconds that the status took, of which so many are good."""
    faults: list[str] = []
    if failure.prepare is not None:
        await failure.prepare(api)
    await failure.induce(api)

    def said(one: JsonObject) -> bool:
        return (one.get("status"), one.get("reason")) == (failure.status, failure.reason)

    told, body, one = await api.until(failure.kind, said)
    message = one.get("message", "")
    if not said(one):
        faults.append(f"said {one.get('status')} {one.get('reason')}: {message}")
    faults += faults_of(failure, body, one)
    await failure.mend(api)

    def over(now: JsonObject) -> bool:
        return str(now.get("reason", "")) == failure.cleared

    cleared, after, now = await api.until(failure.kind, over)
    if not over(now):
        faults.append(f"mended, and still {now.get('reason')}: {now.get('message')}")
    limits = failure.window or (seconds, seconds)
    if told > limits[0] or cleared > limits[1]:
        faults.append(f"took {told:.1f} s and {cleared:.1f} s")
    return Seen(failure, told, cleared, message, faults, {"told": body, "cleared": after})


def faults_of(failure: Failure, body: JsonObject, one: JsonObject) -> list[str]:
    """Faults of a condition that has the right reason."""
    faults, message = [], one.get("message", "")
    kinds = (failure.kind,) if failure.kind in REASONS else tuple(REASONS)
    known = [REASONS[ConditionType(kind)].get(failure.reason) for kind in kinds]
    remedy = next((found.remedy for found in known if found is not None), None)
    if remedy is None:
        faults.append("the reason is not in the table")
    elif remedy not in message:
        faults.append(f"no remedy: {message}")
    if failure.words not in message:
        faults.append(f"not in its words ({failure.words}): {message}")
    if one.get("observedGeneration") != body.get("metadata", {}).get("generation"):
        faults.append(f"of generation {one.get('observedGeneration')}")
    shown = (body.get("status") or {}).get("message", "")
    breaking = failure.kind in {VALID, MODEL, "Scheduled", "Progressing"}
    if breaking and failure.status == "False" and message[:40] not in shown:
        faults.append(f"`kubectl get -o wide` shows: {shown}")
    return faults


async def run(*, quick: bool, seconds: float) -> tuple[list[Seen], int, float]:
    """All of them; (what was seen, status writes, the most in any second)."""
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
        await config.load_kube_config(str(plane.kubeconfig(ADMIN)))  # type: ignore[no-untyped-call]
        async with client.ApiClient() as connection:
            kube, port, table = Kube(connection), free_port(), Pages()
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await kube._request("POST", path, {}, yaml.safe_load(CRD.read_text()))
            starts = await of_real_replicas(Path(folder) / "replicas-of")
            serving = asyncio.create_task(table.serve(port))
            rig = Rig(plane, kube, port, Path(folder) / "operator.log", NAMESPACE)
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            await kube._request("POST", "/api/v1/namespaces", {}, space)
            rig.start_operator()
            try:
                await soon(rig.leads, True, "the operator, which acts 15 s after it was installed")
                chosen = [one for one in (*FAILURES, *starts) if not (quick and one.window)]
                # those that need a window of load take longest, and hardly anything meanwhile
                chosen.sort(key=lambda one: not one.window)
                places = asyncio.Semaphore(AT_ONCE)

                async def one(number: int, failure: Failure) -> Seen:
                    async with places:
                        api = Api(rig, table, f"api-{number}", failure.spec, pod_spec=failure.pod)
                        return await induced(failure, api, seconds)

                seen = await asyncio.gather(*(one(*pair) for pair in enumerate(chosen)))
            finally:
                rig.stop_operator()
                serving.cancel()
                unexpected = [line for line in rig.log.read_text().splitlines() if BROKEN in line]
                click.echo("\n".join(unexpected[:5]), err=True)
            return seen, *paced(plane.audited())


def paced(requests: list[dict[str, Any]]) -> tuple[int, float]:
    """(status writes of the operator, the most that ended within any second)."""
    times = sorted(
        time.mktime(time.strptime(one["stageTimestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
        + float(f"0{one['stageTimestamp'][19:26]}")
        for one in requests
        if one["verb"] == "patch" and one["requestURI"].partition("?")[0].endswith("/status")
    )
    most = max((sum(t <= u < t + 1.0 for u in times) for t in times), default=0)
    return len(times), most


@click.command(help=help_of(__doc__))
@click.option("--quick", is_flag=True, help="Without those that need a window of load.")
@click.option("--seconds", type=float, default=SECONDS, show_default=True, help="The limit.")
@click.option("--objects", type=click.Path(path_type=Path), help="The APIs as they were, as JSON.")
@out_option
def main(*, quick: bool, seconds: float, objects: Path | None, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    seen, writes, most = asyncio.run(run(quick=quick, seconds=seconds))
    if objects is not None:
        objects.write_text(json.dumps({one.failure.name: one.objects for one in seen}))
    rows = [
        (one.failure.name, f"{one.failure.kind} {one.failure.status} {one.failure.reason}",
         f"{one.told:.1f}", f"{one.cleared:.1f}", "; ".join(one.faults) or "yes")
        for one in sorted(seen, key=lambda one: (bool(one.failure.window), one.failure.kind))
    ]  # fmt: skip
    plain = [one for one in seen if not one.failure.window]
    note = (
        f"{len(seen)} failures. Told within {max(one.told for one in plain):.1f} s, taken back"
        f" within {max(one.cleared for one in plain):.1f} s, but for those that need a window of"
        f" load. {writes} status writes, at most {most:.0f} in any second."
    )
    columns = ("failure", "condition", "told after s", "cleared after s", "as it should be")
    table = Table("Induced failures", columns, rows)
    measured = {
        one.failure.name: {"kind": one.failure.kind, "reason": one.failure.reason,
                           "told": one.told, "cleared": one.cleared, "message": one.message}
        for one in seen
    }  # fmt: skip
    report("conditions", began, [table], notes=[note], measured=measured, out=out)
    faulty = [one.failure.name for one in seen if one.faults]
    if faulty or most > 10:
        click.echo(f"not as it should be: {', '.join(faulty)}; {most} writes in a second", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
