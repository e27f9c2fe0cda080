"""Views of the objects that the operator reads; parsed once, at the edge."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject, Resource, listed, section
from batchedapi_operator.hindrances import (
    BACK_OFF,
    Hindrance,
    before_ours,
    beside_ours,
    is_creating,
    unplaced,
)
from batchedapi_operator.resources.deployment import CONTAINER, MANIFEST_VOLUME, owns_no_account
from batchedapi_operator.resources.revised import GivenUp, number_of
from batchedapi_operator.resources.setting import Stored

_BEFORE_LOADING_SECONDS: Final = 300.0
"""For a node and the image, on top of what loading may take."""
_LOADING_SECONDS: Final = 600.0
"""Start-up time allowed to a pod that does not say it."""
_COUNTER: Final = "deployment.kubernetes.io/"
_ENDED: Final = ("Failed", "Succeeded")
"""Phases; pods of a Deployment get there by eviction or with their node alone."""
_OF_USERS: Final = (
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
)
"""Volumes of objects that may be missing: member, kind, and the field that names the object."""
_ALWAYS_THERE: Final = ("emptyDir", "downwardAPI")
"""Volumes that the node makes of nothing else."""
_OF_ADMISSION: Final = "kube-api-access-"
"""Begins the name of the volume that it adds."""
_REFUSED_POD: Final = re.compile(r'pods "([a-z0-9.-]+-)[a-z0-9]*" is forbidden')
"""Up to the end of its ReplicaSet's name."""


_PASSING: Final = re.compile(
    r"failed calling webhook|^Internal error occurred|^Timeout: |etcdserver: |Too many requests"
    r"|has received too many requests|could not be completed at this time|unable to handle the"
    r" request|context deadline exceeded|connection refused|^(Get|Post) \""
)
"""Words of an apiserver that is in trouble, or a webhook of it: with a 429 or a 5xx, or not."""
_REFUSED: Final = re.compile(r"denied the request|is forbidden: |is invalid: ")


_SAME_MOMENT: Final = timedelta(seconds=1)
"""Between two dates of a kubelet that it took one after the other: they have no fractions."""


def _is_passing(message: str) -> bool:
    return _PASSING.search(message) is not None and _REFUSED.search(message) is None


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A condition of a Deployment or a pod."""

    status: str
    reason: str
    message: str
    since: str = ""
    """RFC 3339."""


_UNSEEN: Final = ConditionView("", "", "")


def _conditions(status: Mapping[str, Any]) -> dict[str, ConditionView]:
    return {
        one["type"]: ConditionView(
            one["status"],
            one.get("reason", ""),
            one.get("message", ""),
            one.get("lastTransitionTime") or "",
        )
        for one in listed(status, "conditions")
    }


def controller_uid(metadata: Mapping[str, Any]) -> str:
    """Uid of the owner that controls the object; empty without one."""
    for owner in listed(metadata, "ownerReferences"):
        if owner.get("controller"):
            return str(owner["uid"])
    return ""


def _shown(metadata: Mapping[str, Any]) -> list[object]:
    """Metadata that an apply may set; the Deployment's controller counts in an annotation."""
    annotations = section(metadata, "annotations")
    others = {name: value for name, value in annotations.items() if _COUNTER not in name}
    return [section(metadata, "labels"), others, listed(metadata, "ownerReferences")]


