"""Conditions of a BatchedAPI: pure functions of what was observed."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from batchedapi_core import contract
from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_core.redaction import for_people, without_secrets
from batchedapi_operator.cluster import JsonObject, listed
from batchedapi_operator.errors import (
    ApplyError,
    InvalidSpecError,
    NotPermittedError,
    WebhookError,
)
from batchedapi_operator.hindrances import CREATING, Hindrance
from batchedapi_operator.resources.revised import GivenUp
from batchedapi_operator.views import DeploymentView, PodView

MESSAGE_LENGTH: Final = 1024
DELETING: Final = "Deleting"
WAITING: Final = "WaitingForDeletion"
STUCK: Final = "ProgressDeadlineExceeded"
NOT_MOUNTED: Final = "VolumesNotMounted"
CREATION_SECONDS: Final = 30.0
"""For a node to mount volumes and pull an image, before it is told that it has not."""
REPLACED_SECONDS: Final = 60.0
"""In which a pod that failed is replaced: what is created later was ordered for another reason."""
NOT_PERMITTED: Final = "NotPermitted"
WEBHOOK_FAILED: Final = "WebhookFailed"
REQUEST_FAILED: Final = "RequestFailed"
PAUSED: Final = "RolloutPaused"
ROLLED_BACK: Final = "RolledBack"
ENDING_SECONDS: Final = 8.0
"""For a pod to be gone after its grace period, before it is told that it is not."""
_HINDRANCES: Final = (DELETING, WAITING, NOT_PERMITTED, WEBHOOK_FAILED, REQUEST_FAILED)
BREAKING: Final = (ConditionType.SPEC_VALID, ConditionType.MODEL_LOADED, ConditionType.COMPARED)
"""Conditions of which each, where it is False, breaks an API; the one to tell first is first."""
_WAITING: Final = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "CreateContainerConfigError": "CreateContainerConfigError",
    "CreateContainerError": "CrashLooping",
    "RunContainerError": "CrashLooping",
}
"""Kubelets' reasons for a container that will not start so, and ours."""
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
    (r"\bspec\.ingress\[0\]\.from\b", "spec.networking.allowFrom"),
)
"""Fields of a child or a pod, and of a manifest; some lists begin with members of our own."""
_RESOURCES: Final = (
    (r"\bcpu\b", "spec.compute.cpu"),
    (r"\bmemory\b", "spec.compute.mem"),
    (r"nvidia\.com/gpu", "spec.compute.gpu"),
    (r"\bpods=", "spec.autoscaling.maxReplicas"),
    (r"\bPriorityClass\b", "spec.pod.priorityClassName"),
    (r"\bRuntimeClass\b", "spec.pod.runtimeClassName"),
    (r"\bservice account\b", "spec.pod.serviceAccountName"),
)
"""Words of quotas, limits and admission, and the fields that they are about."""
_PLACES: Final = (
    (r"\btaints?\b", "spec.pod.tolerations"),
    (r"node affinity/selector", "spec.pod.nodeSelector, spec.pod.affinity"),
    (r"affinity rules", "spec.pod.affinity"),
    (r"topology spread constraints", "spec.pod.topologySpreadConstraints"),
    (r"(?i)resource ?claim|cannot allocate all claims", "spec.pod.resourceClaims"),
    (r"(?i)persistentvolume|\bpvc|\bvolume zone|\bvolume count", "spec.pod.volumes"),
)
"""Words of a scheduler that found no node, and the fields that decide it."""
_WEB: Final = "spec.serverSideBatching.queue.web"
_OF_WEB: Final = (
    ("spec.compute", _WEB),
    ("spec.autoscaling.maxReplicas", f"{_WEB}.maxReplicas"),
    ("spec.pod.tolerations", f"{_WEB}.pod.tolerations"),
    ("spec.pod.nodeSelector", f"{_WEB}.pod.nodeSelector"),
    ("spec.pod.serviceAccountName", f"{_WEB}.pod.serviceAccountName"),
)
"""Fields of the model's pods, and of the web pods."""
_WAITS: Final = (
    CREATING, "NotScheduled", "NotStarted", "InitContainerRunning", "SidecarNotReady",
    "NotAnswering", "ReadinessGateNotMet",
)  # fmt: skip
"""Reasons for which nobody answers though nothing has failed, other than that a model loads."""
_BEFORE_LOADING: Final = (
    "QuotaExceeded", "Unschedulable", "SchedulingGated", NOT_MOUNTED, "ImagePullFailed",
    "CreateContainerConfigError", "InitContainerFailed", "SidecarFailed", "ContainerNotStarted",
    "NodeNotReady", NOT_PERMITTED, WEBHOOK_FAILED, REQUEST_FAILED,
)  # fmt: skip
"""Reasons for which a replica has not begun; they pass, and it loads as any other."""
_START_REASONS: Final = REASONS[ConditionType.MODEL_LOADED].keys() - {
    "Loaded", "ModelLoading", "ImagePullFailed", "ScaledToZero", CREATING, NOT_MOUNTED,
    "CreateContainerConfigError", "PodFailed", *_WAITS, *_BEFORE_LOADING,
}  # fmt: skip
"""Reasons that a replica may write into its termination message."""
_HOLDING: Final = REASONS[ConditionType.COMPARED].keys() - {"Compared", "Comparing"}
"""Others: its model was loaded, and is worse than that of the revision before."""

