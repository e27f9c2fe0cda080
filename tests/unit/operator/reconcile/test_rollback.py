"""A rollout that does not move goes back by itself: what is written then, and what is told."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.reconcile.test_reconciler import Operator
from tests.unit.operator.worlds import (
    IMAGE,
    KEY,
    NOW,
    MemoryCluster,
    api_body,
    child_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_core import contract
from batchedapi_core.manifest import SPREAD, Pod, as_written
from batchedapi_core.manifest.status import RevisionStatus
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, PODS, REPLICA_SETS, JsonObject
from batchedapi_operator.reconcile.observe import observe
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources.revised import GivenUp, of_replica_set, revised
from batchedapi_operator.views import (
    ChildView,
    DeploymentView,
    EarlierView,
    Observed,
    PodView,
    SourceView,
)

STUCK: Final = {
    "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
    "message": "timed out",
}  # fmt: skip
UPDATE: Final = {"autoRollback": True}
FIRST: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "image": "a:1", "source": {"configMap": "m"}},
    "updateStrategy": UPDATE,
}
SECOND: Final[JsonObject] = {**FIRST, "predictor": {**FIRST["predictor"], "image": "a:2"}}
SETTING: Final[JsonObject] = {**FIRST, "compute": {"cpu": "2"}}
STRATEGY: Final[JsonObject] = {
    **SECOND,
    "updateStrategy": {**UPDATE, "drainDelay": "9s", "compare": {"mode": "On"}},
}
FILES: Final = SourceView({"model.py": "one"}, {})
PLACED: Final = Pod(node_selector={"disk": "fast"})


def written(made: Plan) -> JsonObject:
    """The Deployment that is to be applied."""
    return made.apply[-1].body


def digest_of(made: Plan) -> str:
    """Digest of the revision that its pods carry."""
    return str(written(made)["spec"]["template"]["metadata"]["labels"][contract.LABEL_REVISION])


def deployment_of(made: Plan, **more: Any) -> DeploymentView:
    """The Deployment once that has been applied."""
    annotations = written(made)["metadata"]["annotations"]
    body = deployment_body(annotations=annotations, **more)
    body["spec"]["template"] = written(made)["spec"]["template"]
    return DeploymentView.of(body)


def planned(observed: Observed, spec: JsonObject, defaults: Pod = SPREAD) -> Plan:
    """The plan for that spec, which has another generation than others."""
    document = api_body(**spec)
    known = (FIRST, SECOND, SETTING, STRATEGY)
    generation = known.index(spec) + 1 if spec in known else len(known) + 1
    document["metadata"]["generation"] = generation
    return plan(document, observed, IMAGE, NOW, defaults=defaults)


def revision_child(made: Plan) -> ChildView:
    """The ConfigMap of its revision."""
    metadata = made.apply[0].body["metadata"]
    noted = {name: metadata[name] for name in ("labels", "annotations")}
    return ChildView.of(child_body(metadata["name"], **noted))


def told(made: Plan, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    (one,) = [one for one in made.status["conditions"] if one["type"] == kind]
    return one["status"], one["reason"], one["message"]


class Rollout:
    """A rollout from FIRST that does not move, and that was given up where `back` is applied."""

    def __init__(
        self, spec: JsonObject = SECOND, defaults: Pod = SPREAD, files: SourceView = FILES
    ) -> None:
        self.spec, self.defaults = spec, defaults
        there = Observed(status={}, source=FILES)
        self.first = planned(there, FIRST)
        at_first = replace(
            there, status=self.first.status, deployment=deployment_of(self.first),
            revisions=(revision_child(self.first),),
        )  # fmt: skip
        at_first = replace(at_first, source=files)
        self.second = planned(at_first, spec, defaults)
        failed = {"terminated": {"exitCode": 1, "message": "no module named x"}}
        pods = (
            pod_body("iris-a", revision=digest_of(self.first), owner="iris-rs-uid"),
            pod_body("iris-b", revision=digest_of(self.second), ready=False, state=failed),
        )
        moving = replace(
            at_first,
            deployment=deployment_of(self.second, conditions=[STUCK], ready=1),
            pods=tuple(map(PodView.of, pods)),
        )
        status = planned(moving, spec, defaults).status
        earlier = EarlierView.of(set_of(self.first))
        self.stuck = replace(moving, status=status, earlier=earlier)
        self.back = planned(self.stuck, spec, defaults)
        self.gone_back = replace(self.stuck, deployment=deployment_of(self.back))
        self.name = f"iris-{digest_of(self.second)}"

    def again(self, observed: Observed | None = None) -> Plan:
        """The plan for the same spec in the world once that has been written."""
        return planned(observed or self.gone_back, self.spec, self.defaults)


def set_of(made: Plan) -> JsonObject:
    """The ReplicaSet that the Deployment's controller has made of that."""
    template = written(made)["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": "7d9f"}
    metadata = {**template["metadata"], "labels": labels, "creationTimestamp": None}
    body = replica_set_body(uid="iris-rs-uid")
    body["metadata"]["annotations"] = {
        **written(made)["metadata"]["annotations"], "deployment.kubernetes.io/revision": "4",
    }  # fmt: skip
    return {**body, "spec": {"template": {**template, "metadata": metadata}}}