def _digest(seen: object) -> str:
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child's identity."""

    name: str
    uid: str
    owner_uid: str
    """Uid of its controller; empty without one."""
    owner_api: str
    """Name of the controller if that is a BatchedAPI; empty otherwise."""
    applied_by_us: bool
    """Our manager owns fields of it: a child that lost its owner reference is still ours."""
    deleting: str
    """Since when, RFC 3339; empty while it stays."""
    finalizers: tuple[str, ...]
    """Finalizers that hold it in its deletion."""
    created: str
    revision: str
    """Its revision label."""
    fingerprint: str
    """Changes when anything that an apply could put right has changed."""
    asked: str = ""
    """A Deployment's fingerprint without replicas, but for a canary's; empty of other kinds."""
    setting: str = ""
    """Digest of the setting that a revision was made with; empty where nobody has noted it."""

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From a child's body, or from its metadata alone."""
        metadata = body["metadata"]
        owners = listed(metadata, "ownerReferences")
        api = [o["name"] for o in owners if o.get("controller") and o["kind"] == contract.KIND]
        labels = section(metadata, "labels")
        if "generation" in metadata:  # which counts the spec's changes alone
            shown = _digest(_shown(metadata))
            fingerprint = f"{metadata['uid']}/{metadata['generation']}/{shown}"
        else:  # the kind counts no generations: the version itself
            fingerprint = str(metadata["resourceVersion"])
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            owner_uid=controller_uid(metadata),
            owner_api=api[0] if api else "",
            applied_by_us=any(
                entry.get("manager") == contract.FIELD_MANAGER
                for entry in listed(metadata, "managedFields")
            ),
            deleting=metadata.get("deletionTimestamp") or "",
            finalizers=tuple(listed(metadata, "finalizers")),
            created=metadata.get("creationTimestamp", ""),
            revision=labels.get(contract.LABEL_REVISION, ""),
            fingerprint=fingerprint,
            setting=section(metadata, "annotations").get(contract.ANNOTATION_SETTING, ""),
        )


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The Deployment of an API: what it is asked for and how far it has come."""

    child: ChildView
    replicas: int
    """Asked for."""
    replicas_owned: bool
    """Somebody has set them; False right after the Deployment was created."""
    scaled_by: str
    """Name of whoever has set them and is not our autoscaler; empty: nobody has."""
    settled: bool
    """Its controller has seen its latest generation."""
    existing: int
    ready: int
    updated: int
    image: str
    revision: str
    """Digest that its pod template carries."""
    setting: Stored | None
    """Setting of its serving container; None without one."""
    conditions: Mapping[str, ConditionView] = field(default_factory=dict)
    paused: bool = False
    """Somebody has paused its rollouts."""
    stray_account: bool = False
    """Its pods have a service account that nobody has set: a manifest before had it."""
    given_up: GivenUp | None = None
    """Note of the rollout that it went back from by itself; it may be left over."""
    version: str = field(default="", compare=False)
    """As the apiserver counts; that it is another says nothing."""

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From a Deployment's body."""
        metadata, spec, status = body["metadata"], body["spec"], section(body, "status")
        template = spec["template"]
        serving = [c for c in template["spec"]["containers"] if c["name"] == CONTAINER]
        role = section(template["metadata"], "labels").get(contract.LABEL_ROLE)
        # those of a canary are in its apply; of all others they are written through /scale
        left_out = () if role == contract.ROLE_CANARY else ("replicas",)
        asked = {name: value for name, value in spec.items() if name not in left_out}
        seen = _digest([metadata["uid"], asked, _shown(metadata)])
        scalers = [
            entry.get("manager", "somebody")
            for entry in listed(metadata, "managedFields")
            if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        ]
        return cls(
            child=replace(ChildView.of(body), asked=seen),
            replicas=spec.get("replicas", 1),
            replicas_owned=bool(scalers),
            scaled_by=next(
                (one for one in scalers if one != contract.AUTOSCALER_FIELD_MANAGER), ""
            ),
            settled=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
            existing=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            image=serving[0]["image"] if serving else "",
            revision=section(template["metadata"], "labels").get(contract.LABEL_REVISION, ""),
            setting=Stored.of(serving[0], metadata, template["metadata"]) if serving else None,
            conditions=_conditions(status),
            paused=bool(spec.get("paused")),
            stray_account=owns_no_account(body),
            given_up=GivenUp.of(metadata),
            version=metadata.get("resourceVersion", ""),
        )

    def refusal(self, pods: Sequence["PodView"]) -> str | None:
        """Why pods of the newest template may not be created; None: nothing says so."""
        failure = self._failure(pods)
        return None if failure is None or _is_passing(failure) else failure

    def trouble(self, pods: Sequence["PodView"]) -> str | None:
        """Why they cannot be, whatever they are like: it passes once the cluster is well."""
        failure = self._failure(pods)
        return failure if failure is not None and _is_passing(failure) else None

    def _failure(self, pods: Sequence["PodView"]) -> str | None:
        """The last failure of a ReplicaSet; None where it is not about the newest template.

        The condition is of any ReplicaSet. It outlives the mend, since one of an earlier template
        that lacks pods stays until a new pod is ready, which is as long as a model loads. Once
        there are pods of the newest template, it is of that one if it names a ReplicaSet that has
        pods. If it names none, it is if it began when they were there.
        """
        failure = self.conditions.get("ReplicaFailure")
        if failure is None or failure.status != "True":
            return None
        if not self.updated:
            return failure.message
        named = _REFUSED_POD.search(failure.message)
        if named is not None:
            newest = any(pod.name.startswith(named[1]) for pod in pods)
        else:
            began = _moment(failure.since)
            created = [one.created for one in pods if one.revision == self.revision and one.created]
            newest = began is None or not created or began >= min(created)
        return failure.message if newest else None


