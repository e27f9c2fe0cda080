"""Conditions of a BatchedAPI: pure functions of what was observed."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.reconcile.views import DeploymentView, PodView

MESSAGE_LENGTH: Final = 1024
DELETING: Final = "Deleting"
WAITING: Final = "WaitingForDeletion"
STUCK: Final = "ProgressDeadlineExceeded"
NOT_PERMITTED: Final = "NotPermitted"
_HINDRANCES: Final = (DELETING, WAITING, NOT_PERMITTED)
_BREAKING: Final = (
    ConditionType.SPEC_VALID,
    ConditionType.MODEL_LOADED,
    ConditionType.SCHEDULED,
)
_IMAGE_REASONS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
)
_CONTAINER: Final = r"\bspec\.(?:template\.spec\.)?containers\[\d+\]\."
_PATHS: Final = (
    (rf"{_CONTAINER}resources[\w.\[\]/-]*", "spec.compute"),
    (rf"{_CONTAINER}(env|envFrom)\[\d+\]", r"spec.predictor.\1[]"),
    (rf"{_CONTAINER}(image|env|envFrom)\b", r"spec.predictor.\1"),
    (rf"{_CONTAINER}volumeMounts\[\d+\]", "spec.pod.volumeMounts[]"),
    (r"\bspec\.(?:template\.spec\.)?volumes\[\d+\]", "spec.pod.volumes[]"),
    (r"\bcsi\.name\b", "csi.nodePublishSecretRef.name"),  # both as the apiserver calls them
    (r"\bprojected\.path\b", "projected.sources[].serviceAccountToken.path"),
    (rf"{_CONTAINER}|\bspec\.template\.(?:spec|metadata)\.(?:securityContext\.)?", "spec.pod."),
    (r"\bspec\.template\.(labels|annotations)", r"spec.pod.\1"),
)
"""Fields of a Deployment or a pod, and of a manifest; some lists begin with members of our own."""
_RESOURCES: Final = (
    (r"\bcpu\b", "spec.compute.cpu"),
    (r"\bmemory\b", "spec.compute.mem"),
    (r"nvidia\.com/gpu", "spec.compute.gpu"),
    (r"\bpods=", "spec.autoscaling.maxReplicas"),
    (r"\bPriorityClass\b", "spec.pod.priorityClassName"),
    (r"\bRuntimeClass\b", "spec.pod.runtimeClassName"),
)
"""What quotas, limits and admission speak of."""
_WEB: Final = "spec.serverSideBatching.queue.web"
_OF_WEB: Final = (
    ("spec.compute", _WEB),
    ("spec.autoscaling.maxReplicas", f"{_WEB}.maxReplicas"),
)
"""Fields of the model's pods, and of the web pods."""
_START_REASONS: Final = REASONS[ConditionType.MODEL_LOADED].keys() - {
    "Loaded", "ModelLoading", "ImagePullFailed", "ScaledToZero",
}  # fmt: skip
"""What a replica may write into its termination message."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition before it is given its times."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Front:
    """Who answers for an API with a queue."""

    deployment: DeploymentView | None = None
    """Of its web pods."""
    pods: Sequence[PodView] = ()
    at_zero: bool = False
    """No worker runs, and by intent: the first row orders some."""


def told(
    kind: ConditionType, status: Literal["True", "False", "Unknown"], reason: str, what: str = ""
) -> Condition:
    """One with a reason of `REASONS`: `what` was seen, then the remedy, which is never cut off."""
    remedy = REASONS[kind][reason].remedy
    room = MESSAGE_LENGTH - len(remedy) - 2
    return Condition(kind, status, reason, "; ".join(filter(None, (what[:room], remedy))))


def dated(
    conditions: Iterable[Condition], before: Sequence[JsonObject], generation: int, now: str
) -> list[JsonObject]:
    """As JSON; the time of the last transition moves only when the status changes."""
    known = {one["type"]: one for one in before}
    answer = []
    for condition in conditions:
        old = known.get(condition.type)
        unchanged = old is not None and old["status"] == condition.status
        answer.append(
            {
                "type": condition.type.value,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:MESSAGE_LENGTH],
                "lastTransitionTime": old["lastTransitionTime"] if old and unchanged else now,
                "observedGeneration": generation,
            }
        )
    return answer


def states(
    status: Mapping[str, Any], kinds: Collection[ConditionType]
) -> dict[str, tuple[str, str]]:
    """Status and reason of those conditions: what it means that one has changed."""
    return {
        one["type"]: (one["status"], one["reason"])
        for one in status.get("conditions") or ()
        if one["type"] in kinds
    }


def spec_valid(
    problem: InvalidSpecError | None,
    deployment: DeploymentView | None,
    pods: Sequence[PodView] = (),
    front: "Front | None" = None,
) -> Condition:
    """Whether what the user wrote can become pods, of both roles where there are two."""
    kind = ConditionType.SPEC_VALID
    if problem is not None:
        return told(kind, "False", problem.reason, problem.message)
    refusal = deployment.refusal(pods) if deployment is not None else None
    if refusal is not None:
        return told(kind, "False", refusal_reason(refusal), in_our_words(refusal))
    if front is not None and front.deployment is not None:
        refusal = front.deployment.refusal(front.pods)
    if refusal is not None:
        return told(kind, "False", refusal_reason(refusal), of_web(in_our_words(refusal)))
    return told(kind, "True", "Accepted")


def in_our_words(message: str) -> str:
    """An apiserver's refusal of a child or a pod, with the fields of the manifest it is about."""
    for path, ours in _PATHS:
        message = re.sub(path, ours, message)
    if "spec." in message:
        return message
    fields = [field for resource, field in _RESOURCES if re.search(resource, message)]
    return f"{', '.join(fields)}: {message}" if fields else message