_Seen = tuple[str, str]
"""A reason, and what was seen."""


@dataclass(frozen=True, slots=True)
class NewCondition:
    """One condition before it is given its times."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Front:
    """The pods that answer for an API with a queue."""

    deployment: DeploymentView | None = None
    """The Deployment of its web pods."""
    pods: Sequence[PodView] = ()
    at_zero: bool = False
    """No worker runs, and by intent: the first row orders some."""
    was_at_zero: bool = False
    """So it was when the status was told last, or no worker has been ready since."""
    replicas: int = 0
    """From before the queue, that answer until web pods do."""


def told(
    kind: ConditionType, status: Literal["True", "False", "Unknown"], reason: str, what: str = ""
) -> NewCondition:
    """One with a reason of `REASONS`: `what` was seen, then the remedy, which is never cut off."""
    remedy = REASONS[kind][reason].remedy
    room = MESSAGE_LENGTH - len(remedy) - 2
    return NewCondition(kind, status, reason, "; ".join(filter(None, (what[:room], remedy))))


def dated(
    conditions: Iterable[NewCondition], before: Sequence[JsonObject], generation: int, now: str
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
                "message": for_people(condition.message)[:MESSAGE_LENGTH],
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
        for one in listed(status, "conditions")
        if one["type"] in kinds
    }


def spec_valid(
    problem: InvalidSpecError | None,
    deployment: DeploymentView | None,
    pods: Sequence[PodView] = (),
    front: "Front | None" = None,
) -> NewCondition:
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
    """A message about a web pod, with the fields of web pods."""
    for field, theirs in _OF_WEB:
        message = message.replace(field, theirs)
    return message


def refusal_reason(message: str) -> str:
    """The reason of SpecValid for an apiserver's refusal of a child or a pod."""
    if "exceeded quota" in message or "failed quota" in message:
        return "QuotaExceeded"
    if "violates PodSecurity" in message:
        return "PodSecurityDenied"
    return "PodTemplateRefused"


def first_to_tell(found: Iterable[NewCondition]) -> str:
    """The most important message: a failure, before how many replicas answer."""
    by_type = {one.type: one for one in found}
    progress = by_type[ConditionType.PROGRESSING]
    known = (by_type[kind] for kind in (*BREAKING, ConditionType.SCHEDULED) if kind in by_type)
    broken = [one for one in known if one.status == "False"]
    if progress.reason in _HINDRANCES:
        broken.insert(0, progress)
    elif progress.reason in {STUCK, PAUSED, ROLLED_BACK}:
        broken.append(progress)
    return (broken or [by_type[ConditionType.READY]])[0].message