@pytest.mark.parametrize("spec", [SECOND, SETTING, STRATEGY])
@pytest.mark.parametrize("defaults", [SPREAD, PLACED])
def test_a_rollout_that_is_stuck_goes_back_to_the_very_pods_that_answer(
    spec: JsonObject, defaults: Pod
) -> None:
    """Whatever has changed: the manifest's setting, how it is rolled out, or the chart's defaults.

    Else they would start anew.
    """
    rollout = Rollout(spec, defaults)

    for made in (rollout.back, rollout.again()):
        before, now = written(rollout.first), written(made)
        assert before["spec"]["template"] == now["spec"]["template"]
        assert revised(FIRST) == of_replica_set(now["metadata"])
        given_up = GivenUp.of(now["metadata"])
        assert given_up is not None
        assert (rollout.name, "iris-rs") == (given_up.revision, given_up.replica_set)
    # only what was written is told
    assert "rolledBack" not in rollout.back.status["revision"]
    image = FIRST["predictor"]["image"]
    assert {"current": f"iris-{digest_of(rollout.first)}", "image": image} == {
        name: one for name, one in rollout.again().status["revision"].items()
        if name != "rolledBack"
    }  # fmt: skip


def test_what_failed_is_told_however_late_the_status_is() -> None:
    """It stands in the Deployment: the words of another condition meanwhile do not take its place.

    A tool that waits must not see success, since the manifest does not run.
    """
    rollout = Rollout()
    late = replace(rollout.gone_back, deployment=deployment_of(rollout.back, conditions=[STUCK]))

    first = rollout.again(late)
    second = rollout.again(replace(rollout.gone_back, status=first.status))

    for made in (first, second):
        status, reason, message = told(made, "Progressing")
        assert ("False", "RolledBack") == (status, reason)
        assert message.startswith(f"revision {rollout.name}: pod iris-b: exit code 1: no module")
        assert ("False", "RolledBack") == told(made, "Ready")[:2]
        assert ("True", "RolledBack", message) == told(made, "Stalled")
        assert ("Degraded", message) == (made.status["phase"], made.status["message"])
        assert rollout.name == made.status["revision"]["rolledBack"]
        assert written(rollout.back) == written(made)
    assert ["RolledBack"] == [note.reason for note in first.notes]
    assert () == second.notes


@pytest.mark.parametrize("spec", [SECOND, SETTING])
def test_it_stays_there_until_another_revision_is_asked_for(spec: JsonObject) -> None:
    """How many replicas there may be is none."""
    rollout = Rollout(spec)
    told_of = replace(rollout.gone_back, status=rollout.again().status)
    accepted_later = replace(told_of, status={**told_of.status, "observedGeneration": 0})

    more = planned(told_of, {**spec, "autoscaling": {"maxReplicas": 9}})
    third = planned(told_of, {**spec, "predictor": {**spec["predictor"], "image": "a:3"}})
    edited = planned(replace(told_of, source=SourceView({"model.py": "two"}, {})), spec)
    unasked = planned(replace(told_of, earlier=None), spec)

    for made in (more, rollout.again(accepted_later)):
        assert rollout.name == made.status["revision"]["rolledBack"]
        assert digest_of(rollout.first) == digest_of(made)
    for made in (third, edited, unasked):
        assert "rolledBack" not in made.status["revision"]
        assert GivenUp.of(written(made)["metadata"]) is None
    assert digest_of(rollout.second) == digest_of(unasked)
    assert 4 == len({*map(digest_of, (rollout.first, rollout.second, third, edited))})


