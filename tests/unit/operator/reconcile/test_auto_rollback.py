"""A rollout that does not move goes back by itself: what is written then, and what is told."""

from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    NOW,
    MemoryCluster,
    api_body,
    child_body,
    deployment_body,
    pod_body,
)

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    JsonObject,
)
from batchedapi_operator.reconcile.observe import observe
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources.revised import noted, revised
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
FIRST: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "image": "a:1", "source": {"configMap": "m"}},
    "updateStrategy": {"autoRollback": True},
}
SECOND: Final[JsonObject] = {
    "predictor": {**FIRST["predictor"], "image": "a:2"},
    "updateStrategy": {"autoRollback": True},
    "autoscaling": {"maxReplicas": 3},
}
FILES: Final = SourceView({"model.py": "one"}, {})


def deployment_of(made: Plan, **more: Any) -> DeploymentView:
    """The Deployment as it was written."""
    template = made.apply[-1].body["spec"]["template"]
    body = deployment_body(revision=digest_of(made), **more)
    body["spec"]["template"]["spec"] = template["spec"]
    body["metadata"]["annotations"] = made.apply[-1].body["metadata"]["annotations"]
    return DeploymentView.of(body)


def digest_of(made: Plan) -> str:
    """Digest of the revision that its pods carry."""
    labels = made.apply[-1].body["spec"]["template"]["metadata"]["labels"]
    return str(labels[contract.LABEL_REVISION])


def planned(observed: Observed, spec: JsonObject) -> Plan:
    """The plan for that spec; nothing here refuses it."""
    return plan(api_body(**spec), observed, IMAGE, NOW)


def revision_child(made: Plan) -> ChildView:
    """The ConfigMap of its revision."""
    metadata = made.apply[0].body["metadata"]
    noted = {name: metadata[name] for name in ("labels", "annotations")}
    return ChildView.of(child_body(metadata["name"], **noted))