def ready(
    deployment: DeploymentView | None,
    pods: Sequence[PodView] = (),
    causes: Iterable[NewCondition] = (),
    *,
    current: bool = True,
    now: datetime | None = None,
) -> NewCondition:
    """Whether anybody answers as the manifest says.

    Args:
        deployment: None: there is none yet.
        pods: Of the API.
        causes: The first that is False says why nobody does.
        current: A replica of what the manifest says answers. Without one it is not ready, however
            many of an earlier revision go on answering: who waits for it waits for the new one.
        now: By which pods that are deleted should be gone.
    """
    kind = ConditionType.READY
    cause = _cause(deployment, causes)
    answering = 0 if deployment is None else deployment.ready
    if cause is not None and not (answering and current):
        if not answering:
            return NewCondition(kind, "False", cause.reason, cause.message)
        seen = f"{_earlier(answering)}; {cause.message}"  # an image that is long in coming may come
        return NewCondition(kind, cause.status, cause.reason, seen)
    if deployment is None or deployment.replicas == 0:
        return told(kind, "False", *_nobody(pods, now))
    share = f"{answering} of {deployment.replicas} replicas ready"
    if not answering:
        return told(kind, "False", "ModelLoading", share)
    if not current:
        return told(kind, "Unknown", "ModelLoading", _earlier(answering))
    reason = "MinimumReady" if answering < deployment.replicas else "AllReplicasReady"
    return told(kind, "True", reason, share)


def _cause(
    deployment: DeploymentView | None, causes: Iterable[NewCondition]
) -> NewCondition | None:
    """The first that says why nobody answers; one that waits says so where pods are asked for."""
    some = deployment is None or deployment.replicas > 0
    return next(
        (one for one in causes if one.status == "False" or (some and one.reason in _WAITS)), None
    )


def _nobody(pods: Sequence[PodView], now: datetime | None) -> _Seen:
    """(reason, what was seen) where no replica is asked for."""
    late = next((pod for pod in pods if now is not None and until_gone(pod, now) == 0.0), None)
    if late is not None:
        return "NotEnding", f"pod {late.name} should have been gone at {late.due}"
    ending = sum(pod.ending for pod in pods)
    if ending:
        return "Draining", f"{ending} replicas end, and no other is there"
    return "NoReplicas", "no replicas are asked for"


def ready_by_roles(
    workers: NewCondition,
    deployment: DeploymentView | None,
    front: Front,
    causes: Iterable[NewCondition],
    now: datetime,
) -> NewCondition:
    """`ready` of an API with a queue, whose workers are `workers`: web pods answer, and hold rows.

    Without a worker it is ready where that is the intent, and while the first ones after it start.
    What may keep these from it for a while has its own condition: the reason stays `Waking`, since
    nothing else remembers that the API was at zero.
    """
    kind, web = ConditionType.READY, front.deployment
    waking = front.was_at_zero and workers.status == "False"
    cause = next((one for one in causes if one.status == "False"), None)
    held_up = cause if workers.status != "True" else None
    if web is None or web.ready == 0:
        return workers if held_up is not None else _no_web(workers, front, now)
    share = f"{web.ready} of {web.replicas} web pods ready"
    if held_up is not None:
        may_pass = waking and held_up.reason in _BEFORE_LOADING
        return told(kind, "False", "Waking", f"{held_up.message}; {share}") if may_pass else workers
    if front.at_zero:
        return told(kind, "True", "ScaledToZero", share)
    if waking and workers.reason in {"ModelLoading", *_WAITS} and deployment is not None:
        return told(kind, "True", "Waking", f"{share}, {deployment.replicas} replicas start")
    reason = workers.reason
    if reason == "AllReplicasReady" and web.ready < web.replicas:
        reason = "MinimumReady"
    return replace(workers, reason=reason, message=f"{workers.message}, {share}")