MENDS: Final[dict[str, JsonObject]] = {
    "pull secrets": {"pod": {"imagePullSecrets": [{"name": "mine"}]}},
    "account": {"pod": {"serviceAccountName": "mine"}},
    "priority": {"pod": {"priorityClassName": "high"}},
    "user": {"pod": {"runAsUser": 1000}},
    "scheduler": {"pod": {"schedulerName": "mine"}},
    "labels": {"pod": {"labels": {"team": "a"}}},
    "annotations": {"pod": {"annotations": {"team": "a"}}},
    "pull policy": {"predictor": {**SECOND["predictor"], "imagePullPolicy": "Always"}},
    "room": {"updateStrategy": {**UPDATE, "maxSurge": 0, "maxUnavailable": 1}},
    "allowed": {"updateStrategy": {**UPDATE, "compare": {"mode": "On", "slower": "90%"}}},
}


@pytest.mark.parametrize("mend", MENDS.values(), ids=MENDS.keys())
def test_a_mend_that_has_no_part_in_the_revision_is_tried(mend: JsonObject) -> None:
    """The status recommends several of them."""
    rollout = Rollout()
    told_of = replace(rollout.gone_back, status=rollout.again().status)

    made = planned(told_of, {**SECOND, **mend})

    assert digest_of(rollout.second) == digest_of(made)
    assert "rolledBack" not in made.status["revision"]
    assert GivenUp.of(written(made)["metadata"]) is None


@pytest.mark.parametrize(
    "more",
    [
        {"networking": {"service": {"port": 8000}}},
        {"autoscaling": {"maxReplicas": 9}},
        {"updateStrategy": {**UPDATE, "maxSurge": "25%"}},
    ],
    ids=["an address", "room", "the default"],
)
def test_what_changes_no_pod_tries_nothing(more: JsonObject) -> None:
    """Else whoever scales would start what cannot start; a newer CRD writes defaults by itself."""
    rollout = Rollout()
    told_of = replace(rollout.gone_back, status=rollout.again().status)

    made = planned(told_of, {**SECOND, **more})

    assert digest_of(rollout.first) == digest_of(made)
    assert rollout.name == made.status["revision"]["rolledBack"]


@pytest.mark.parametrize(("before", "now"), [(SPREAD, PLACED), (PLACED, SPREAD)])
def test_other_defaults_may_be_what_was_lacking(before: Pod, now: Pod) -> None:
    """Those of today are under what is tried then."""
    rollout = Rollout(SECOND, before)
    told_of = replace(rollout.gone_back, status=rollout.again().status)

    made = planned(told_of, SECOND, now)

    pod = written(made)["spec"]["template"]["spec"]
    assert "rolledBack" not in made.status["revision"]
    assert now.node_selector == pod.get("nodeSelector", {})
    assert digest_of(rollout.first) != digest_of(made)


@pytest.mark.parametrize("defaults", [SPREAD, PLACED])
def test_files_that_are_put_back_are_those_of_the_pods_that_answer(defaults: Pod) -> None:
    """Whatever the defaults are by now, and as long as the status tells of what was given up."""
    rollout = Rollout(FIRST, defaults, SourceView({"model.py": "two"}, {}))
    told_of = replace(rollout.gone_back, status=rollout.again().status)
    assert rollout.name == told_of.status["revision"]["rolledBack"]
    reverted = replace(told_of, source=FILES)

    made = planned(reverted, FIRST, defaults)
    later = planned(replace(reverted, deployment=deployment_of(made)), FIRST, defaults)

    for one in (made, later):
        assert written(rollout.first)["spec"]["template"] == written(one)["spec"]["template"]
        assert f"iris-{digest_of(rollout.first)}" == one.status["revision"]["current"]
        assert "rolledBack" not in one.status["revision"]


def test_a_note_that_is_left_over_gives_nothing_up() -> None:
    """`kubectl rollout undo` copies it from a ReplicaSet, and an apply leaves what others wrote.

    So it is written as empty, which makes it ours, and the next apply takes it away.
    """
    rollout = Rollout()
    third = {**SECOND, "predictor": {**SECOND["predictor"], "image": "a:3"}}
    told_of = replace(rollout.gone_back, status=rollout.again().status)
    made = planned(told_of, third)
    noted = rollout.gone_back.deployment and rollout.gone_back.deployment.given_up
    assert noted is not None
    left_over = replace(deployment_of(made), given_up=noted)
    moved = replace(told_of, status=made.status, deployment=left_over)
    stuck = replace(moved, deployment=replace(left_over, revision=digest_of(rollout.second)))

    for observed, spec in ((moved, third), (moved, SECOND), (stuck, SECOND), (told_of, FIRST)):
        one = planned(observed, spec)
        assert "rolledBack" not in one.status["revision"]
        assert (spec is FIRST) == (digest_of(rollout.first) == digest_of(one))
        assert "" == written(one)["metadata"]["annotations"][contract.ANNOTATION_GIVEN_UP]
    clean = planned(replace(moved, deployment=deployment_of(made)), third)
    assert contract.ANNOTATION_GIVEN_UP not in written(clean)["metadata"]["annotations"]