def of_web(message: str) -> str:
    """What was said of a web pod, with the fields of web pods."""
    for field, theirs in _OF_WEB:
        message = message.replace(field, theirs)
    return message


def refusal_reason(message: str) -> str:
    """Which reason of SpecValid an apiserver's refusal of a child or a pod is."""
    if "exceeded quota" in message or "failed quota" in message:
        return "QuotaExceeded"
    if "violates PodSecurity" in message:
        return "PodSecurityDenied"
    return "PodTemplateRefused"


def first_to_tell(found: Iterable[Condition]) -> str:
    """What a user should read first: what is broken, before how many replicas answer."""
    by_type = {one.type: one for one in found}
    progress = by_type[ConditionType.PROGRESSING]
    broken = [by_type[kind] for kind in _BREAKING if by_type[kind].status == "False"]
    if progress.reason in _HINDRANCES:
        broken.insert(0, progress)
    elif progress.reason == STUCK:
        broken.append(progress)
    return (broken or [by_type[ConditionType.READY]])[0].message


def ready(
    deployment: DeploymentView | None,
    pods: Sequence[PodView] = (),
    causes: Iterable[Condition] = (),
    *,
    current: bool = True,
) -> Condition:
    """Whether anybody answers as the manifest says.

    Args:
        deployment: None: there is none yet.
        pods: Of the API.
        causes: The first that is False says why nobody does.
        current: A replica of what the manifest says answers. Without one it is not ready, however
            many of an earlier revision go on answering: who waits for it waits for the new one.
    """
    kind = ConditionType.READY
    cause = next((one for one in causes if one.status == "False"), None)
    answering = 0 if deployment is None else deployment.ready
    if cause is not None and (answering == 0 or not current):
        earlier = f"{_earlier(answering)}; " if answering else ""
        return Condition(kind, "False", cause.reason, earlier + cause.message)
    if deployment is None or deployment.replicas == 0:
        ending = sum(pod.ending for pod in pods)
        if ending:
            return told(kind, "False", "Draining", f"{ending} replicas end, and no other is there")
        return told(kind, "False", "NoReplicas", "no replicas are asked for")
    share = f"{answering} of {deployment.replicas} replicas ready"
    if answering == 0 or not current:
        if answering:
            return told(kind, "Unknown", "ModelLoading", _earlier(answering))
        return told(kind, "False", "ModelLoading", share)
    reason = "MinimumReady" if answering < deployment.replicas else "AllReplicasReady"
    return told(kind, "True", reason, share)


def ready_by_roles(
    workers: Condition,
    deployment: DeploymentView | None,
    front: Front,
    causes: Iterable[Condition],
) -> Condition:
    """`ready` of an API with a queue, whose workers are `workers`: web pods answer, and hold rows.

    Without a worker it is ready where that is the intent, and while the first ones start.
    """
    kind, web = ConditionType.READY, front.deployment
    cause = next((one for one in causes if one.status == "False"), None)
    if workers.status != "True" and cause is not None:
        return workers
    if web is None or web.ready == 0:
        starting = "0 web pods ready" if web is None else f"0 of {web.replicas} web pods ready"
        failures = [load_failure(pod) for pod in front.pods if not pod.gone]
        seen = [starting, *[of_web(one[1]) for one in failures if one][:1], workers.message]
        return told(kind, "False", "WebStarting", "; ".join(seen))
    share = f"{web.ready} of {web.replicas} web pods ready"
    if front.at_zero:
        return told(kind, "True", "ScaledToZero", share)
    if workers.reason == "ModelLoading" and workers.status == "False" and deployment is not None:
        return told(kind, "True", "Waking", f"{share}, {deployment.replicas} replicas start")
    reason = workers.reason
    if reason == "AllReplicasReady" and web.ready < web.replicas:
        reason = "MinimumReady"
    return replace(workers, reason=reason, message=f"{workers.message}, {share}")


def _earlier(answering: int) -> str:
    return f"no replica of this manifest answers, {answering} of an earlier one do"


