"""What the operator makes of an API that compares revisions, and what it tells of one."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.operator.reconcile.test_reconciler import Operator
from tests.unit.operator.worlds import (
    IMAGE,
    KEY,
    NOW,
    MemoryCluster,
    api,
    api_body,
    child_body,
    deployment_body,
    pod_body,
)

from batchedapi_core import contract
from batchedapi_core.manifest.reasons import REASONS
from batchedapi_core.manifest.status import ConditionType
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    NETWORK_POLICIES,
    SERVICES,
    JsonObject,
    ObjectKey,
)
from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.deployment import build_deployment, build_peers
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.resources.setting import Running
from batchedapi_operator.store import Store
from batchedapi_operator.views import ChildView, DeploymentView, Observed, PodView

pytestmark = pytest.mark.looptime
ON = {"compare": {"mode": "On"}}
PEERS = ObjectKey(KEY.namespace, "iris-peers")
NEW = revision_of(api(updateStrategy=ON), {}, {}, Running("former", None)).digest
REDIS = {"queue": {"redis": {"host": "redis"}}}


def environment(**spec: Any) -> dict[str, Any] | None:
    """What a pod is told of the comparison."""
    made = api(**spec)
    body = build_deployment(made, revision_of(made, {}, {}), IMAGE)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    told = [one["value"] for one in container.get("env", ()) if one["name"] == contract.ENV_COMPARE]
    return json.loads(told[0]) if told else None


def test_pods_are_told_where_to_ask_and_with_which_token() -> None:
    """The token is of the API: neither another one nor another namespace has it."""
    told = environment(updateStrategy={"compare": {"mode": "On", "slower": "50%"}})

    assert told is not None
    assert ("iris-peers.demo.svc", 8081, 0.5, 0.0) == tuple(
        told[name] for name in ("peers", "port", "slower", "differ")
    )
    assert 64 == len(told["token"])
    assert told["revision"] == revision_of(api(), {}, {}).digest


def test_off_leaves_nothing_behind_in_pods_and_makes_nothing() -> None:
    """It is the default: an upgrade of the operator rolls no pod."""
    assert environment() is None
    made = plan(api_body(), Observed(status={}), IMAGE, NOW)
    assert 1 == sum(one.resource is SERVICES for one in made.apply)
    assert "Compared" not in {one["type"] for one in made.status["conditions"]}


def test_that_it_is_compared_is_no_part_of_a_revision() -> None:
    """A replica serves as fast with it: what was learned of the revision still holds."""
    off, on = api(), api(updateStrategy=ON)
    running = DeploymentView.of(_applied(build_deployment(off, revision_of(off, {}, {}), IMAGE)))

    digests = {
        revision_of(one, {}, {}, Running(running.revision, running.setting)).digest
        for one in (off, on)
    }
    compared = DeploymentView.of(_applied(build_deployment(on, revision_of(on, {}, {}), IMAGE)))
    digests.add(revision_of(on, {}, {}, Running(compared.revision, compared.setting)).digest)

    assert {running.revision} == digests


def _applied(body: JsonObject) -> JsonObject:
    """As the apiserver keeps it."""
    body["metadata"] |= {"uid": "uid", "resourceVersion": "1"}
    return body


@pytest.mark.parametrize(("batching", "role"), [({}, None), (REDIS, "worker")])
def test_pods_that_have_a_model_find_each_other(batching: Any, role: str | None) -> None:
    """By the address of each, if it is ready; web pods have no rows."""
    spec = build_peers(api(updateStrategy=ON, serverSideBatching=batching))["spec"]

    assert ("None", role) == (spec["clusterIP"], spec["selector"].get(contract.LABEL_ROLE))
    assert [contract.ADMIN_PORT] == [one["port"] for one in spec["ports"]]


def test_the_network_policy_lets_pods_of_the_api_in() -> None:
    """Those of this API and namespace alone; and none where nothing is compared."""
    policies = Policies(admin_peers=({"podSelector": {}},))
    for update, expected in ((ON, {"matchLabels": {contract.LABEL_API: "iris"}}), ({}, None)):
        named = {"allowFrom": [{"podSelector": {}}]}
        body = policies.build(NETWORK_POLICIES, api(updateStrategy=update, networking=named))
        assert body is not None
        admin = body["spec"]["ingress"][1]["from"]
        own = [one["podSelector"] for one in admin if one["podSelector"]]
        assert ([] if expected is None else [expected]) == own


async def test_the_service_is_made_put_right_and_made_anew() -> None:
    """As every child: what was observed is not written again, what others change is."""
    cluster = MemoryCluster()
    cluster.put(BATCHED_APIS, api_body(updateStrategy=ON))
    operator = Operator(cluster)

    def written() -> int:
        return sum(what == "Service/iris-peers" for _, what in cluster.writes)

    await operator.reconcile(KEY)
    await operator.reconcile(KEY)
    assert 1 == written()

    cluster.objects.pop((SERVICES, PEERS))
    await operator.reconcile(KEY)
    assert 2 == written()


def test_the_store_knows_the_service_once_it_was_read() -> None:
    """So that its end is news, and a list without it; of an API without one nothing is missed."""
    store, body = Store(), child_body("iris-peers")
    main = child_body("iris")
    for peers, listed, differs in (
        (None, [main], False), (None, [main, body], False),
        (body, [main, body], False), (body, [main], True),
    ):  # fmt: skip
        seen = Observed(
            status={},
            service=ChildView.of(main),
            peers=None if peers is None else ChildView.of(peers),
        )
        store.put_observed(api_body(updateStrategy=ON), seen)
        assert differs == bool(store.differing(SERVICES, listed))
    assert store.put_named(
        SERVICES, KEY, {**body, "metadata": {**body["metadata"], "resourceVersion": "9"}}
    )


def test_a_service_of_somebody_elses_is_left_alone() -> None:
    """As every name that is taken."""
    foreign = child_body("iris-peers", ownerReferences=[])
    observed = Observed(status={}, peers=ChildView.of(foreign))

    made = plan(api_body(updateStrategy=ON), observed, IMAGE, NOW)

    (valid,) = [one for one in made.status["conditions"] if one["type"] == "SpecValid"]
    assert ("NotOwned", ()) == (valid["reason"], made.apply)
    assert "demo/iris-peers" in valid["message"]


def told(reason: str) -> JsonObject:
    """The state of a container whose start has ended so."""
    message = json.dumps({"reason": reason, "message": "predict: a batch takes 18 ms"})
    return {"terminated": {"exitCode": 1, "message": message, "reason": "Error"}}


MOVING = {"status": "True", "reason": "ReplicaSetUpdated"}


def status_of(
    *pods: JsonObject, ready: int = 2, progressing: Mapping[str, str] = MOVING
) -> JsonObject:
    """The status while a rollout is under way."""
    moving = {"type": "Progressing", **progressing}
    body = deployment_body(revision=NEW, ready=ready, conditions=[moving])
    body["status"] |= {"replicas": 3, "updatedReplicas": 1}
    observed = Observed(
        status={"revision": {"current": f"iris-{NEW}", "image": IMAGE}, "observedGeneration": 1,
                "conditions": [{"type": "SpecValid", "status": "True", "reason": "Accepted",
                                "lastTransitionTime": NOW}]},
        deployment=DeploymentView.of(body),
        service=ChildView.of(child_body("iris")),
        pods=tuple(map(PodView.of, pods)),
    )  # fmt: skip
    return plan(api_body(updateStrategy=ON), observed, IMAGE, NOW).status


def conditions(status: JsonObject) -> dict[str, tuple[str, str]]:
    """Type -> (status, reason)."""
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


@pytest.mark.parametrize("reason", ["Slower", "MoreErrors", "AnswersDiffer"])
def test_a_worse_revision_is_told_with_its_sentence_and_the_old_one_goes_on(reason: str) -> None:
    """F12: the model was loaded; while its pod starts and compares again nothing is unsaid."""
    old, new = pod_body("iris-old", revision="old"), {"revision": NEW, "ready": False}
    for states in ({"state": told(reason)}, {"state": {"running": {}}, "last_state": told(reason)}):
        status = status_of(old, pod_body("iris-new", **new, **states))
        found = conditions(status)

        assert ("False", reason) == found["Compared"] == found["Ready"]
        assert ("True", "Loaded") == found["ModelLoaded"]
        assert ("True", reason) == found["Stalled"]
        assert "Degraded" == status["phase"]
        assert status["message"].startswith("pod iris-new: predict: a batch takes 18 ms; ")


def test_a_revision_that_answers_was_compared_and_one_that_loads_was_not_yet() -> None:
    """A pod of the old one says nothing about the new one."""
    old = pod_body("iris-old", revision="old", last_state=told("Slower"))

    loading = conditions(status_of(old, pod_body("iris-new", revision=NEW, ready=False)))
    answering = conditions(status_of(old, pod_body("iris-new", revision=NEW)))

    assert ("Unknown", "Comparing") == loading["Compared"]
    assert ("True", "Compared") == answering["Compared"]


def test_a_pod_that_passed_is_not_worse_while_it_is_unready() -> None:
    """Its last end may be weeks old; once its container starts again it is compared again."""
    for reason, kind in (("Slower", "Compared"), ("ImportFailed", "ModelLoaded")):
        states = {"state": {"running": {}}, "last_state": told(reason)}
        pod = pod_body("iris-new", revision=NEW, ready=False, **states)
        (container,) = pod["status"]["containerStatuses"]

        assert ("False", reason) == conditions(status_of(pod, ready=0))[kind]
        container["started"] = True
        found = conditions(status_of(pod, ready=0))
        assert "False" not in {found["Compared"][0], found["ModelLoaded"][0]}


def test_a_revision_that_is_held_is_the_reason_why_a_rollout_does_not_move() -> None:
    """Not that it did not move, which is told as well once its time is over."""
    held = pod_body("iris-new", revision=NEW, ready=False, state=told("Slower"))
    stuck = {"status": "False", "reason": "ProgressDeadlineExceeded"}

    found = conditions(status_of(pod_body("iris-old", revision="old"), held, progressing=stuck))

    assert (("False", "ProgressDeadlineExceeded"), ("True", "Slower")) == (
        found["Progressing"], found["Stalled"],
    )  # fmt: skip
    assert "Compared" in REASONS[ConditionType.PROGRESSING]["ProgressDeadlineExceeded"].remedy


def test_one_pod_that_is_held_beside_others_that_answer_is_no_reason_to_give_up() -> None:
    """Whatever is new answers: tools that wait for the rollout go on waiting."""
    answers = pod_body("iris-new", revision=NEW)
    held = pod_body("iris-new-2", revision=NEW, ready=False, state=told("Slower"))

    found = conditions(status_of(answers, held, ready=1))

    assert (("False", "Slower"), "True") == (found["Compared"], found["Ready"][0])
    assert "Stalled" not in found