def test_the_event_tells_what_failed() -> None:
    """Whatever else keeps pods from being made just then."""
    rollout = Rollout()
    webhook = {
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "Internal error occurred: failed calling webhook",
    }  # fmt: skip
    there = deployment_of(rollout.back, conditions=[webhook])
    hindered = replace(rollout.gone_back, deployment=replace(there, updated=0))

    made = rollout.again(hindered)

    assert "WebhookFailed" == told(made, "Progressing")[1]
    (note,) = made.notes
    assert "RolledBack" == note.reason
    assert note.text.startswith(f"revision {rollout.name}: pod iris-b: exit code 1: no module")


def test_what_was_given_up_never_has_the_name_of_what_runs() -> None:
    """Not even where the Deployment is gone, and with it all that it remembers."""
    rollout = Rollout(SETTING)
    gone = replace(rollout.gone_back, status=rollout.again().status, deployment=None, earlier=None)

    assert digest_of(rollout.second) == digest_of(rollout.again(gone))


def test_who_goes_back_by_the_spec_has_given_nothing_up() -> None:
    """Nor just after it was written, with what was read before."""
    rollout = Rollout()

    made = planned(rollout.stuck, FIRST)
    later = replace(rollout.stuck, deployment=deployment_of(made, conditions=[STUCK]))
    starting = replace(later, pods=())

    for one in (made, planned(later, FIRST), planned(starting, FIRST)):
        assert digest_of(rollout.first) == digest_of(one)
        assert GivenUp.of(written(one)["metadata"]) is None


@pytest.mark.parametrize(
    "way",
    ["off", "moving", "unseen", "not begun", "refused", "nobody", "another", "answers", "answered"],
)
def test_otherwise_a_rollout_waits(way: str) -> None:
    """Without the field, while it moves, and while its deadline is still that of the one before.

    Nor is a revision given up that is known to start: it has replaced most of the pods maybe.
    """
    rollout = Rollout()
    observed, there = rollout.stuck, rollout.stuck.deployment
    assert there is not None
    match way:
        case "off":  # then it is not looked up
            observed = replace(observed, earlier=None)
        case "moving":
            observed = replace(observed, deployment=deployment_of(rollout.second))
        case "unseen":
            observed = replace(observed, deployment=replace(there, settled=False))
        case "not begun":
            observed = replace(observed, deployment=replace(there, updated=0))
        case "refused":  # which may be of the one before, too
            failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
            refused = deployment_of(rollout.second, conditions=[STUCK, failure])
            observed = replace(observed, deployment=replace(refused, updated=0))
        case "answers" | "answered":
            one = pod_body("iris-c", revision=digest_of(rollout.second), ready=way == "answers")
            started = replace(PodView.of(one), was_ready=True)
            observed = replace(observed, pods=(*observed.pods, started))
        case "nobody":
            observed = replace(observed, deployment=None)
        case "another":  # somebody's
            observed = replace(observed, deployment=replace(there, revision="0a1b2c3d"))

    made = rollout.again(observed)

    assert digest_of(rollout.second) == digest_of(made)
    assert GivenUp.of(written(made)["metadata"]) is None


def test_where_nothing_was_given_up_the_status_has_no_such_field() -> None:
    """So the apiserver must add none: a status that is never as written is written for ever."""
    revision = Rollout().first.status["revision"]

    assert revision == as_written(RevisionStatus.model_validate(revision))


def test_a_paused_one_waits_as_well() -> None:
    """Nothing of it is written."""
    rollout = Rollout()

    made = planned(rollout.stuck, {**SECOND, "paused": True})

    assert () == made.apply
    assert "rolledBack" not in made.status["revision"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"revision": "a"}'])
def test_an_annotation_of_somebody_else_gives_nothing_up(text: str) -> None:
    """It is theirs to write, and the next apply puts it right."""
    assert GivenUp.of({"annotations": {contract.ANNOTATION_GIVEN_UP: text}}) is None