def _no_web(workers: NewCondition, front: Front, now: datetime) -> NewCondition:
    """Ready of an API with a queue of which no web pod answers."""
    share = f"0 of {front.deployment.replicas} web pods" if front.deployment else "0 web pods"
    reason, why = _web_failure(front.pods, now) or ("WebStarting", workers.message)
    seen = f"{share} ready; {why}"
    if not front.replicas:
        return told(ConditionType.READY, "False", reason, seen)
    seen = f"{front.replicas} replicas from before the queue still answer; {seen}"
    moving = reason == "WebStarting"
    return told(ConditionType.READY, "Unknown" if moving else "False", reason, seen)


def _web_failure(pods: Sequence[PodView], now: datetime) -> _Seen | None:
    """(reason of Ready, why and the remedy, as of a replica); None: they only have not started."""
    there = [pod for pod in pods if not pod.gone]
    homeless = scheduled(there)
    if homeless.status == "False":
        return "WebNotStarting", homeless.message
    found = *_not_started(there, now), _lost(pods, there, now), _waits(there)
    failure = next(filter(None, found), None)
    if failure is None:
        return None
    reason = "WebStarting" if failure[0] in _WAITS else "WebNotStarting"
    return reason, of_web(told(ConditionType.MODEL_LOADED, "False", *failure).message)


def _earlier(answering: int) -> str:
    return f"no replica of this manifest answers, {answering} of an earlier one do"


def progressing(deployment: DeploymentView | None, front: Front | None = None) -> NewCondition:
    """Whether pods of another revision are on their way; with a queue, of both roles."""
    kind = ConditionType.PROGRESSING
    if deployment is None:
        return told(kind, "True", "NewRevision", "the Deployment is yet to be created")
    if is_stuck(deployment):
        return told(kind, "False", STUCK, deployment.conditions["Progressing"].message)
    if not rolled_out(deployment):
        updated = f"{deployment.updated} of {deployment.replicas} replicas updated"
        if deployment.paused and deployment.settled:
            return told(kind, "False", PAUSED, f"Deployment {deployment.child.name}: {updated}")
        return told(kind, "True", "NewRevision", updated)
    web = None if front is None else progressing(front.deployment)
    if web is None or web.reason == "RolloutComplete":
        return told(kind, "False", "RolloutComplete")
    return replace(web, message=f"web pods: {web.message}")


def tried(canary: DeploymentView | None) -> NewCondition:
    """Progressing of an API whose newest revision has a canary."""
    ready, wanted = (0, 0) if canary is None else (canary.ready, canary.replicas)
    seen = f"{ready} of {wanted} pods of the canary ready"
    return told(ConditionType.PROGRESSING, "True", "CanaryRuns", seen)


def is_stuck(deployment: DeploymentView) -> bool:
    """Whether its rollout has not moved for as long as its deadline allows."""
    verdict = deployment.conditions.get("Progressing")
    return verdict is not None and verdict.reason == STUCK


def rolled_back(given_up: GivenUp | None) -> NewCondition | None:
    """Progressing of an API whose rollout was given up."""
    if given_up is None:
        return None
    return told(ConditionType.PROGRESSING, "False", ROLLED_BACK, given_up.told)


def hindrance_of(error: ApplyError) -> NewCondition:
    """Why the operator cannot do what it should, in the apiserver's words: it may pass."""
    kind = ConditionType.PROGRESSING
    if isinstance(error, NotPermittedError):  # in RBAC's words, with the verb and the resource
        what = f"the operator lacks a right: {error.message}"
        return told(kind, "False", NOT_PERMITTED, what)
    reason = WEBHOOK_FAILED if isinstance(error, WebhookError) else REQUEST_FAILED
    return told(kind, "False", reason, error.message)


