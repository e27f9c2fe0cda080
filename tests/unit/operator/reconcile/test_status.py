"""Conditions and phase, out of Deployments and pods as Kubernetes reports them."""

import json
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    NOW,
    WALL,
    api,
    api_body,
    child_body,
    deployment_body,
    pod_body,
)

from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_operator.reconcile import conditions
from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.reconcile.status import same, words_rest
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.setting import Running
from batchedapi_operator.views import ChildView, DeploymentView, Observed, PodView

LATER = "2026-01-02T04:00:00Z"
REVISION = revision_of(api(), {}, {}, Running("former", None)).digest


def status_of(
    deployment: dict[str, Any] | None,
    pods: list[dict[str, Any]] | None = None,
    before: dict[str, Any] | None = None,
    now: str = NOW,
) -> dict[str, Any]:
    """The status that the reconciler would write."""
    observed = Observed(
        status=before or {},
        deployment=DeploymentView.of(deployment) if deployment else None,
        service=ChildView.of(child_body("iris")),
        pods=tuple(map(PodView.of, pods or [])),
    )
    return plan(api_body(), observed, IMAGE, now).status


def reasons(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Type -> (status, reason)."""
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """A container's state."""
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    """A container's last state."""
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def test_a_rolled_out_api_is_live() -> None:
    """All figures come from the Deployment; the selector is what /scale needs."""
    status = status_of(deployment_body(), [pod_body()])

    assert {
        "Ready": ("True", "AllReplicasReady"),
        "Progressing": ("False", "RolloutComplete"),
        "SpecValid": ("True", "Accepted"),
        "ModelLoaded": ("True", "Loaded"),
        "Scheduled": ("True", "Scheduled"),
    } == reasons(status)
    assert status["phase"] == "Live"
    assert (2, 2, 2, 2) == tuple(
        status[name] for name in ("replicas", "readyReplicas", "updatedReplicas", "desiredReplicas")
    )
    assert status["selector"] == "batchedapi.dev/api=iris"
    assert status["url"] == "http://iris.demo.svc/iris"


@pytest.mark.parametrize(
    ("ready", "progress", "expected"),
    [
        pytest.param(0, "ReplicaSetUpdated", "Pending", id="first pods are starting"),
        pytest.param(1, "ReplicaSetUpdated", "Updating", id="some answer"),
        pytest.param(1, "NewReplicaSetAvailable", "Live", id="scaling up"),
        pytest.param(1, "ProgressDeadlineExceeded", "Degraded", id="stuck, old pods answer"),
        pytest.param(0, "ProgressDeadlineExceeded", "Error", id="stuck, nobody answers"),
    ],
)
def test_the_phase_is_what_a_user_should_know_first(
    ready: int, progress: str, expected: str
) -> None:
    """One word for the printer column."""
    verdict = {"type": "Progressing", "status": "True", "reason": progress}

    body = deployment_body(ready=ready, conditions=[verdict])

    assert expected == status_of(body, [pod_body(ready=ready > 0)])["phase"]


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        pytest.param(
            {"state": waiting("ImagePullBackOff", "no such image x:1")},
            "ImagePullFailed",
            "x:1",
            id="image",
        ),
        pytest.param(
            {
                "state": waiting("CrashLoopBackOff"),
                "last_state": ended(
                    1, json.dumps({"reason": "ImportFailed", "message": "No module named 'x'"})
                ),
            },
            "ImportFailed",
            "No module named 'x'",
            id="told by the replica",
        ),
        pytest.param(
            {"last_state": ended(1, "Traceback: boom")},
            "CrashLooping",
            "boom",
            id="tail of the log",
        ),
        pytest.param(
            {"last_state": ended(1, json.dumps({"reason": "Evil", "message": "m"}))},
            "CrashLooping",
            "m",
            id="a reason that we do not know",
        ),
        pytest.param({"last_state": ended(1, "[1, 2]")}, "CrashLooping", "[1, 2]", id="odd JSON"),
        pytest.param(
            {"last_state": ended(137, "", "OOMKilled")},
            "OutOfMemory",
            "spec.compute.mem",
            id="memory",
        ),
        pytest.param(
            {"state": waiting("CreateContainerConfigError", "no configmap")},
            "CreateContainerConfigError",
            "pod iris-1: no configmap; create what is missing, or correct spec.predictor.env",
            id="a ConfigMap of env is missing",
        ),
        pytest.param(
            {"state": waiting("RunContainerError", "no such file")},
            "CrashLooping",
            "pod iris-1: RunContainerError: no such file",
            id="cannot be run",
        ),
    ],
)
def test_why_a_model_does_not_load(pod: dict[str, Any], reason: str, words: str) -> None:
    """The user reads it from `kubectl describe bapi`, without looking for the pod."""
    status = status_of(deployment_body(ready=0), [pod_body(ready=False, **pod)])

    (found,) = [one for one in status["conditions"] if one["type"] == "ModelLoaded"]
    assert ("False", reason) == (found["status"], found["reason"])
    assert words in found["message"]
    assert status["phase"] == "Error"