@pytest.mark.looptime
async def test_the_deployment_is_written_once_however_late_the_status_is() -> None:
    """From the same look on the status tells of it; and another spec takes the annotation away."""
    cluster = MemoryCluster()
    operator = Operator(cluster)
    cluster.put(BATCHED_APIS, api_body(updateStrategy=UPDATE))
    await operator.reconcile(KEY)
    first = cluster.objects[DEPLOYMENTS, KEY]
    template = first["spec"]["template"]
    digest = template["metadata"]["labels"][contract.LABEL_REVISION]
    cluster.put(REPLICA_SETS, {**replica_set_body(), "spec": {"template": template}})
    cluster.put(PODS, pod_body(revision=digest))
    asked_for(cluster, "a:2")
    await operator.reconcile(KEY)
    there = cluster.objects[DEPLOYMENTS, KEY]
    seen = {"observedGeneration": there["metadata"]["generation"], "updatedReplicas": 1}
    cluster.put(DEPLOYMENTS, {**there, "status": {**seen, "conditions": [STUCK]}})
    cluster.writes.clear()

    for _ in range(3):
        await operator.reconciler.reconcile(KEY)
    assert ["Deployment/iris"] == [name for kind, name in cluster.writes if kind == "apply"]
    await operator.reconcile(KEY)

    back = cluster.objects[DEPLOYMENTS, KEY]
    status = cluster.objects[BATCHED_APIS, KEY]["status"]
    assert template == back["spec"]["template"]
    assert f"iris-{digest}" == status["revision"]["current"] != status["revision"]["rolledBack"]
    assert "RolledBack" in [event["reason"] for event in cluster.events]
    asked_for(cluster, "a:3")
    for _ in range(2):  # see test_a_note_that_is_left_over_gives_nothing_up
        await operator.reconcile(KEY)
    mended = cluster.objects[DEPLOYMENTS, KEY]["metadata"]["annotations"]
    assert contract.ANNOTATION_GIVEN_UP not in mended
    assert "rolledBack" not in cluster.objects[BATCHED_APIS, KEY]["status"]["revision"]


def asked_for(cluster: MemoryCluster, image: str) -> None:
    """Its user changes the image."""
    api = deepcopy(cluster.objects[BATCHED_APIS, KEY])
    api["spec"]["predictor"]["image"] = image
    api["metadata"]["generation"] += 1
    cluster.put(BATCHED_APIS, api)


NOTED: Final = GivenUp("iris-new", "iris-2", "it failed", "0a1b2c3d")


@pytest.mark.parametrize(
    ("noted", "revision", "conditions", "on", "found"),
    [
        (None, "new", [STUCK], True, "iris-1"),
        (NOTED, "old", None, True, "iris-2"),
        (None, "new", [STUCK], False, None),
        (None, "new", None, True, None),
        (NOTED, "new", [STUCK], True, "iris-1"),
        (replace(NOTED, replica_set="iris-9"), "new", [STUCK], True, "iris-1"),
        (None, "old", [STUCK], True, "iris-5"),
    ],
)
async def test_the_replica_set_of_which_most_pods_answer_is_what_there_is_to_go_back_to(
    *,
    noted: GivenUp | None,
    revision: str,
    conditions: list[JsonObject] | None,
    on: bool,
    found: str | None,
) -> None:
    """Of this Deployment and of another revision, the newest of several; or the one that it notes.

    That holds while its pods are there: else the note was left over.
    """
    cluster = MemoryCluster()
    api = api_body(**{**FIRST, "updateStrategy": {"autoRollback": on}})
    cluster.put(BATCHED_APIS, api)
    annotations = {} if noted is None else noted.noted()
    body = deployment_body(revision=revision, conditions=conditions, annotations=annotations)
    cluster.put(DEPLOYMENTS, body)
    for number, digest, owner, ready in (
        (0, "old", "iris-uid", 2), (1, "old", "iris-uid", 2), (2, "old", "iris-uid", 1),
        (3, "old", "foreign", 9), (4, "none", "iris-uid", 0), (5, "new", "iris-uid", 9),
    ):  # fmt: skip
        one = replica_set_body(uid=f"rs-{number}", owner=owner)
        one["metadata"] |= {
            "name": f"iris-{number}",
            "annotations": {"deployment.kubernetes.io/revision": str(number)},
        }
        cluster.put(REPLICA_SETS, {**one, "spec": deployment_body(revision=digest)["spec"]})
        for pod in range(max(1, ready)):
            name, of = f"iris-{number}-{pod}", {"revision": digest, "owner": f"rs-{number}"}
            cluster.put(PODS, pod_body(name, **of, ready=ready > 0))

    earlier = (await observe(cluster, api)).earlier

    assert found == (earlier and earlier.name)


async def test_an_api_without_a_deployment_has_nothing_to_go_back_to() -> None:
    """Nor is anything looked up."""
    assert (await observe(MemoryCluster(), api_body(**FIRST))).earlier is None