@dataclass(frozen=True, slots=True)
class PodView:
    """A replica."""

    name: str
    uid: str
    ip: str
    owner_uid: str
    """Uid of its ReplicaSet."""
    revision: str
    ready: bool
    gone: bool
    """It ends or has ended: deleted, or evicted and kept by the cluster for a while."""
    unschedulable: str
    """Why it gets no node, in the scheduler's words; empty of one that has one or may get one."""
    waiting_reason: str
    waiting_message: str
    exit_reason: str
    """Why the container last ended, e.g. OOMKilled; empty if it never did."""
    exit_message: str
    exit_code: int
    startup: float | None = None
    """Seconds from its placement to its first readiness; None until then, or where not known."""
    created: datetime | None = None
    """None where not known."""
    started: bool = False
    """Its container has passed its startup probe, and runs since."""
    placed: datetime | None = None
    """When it got its node; None of one that has none yet, or where not known."""
    placement: float | None = None
    """Seconds that it waited for it; None where not known."""
    priority: int = 0
    """As its PriorityClass gave it."""
    was_ready: bool = False
    """It is, or was before, so it is not on its way."""
    ending: bool = False
    """Deleted, and its processes still answer what they have."""
    role: str = ""
    """`web` or `worker` of an API with a queue, or `canary`; empty of a replica."""
    creating_since: datetime | None = None
    """When its node began to create its container; None once it has, or where not known."""
    sandbox: ConditionView | None = None
    """PodReadyToStartContainers, which is True once volumes are mounted and the network is there.

    With a reason (kubelets from 1.37 on) it is False of just that. Those before give none, and up
    to 1.35 it stays False while an image is pulled.
    """
    volumes: tuple[str, ...] = ()
    """Volumes that can be missing, as a user would look for them: `Secret tokens`."""
    failure: str = ""
    """Reason and message of a pod that its node or the cluster has ended; empty of others."""
    failed_at: datetime | None = None
    """None of others, or where not known."""
    unplaced: str = ""
    """The reason of Scheduled, of one without a node."""
    taken: bool = True
    """Its node has begun with it."""
    creating: bool = False
    """Its container is yet to be created."""
    over: bool = False
    """Its container has ended, and does not run again yet."""
    before: Hindrance | None = None
    """A step before its container that is not done."""
    beside: Hindrance | None = None
    """A hindrance besides its container and the steps before it."""
    due: datetime | None = None
    """When it should be gone; None of one that is not deleted."""

    @property
    def runs(self) -> bool:
        """It has not ended; of one that is being deleted, processes still run."""
        return self.ending or not self.gone

    @classmethod
    def of(cls, body: JsonObject) -> "PodView":
        """From a pod's body."""
        metadata, status = body["metadata"], section(body, "status")
        labels = section(metadata, "labels")
        deleted, over = "deletionTimestamp" in metadata, status.get("phase") in _ENDED
        container, conditions = _serving(status), _conditions(status)
        state = section(container, "state")
        waiting = section(state, "waiting")
        ended = section(state, "terminated") or section(
            section(container, "lastState"), "terminated"
        )
        pod = cls(
            name=metadata["name"],
            uid=metadata["uid"],
            ip=status.get("podIP", ""),
            owner_uid=controller_uid(metadata),
            revision=labels.get(contract.LABEL_REVISION, ""),
            ready=False,
            gone=deleted or over,
            unschedulable="",
            waiting_reason=waiting.get("reason", ""),
            waiting_message=waiting.get("message", ""),
            exit_reason=ended.get("reason", ""),
            exit_message=ended.get("message", ""),
            exit_code=ended.get("exitCode", 0),
            created=_moment(metadata.get("creationTimestamp")),
            placed=_placement(metadata, conditions),
            priority=section(body, "spec").get("priority") or 0,
            ending=deleted and not over,
            role=labels.get(contract.LABEL_ROLE, ""),
            due=_moment(metadata.get("deletionTimestamp")),
            started=bool(container.get("started")),
            taken=bool(status.get("startTime") or status.get("containerStatuses")),
            over="terminated" in state or waiting.get("reason") == BACK_OFF,
        )
        if pod.created is not None and pod.placed is not None:
            pod = replace(pod, placement=max(0.0, (pod.placed - pod.created).total_seconds()))
        return _placed(_judged(pod, body, conditions, container), body, conditions)