@pytest.mark.parametrize(
    "reason",
    ["DownloadFailed", "DigestMismatch", "ImportFailed", "InitFailed", "ShapeProbeFailed",
     "WarmUpFailed", "OutOfMemory", "StartupTimeout", "CrashLooping"],
)  # fmt: skip
def test_what_a_replica_gives_as_its_reason_is_the_conditions(reason: str) -> None:
    """N11, C19: the word is the replica's; the operator adds which pod said it."""
    told = json.dumps({"reason": reason, "message": "because"})
    pod = pod_body(ready=False, last_state=ended(1, told))

    status = status_of(deployment_body(ready=0), [pod])

    (found,) = [one for one in status["conditions"] if one["type"] == "ModelLoaded"]
    remedy = REASONS[ConditionType.MODEL_LOADED][reason].remedy
    assert (reason, f"pod iris-1: because; {remedy}") == (found["reason"], found["message"])


CREATING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
BEGAN = "2026-01-02T03:04:05Z"
"""On its node."""
SOON, LATE = "2026-01-02T03:04:25Z", "2026-01-02T03:04:35Z"
VOLUMES: list[dict[str, Any]] = [
    {"name": "revision", "configMap": {"name": "iris-1"}},
    {"name": "tmp", "emptyDir": {}},
    {"name": "kube-api-access-x2x", "projected": {}},
    {"name": "a", "secret": {"secretName": "tokens"}},
    {"name": "b", "configMap": {"name": "maybe", "optional": True}},
    {"name": "c", "persistentVolumeClaim": {"claimName": "weights"}},
    {"name": "d", "csi": {"driver": "example.com"}},
]
NAMED = "Secret tokens, PersistentVolumeClaim weights, volume d"