def without_pods(
    deployments: Iterable[tuple[DeploymentView | None, Sequence[PodView]]],
) -> NewCondition | None:
    """Why pods are not created, where they are not to blame; None: they are, or may be."""
    for deployment, pods in deployments:
        trouble = None if deployment is None else deployment.trouble(pods)
        if deployment is not None and trouble is not None:
            reason = WEBHOOK_FAILED if "webhook" in trouble else REQUEST_FAILED
            what = f"pods of {deployment.child.name} cannot be created: {trouble}"
            return told(ConditionType.PROGRESSING, "False", reason, what)
    return None


def rolled_out(deployment: DeploymentView) -> bool:
    """Only pods of the current revision are left, and the Deployment once had enough of them."""
    verdict = deployment.conditions.get("Progressing")
    arrived = deployment.replicas == 0 or (
        verdict is not None
        and (
            verdict.reason == "NewReplicaSetAvailable"
            or (verdict.reason == "DeploymentPaused" and deployment.ready >= deployment.replicas)
        )
    )
    return deployment.settled and arrived and deployment.existing <= deployment.updated


def model_loaded(
    pods: Sequence[PodView],
    revision: str,
    now: datetime,
    *,
    at_zero: bool = False,
    wanted: bool = True,
) -> NewCondition:
    """Whether the current revision's model loads; a failure is told in the replica's own words.

    Args:
        pods: Of the API.
        revision: The current one.
        now: How long a node has had to create a container is counted up to it.
        at_zero: No worker runs, and by intent.
        wanted: Replicas are asked for, so that one that failed is missed.
    """
    kind = ConditionType.MODEL_LOADED
    ours = [pod for pod in pods if pod.revision == revision]
    current = [pod for pod in ours if not pod.gone]
    answers = any(pod.ready for pod in current)
    loaded = answers or any(_worse(pod) is not None for pod in current)
    failure, slow = _not_started(current, now)
    if failure is not None and not (answers and failure[0] == NOT_MOUNTED):  # it may yet come
        return told(kind, "False", *failure)
    if loaded:
        return told(kind, "True", "Loaded")
    if at_zero:
        return told(kind, "Unknown", "ScaledToZero", "no replica runs")
    lost = _lost(ours, current, now) if wanted else None
    if lost is not None:
        return told(kind, "False", *lost)
    loads = "ModelLoading", "no replica has loaded it yet"
    return told(kind, "Unknown", *(slow or _waits(current) or loads))


def _waits(pods: Sequence[PodView]) -> _Seen | None:
    """(reason, what was seen) of the first, where none of them can be loading its model."""
    found = [_wait(pod) for pod in pods if not pod.ready]
    if not pods:
        return "NotStarted", "there is no pod"
    return None if None in found else next(filter(None, found), None)


def _wait(pod: PodView) -> _Seen | None:
    """The hindrance of a pod that has not failed; None: it loads its model."""
    if pod.unplaced:
        return "NotStarted", f"pod {pod.name} has no node"
    hindrance = pod.before or pod.beside
    if hindrance is not None:
        return hindrance.reason, f"pod {pod.name}: {hindrance.seen}"
    if not pod.creating:
        return None
    mounts = f", which mounts {', '.join(pod.volumes)}" if pod.volumes else ""
    return CREATING, f"pod {pod.name}: its node creates its container{mounts}"


def _not_started(pods: Sequence[PodView], now: datetime) -> tuple[_Seen | None, _Seen | None]:
    """(why the first that cannot start cannot, what the first that may yet start waits for)."""
    found = [*map(load_failure, pods), *(not_created(pod, now) for pod in pods)]
    seen = [one for one in found if one is not None]
    return (
        next((one for one in seen if one[0] != CREATING), None),
        next((one for one in seen if one[0] == CREATING), None),
    )