def told(made: Plan, kind: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = [one for one in made.status["conditions"] if one["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


class Rollout:
    """A rollout from FIRST to SECOND that does not move."""

    def __init__(self) -> None:
        there = Observed(status={}, source=FILES)
        self.first = planned(there, FIRST)
        at_first = replace(
            there, status=self.first.status, deployment=deployment_of(self.first),
            revisions=(revision_child(self.first),),
        )  # fmt: skip
        self.second = planned(at_first, SECOND)
        failed = {"terminated": {"exitCode": 1, "message": "no module named x"}}
        pods = (
            pod_body("iris-a", revision=digest_of(self.first)),
            pod_body("iris-b", revision=digest_of(self.second), ready=False, state=failed),
        )
        self.earlier = EarlierView(digest_of(self.first), "a:1", revised(FIRST), FILES)
        moving = replace(
            at_first,
            deployment=deployment_of(self.second, conditions=[STUCK], ready=1),
            pods=tuple(map(PodView.of, pods)),
        )
        self.stuck = replace(moving, status=planned(moving, SECOND).status, earlier=self.earlier)

    def after(self, made: Plan) -> Observed:
        """The world once that has been carried out."""
        return replace(self.stuck, status=made.status, deployment=deployment_of(made))


def test_a_rollout_that_is_stuck_goes_back_to_the_revision_that_answers() -> None:
    """Its pods are those that are there: the same name, image and files. The spec is the user's."""
    rollout = Rollout()

    back = planned(rollout.stuck, SECOND)

    assert digest_of(rollout.first) == digest_of(back) != digest_of(rollout.second)
    pods = back.apply[-1].body["spec"]["template"]
    assert rollout.first.apply[-1].body["spec"]["template"] == pods
    failed = f"iris-{digest_of(rollout.second)}"
    assert {"current": f"iris-{digest_of(back)}", "image": "a:1", "rolledBack": failed} == (
        back.status["revision"]
    )
    written = planned(replace(rollout.stuck, deployment=deployment_of(back)), SECOND)
    assert [one.body for one in back.apply] == [one.body for one in written.apply]
    assert back.status["revision"] == written.status["revision"]
    back = written
    assert {("False", "RolledBack")} == {told(back, "Progressing"), told(back, "Ready")}
    assert ("True", "RolledBack") == told(back, "Stalled")
    assert ("Degraded", True) == (
        back.status["phase"],
        back.status["message"].startswith(f"revision {failed}: pod iris-b: exit code 1: no module"),
    )
    assert ["RolledBack", "NewRevision"] == [note.reason for note in back.notes][::-1][:2]


def test_it_stays_there_until_another_revision_is_asked_for() -> None:
    """How many replicas there may be is none; and its words are those of then."""
    rollout = Rollout()
    back = planned(rollout.stuck, SECOND)
    after = rollout.after(back)

    more = planned(after, {**SECOND, "autoscaling": {"maxReplicas": 9}})
    third = planned(after, {**SECOND, "predictor": {**SECOND["predictor"], "image": "a:3"}})
    edited = planned(replace(after, source=SourceView({"model.py": "two"}, {})), SECOND)

    again = planned(rollout.after(more), SECOND)
    assert {digest_of(back)} == {digest_of(more), digest_of(again)}
    assert {back.status["message"]} == {more.status["message"], again.status["message"]}
    assert () == more.notes == again.notes
    for another in (third, edited):
        assert digest_of(another) not in {digest_of(back), digest_of(rollout.second)}
        assert "rolledBack" not in another.status["revision"]
        assert ("True", "NewRevision") != told(another, "Stalled")


def test_who_goes_back_by_the_spec_has_given_nothing_up() -> None:
    """Nor just after it was written, with what was read before."""
    rollout = Rollout()

    made = planned(rollout.stuck, FIRST)
    written = planned(replace(rollout.stuck, deployment=deployment_of(made)), FIRST)

    assert {digest_of(rollout.first)} == {digest_of(made), digest_of(written)}
    assert not {"rolledBack"} & {*made.status["revision"], *written.status["revision"]}


@pytest.mark.parametrize("way", ["off", "paused", "moving", "nobody", "another"])
def test_otherwise_a_rollout_waits(way: str) -> None:
    """Without the field, or while it moves; and where the pods that answer cannot be made again."""
    rollout = Rollout()
    spec, observed = SECOND, rollout.stuck
    match way:
        case "off":  # then it is not looked up
            observed = replace(observed, earlier=None)
        case "paused":
            spec = {**SECOND, "paused": True}
        case "moving":
            observed = replace(observed, deployment=deployment_of(rollout.second))
        case "nobody":
            observed = replace(observed, deployment=None)
        case "another":
            observed = replace(observed, earlier=replace(rollout.earlier, digest="0a1b2c3d"))

    made = planned(observed, spec)

    assert "rolledBack" not in made.status.get("revision", {})
    assert all(digest_of(made) == digest_of(rollout.second) for _ in made.apply[:1])


def replica_set(number: int, digest: str, owner: str, spec: JsonObject | None) -> JsonObject:
    """One of a Deployment, with an image of its own."""
    body = deployment_body(revision=digest, image=f"a:{number}")
    body["metadata"] |= {
        "name": f"iris-{number}",
        "labels": {contract.LABEL_API: "iris", contract.LABEL_REVISION: digest},
        "annotations": {
            "deployment.kubernetes.io/revision": str(number),
            **({} if spec is None else noted(spec)),
        },
        "ownerReferences": [{"kind": "Deployment", "uid": owner, "controller": True}],
    }
    return body


@pytest.mark.parametrize(
    ("current", "status", "on", "found"),
    [
        ("new", {}, True, "a:2"),
        ("old", {"revision": {"rolledBack": "iris-new"}}, True, "a:2"),
        ("new", {}, False, None),
        ("odd", {}, True, "a:2"),
        ("none", {"revision": {"rolledBack": "iris-new"}}, True, None),
    ],
)
async def test_the_newest_revision_that_answers_is_what_there_is_to_go_back_to(
    *,
    current: str,
    status: JsonObject,
    on: bool,
    found: str | None,
) -> None:
    """With the spec, the image and the files that it was made of."""
    spec = {**FIRST, "updateStrategy": {"autoRollback": on}}
    cluster = MemoryCluster()
    cluster.put(BATCHED_APIS, api := {**api_body(**spec), "status": status})
    cluster.put(DEPLOYMENTS, deployment_body(revision=current, conditions=[STUCK]))
    owner = "iris-uid"
    for number, digest, uid, known in (
        (1, "old", owner, FIRST), (2, "old", owner, FIRST), (3, "old", "another", FIRST),
        (4, "new", owner, SECOND), (5, "none", owner, None),
    ):  # fmt: skip
        cluster.put(REPLICA_SETS, replica_set(number, digest, uid, known))
    for name, revision, ready in (("a", "old", True), ("b", "new", False), ("c", "none", True)):
        cluster.put(PODS, pod_body(f"iris-{name}", revision=revision, ready=ready))
    files = {"data": {"model.py": "one", contract.MANIFEST_FILE: "spec"}}
    labels = {contract.LABEL_REVISION: "old"}
    cluster.put(CONFIG_MAPS, {**child_body("iris-old", labels=labels), **files})

    earlier = (await observe(cluster, api)).earlier

    assert found == (earlier and earlier.image)
    if earlier is not None:
        assert ("old", revised(FIRST), FILES) == (earlier.digest, earlier.spec, earlier.files)


async def test_a_rollout_that_moves_asks_for_nothing_more() -> None:
    """ReplicaSets are read where something is to be decided alone."""
    cluster = MemoryCluster()
    cluster.put(BATCHED_APIS, api := api_body(**FIRST))
    cluster.put(DEPLOYMENTS, deployment_body(revision="new"))
    cluster.put(REPLICA_SETS, replica_set(1, "old", "iris-uid", FIRST))
    cluster.put(PODS, pod_body(revision="old"))

    assert None is (await observe(cluster, api)).earlier
    assert None is (await observe(MemoryCluster(), api)).earlier