def created_by(
    status: str = "", reason: str = "", *, volumes: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A pod whose node has begun with it, as a kubelet tells whether it has a sandbox."""
    told = {"type": "PodReadyToStartContainers", "status": status, "reason": reason}
    more = [told | {"message": "no pod sandbox exists"} if reason else told] if status else []
    body = pod_body(ready=False, state=CREATING, conditions=more)
    body["status"]["startTime"] = BEGAN
    body["spec"] = {"volumes": VOLUMES if volumes is None else volumes}
    return body


@pytest.mark.parametrize(
    ("pod", "expected", "words"),
    [
        pytest.param(
            created_by("False"),
            ("Unknown", "ContainerCreating"),
            f"its image is still being pulled, or a volume cannot be mounted ({NAMED}); see",
            id="a kubelet that does not tell",
        ),
        pytest.param(
            created_by(volumes=[]),
            ("Unknown", "ContainerCreating"),
            "its image is still being pulled, or a volume cannot be mounted; see",
            id="one of long ago",
        ),
        pytest.param(
            created_by("True"),
            ("Unknown", "ContainerCreating"),
            "after 30 s: its image is still being pulled; see",
            id="volumes are mounted",
        ),
        pytest.param(
            created_by("False", "PodSandboxNotReady"),
            ("False", "VolumesNotMounted"),
            f"exists, as a volume (one of {NAMED}) or the network is not set up; create what is",
            id="a kubelet that tells",
        ),
        pytest.param(
            created_by("False", "PodSandboxNotReady", volumes=[]),
            ("Unknown", "ContainerCreating"),
            "no pod sandbox exists, as the node cannot set up its network; see",
            id="there is no volume",
        ),
    ],
)
def test_a_container_that_is_long_in_creation_is_told_with_what_it_may_wait_for(
    pod: dict[str, Any], expected: tuple[str, str], words: str
) -> None:
    """No event is read: the kubelet tells a pod nothing of a volume that it cannot mount."""
    deployment = deployment_body(ready=0)

    soon, late = (status_of(deployment, [pod], now=now) for now in (SOON, LATE))

    assert ("Unknown", "ContainerCreating") == reasons(soon)["ModelLoaded"]
    mounts = f"its container, which mounts {NAMED}; see"
    assert (mounts in soon["message"]) is bool(pod["spec"]["volumes"])
    assert expected == reasons(late)["ModelLoaded"]
    assert ("False", expected[1]) == reasons(late)["Ready"]
    assert words in late["message"]
    assert "kubectl describe pod" in late["message"]


def test_an_image_that_is_long_in_coming_is_no_failure_of_a_revision() -> None:
    """The pods of the revision before go on answering."""
    new = created_by("True")
    new["metadata"]["labels"]["batchedapi.dev/revision"] = "2"
    verdict = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    body = deployment_body(revision="2", ready=1, conditions=[verdict])

    status = status_of(body, [pod_body("iris-old", revision="1"), new], now=LATE)

    assert ("Unknown", "ContainerCreating") == reasons(status)["Ready"]
    assert "Updating" == status["phase"]


def test_a_volume_that_is_long_in_coming_is_no_failure_where_another_replica_answers() -> None:
    """Each scale-up with a volume that takes longer to attach would be one."""
    slow = created_by("False", "PodSandboxNotReady")

    status = status_of(deployment_body(ready=1), [slow, pod_body("iris-2")], now=LATE)

    assert ("True", "Loaded") == reasons(status)["ModelLoaded"]
    assert "Live" == status["phase"]


def test_a_container_in_creation_is_looked_at_again_when_it_has_had_its_time() -> None:
    """Its pod changes no more, so nobody tells."""
    observed = Observed(
        status={},
        deployment=DeploymentView.of(deployment_body(ready=0)),
        pods=(PodView.of(created_by()), PodView.of(pod_body("iris-2"))),
    )

    due = [plan(api_body(), observed, IMAGE, now).retry_after for now in (BEGAN, SOON, LATE)]

    assert [30.0, 10.0, None] == due


def failed(name: str = "evicted", ended_at: str = BEGAN, **status: Any) -> dict[str, Any]:
    """A pod that its node has given up."""
    body = pod_body(name, ready=False)
    body["status"] |= {"phase": "Failed", **status}
    body["status"]["conditions"][0]["lastTransitionTime"] = ended_at
    return body


def replacement(created: str = SOON) -> dict[str, Any]:
    """One that is starting."""
    body = pod_body("iris-2", ready=False)
    body["metadata"]["creationTimestamp"] = created
    return body


EVICTED: dict[str, Any] = {"reason": "Evicted", "message": "The node was low on resource: memory."}


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([failed(**EVICTED)], "pod evicted: Evicted: The node was low on resource: memory."),
        ([failed(**EVICTED), replacement()], "pod evicted: Evicted: The node was low"),
        ([failed(reason="NodeLost")], "pod evicted: NodeLost; see the reason"),
        ([failed()], "pod evicted: it failed, and nobody says why"),
        ([failed(**EVICTED), failed("b", SOON, reason="UnexpectedAdmissionError")], "pod b: Unex"),
    ],
    ids=["alone", "replaced", "without a message", "without a word", "the last one"],
)
def test_a_pod_that_its_node_has_given_up_is_told_until_another_answers(
    pods: list[dict[str, Any]], words: str
) -> None:
    """It is why nobody answers, and the cluster makes another by itself."""
    status = status_of(deployment_body(ready=0), pods, now=LATE)

    assert ("False", "PodFailed") == reasons(status)["ModelLoaded"]
    assert words in status["message"]
    assert "Stalled" not in reasons(status)


def refused() -> dict[str, Any]:
    """A pod that its node did not take: it has no conditions."""
    body = failed(reason="OutOfcpu", message="Pod was rejected: Node didn't have enough resource")
    body["status"] |= {"conditions": [], "containerStatuses": []}
    body["metadata"]["creationTimestamp"] = SOON
    return body


def test_a_pod_that_its_node_refused_is_told() -> None:
    """It has never begun."""
    status = status_of(deployment_body(ready=0), [refused()], now=LATE)

    assert ("False", "PodFailed") == reasons(status)["ModelLoaded"]
    assert "pod evicted: OutOfcpu: Pod was rejected" in status["message"]


def deleted() -> dict[str, Any]:
    """One that was scaled away, and did not end well."""
    body = failed(**EVICTED)
    body["metadata"]["deletionTimestamp"] = LATE
    return body


def served(created: str = SOON, *, ready_until: str = LATER) -> dict[str, Any]:
    """One that was ready, and is not just now."""
    body = replacement(created)
    body["status"]["startTime"] = created
    body["status"]["conditions"][0]["lastTransitionTime"] = ready_until
    return body


DAYS_BEFORE = "2025-12-30T03:04:05Z"


@pytest.mark.parametrize(
    ("pods", "replicas"),
    [
        ([failed(**EVICTED), replacement("2026-01-02T09:00:00Z")], 2),
        ([failed(**EVICTED)], 0),
        ([deleted()], 2),
        ([failed(**EVICTED), served()], 2),
        ([failed(**EVICTED), served(DAYS_BEFORE)], 2),
        ([failed(ended_at=DAYS_BEFORE, **EVICTED), replacement("2025-12-29T03:04:05Z")], 2),
        ([failed(ended_at=DAYS_BEFORE, **EVICTED)], 2),
    ],
    ids=[
        "hours before", "nobody is wanted", "deleted", "another has served in its place",
        "one beside it has served", "one beside it that is older", "days before, and alone",
    ],
)  # fmt: skip
def test_a_pod_that_failed_and_is_not_missed_is_not_told(
    pods: list[dict[str, Any]], replicas: int
) -> None:
    """The cluster keeps it for days."""
    status = status_of(deployment_body(replicas=replicas, ready=0), pods, now=LATE)

    starts = any("deletionTimestamp" not in pod["metadata"] for pod in pods[1:])
    expected = "ModelLoading" if starts else "NotStarted"
    assert ("Unknown", expected) == reasons(status)["ModelLoaded"]


def test_a_pod_that_failed_beside_an_older_one_is_told_while_its_place_is_empty_or_loads() -> None:
    """The older one has never been ready, so nobody answers."""
    older = replacement("2026-01-02T02:00:00Z")
    for pods in ([failed(**EVICTED), older], [failed(**EVICTED), older, replacement()]):
        status = status_of(deployment_body(ready=0), pods, now=LATE)

        assert ("False", "PodFailed") == reasons(status)["ModelLoaded"]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("0/3 nodes are available: 3 node(s) had untolerated taint {gpu: }", "tolerations"),
        ("3 node(s) had taints that the pod didn't tolerate", "tolerations"),
        ("0/2 nodes are available: 2 cannot allocate all claims.", "resourceClaims"),
        ("3 node(s) didn't match Pod's node affinity/selector", "nodeSelector, spec.pod.affinity"),
        ("3 node(s) didn't match pod anti-affinity rules", "affinity"),
        ("3 node(s) didn't match pod topology spread constraints", "topologySpreadConstraints"),
        ('persistentvolumeclaim "weights" not found', "volumes"),
        ("pod has unbound immediate PersistentVolumeClaims", "volumes"),
    ],
)
def test_what_the_scheduler_says_is_about_fields_of_the_pods(words: str, fields: str) -> None:
    """Nodes that are there and not allowed are more often the cause than too few of them."""
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}

    status = status_of(deployment_body(ready=0), [pod_body(ready=False, conditions=[told])])

    assert f"1 of 1 pods: spec.pod.{fields}: {words}; add nodes" in status["message"]


def test_a_web_pod_without_a_node_is_about_its_own_fields() -> None:
    """Another toleration of the model's pods would give it no node."""
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = pod_body(
        ready=False, conditions=[{**told, "message": "1 node(s) had untolerated taint"}]
    )
    web = replace(PodView.of(body), role="web")

    message = conditions.scheduled([web]).message

    assert "1 of 1 pods: spec.serverSideBatching.queue.web.pod.tolerations: 1 node(s)" in message


def test_an_evicted_pod_is_no_replica_that_cannot_load() -> None:
    """The cluster keeps it for hours after another has taken its place."""
    evicted = pod_body("evicted", ready=False, state=ended(137))
    evicted["status"]["phase"] = "Failed"

    status = status_of(deployment_body(), [evicted, pod_body()])

    assert ("True", "Loaded") == reasons(status)["ModelLoaded"]
    assert status["phase"] == "Live"


def test_pods_of_an_old_revision_do_not_vouch_for_the_new_one() -> None:
    """The old model answers; the new one fails to load; the user must see that."""
    old = pod_body("iris-old", revision="1")
    new = pod_body("iris-new", revision="2", ready=False, state=waiting("ErrImagePull"))

    status = status_of(deployment_body(revision="2", ready=1), [old, new])

    assert ("False", "ImagePullFailed") == reasons(status)["ModelLoaded"]
    assert status["phase"] == "Degraded"


def test_an_unschedulable_pod_is_reported_in_the_schedulers_words() -> None:
    """`0/3 nodes are available` is what tells the user to add one."""
    words = "0/3 nodes are available"
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }

    status = status_of(
        deployment_body(ready=1),
        [pod_body(), pod_body("b", ready=False, conditions=[unschedulable])],
    )

    (found,) = [one for one in status["conditions"] if one["type"] == "Scheduled"]
    assert "False" == found["status"]
    assert found["message"].startswith(f"1 of 2 pods: {words}; add nodes")
    assert status["phase"] == "Degraded"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodSecurityDenied"),
        ('pods "x" is forbidden: exceeded quota: compute', "QuotaExceeded"),
        ("admission webhook denied the request", "PodTemplateRefused"),
    ],
)
def test_pods_that_are_refused_are_reported(message: str, reason: str) -> None:
    """A Deployment accepts what its pods will be refused for; its ReplicaFailure says so."""
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }

    status = status_of(deployment_body(ready=0, conditions=[failure]))

    assert ("False", reason) == reasons(status)["SpecValid"]