def _lost(pods: Iterable[PodView], current: Sequence[PodView], now: datetime) -> _Seen | None:
    """The failure of the pod that failed last, while none in its place has answered.

    Its place may be empty, too. The cluster keeps a failed pod for days: it is no reason any more
    once a pod has been ready, beside it or in its place; nor is it one for pods that were made long
    before or after its end.
    """
    failed = [(pod.failed_at, pod) for pod in pods if pod.failure and pod.failed_at is not None]
    if not failed or any(one.was_ready for one in current):
        return None
    when, pod = max(failed, key=lambda one: one[0])
    ages = [(one.created - when).total_seconds() for one in current if one.created is not None]
    later = [age for age in ages if age >= -REPLACED_SECONDS]  # clocks of nodes differ
    later = later or [(now - when).total_seconds()]  # the one in its place is made from now on
    if min(later) > REPLACED_SECONDS:
        return None
    return "PodFailed", f"pod {pod.name}: {pod.failure}"


def not_created(pod: PodView, now: datetime) -> _Seen | None:
    """(reason, what was seen) of a pod whose node has long been creating its container."""
    since = pod.creating_since
    if since is None or (now - since).total_seconds() < CREATION_SECONDS:
        return None
    if not pod.taken:
        seen = f"its node has not begun with it after {CREATION_SECONDS:.0f} s"
        return "NodeNotReady", f"pod {pod.name}: {seen}"
    seen = f"pod {pod.name}: its container is not created after {CREATION_SECONDS:.0f} s"
    if pod.sandbox is not None and pod.sandbox.status == "True":
        return CREATING, f"{seen}: its image is still being pulled"
    if pod.sandbox is None or not pod.sandbox.reason:
        volumes = f" ({', '.join(pod.volumes)})" if pod.volumes else ""
        either = f"its image is still being pulled, or a volume cannot be mounted{volumes}"
        return CREATING, f"{seen}: {either}"
    why = f"{pod.sandbox.message or pod.sandbox.reason}, as"
    if pod.volumes:
        one = f"a volume (one of {', '.join(pod.volumes)})"
        return NOT_MOUNTED, f"{seen}: {why} {one} or the network is not set up"
    return CREATING, f"{seen}: {why} the node cannot set up its network"


def until_told(pods: Iterable[PodView], now: datetime) -> float | None:
    """Seconds until a container has been in creation, or a pod in its end, for too long."""
    there = tuple(pods)
    begun = (pod.creating_since for pod in there if not pod.gone and pod.creating_since is not None)
    left = [CREATION_SECONDS - (now - since).total_seconds() for since in begun]
    left += [until_gone(pod, now) for pod in there]
    return min((seconds for seconds in left if 0 < seconds < math.inf), default=None)


def until_gone(pod: PodView, now: datetime) -> float:
    """Seconds that a deleted pod has until it is late; infinite of one that is not deleted."""
    if not pod.ending or pod.due is None:
        return math.inf
    return max(0.0, ENDING_SECONDS - (now - pod.due).total_seconds())


def load_failure(pod: PodView) -> _Seen | None:
    """(reason, what was seen) of a pod that cannot start; None for one that runs or is starting."""
    if pod.ready or _worse(pod) is not None:
        return None
    if pod.before is not None:
        return _failed(pod, pod.before)
    waits = _WAITING.get(pod.waiting_reason)
    if waits is not None:
        word = pod.waiting_reason if waits == "CrashLooping" or not pod.waiting_message else ""
        return waits, f"pod {pod.name}: {': '.join(filter(None, (word, pod.waiting_message)))}"
    if pod.exit_reason == "OOMKilled":
        return "OutOfMemory", f"pod {pod.name}: used more than spec.compute.mem"
    reason, message = _said(pod)
    loaded = pod.started and reason  # a start that failed was an earlier one
    if loaded or (pod.exit_code == 0 and not pod.over):
        return _failed(pod, pod.beside)
    return reason if reason in _START_REASONS else "CrashLooping", f"pod {pod.name}: {message}"