def _judged(
    pod: PodView,
    body: JsonObject,
    conditions: Mapping[str, ConditionView],
    container: Mapping[str, Any],
) -> PodView:
    """The same pod: whether it is ready, or was, and what has ended it."""
    status = section(body, "status")
    ready = conditions.get("Ready", _UNSEEN)
    pod = replace(
        pod,
        ready=ready.status == "True",
        startup=_startup(body, ready, listed(status, "containerStatuses"), pod.placed),
        was_ready=_was_ready(status, conditions, container),
    )
    if not pod.ready:
        pod = replace(pod, before=before_ours(body), beside=beside_ours(body, ready.reason))
    if status.get("phase") != "Failed" or "deletionTimestamp" in body["metadata"]:
        return pod
    # in the words of who ended it
    told = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    return replace(
        pod,
        failure=told or "it failed, and nobody says why",
        # one that its node refused has no conditions
        failed_at=_moment(ready.since) if ready.since else pod.created,
    )


def _placed(pod: PodView, body: JsonObject, conditions: Mapping[str, ConditionView]) -> PodView:
    """The same pod, once judged: whether it has a node, and how far that is with its container."""
    status = section(body, "status")
    scheduled = conditions.get("PodScheduled", _UNSEEN)
    homeless = _homeless(body, scheduled)
    if homeless in {"Unschedulable", "SchedulingGated"}:
        pod = replace(pod, unschedulable=scheduled.message or scheduled.reason)
    if homeless or pod.before is not None or not is_creating(body):
        return replace(pod, unplaced=homeless)
    return replace(
        pod,
        unplaced=homeless,
        creating=True,
        creating_since=_moment(status.get("startTime") or scheduled.since),
        sandbox=conditions.get("PodReadyToStartContainers"),
        volumes=_volumes(section(body, "spec")),
    )


def _serving(status: Mapping[str, Any]) -> JsonObject:
    """Status of the serving container; empty before there is one."""
    containers = listed(status, "containerStatuses")
    return next((one for one in containers if one["name"] == CONTAINER), {})


def _homeless(body: JsonObject, scheduled: ConditionView) -> str:
    """The reason of a pod that has no node and has not ended; else empty."""
    if section(body, "status").get("phase") in _ENDED:
        return ""
    return unplaced(body, scheduled.status, scheduled.reason)