WEBHOOK = (
    'Internal error occurred: failed calling webhook "sidecar.example.com": failed to call webhook:'
    ' Post "https://127.0.0.1:1/": dial tcp 127.0.0.1:1: connect: connection refused'
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (WEBHOOK, "WebhookFailed"),
        ("Internal error occurred: etcdserver: no leader", "RequestFailed"),
        ("etcdserver: request timed out", "RequestFailed"),
        ("Timeout: request did not complete within requested timeout", "RequestFailed"),
        ("the server is currently unable to handle the request", "RequestFailed"),
        ('Post "https://10.0.0.1/api/v1/pods": EOF', "RequestFailed"),
    ],
)
@pytest.mark.parametrize("ready", [0, 1])
def test_pods_that_cannot_be_created_for_now_are_no_fault_of_the_manifest(
    message: str, reason: str, ready: int
) -> None:
    """It passes once the webhook or the apiserver is well: whoever waits for it goes on waiting."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "x", "message": message}

    pods = [pod_body()] if ready else []
    status = status_of(deployment_body(ready=ready, conditions=[failure]), pods)

    found = reasons(status)
    assert ("True", "Accepted") == found["SpecValid"]
    assert ("False", reason) == found["Progressing"]
    assert ("True", reason) == found["Reconciling"]
    assert "Stalled" not in found
    assert (("True", "MinimumReady") if ready else ("False", reason)) == found["Ready"]
    assert f"pods of iris cannot be created: {message}; it is tried again" in status["message"]


@pytest.mark.parametrize(
    ("updated", "message", "reason"),
    [
        (1, 'pods "iris-old-" is forbidden: no PriorityClass with name x', "Accepted"),
        (0, 'pods "iris-old-" is forbidden: no PriorityClass with name x', "PodTemplateRefused"),
        (1, 'pods "iris-new-b2c" is forbidden: exceeded quota: compute', "QuotaExceeded"),
        (1, "admission webhook denied the request", "Accepted"),
        (0, "admission webhook denied the request", "PodTemplateRefused"),
    ],
)
def test_a_refusal_of_an_earlier_template_is_over_once_a_pod_of_the_newest_is_there(
    updated: int, message: str, reason: str
) -> None:
    """The earlier ReplicaSet goes on failing until the new pod has loaded its model."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
               "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    body = deployment_body(ready=0, replicas=1, conditions=[failure])
    body["status"]["updatedReplicas"] = updated
    pod = pod_body("iris-new-a1b", ready=False)
    pod["metadata"]["creationTimestamp"] = "2026-01-01T00:01:00Z"

    status = status_of(body, [pod] if updated else [])

    assert reason == reasons(status)["SpecValid"][1]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "maximum memory usage per Container is 1Ti, but limit is 2Ti",
            "spec.compute.mem: maximum",
        ),
        ("exceeded quota: few, requested: cpu=2,pods=1", "spec.compute.cpu, spec.autoscaling.max"),
        ("spec.containers[0].image: Invalid value", "spec.predictor.image: Invalid"),
        ("spec.template.spec.containers[0].env[1].name: x", "spec.predictor.env[].name: x"),
        ("spec.template.spec.containers[0].resources.limits[memory]: x", "spec.compute: x"),
        (
            "spec.template.spec.containers[0].volumeMounts[0].mountPath: x",
            "spec.pod.volumeMounts[].mountPath",
        ),
        (
            "spec.ingress[0].from[1].ipBlock.cidr: x",
            "spec.networking.allowFrom[1].ipBlock.cidr: x",
        ),
        ("spec.template.spec.tolerations[0].operator: x", "spec.pod.tolerations[0].operator: x"),
        ("spec.template.spec.securityContext.runAsUser: x", "spec.pod.runAsUser: x"),
        ("no PriorityClass with name x was found", "spec.pod.priorityClassName: no Prio"),
        ('pod rejected: RuntimeClass "x" not found', "spec.pod.runtimeClassName: pod"),
        ("error looking up service account a/b: not found", "spec.pod.serviceAccountName: error"),
        ("spec.template.spec.volumes[2].csi.driver: x", "spec.pod.volumes[].csi.driver: x"),
        (
            'Pod "x-y" is invalid: spec.volumes[2].projected.sources[0].serviceAccountToken: x',
            'Pod "x-y" is invalid: spec.pod.volumes[].projected.sources[0].serviceAccountToken: x',
        ),
        (
            "spec.template.spec.volumes[2].csi.name: x",
            "spec.pod.volumes[].csi.nodePublishSecretRef.name: x",
        ),
        (
            "spec.template.spec.volumes[2].projected.path: x",
            "spec.pod.volumes[].projected.sources[].serviceAccountToken.path: x",
        ),
        ("spec.template.labels: x", "spec.pod.labels: x"),
        ("admission webhook denied the request", "admission webhook"),
    ],
)
def test_a_refusal_of_pods_names_the_fields_of_the_manifest(message: str, told: str) -> None:
    """The pod that it names is gone, and its fields are in no file of the user's."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "x", "message": message}

    status = status_of(deployment_body(ready=0, conditions=[failure]))

    (found,) = [one for one in status["conditions"] if one["type"] == "SpecValid"]
    assert found["message"].startswith(told)


def test_a_transition_time_moves_only_with_its_status() -> None:
    """`kubectl wait` and alerts count from it."""
    before = status_of(deployment_body(ready=1), [pod_body()])
    fuller = status_of(deployment_body(ready=2), [pod_body()], before, LATER)
    broken = status_of(deployment_body(ready=0), [pod_body()], before, LATER)

    def time_of_ready(status: dict[str, Any]) -> str:
        (found,) = [one for one in status["conditions"] if one["type"] == "Ready"]
        return str(found["lastTransitionTime"])

    assert NOW == time_of_ready(fuller)
    assert LATER == time_of_ready(broken)


def test_an_unchanged_status_is_not_written() -> None:
    """Not even when the autoscaler's conditions stand beside ours."""
    before = status_of(deployment_body(), [pod_body()])
    theirs = {"type": "AutoscalingActive", "status": "True", "reason": "Active"}
    stored = {**before, "conditions": [theirs, *before["conditions"]], "batching": {}}

    assert same(stored, status_of(deployment_body(), [pod_body()], before, LATER))
    assert not same(stored, status_of(deployment_body(ready=1), [pod_body()], before, LATER))