def _said(pod: PodView) -> _Seen:
    """Reason and message of its termination; without a reason, the tail of its log."""
    try:
        said = json.loads(pod.exit_message)
        return str(said["reason"]), str(said["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        tail = without_secrets(pod.exit_message)[-500:].strip()
        return "", f"exit code {pod.exit_code}: {tail}"


def _worse(pod: PodView) -> _Seen | None:
    """(reason, what was seen) of a pod that is held; it ended, and compares again with each start.

    None: it is not.
    """
    reason, message = _said(pod)
    held = reason in _HOLDING and not (pod.ready or pod.started)
    return (reason, f"pod {pod.name}: {message}") if held else None


def compared(pods: Sequence[PodView], revision: str) -> NewCondition:
    """Whether pods of the current revision were found no worse than those before."""
    kind = ConditionType.COMPARED
    current = [pod for pod in pods if pod.revision == revision and not pod.gone]
    worse = next(filter(None, map(_worse, current)), None)
    if worse is not None:
        return told(kind, "False", *worse)
    if any(pod.ready for pod in current):
        return told(kind, "True", "Compared")
    return told(kind, "Unknown", "Comparing")


def _failed(pod: PodView, hindrance: Hindrance | None) -> _Seen | None:
    if hindrance is None or not hindrance.failed:
        return None
    return hindrance.reason, f"pod {pod.name}: {hindrance.seen}"


def scheduled(pods: Sequence[PodView]) -> NewCondition:
    """Whether every replica has a node."""
    kind = ConditionType.SCHEDULED
    waiting = [pod for pod in pods if pod.unschedulable and not pod.gone]
    if waiting:
        return _unschedulable(waiting, f"{len(waiting)} of {len(pods)} pods")
    new = [pod for pod in pods if pod.unplaced and not pod.gone]
    if new:
        return told(kind, "Unknown", "NotScheduled", f"{len(new)} of {len(pods)} pods have no node")
    if not pods:
        return told(kind, "Unknown", "NoReplicas", "there are no pods")
    return told(kind, "True", "Scheduled")


def _unschedulable(waiting: Sequence[PodView], share: str) -> NewCondition:
    """The message of the first that has no node, and the fields of the manifest behind it."""
    first = waiting[0]
    said = first.unschedulable
    fields = [field for words, field in _PLACES if re.search(words, said)]
    seen = ": ".join(filter(None, (share, ", ".join(fields), said)))
    made = told(ConditionType.SCHEDULED, "False", first.unplaced or "Unschedulable", seen)
    web = first.role == contract.ROLE_WEB
    return replace(made, message=of_web(made.message)) if web else made


def for_tools(found: Sequence[NewCondition]) -> NewCondition | None:
    """Stalled or Reconciling, which kstatus knows, and with it Flux, Argo CD and Helm.

    They wait while something moves by itself, and give up on what stays until somebody changes
    something. A model that fails in some replicas while others answer is neither.
    """
    by_type = {one.type: one for one in found}
    answers = by_type[ConditionType.READY].status == "True"
    excusable = (ConditionType.COMPARED, ConditionType.MODEL_LOADED)
    kinds = (ConditionType.SPEC_VALID, excusable[0], ConditionType.PROGRESSING, excusable[1])
    for kind, one in ((kind, by_type[kind]) for kind in kinds if kind in by_type):
        excused = kind in excusable and answers
        if one.status == "False" and REASONS[kind][one.reason].lasting and not excused:
            return NewCondition(ConditionType.STALLED, "True", one.reason, one.message)
    valid, progress = by_type[ConditionType.SPEC_VALID], by_type[ConditionType.PROGRESSING]
    moving = progress.status == "True" or progress.reason in _HINDRANCES
    pending = valid if valid.status == "False" else progress if moving else None
    return None if pending is None else waited_for(pending)


def waited_for(one: NewCondition) -> NewCondition:
    """It as tools read it that wait while something moves by itself, and give up on what stays."""
    lasting = REASONS[one.type][one.reason].lasting
    kind = ConditionType.STALLED if lasting else ConditionType.RECONCILING
    return NewCondition(kind, "True", one.reason, one.message)