def _volumes(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Mounted volumes that may be missing; not optional ones, those made of nothing, or ours."""
    found = []
    for one in listed(spec, "volumes"):
        named = [(kind, one[member], name) for member, kind, name in _OF_USERS if member in one]
        ours = one["name"] == MANIFEST_VOLUME or one["name"].startswith(_OF_ADMISSION)
        if ours or not one.keys().isdisjoint(_ALWAYS_THERE):
            continue
        if not named:
            found.append(f"volume {one['name']}")
        found += [f"{kind} {of.get(name)}" for kind, of, name in named if not of.get("optional")]
    return tuple(found)


def _was_ready(
    status: Mapping[str, Any],
    conditions: Mapping[str, ConditionView],
    container: Mapping[str, Any],
) -> bool:
    """Told by the pod alone, since the operator may have started after its readiness.

    `started` is taken back when the container restarts. The condition of a pod that was never ready
    is as old as the kubelet's first status of it. A busy kubelet writes that seconds after
    `startTime`, but Ready and Initialized in the same moment; with init containers the latter is
    true later.
    """
    ready, initialized = (conditions.get(one, _UNSEEN) for one in ("Ready", "Initialized"))
    if ready.status == "True" or container.get("started"):
        return True
    began, since = _moment(initialized.since or status.get("startTime")), _moment(ready.since)
    return began is not None and since is not None and since - began > _SAME_MOMENT


def _startup(
    body: JsonObject,
    ready: ConditionView,
    containers: Iterable[Mapping[str, Any]],
    placed: datetime | None,
) -> float | None:
    """Seconds; the time of the condition is that of the first readiness if nothing restarted."""
    if ready.status != "True" or any(one.get("restartCount", 0) for one in containers):
        return None
    since = _moment(ready.since)
    if placed is None or since is None:
        return None
    # what its startup probe allows: later a pod is not ready for the first time
    asked = listed(section(body, "spec"), "containers")
    probes = (one.get("startupProbe") for one in asked if one["name"] == CONTAINER)
    limits = (float(one["failureThreshold"]) for one in filter(None, probes))
    allowed, seconds = next(limits, _LOADING_SECONDS), (since - placed).total_seconds()
    return seconds if 0 <= seconds <= allowed + _BEFORE_LOADING_SECONDS else None


def _placement(
    metadata: Mapping[str, Any], conditions: Mapping[str, ConditionView]
) -> datetime | None:
    """When the scheduler gave it a node; its creation of one that no scheduler told of."""
    scheduled = conditions.get("PodScheduled")
    if scheduled is None:
        return _moment(metadata.get("creationTimestamp"))
    return _moment(scheduled.since) if scheduled.status == "True" else None


def _moment(written: object) -> datetime | None:
    """RFC 3339; None where it is absent, no date, or without a zone."""
    try:
        moment = datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


@dataclass(frozen=True, slots=True)
class SourceView:
    """The user's ConfigMap, or after a rollback the copy that a revision has."""

    data: Mapping[str, str]
    binary_data: Mapping[str, str]

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From a ConfigMap's body; in a revision's is its manifest, too."""
        data = section(body, "data")
        if contract.LABEL_REVISION in section(body["metadata"], "labels"):
            data = {name: text for name, text in data.items() if name != contract.MANIFEST_FILE}
        return cls(data, section(body, "binaryData"))


@dataclass(frozen=True, slots=True)
class WebView:
    """The web pods of an API with a queue, or that has had one."""

    deployment: DeploymentView | None = None
    budget: ChildView | None = None
    pods: tuple[PodView, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether there are to be web pods; NAME-web stays behind without any when a queue goes."""
        return self.deployment is not None and self.deployment.replicas > 0

    @property
    def may_fill(self) -> bool:
        """Whether a web pod may still put rows into the queue."""
        return self.is_wanted or any(one.runs for one in self.pods)


@dataclass(frozen=True, slots=True)
class CanaryView:
    """The pods of a revision that is tried beside another, or was."""

    deployment: DeploymentView | None = None
    pods: tuple[PodView, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether there are to be any; NAME-canary stays behind without pods."""
        return self.deployment is not None and self.deployment.replicas > 0

    def is_beside(self, revision: str) -> bool:
        """Whether there are to be any, of another revision than that one."""
        return (
            self.deployment is not None
            and self.is_wanted
            and (self.deployment.revision != revision)
        )

    def of(self, revision: str) -> tuple[PodView, ...]:
        """Those of the revision with that digest that are to stay."""
        return tuple(one for one in self.pods if one.revision == revision and not one.gone)


@dataclass(frozen=True, slots=True)
class EarlierView:
    """A ReplicaSet to go back to: one that a rollout can, or has; or that a canary is beside."""

    name: str
    uid: str
    number: int
    revision: str
    """Digest that its pods carry."""
    annotations: Mapping[str, str]
    template: JsonObject
    """Of its pods, as it was in the Deployment."""

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From its body."""
        metadata, template = body["metadata"], body["spec"]["template"]
        labels = dict(section(template["metadata"], "labels"))
        labels.pop("pod-template-hash", None)  # by which the Deployment finds it again
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            number=number_of(metadata),
            revision=labels.get(contract.LABEL_REVISION, ""),
            annotations=section(metadata, "annotations"),
            template={
                "metadata": {
                    "labels": labels,
                    "annotations": section(template["metadata"], "annotations"),
                },
                "spec": template["spec"],
            },
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """The world of one API as it was just read."""

    status: JsonObject
    """The API's own status, as last written."""
    deployment: DeploymentView | None = None
    service: ChildView | None = None
    peers: ChildView | None = None
    """Its Service NAME-peers; None: there is none, or the API compares no revisions."""
    policies: Mapping[Resource, ChildView] = field(default_factory=dict)
    """Its PodDisruptionBudget and its NetworkPolicy, those that there are."""
    revisions: tuple[ChildView, ...] = ()
    """Revision ConfigMaps that carry the API's label."""
    robbed: frozenset[str] = frozenset()
    """Names of those whose labels or owner are not as we made them."""
    source: SourceView | None = None
    """None: the manifest names no ConfigMap, or there is none of that name."""
    pods: tuple[PodView, ...] = ()
    """Without web pods, and those of a canary."""
    web: WebView = WebView()
    revisions_in_use: frozenset[str] = frozenset()
    """Digests that a ReplicaSet or pod of the API still refers to."""
    earlier: EarlierView | None = None
    """With autoRollback, beside a rollout that is stuck or was given up; with canary, always."""
    canary: CanaryView = CanaryView()