def progressing(deployment: DeploymentView | None, front: Front | None = None) -> Condition:
    """Whether pods of another revision are on their way; with a queue, of both roles."""
    kind = ConditionType.PROGRESSING
    if deployment is None:
        return told(kind, "True", "NewRevision", "the Deployment is yet to be created")
    verdict = deployment.conditions.get("Progressing")
    if verdict is not None and verdict.reason == STUCK:
        return told(kind, "False", STUCK, verdict.message)
    if not rolled_out(deployment):
        updated = f"{deployment.updated} of {deployment.replicas} replicas updated"
        return told(kind, "True", "NewRevision", updated)
    web = None if front is None else progressing(front.deployment)
    if web is None or web.reason == "RolloutComplete":
        return told(kind, "False", "RolloutComplete")
    return replace(web, message=f"web pods: {web.message}")


def not_permitted(message: str) -> Condition:
    """That the operator lacks a right; `message` is RBAC's own, with the verb and the resource."""
    what = f"the operator lacks a right: {message}"
    return told(ConditionType.PROGRESSING, "False", NOT_PERMITTED, what)


def rolled_out(deployment: DeploymentView) -> bool:
    """Only pods of the current revision are left, and the Deployment once had enough of them."""
    verdict = deployment.conditions.get("Progressing")
    arrived = deployment.replicas == 0 or (
        verdict is not None and verdict.reason == "NewReplicaSetAvailable"
    )
    return deployment.settled and arrived and deployment.existing <= deployment.updated


def model_loaded(pods: Sequence[PodView], revision: str, *, at_zero: bool = False) -> Condition:
    """Whether the current revision's model loads; a failure is told in the replica's own words."""
    kind = ConditionType.MODEL_LOADED
    current = [pod for pod in pods if pod.revision == revision and not pod.gone]
    failures = [failure for pod in current if (failure := load_failure(pod)) is not None]
    if failures:
        return told(kind, "False", *failures[0])
    if any(pod.ready for pod in current):
        return told(kind, "True", "Loaded")
    if at_zero:
        return told(kind, "Unknown", "ScaledToZero", "no replica runs")
    return told(kind, "Unknown", "ModelLoading", "no replica has loaded it yet")


def load_failure(pod: PodView) -> tuple[str, str] | None:
    """(reason, what was seen) of a pod that cannot start; None for one that runs or is starting."""
    if pod.ready:
        return None
    if pod.waiting_reason in _IMAGE_REASONS:
        return "ImagePullFailed", f"pod {pod.name}: {pod.waiting_message or pod.waiting_reason}"
    if pod.waiting_reason in {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }:
        return "CrashLooping", f"pod {pod.name}: {pod.waiting_reason}: {pod.waiting_message}"
    if pod.exit_reason == "OOMKilled":
        return "OutOfMemory", f"pod {pod.name}: used more than spec.compute.mem"
    if pod.exit_code == 0:
        return None
    try:
        said = json.loads(pod.exit_message)
        reason, message = str(said["reason"]), str(said["message"])
    except (ValueError, KeyError, TypeError):  # it gave no reason: the tail of its log
        reason, message = "", f"exit code {pod.exit_code}: {pod.exit_message[-500:].strip()}"
    return reason if reason in _START_REASONS else "CrashLooping", f"pod {pod.name}: {message}"


def scheduled(pods: Sequence[PodView]) -> Condition:
    """Whether every replica has a node."""
    kind = ConditionType.SCHEDULED
    waiting = [pod for pod in pods if pod.unschedulable and not pod.gone]
    if waiting:
        share = f"{len(waiting)} of {len(pods)} pods: {waiting[0].unschedulable}"
        return told(kind, "False", "Unschedulable", share)
    if not pods:
        return told(kind, "Unknown", "NoReplicas", "there are no pods")
    return told(kind, "True", "Scheduled")


def for_tools(found: Sequence[Condition]) -> Condition | None:
    """Stalled or Reconciling, which kstatus knows, and with it Flux, Argo CD and Helm.

    They wait while something moves by itself, and give up on what stays until somebody changes
    something. A model that fails in some replicas while others answer is neither.
    """
    by_type = {one.type: one for one in found}
    answers = by_type[ConditionType.READY].status == "True"
    for kind in (ConditionType.SPEC_VALID, ConditionType.PROGRESSING, ConditionType.MODEL_LOADED):
        one = by_type[kind]
        excused = kind is ConditionType.MODEL_LOADED and answers
        if one.status == "False" and REASONS[kind][one.reason].lasting and not excused:
            return Condition(ConditionType.STALLED, "True", one.reason, one.message)
    valid, progress = by_type[ConditionType.SPEC_VALID], by_type[ConditionType.PROGRESSING]
    moving = progress.status == "True" or progress.reason in _HINDRANCES
    pending = valid if valid.status == "False" else progress if moving else None
    if pending is None:
        return None
    return Condition(ConditionType.RECONCILING, "True", pending.reason, pending.message)