def test_a_message_that_alone_has_changed_is_no_news() -> None:
    """The kubelet words a failed pull differently every few seconds."""
    failing = [
        pod_body(ready=False, state=waiting(reason, words))
        for reason, words in (("ErrImagePull", "pull failed"), ("ImagePullBackOff", "backing off"))
    ]

    before, after = (status_of(deployment_body(ready=0), [pod]) for pod in failing)

    assert same(before, after)


@pytest.mark.parametrize(
    ("written", "rest"),
    [
        pytest.param([], 0.0, id="somebody has removed who manages it"),
        pytest.param([("batchedapi-operator", "status", NOW)], 110.0, id="ten seconds ago"),
        pytest.param([("batchedapi-operator", "status", LATER)], 120.0, id="a clock ahead"),
        pytest.param(
            [("batchedapi-operator", "status", NOW), ("kubectl", "status", LATER),
             ("batchedapi-operator", "", LATER)],
            110.0, id="by us, and others later",
        ),
    ],
)  # fmt: skip
def test_new_words_wait_from_our_last_change_on(
    written: list[tuple[str, str, str]], rest: float
) -> None:
    """Nobody's clock may hold them back for ever."""
    names = ("manager", "subresource", "time")
    metadata = {"managedFields": [dict(zip(names, one, strict=True)) for one in written]}
    before, after = {"message": "0/3 nodes"}, {"message": "0/4 nodes"}

    assert rest == words_rest(metadata, before, after, WALL + timedelta(seconds=10))
    assert math.inf == words_rest(metadata, before, before, WALL)


