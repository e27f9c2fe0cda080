"""Every reason that a condition of a BatchedAPI may have: what it means, and what to do about it.

The operator ends messages with these remedies, and the reference page is made of this table, so a
reason that is not here can neither be written nor looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchedapi_core.manifest.status import ConditionType


@dataclass(frozen=True, slots=True)
class ConditionReason:
    """One reason of one type of condition."""

    meaning: str
    remedy: str = ""
    """The remedy for its user; empty where there is nothing to do, or where the message itself
    says it with figures and names."""
    lasting: bool = False
    """It stays until somebody changes something: `Stalled`, for tools that wait for a rollout."""


READY: Final = {
    "AllReplicasReady": ConditionReason("every replica that is asked for answers"),
    "MinimumReady": ConditionReason(
        "some replicas answer, others start or have lost their readiness"
    ),
    "NoReplicas": ConditionReason(
        "none is asked for",
        "set spec.replicas, or spec.autoscaling.minReplicas in mode Native, to 1 or more",
    ),
    "ScaledToZero": ConditionReason(
        "no replica runs, as nothing came for autoscaling.idleTimeout; web pods answer, and the"
        " first row orders replicas"
    ),
    "Waking": ConditionReason(
        "the API was at zero, and its first replicas are starting; web pods answer, and hold rows;"
        " False while these wait for a node, a volume, an image or quota, as the message says"
    ),
    "WebStarting": ConditionReason(
        "no web pod answers yet; Unknown while replicas from before the queue do: they need Redis,"
        " and a replica that has told what the methods are like",
        "see the log of the pods NAME-web, spec.serverSideBatching.queue.redis, and ModelLoaded",
    ),
    "WebNotStarting": ConditionReason(
        "no web pod answers, and one cannot start; the message has what of ModelLoaded or Scheduled"
        " it is, and what to do"
    ),
    "ModelLoading": ConditionReason(
        "replicas fetch, load or warm up the model; Unknown while those of an earlier revision"
        " answer",
        "wait, at most spec.predictor.startupTimeout; `kubectl logs` of the pod says how far it is",
    ),
    "NotEnding": ConditionReason(
        "no replica is asked for, and one that was deleted is still there after its grace period",
        "see `kubectl get pod -o yaml`: a finalizer holds it, or its node does not answer;"
        " `kubectl delete node` once that is gone for good",
    ),
    "Draining": ConditionReason(
        "no replica is asked for, and the last ones answer what they have",
        "wait until they have ended, or ask for replicas again",
    ),
}
PROGRESSING: Final = {
    "NewRevision": ConditionReason("replicas of what the manifest says are on their way"),
    "CanaryRuns": ConditionReason(
        "a canary of what the manifest says takes traffic, and the earlier revision the rest"
    ),
    "RolloutComplete": ConditionReason("only replicas of what the manifest says are left"),
    "ProgressDeadlineExceeded": ConditionReason(
        "the rollout has not moved for longer than a start may take",
        "see Scheduled, ModelLoaded, Compared and `kubectl describe pod` for what holds it, or go"
        " back to the manifest before",
        lasting=True,
    ),
    "RolledBack": ConditionReason(
        "the rollout did not move, so updateStrategy.autoRollback went back to the one before, or"
        " the canary of updateStrategy.canary was worse",
        "mend what is named and apply the manifest; without that field it is tried as it is",
        lasting=True,
    ),
    "RolloutPaused": ConditionReason(
        "somebody has paused the Deployment before the rollout was complete",
        "`kubectl rollout resume` of the Deployment that is named; to hold an API, spec.paused",
        lasting=True,
    ),
    "NotPermitted": ConditionReason(
        "the operator lacks a right; verb and resource are named",
        "grant it, as its chart does: it is tried again",
        lasting=True,
    ),
    "WebhookFailed": ConditionReason(
        "a webhook that the cluster has to ask about a child or a pod is down; it is named",
        "it is tried again: whoever runs that webhook has to mend it, or take its configuration"
        " away",
    ),
    "RequestFailed": ConditionReason(
        "the API server does not do what the operator, or a ReplicaSet, asks it for; in its words",
        "it is tried again",
    ),
    "WaitingForDeletion": ConditionReason(
        "a child of the same name has to go first; who holds it is named"
    ),
    "Deleting": ConditionReason("the API itself is held in its deletion; by whom is named"),
}
SPEC_VALID: Final = {
    "Accepted": ConditionReason("the manifest can become pods"),
    "Invalid": ConditionReason(
        "the manifest got past the API server, and cannot be used",
        "correct the field that is named",
        lasting=True,
    ),
    "NotOwned": ConditionReason(
        "a child's name is taken by an object of somebody else's", "", lasting=True
    ),
    "PodTemplateRefused": ConditionReason(
        "the API server, or a webhook or policy of the cluster, refuses a child or a pod",
        "change what is named in the manifest, or the policy that refuses it",
        lasting=True,
    ),
    "PodSecurityDenied": ConditionReason(
        "the namespace's Pod Security level does not allow the pods",
        "change what is named (spec.pod.volumes, spec.pod.runAsUser), or the namespace's label"
        " pod-security.kubernetes.io/enforce",
        lasting=True,
    ),
    "QuotaExceeded": ConditionReason(
        "a ResourceQuota of the namespace has no room for a pod or a child",
        "raise the quota, lower spec.compute or spec.autoscaling.maxReplicas, or free some of it",
    ),
    "SourceMissing": ConditionReason("there is no ConfigMap of the name that predictor.source has"),
}  # fmt: skip
MODEL_LOADED: Final = {
    "Loaded": ConditionReason("a replica of the current revision answers"),
    "ModelLoading": ConditionReason(
        "a replica runs and has not loaded it yet, and none has failed to"
    ),
    "NotStarted": ConditionReason(
        "no replica has a node, or there is none", "see Scheduled, SpecValid and Progressing"
    ),
    "InitContainerRunning": ConditionReason(
        "a container that runs before that of the replica has not ended",
        "wait for it; `kubectl logs POD -c NAME` says what it does",
    ),
    "InitContainerFailed": ConditionReason(
        "a container that runs before that of the replica fails, or cannot be started; who added"
        " it to the pod is a webhook of the cluster",
        "see `kubectl logs POD -c NAME` and `kubectl describe pod`, and ask whoever added it",
    ),
    "SidecarNotReady": ConditionReason(
        "the pod waits for a container beside that of the replica to start, or to be ready",
        "wait for it; `kubectl logs POD -c NAME` says what it does",
    ),
    "SidecarFailed": ConditionReason(
        "a container beside that of the replica has ended, or cannot be started; who added it to"
        " the pod is a webhook of the cluster",
        "see `kubectl logs POD -c NAME` and `kubectl describe pod`, and ask whoever added it",
    ),
    "ContainerNotStarted": ConditionReason(
        "the node does not start the container, for a reason of its own",
        "see the words of the kubelet, and `kubectl describe pod`",
    ),
    "NotAnswering": ConditionReason(
        "the model was loaded, and the replica says that it cannot answer: its model processes are"
        " lost, or a worker does not reach the queue",
        "see `kubectl logs` of the pod",
    ),
    "ReadinessGateNotMet": ConditionReason(
        "the replica is ready, and a readiness gate of its pod is not",
        "see who sets the condition that is named: mostly the controller of a load balancer",
    ),
    "NodeNotReady": ConditionReason(
        "the pod's node does not answer the cluster any more, or has not begun with the pod",
        "see `kubectl describe node`; after five minutes the cluster makes another pod elsewhere",
    ),
    "ScaledToZero": ConditionReason(
        "no replica runs, by intent; it was loaded before, and is again"
    ),
    "ImagePullFailed": ConditionReason(
        "the node cannot get the image",
        "correct spec.predictor.image, or name a Secret that gives access to it in"
        " spec.pod.imagePullSecrets",
    ),
    "VolumesNotMounted": ConditionReason(
        "the node has not set up a pod that has volumes, and no replica answers; told after 30 s,"
        " where the kubelet says so (Kubernetes 1.37)",
        "create what is missing, or correct spec.pod.volumes; `kubectl describe pod` says which"
        " volume it is, or that it is the network",
    ),
    "ContainerCreating": ConditionReason(
        "the node has not created a container yet; after 30 s with what it may be: the image is"
        " still being pulled, or a volume cannot be mounted, which kubelets before 1.37 do not tell"
        " apart",
        "see `kubectl describe pod` for which it is: wait for the image, or create what"
        " spec.pod.volumes names",
    ),
    "CreateContainerConfigError": ConditionReason(
        "the kubelet cannot make the container as the manifest has it: a Secret, ConfigMap or key"
        " is missing, or the image's user is not allowed",
        "create what is missing, or correct spec.predictor.env, spec.predictor.envFrom or"
        " spec.pod.runAsUser; it is tried again",
    ),
    "PodFailed": ConditionReason(
        "a pod was evicted, refused by its node or lost with it, and none in its place answers",
        "see the reason: for one that a node was short of, raise spec.compute (mem,"
        " ephemeralStorage); another pod is made by itself",
    ),
    "DownloadFailed": ConditionReason(
        "the model cannot be fetched from predictor.model.uri",
        "correct the address, or what gives access to it (spec.predictor.env, the claim); it is"
        " tried again",
    ),
    "DigestMismatch": ConditionReason(
        "what was fetched is not what predictor.model.sha256 says",
        "correct spec.predictor.model.sha256, or find out who changed the model",
        lasting=True,
    ),
    "ImportFailed": ConditionReason(
        "predictor.path cannot be imported, or is no predictor",
        "correct spec.predictor.path or the code, or build what is missing into"
        " spec.predictor.image",
        lasting=True,
    ),
    "InitFailed": ConditionReason(
        "the predictor's constructor raised, or the replica cannot be set up as asked",
        "correct the constructor, or spec.predictor.config and env that it reads",
        lasting=True,
    ),
    "ShapeProbeFailed": ConditionReason(
        "warm-up rows came back with other shapes, types or numbers of rows than declared",
        "correct what the method returns, or inputs and outputs of @batched",
        lasting=True,
    ),
    "WarmUpFailed": ConditionReason(
        "a warm-up batch raised",
        "correct the method, or give it a row that it takes with @batched(example=...)",
        lasting=True,
    ),
    "OutOfMemory": ConditionReason(
        "loading or warming up took more memory than there is",
        "raise spec.compute.mem, or lower processesPerReplica or maxBatchSize",
        lasting=True,
    ),
    "StartupTimeout": ConditionReason(
        "the model was not loaded and warmed up within predictor.startupTimeout",
        "raise spec.predictor.startupTimeout, or make the start shorter",
        lasting=True,
    ),
    "CrashLooping": ConditionReason(
        "the replica ends without one of the reasons above, or its container cannot be created",
        "see `kubectl logs --previous` and `kubectl describe pod` of the pod",
        lasting=True,
    ),
}
SCHEDULED: Final = {
    "Scheduled": ConditionReason("every replica has a node"),
    "NoReplicas": ConditionReason("there are no pods"),
    "NotScheduled": ConditionReason(
        "no scheduler has looked at a replica yet",
        "wait; if it lasts, see whether the scheduler that the pod's schedulerName names runs",
    ),
    "SchedulingGated": ConditionReason(
        "a replica is held back by a gate before it is scheduled",
        "see spec.schedulingGates of the pod: who added a gate takes it away, Kueue for one",
    ),
    "Unschedulable": ConditionReason(
        "no node takes a replica",
        "add nodes, lower spec.compute to what a node has free, or correct spec.pod.nodeSelector,"
        " affinity or tolerations",
    ),
}
_COMPARED_REMEDY: Final = "spec.updateStrategy.compare, or go back to the manifest before"
COMPARED: Final = {
    "Compared": ConditionReason(
        "a replica of the current revision is ready: it was no worse than the one before, or had"
        " nothing to be compared with, as its log says"
    ),
    "Comparing": ConditionReason("no replica of the current revision is ready yet, and none worse"),
    "Slower": ConditionReason(
        "recent batches take longer with the new revision than with the old one, which goes on",
        f"make it faster, allow more in {_COMPARED_REMEDY}",
        lasting=True,
    ),
    "MoreErrors": ConditionReason(
        "recent rows fail with the new revision that the old one answered, which goes on",
        f"see `kubectl logs --previous` of the pod, set Off in {_COMPARED_REMEDY}",
        lasting=True,
    ),
    "AnswersDiffer": ConditionReason(
        "recent rows get other answers from the new revision than from the old one, which goes on",
        f"if they are meant to, allow more in {_COMPARED_REMEDY}",
        lasting=True,
    ),
}
METRICS_AVAILABLE: Final = {
    "AllPods": ConditionReason("every ready replica told its figures"),
    "Partial": ConditionReason(
        "some ready replicas do not answer the operator",
        "let the operator reach port 8081 of the pods (NetworkPolicy), and see the log of those"
        " that do not answer",
    ),
    "NoneReady": ConditionReason(
        "no replica is ready, so none has figures; replicas stay as they are", "see Ready"
    ),
    "None": ConditionReason(
        "no ready replica answers the operator",
        "let the operator reach port 8081 of the pods (NetworkPolicy); without figures replicas"
        " stay as they are",
    ),
}
AUTOSCALING_ACTIVE: Final = {
    "Active": ConditionReason("the operator chooses the number of replicas"),
    "Paused": ConditionReason("`paused` holds everything", "set spec.paused to false to go on"),
    "External": ConditionReason("an HPA, KEDA or `kubectl scale` chooses, through spec.replicas"),
    "Off": ConditionReason("spec.replicas is the number of replicas"),
    "MetricsMissing": ConditionReason(
        "replicas do not tell their figures, so their number stays", "see MetricsAvailable"
    ),
    "WriteFailed": ConditionReason(
        "the number that the operator has chosen cannot be set; in the API server's words",
        "it is tried again: if a webhook is named, whoever runs that has to mend it",
    ),
    "ModelUnknown": ConditionReason(
        "how long batches take is not known yet, so their number stays",
        "wait for some load; it is learned from the first batches",
    ),
}
SCALING_LIMITED: Final = {
    "NotLimited": ConditionReason("as many replicas as are needed"),
    "AtMax": ConditionReason(
        "more are needed than maxReplicas", "raise spec.autoscaling.maxReplicas, or spec.compute"
    ),
    "AtMin": ConditionReason("fewer would do than minReplicas"),
    "Stabilizing": ConditionReason("a change waits until the need has lasted (`behavior`)"),
    "RateLimited": ConditionReason("a change takes several steps (`behavior`)"),
}
SLO_MET: Final = {
    "Met": ConditionReason("requests are answered within the target, but for the share it allows"),
    "QueueWait": ConditionReason(
        "too many requests are late, and wait in the queue for longer than they are run",
        "raise spec.autoscaling.maxReplicas or spec.compute, or lower batchInterval",
    ),
    "ExecutionTime": ConditionReason(
        "too many requests are late, and mostly while their batch runs",
        "lower spec.serverSideBatching.maxBatchSize, give replicas more compute, or raise the"
        " target",
    ),
    "Shedding": ConditionReason(
        "rows are refused since they could not be answered in time",
        "raise spec.autoscaling.maxReplicas or spec.compute, or raise the target",
    ),
}
BATCHING_EFFECTIVE: Final = {
    "Filling": ConditionReason("batches have several rows"),
    "Starved": ConditionReason(
        "requests mostly run alone: too few come at once",
        "lower spec.serverSideBatching.batchInterval if they wait for it; fewer replicas or more"
        " clients at once fill batches",
    ),
    "Saturated": ConditionReason(
        "batches are as large as they may be, and lanes have no time left"
    ),
    "Disabled": ConditionReason(
        "maxBatchSize is 1", "raise spec.serverSideBatching.maxBatchSize to have batches"
    ),
    "Idle": ConditionReason("too few batches to tell; Unknown"),
}
SPEC_ADVICE: Final = {
    "NothingToSay": ConditionReason("nothing about the manifest looks like a mistake"),
    "MemoryMayNotHoldCopies": ConditionReason(
        "each process has a copy of the model, and mem is less"
    ),
    "IntervalExceedsLatency": ConditionReason("a full batch alone takes longer than the target"),
    "TooManyProcesses": ConditionReason("more than three processes for each CPU"),
    "BatchedOneByOne": ConditionReason(
        "maxBatchSize is above 1 for a method that takes one request"
    ),
    "RemovedFields": ConditionReason(
        "the manifest has fields that the next release refuses",
        "write what the message says in their place",
    ),
}
REASONS: Final[Mapping[ConditionType, Mapping[str, ConditionReason]]] = {
    ConditionType.READY: READY,
    ConditionType.PROGRESSING: PROGRESSING,
    ConditionType.SPEC_VALID: SPEC_VALID,
    ConditionType.MODEL_LOADED: MODEL_LOADED,
    ConditionType.SCHEDULED: SCHEDULED,
    ConditionType.COMPARED: COMPARED,
    ConditionType.METRICS_AVAILABLE: METRICS_AVAILABLE,
    ConditionType.AUTOSCALING_ACTIVE: AUTOSCALING_ACTIVE,
    ConditionType.SCALING_LIMITED: SCALING_LIMITED,
    ConditionType.SLO_MET: SLO_MET,
    ConditionType.BATCHING_EFFECTIVE: BATCHING_EFFECTIVE,
    ConditionType.SPEC_ADVICE: SPEC_ADVICE,
}
"""Ready has the reason of what is broken where that is why nobody answers; Stalled and Reconciling
have those of the condition that they repeat."""