def test_messages_are_cut_to_what_a_status_should_hold() -> None:
    """A traceback of a megabyte would not fit in etcd."""
    pod = pod_body(ready=False, state=waiting("ErrImagePull", "x" * 5000))

    status = status_of(deployment_body(ready=0), [pod])

    assert conditions.MESSAGE_LENGTH == max(len(one["message"]) for one in status["conditions"])


def test_ready_says_what_keeps_everybody_from_answering() -> None:
    """ModelLoading sent its user to the model's log, which was empty: no image had been pulled."""
    body = deployment_body(ready=0, conditions=[])
    cannot = {"state": waiting("ErrImagePull", "no such image x:1")}
    scheduling = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    nowhere = {"conditions": [{**scheduling, "message": "0/3 nodes have a GPU"}]}

    pulled = status_of(body, [pod_body(ready=False, **cannot)])
    waits = status_of(body, [pod_body(ready=False, **nowhere)])
    loads = status_of(body, [pod_body(ready=False)])

    assert ("False", "ImagePullFailed") == reasons(pulled)["Ready"]
    assert pulled["message"].startswith("pod iris-1: no such image x:1; correct spec.predictor")
    assert ("False", "Unschedulable") == reasons(waits)["Ready"]
    assert "0/3 nodes have a GPU" in waits["message"]
    assert ("False", "ModelLoading") == reasons(loads)["Ready"]
    assert loads["message"].startswith("0 of 2 replicas ready; wait")


def test_the_message_is_what_is_broken_before_how_many_answer() -> None:
    """`kubectl get -o wide` shows it: nobody has to describe the object to know what to do."""
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    told = [{**stuck, "message": "has timed out progressing"}]

    fine = status_of(deployment_body(), [pod_body()])
    late = status_of(deployment_body(conditions=told), [pod_body()])
    failed = {"last_state": ended(1, "boom")}
    broken = status_of(deployment_body(conditions=told), [pod_body(ready=False, **failed)])

    assert "2 of 2 replicas ready" == fine["message"]
    assert late["message"].startswith("has timed out progressing; see Scheduled")
    assert "boom" in broken["message"]


def test_a_status_without_a_message_is_written_once() -> None:
    """The status of an idle API would stay without one, after an upgrade."""
    status = status_of(deployment_body(), [pod_body()])
    before = {name: value for name, value in status.items() if name != "message"}

    assert not same(before, status)
    assert not same({**before, "message": ""}, status)  # the CRD's default
    assert same({**before, "message": "worded otherwise"}, status)


def found_in(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition; empty where there is none."""
    return next((one for one in status["conditions"] if one["type"] == kind), {})


def test_a_long_message_is_cut_before_its_remedy() -> None:
    """A traceback took all the room, and what to do about it was cut off."""
    told = json.dumps({"reason": "ImportFailed", "message": "x" * 2000})

    status = status_of(deployment_body(ready=0), [pod_body(ready=False, last_state=ended(1, told))])

    message = found_in(status, "ModelLoaded")["message"]
    assert conditions.MESSAGE_LENGTH == len(message)
    assert message.endswith(REASONS[ConditionType.MODEL_LOADED]["ImportFailed"].remedy)


def test_ready_waits_for_the_new_revision_while_the_one_before_answers() -> None:
    """`kubectl wait --for=condition=Ready` after an apply came back at once: the old pods were."""
    rolling = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    body = deployment_body(revision=REVISION, conditions=[rolling])
    body["status"]["updatedReplicas"] = 1
    old, new = pod_body("old", revision="former"), pod_body("new", revision=REVISION, ready=False)

    starting = status_of(body, [old, new])
    cannot = ended(1, json.dumps({"reason": "ImportFailed", "message": "because"}))
    crashed = pod_body("new", revision=REVISION, ready=False, last_state=cannot)
    failing = status_of(body, [old, crashed])
    arrived = status_of(body, [old, pod_body("new", revision=REVISION)])

    assert ("Unknown", "ModelLoading") == reasons(starting)["Ready"]
    assert "2 of an earlier one do" in found_in(starting, "Ready")["message"]
    assert "Updating" == starting["phase"]
    assert ("False", "ImportFailed") == reasons(failing)["Ready"]
    assert "Degraded" == failing["phase"]
    assert ("True", "AllReplicasReady") == reasons(arrived)["Ready"]


def test_a_deployment_of_another_revision_is_not_what_the_manifest_says() -> None:
    """It is before the apply of the new template, or that was refused."""
    status = status_of(deployment_body(revision="former"), [pod_body(revision="former")])

    assert ("Unknown", "ModelLoading") == reasons(status)["Ready"]


def test_what_was_ready_stays_so_when_its_source_is_deleted() -> None:
    """Its replicas have a copy; but a new manifest that names no source is not ready."""
    spec = {"predictor": {"path": "model:Iris", "source": {"configMap": "gone"}}}
    deployment = DeploymentView.of(deployment_body(revision="former"))
    was = {"type": "Ready", "status": "True", "reason": "r", "lastTransitionTime": NOW}

    def told(generation: int) -> dict[str, Any]:
        before = {"conditions": [{**was, "observedGeneration": generation}]}
        pods = (PodView.of(pod_body(revision="former")),)
        observed = Observed(status=before, deployment=deployment, pods=pods)
        return plan(api_body(**spec), observed, IMAGE, NOW).status

    assert ("True", "AllReplicasReady") == reasons(told(1))["Ready"]
    assert ("False", "SourceMissing") == reasons(told(0))["Ready"]


def test_the_last_replicas_drain_before_there_are_none() -> None:
    """Scaled to zero, those that end still answer what they have."""
    body = deployment_body(replicas=0, ready=0)
    ending = pod_body(ready=False)
    ending["metadata"]["deletionTimestamp"] = NOW

    assert ("False", "Draining") == reasons(status_of(body, [ending]))["Ready"]
    assert ("False", "NoReplicas") == reasons(status_of(body))["Ready"]


@pytest.mark.parametrize(
    ("deployment", "pods", "expected"),
    [
        pytest.param({}, [pod_body()], {}, id="live"),
        pytest.param(
            {"conditions": []}, [pod_body()], {"Reconciling": "NewRevision"}, id="rolling out"
        ),
        pytest.param(
            {"ready": 0},
            [pod_body(ready=False, last_state=ended(1, "boom"))],
            {"Stalled": "CrashLooping"},
            id="crashing",
        ),
        pytest.param(
            {"ready": 1},
            [pod_body(), pod_body("b", ready=False, last_state=ended(1, "boom"))],
            {},
            id="one of two crashes",
        ),
        pytest.param(
            {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                             "message": "exceeded quota: compute"}]},
            [pod_body()],
            {"Reconciling": "QuotaExceeded"},
            id="a quota that may be raised",
        ),
        pytest.param(
            {"ready": 0, "conditions": []},
            [pod_body(ready=False, state=waiting("ErrImagePull"))],
            {"Reconciling": "NewRevision"},
            id="an image that may appear",
        ),
        pytest.param(
            {"conditions": [{"type": "Progressing", "status": "False",
                             "reason": "ProgressDeadlineExceeded"}]},
            [pod_body()],
            {"Stalled": "ProgressDeadlineExceeded"},
            id="late",
        ),
    ],
)  # fmt: skip
def test_tools_that_know_nothing_of_us_are_told_whether_to_wait(
    deployment: dict[str, Any], pods: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    """kstatus: never both, and none where all is well."""
    status = status_of(deployment_body(**deployment), pods)

    found = {kind: found_in(status, kind).get("reason") for kind in ("Stalled", "Reconciling")}
    assert expected == {kind: reason for kind, reason in found.items() if reason}


def test_conditions_of_tools_that_are_over_are_news() -> None:
    """They are taken out by the next apply, which has to be sent for it."""
    rolling = status_of(deployment_body(conditions=[]), [pod_body()])
    over = {**rolling, "conditions": rolling["conditions"][:-1]}

    assert not same(rolling, over)
    assert not same(over, rolling)
