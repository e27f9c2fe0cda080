"""A revision that is tried beside another: what is written, how it ends, and what is told."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.reconcile.test_reconciler import Operator
from tests.unit.operator.reconcile.test_rollback import (
    FILES,
    deployment_of,
    digest_of,
    revision_child,
    set_of,
    told,
    written,
)
from tests.unit.operator.worlds import (
    IMAGE,
    KEY,
    NOW,
    MemoryCluster,
    api_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_core import contract
from batchedapi_core.canary import GiveUp, Judged, Promote, Verdict, Wait
from batchedapi_core.manifest import ConditionType
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    JsonObject,
    ObjectKey,
)
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.reconcile.canary import promotion
from batchedapi_operator.reconcile.conditions import NewCondition
from batchedapi_operator.reconcile.observe import observe
from batchedapi_operator.reconcile.plan import Plan, parsed, plan
from batchedapi_operator.resources.revised import GivenUp
from batchedapi_operator.views import (
    CanaryView,
    ConditionView,
    DeploymentView,
    EarlierView,
    Observed,
    PodView,
)

STUCK: Final = {
    "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
    "message": "timed out",
}  # fmt: skip
UPDATE: Final[JsonObject] = {"canary": {"percent": 30, "for": "1m"}}
FIRST: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "image": "a:1", "source": {"configMap": "m"}},
    "updateStrategy": UPDATE,
}


def asking(image: str, **update: Any) -> JsonObject:
    """The spec with another image."""
    predictor = {**FIRST["predictor"], "image": image}
    return {**FIRST, "predictor": predictor, "updateStrategy": {**UPDATE, **update}}


SECOND: Final = asking("a:2")
THIRD: Final = asking("a:3")
CANARY: Final = ObjectKey(KEY.namespace, "iris-canary")


def planned(
    observed: Observed, spec: JsonObject, verdict: Verdict | None = None, promote: str = ""
) -> Plan:
    """The plan for that spec, with that verdict on its revision."""
    document = api_body(**spec)
    document["metadata"]["generation"] = 2
    if promote:
        document["metadata"]["annotations"] = {contract.ANNOTATION_PROMOTE: promote}
    judged = None
    if verdict is not None:
        judged = Judged(digest_of_canary(planned(observed, spec)), verdict)
    return plan(document, observed, IMAGE, NOW, judged=judged)


def canary_of(made: Plan) -> JsonObject | None:
    """NAME-canary as it is to be applied; None: it is left alone."""
    found = [one.body for one in made.apply if one.body["metadata"]["name"] == "iris-canary"]
    return found[0] if found else None


def digest_of_canary(made: Plan) -> str:
    """Digest of the revision that is tried."""
    body = canary_of(made)
    assert body is not None
    return str(body["spec"]["template"]["metadata"]["labels"][contract.LABEL_REVISION])


def canary_there(made: Plan, *pods: JsonObject, **more: Any) -> CanaryView:
    """The canary once that has been applied, with those pods."""
    body = deployment_body(replicas=1, ready=1, **more)
    applied = canary_of(made)
    assert applied is not None
    body["metadata"] |= {"name": "iris-canary", "uid": "canary-uid"}
    body["spec"] |= {"template": applied["spec"]["template"]}
    body["spec"]["replicas"] = applied["spec"]["replicas"]
    return CanaryView(DeploymentView.of(body), tuple(map(PodView.of, pods)))


class Trial:
    """FIRST answers, SECOND is asked for; `trying` is the world once its canary is there."""

    def __init__(self) -> None:
        there = Observed(status={}, source=FILES)
        self.first = planned(there, FIRST)
        self.answering = replace(
            there,
            status=self.first.status,
            deployment=deployment_of(self.first, replicas=4, ready=4),
            revisions=(revision_child(self.first),),
            pods=(PodView.of(pod_body("iris-a", revision=digest_of(self.first))),),
            earlier=EarlierView.of(set_of(self.first)),
        )
        self.begun = planned(self.answering, SECOND)
        self.digest = digest_of_canary(self.begun)
        self.name = f"iris-{self.digest}"
        self.promotion = promotion(self.name, self.begun.status) or pytest.fail("no canary is told")
        ready = pod_body("iris-canary-1", revision=self.digest)
        self.trying = replace(
            self.answering, canary=canary_there(self.begun, ready), status=self.begun.status
        )


def test_the_new_revision_gets_pods_of_its_own_and_the_old_one_stays() -> None:
    """Behind the same Service, on top of the replicas, rounded up; no pod starts anew."""
    trial = Trial()
    body = canary_of(trial.begun)

    assert body is not None
    assert 2 == body["spec"]["replicas"]
    own = {contract.LABEL_API: "iris", contract.LABEL_ROLE: "canary"}
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert own == body["spec"]["selector"]["matchLabels"]
    assert own.items() <= labels.items()
    (service,) = [one.body for one in trial.begun.apply if one.resource.kind == "Service"]
    assert service["spec"]["selector"].items() <= labels.items()
    owners = written(trial.first)["metadata"]["ownerReferences"]
    assert owners == body["metadata"]["ownerReferences"]
    assert written(trial.first)["spec"]["template"] == written(trial.begun)["spec"]["template"]
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert "a:2" == container["image"]


def test_while_it_is_tried_the_status_names_both() -> None:
    """A tool that waits goes on waiting; it is ready once a pod of the canary is."""
    trial = Trial()
    starting = replace(trial.trying, canary=replace(trial.trying.canary, pods=()))

    before, made = planned(starting, SECOND), planned(trial.trying, SECOND, Wait())

    for one in (trial.begun, before, made):
        revision = one.status["revision"]
        assert (f"iris-{digest_of(trial.first)}", trial.name) == (
            revision["current"], revision["canary"],
        )  # fmt: skip
        assert ("True", "CanaryRuns") == told(one, "Progressing")[:2]
        assert "True" == told(one, "Reconciling")[0]
    assert "Unknown" == told(before, "Ready")[0]
    assert ("True", "Updating") == (told(made, "Ready")[0], made.status["phase"])
    assert ["CanaryRuns"] == [note.reason for note in trial.begun.notes]
    assert () == made.notes


def test_a_plan_that_was_carried_out_changes_nothing() -> None:
    """While nothing is decided the same is applied, with as many pods as the replicas call for."""
    trial = Trial()
    more = replace(trial.trying.deployment or pytest.fail("there is none"), replicas=11)

    again = planned(trial.trying, SECOND)
    scaled = planned(replace(trial.trying, deployment=more), SECOND)

    assert canary_of(trial.begun) == canary_of(again)
    assert written(trial.begun) == written(again)
    assert 4 == (canary_of(scaled) or {})["spec"]["replicas"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_one_that_is_promoted_is_rolled_out_and_its_canary_answers_until_that_is_complete(
    *, by_hand: bool
) -> None:
    """By what it has shown, or because its user says so."""
    trial = Trial()
    verdict = None if by_hand else Promote("no worse in 900 requests")
    promote = trial.promotion if by_hand else ""

    made = planned(trial.trying, SECOND, verdict, promote)
    moving = replace(
        trial.trying,
        deployment=replace(deployment_of(made, replicas=4, ready=4), settled=False),
    )
    later = planned(moving, SECOND, promote=promote)
    complete = replace(
        moving, deployment=deployment_of(made, replicas=4, ready=4), status=made.status
    )
    over = planned(complete, SECOND)

    assert (trial.digest, None) == (digest_of(made), canary_of(made))
    assert (trial.digest, None) == (digest_of(later), canary_of(later))
    assert "canary" not in made.status["revision"]
    assert trial.name == made.status["revision"]["current"]
    (note,) = made.notes
    assert "Promoted" == note.reason
    assert note.text.endswith("promoted by hand" if by_hand else "no worse in 900 requests")
    assert 0 == (canary_of(over) or {})["spec"]["replicas"]
    retired = canary_there(over)
    assert None is canary_of(planned(replace(complete, canary=retired), SECOND))


@pytest.mark.parametrize("way", ["no node", "quota", "stuck", "moves"])
def test_a_canary_that_was_promoted_gives_its_place_to_the_rollout_that_lacks_one(way: str) -> None:
    """It has the one spare GPU, and no pod of those before goes until one that is new is ready.

    Nor is its revision given up for that: it has answered.
    """
    trial, rolling = Trial(), {"type": "Progressing", "status": "True", "reason": "Updated"}
    spec = asking("a:2", autoRollback=True)
    promoted = planned(trial.trying, spec, Promote("no worse"))
    refused = {
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": 'pods "iris-b-" is forbidden: exceeded quota',
    }  # fmt: skip
    found = {"quota": [rolling, refused], "stuck": [STUCK]}.get(way, [rolling])
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    made_new = pod_body(
        "iris-b-1", revision=trial.digest, ready=False,
        conditions=[{**no_room, "message": "no GPU"}] if way == "no node" else [],
    )  # fmt: skip
    new = () if way == "quota" else (PodView.of(made_new),)
    there = deployment_of(promoted, replicas=4, ready=4, conditions=found)
    there = replace(there, existing=5, updated=len(new))
    moving = replace(
        trial.trying, deployment=there, status=promoted.status, pods=(*trial.trying.pods, *new)
    )

    made = planned(moving, spec)
    applied = canary_of(made)
    gone = moving.canary if applied is None else canary_there(made)
    over = ConditionView("False", "ProgressDeadlineExceeded", "timed out")
    later = planned(
        replace(
            moving,
            deployment=replace(there, conditions={"Progressing": over}),
            canary=replace(gone, pods=()),
        ),
        spec,
    )

    assert (None if way == "moves" else 0) == (applied and applied["spec"]["replicas"])
    for one in (made, later):
        assert trial.digest == digest_of(one)
        assert GivenUp.of(written(one)["metadata"]) is None


def test_one_that_is_given_up_goes_and_the_reason_stays() -> None:
    """By the note that autoRollback writes, until something else is asked for."""
    trial = Trial()

    made = planned(trial.trying, SECOND, GiveUp("60 of 1000 requests failed"))
    gone_back = replace(
        trial.trying,
        deployment=deployment_of(made, replicas=4, ready=4),
        canary=canary_there(made),
    )
    later = planned(gone_back, SECOND)
    after = planned(replace(gone_back, status=later.status), SECOND)

    assert 0 == (canary_of(made) or {})["spec"]["replicas"]
    assert written(trial.first)["spec"]["template"] == written(made)["spec"]["template"]
    for one in (later, after):
        assert None is canary_of(one)
        assert trial.name == one.status["revision"]["rolledBack"]
        status, reason, message = told(one, "Progressing")
        assert ("False", "RolledBack") == (status, reason)
        assert message.startswith(f"revision {trial.name}: 60 of 1000 requests failed; ")
        assert written(made) == written(one)
    assert ["RolledBack"] == [note.reason for note in later.notes]
    assert () == after.notes
    third = planned(replace(gone_back, status=after.status), THIRD)
    assert digest_of(trial.first) == digest_of(third)
    assert digest_of_canary(third) not in {trial.digest, digest_of(trial.first)}
    assert "rolledBack" not in third.status["revision"]
    assert GivenUp.of(written(third)["metadata"]) is None


def test_one_that_cannot_start_has_until_its_deadline_and_one_that_crashes_has_no_more() -> None:
    """The status says meanwhile why it does not start, and afterwards what it was given up for."""
    trial, failed = Trial(), {"terminated": {"exitCode": 1, "message": "no module named x"}}
    pod = pod_body("iris-canary-1", revision=trial.digest, ready=False, state=failed)
    failing = canary_there(trial.begun, pod)
    stuck = canary_there(trial.begun, pod, conditions=[STUCK])
    crashed = replace(failing, pods=(replace(failing.pods[0], was_ready=True),))

    waits = planned(replace(trial.trying, canary=failing), SECOND)

    assert ("False", "CrashLooping") == told(waits, "ModelLoaded")[:2]
    assert ("Degraded", trial.name) == (
        waits.status["phase"], waits.status["revision"]["canary"],
    )  # fmt: skip
    for one in (stuck, crashed):
        made = planned(replace(trial.trying, canary=one), SECOND)
        note = GivenUp.of(written(made)["metadata"])
        assert note is not None
        assert "no module named x" in note.why
        assert 0 == (canary_of(made) or {})["spec"]["replicas"]


@pytest.mark.parametrize("answering", [4, 0])
def test_one_that_is_slow_is_given_up_for_that_and_not_for_advice_to_wait(answering: int) -> None:
    """Nothing has failed: its model has loaded since, and its deadline is over."""
    trial = Trial()
    pod = pod_body("iris-canary-1", revision=trial.digest, ready=False, state={"running": {}})
    slow = canary_there(trial.begun, pod, conditions=[STUCK])
    there = replace(trial.trying.deployment or pytest.fail("there is none"), ready=answering)

    made = planned(replace(trial.trying, canary=slow, deployment=there), SECOND)

    note = GivenUp.of(written(made)["metadata"])
    assert "timed out" == (note and note.why)


def test_a_canary_that_loses_its_readiness_for_a_moment_goes_on() -> None:
    """Its first start failed, and its container runs now: that is no container that ended."""
    trial, failed = Trial(), {"terminated": {"exitCode": 1, "message": "no network yet"}}
    dips = pod_body(
        "iris-canary-1", revision=trial.digest, ready=False, state={"running": {}},
        last_state=failed,
    )  # fmt: skip
    dips["status"]["containerStatuses"][0]["started"] = True

    made = planned(replace(trial.trying, canary=canary_there(trial.begun, dips)), SECOND, Wait())

    assert GivenUp.of(written(made)["metadata"]) is None
    assert 2 == (canary_of(made) or {})["spec"]["replicas"]


def test_another_revision_takes_the_place_of_the_canary() -> None:
    """A verdict on the one before, or a promotion of it, says nothing of it."""
    trial = Trial()
    document = api_body(**THIRD)
    document["metadata"]["annotations"] = {contract.ANNOTATION_PROMOTE: trial.promotion}

    made = plan(
        document, trial.trying, IMAGE, NOW, judged=Judged(trial.digest, Promote("no worse"))
    )

    assert digest_of(trial.first) == digest_of(made)
    assert digest_of_canary(made) not in {trial.digest, digest_of(trial.first)}


@pytest.mark.parametrize("left_over", ["of the time before", "of the revision alone"])
def test_a_promotion_that_is_left_over_promotes_no_other_canary_of_the_same_revision(
    left_over: str,
) -> None:
    """The user has gone back meanwhile, and tries it again."""
    trial = Trial()
    old = trial.promotion if left_over == "of the time before" else trial.name
    back = planned(trial.trying, FIRST, promote=old)
    document = api_body(**SECOND)
    document["metadata"]["annotations"] = {contract.ANNOTATION_PROMOTE: old}
    observed = replace(trial.trying, status=back.status)

    for moment in ("2026-02-02T03:04:05Z", "2026-02-02T03:05:05Z"):
        made = plan(document, observed, IMAGE, moment)
        observed = replace(observed, status=made.status)

        assert trial.digest == digest_of_canary(made)
        assert digest_of(trial.first) == digest_of(made)
        assert "2026-02-02T03:04:05Z" == made.status["revision"]["canarySince"]


def test_a_promotion_that_cannot_be_written_is_not_forgotten() -> None:
    """The status goes on telling of the canary, by which the next try knows that it is meant."""
    trial = Trial()
    document = api_body(**SECOND)
    document["metadata"]["annotations"] = {contract.ANNOTATION_PROMOTE: trial.promotion}
    failed = NewCondition(ConditionType.PROGRESSING, "False", "WebhookFailed", "no answer")

    hindered = plan(document, trial.trying, IMAGE, NOW, hindrance=failed)
    made = plan(document, replace(trial.trying, status=hindered.status), IMAGE, NOW)

    assert trial.begun.status["revision"] == hindered.status["revision"]
    assert (trial.digest, ["Promoted"]) == (digest_of(made), [one.reason for one in made.notes])


def test_who_goes_back_by_the_spec_has_no_canary_any_more() -> None:
    """Its pods go at once: those that answer are what is asked for."""
    trial = Trial()

    made = planned(trial.trying, FIRST)

    assert digest_of(trial.first) == digest_of(made)
    assert 0 == (canary_of(made) or {})["spec"]["replicas"]
    assert "canary" not in made.status["revision"]


@pytest.mark.parametrize("way", ["first", "nobody", "none", "label", "off", "asked for"])
def test_otherwise_a_revision_is_rolled_out_at_once(way: str) -> None:
    """Where nobody answers, it can but mend something; with no replicas nothing is compared."""
    trial, spec = Trial(), SECOND
    observed, there = trial.answering, trial.answering.deployment
    assert there is not None
    match way:
        case "first":
            observed = Observed(status={}, source=FILES)
        case "nobody":
            observed = replace(observed, deployment=replace(there, ready=0))
        case "none":
            observed = replace(observed, deployment=replace(there, replicas=0))
        case "label":
            observed = replace(observed, deployment=replace(there, revision=""))
        case "off":
            spec, observed = {**SECOND, "updateStrategy": {}}, replace(observed, earlier=None)
        case "asked for":
            spec = FIRST

    made = planned(observed, spec)

    assert None is canary_of(made)
    assert (spec is FIRST) == (digest_of(made) == digest_of(trial.first))
    assert "canary" not in made.status["revision"]


def test_a_canary_goes_on_while_none_of_the_others_is_ready() -> None:
    """Else a moment without them would roll it out unseen."""
    trial = Trial()
    there = replace(trial.trying.deployment or pytest.fail("there is none"), ready=0)

    made = planned(replace(trial.trying, deployment=there), SECOND)

    assert trial.digest == digest_of_canary(made)
    assert digest_of(trial.first) == digest_of(made)


def test_a_canary_that_is_turned_off_is_rolled_out() -> None:
    """And answers until it is."""
    trial = Trial()

    made = planned(replace(trial.trying, earlier=None), asking("a:2", canary=None))

    assert (trial.digest, None) == (digest_of(made), canary_of(made))


def test_a_paused_one_stays_as_it_is() -> None:
    """Whatever was seen."""
    trial = Trial()

    made = planned(trial.trying, {**SECOND, "paused": True})

    assert () == made.apply


def test_a_deployment_of_somebody_else_under_that_name_is_told() -> None:
    """An API of the name iris-canary may have one."""
    trial = Trial()
    body = deployment_body()
    owner = {"kind": "BatchedAPI", "name": "iris-canary", "uid": "other", "controller": True}
    body["metadata"] |= {"name": "iris-canary", "ownerReferences": [owner]}
    theirs = CanaryView(DeploymentView.of(body))

    made = planned(replace(trial.answering, canary=theirs), SECOND)

    assert ("False", "NotOwned") == told(made, "SpecValid")[:2]
    assert () == made.apply


@pytest.mark.looptime
async def test_once_no_canary_is_asked_for_that_name_is_anybodys() -> None:
    """APIs `iris` and `iris-canary`: what was read of the other is forgotten with the field."""
    cluster = MemoryCluster()
    operator = Operator(cluster)
    body = deployment_body()
    owner = {"kind": "BatchedAPI", "name": "iris-canary", "uid": "other", "controller": True}
    body["metadata"] |= {"name": "iris-canary", "ownerReferences": [owner]}
    cluster.put(DEPLOYMENTS, body)
    cluster.put(BATCHED_APIS, api_body(updateStrategy=UPDATE))
    await operator.reconcile(KEY)
    taken = valid(cluster)
    changed = deepcopy(cluster.objects[BATCHED_APIS, KEY])
    changed["spec"]["updateStrategy"] = {}
    changed["metadata"]["generation"] += 1
    cluster.put(BATCHED_APIS, changed)

    for _ in range(2):
        await operator.reconcile(KEY)

    assert ("False", "True") == (taken, valid(cluster))
    assert None is operator.reconciler._store.canary(KEY)
    assert body["spec"] == cluster.objects[DEPLOYMENTS, CANARY]["spec"]


def valid(cluster: MemoryCluster) -> str:
    """The status of SpecValid."""
    conditions = cluster.objects[BATCHED_APIS, KEY]["status"]["conditions"]
    return str(next(one["status"] for one in conditions if one["type"] == "SpecValid"))


def test_with_one_queue_for_all_replicas_it_is_refused() -> None:
    """By the operator, too: a manifest may be older than the rule."""
    queued = api_body(
        **{**FIRST, "serverSideBatching": {"queue": {"redis": {"secretName": "redis"}}}}
    )

    with pytest.raises(InvalidSpecError, match=r"updateStrategy\.canary cannot be set with"):
        parsed(queued)


@pytest.mark.looptime
async def test_from_the_first_apply_to_the_end_of_a_canary() -> None:
    """Each of both Deployments is written once, however often it is looked at."""
    cluster, verdicts = MemoryCluster(), list[Judged]()
    operator = Operator(cluster)
    operator.reconciler._judged = lambda _: verdicts[-1] if verdicts else None
    cluster.put(BATCHED_APIS, api_body(updateStrategy=UPDATE))
    await operator.reconcile(KEY)
    template = cluster.objects[DEPLOYMENTS, KEY]["spec"]["template"]
    digest = template["metadata"]["labels"][contract.LABEL_REVISION]
    ready(cluster, KEY)
    cluster.put(REPLICA_SETS, {**replica_set_body(), "spec": {"template": template}})
    cluster.put(PODS, pod_body(revision=digest))
    asked_for(cluster, "a:2")
    cluster.writes.clear()

    for _ in range(3):
        await operator.reconcile(KEY)

    applied = [name for kind, name in cluster.writes if kind in {"apply", "create"}]
    assert 1 == applied.count("Deployment/iris-canary")
    assert template == cluster.objects[DEPLOYMENTS, KEY]["spec"]["template"]
    for many in (0, 50):  # somebody scales it
        cluster.objects[DEPLOYMENTS, CANARY]["spec"]["replicas"] = many
        cluster.put(DEPLOYMENTS, cluster.objects[DEPLOYMENTS, CANARY])
        await operator.reconcile(KEY)
        assert 1 == cluster.objects[DEPLOYMENTS, CANARY]["spec"]["replicas"]
    ready(cluster, CANARY)
    tried = cluster.objects[BATCHED_APIS, KEY]["status"]["revision"]["canary"]
    cluster.put(PODS, canary_pod(tried.removeprefix("iris-")))
    verdicts.append(Judged(tried.removeprefix("iris-"), Promote("no worse")))
    for _ in range(2):
        await operator.reconcile(KEY)
    assert 1 == cluster.objects[DEPLOYMENTS, CANARY]["spec"]["replicas"]
    ready(cluster, KEY)
    await operator.reconcile(KEY)

    assert 0 == cluster.objects[DEPLOYMENTS, CANARY]["spec"]["replicas"]
    status = cluster.objects[BATCHED_APIS, KEY]["status"]
    assert (tried, None) == (status["revision"]["current"], status["revision"].get("canary"))
    assert ["NewRevision", "CanaryRuns", "Promoted"] == [one["reason"] for one in cluster.events]


def ready(cluster: MemoryCluster, key: ObjectKey) -> None:
    """The Deployment's controller has done its work."""
    body = cluster.objects[DEPLOYMENTS, key]
    status = deployment_body(replicas=1, ready=1)["status"]
    seen = {"observedGeneration": body["metadata"].get("generation", 0)}
    cluster.put(DEPLOYMENTS, {**body, "status": {**status, **seen}})


def asked_for(cluster: MemoryCluster, image: str) -> None:
    """Its user changes the image."""
    api = deepcopy(cluster.objects[BATCHED_APIS, KEY])
    api["spec"]["predictor"]["image"] = image
    api["metadata"]["generation"] += 1
    cluster.put(BATCHED_APIS, api)


def canary_pod(revision: str, owner: str = "canary-rs-uid") -> JsonObject:
    """A ready pod of the canary."""
    pod = pod_body("iris-canary-1", revision=revision, owner=owner)
    pod["metadata"]["labels"][contract.LABEL_ROLE] = contract.ROLE_CANARY
    return pod


async def test_a_canary_is_beside_the_replica_set_that_it_began_with() -> None:
    """Though most pods of another are ready meanwhile; its own pods are none of the API's."""
    cluster = MemoryCluster()
    api = api_body(**SECOND)
    cluster.put(BATCHED_APIS, api)
    cluster.put(DEPLOYMENTS, deployment_body(revision="one"))
    for number, digest, many in ((1, "one", 1), (2, "two", 3)):
        body = replica_set_body(uid=f"rs-{number}")
        body["metadata"] |= {
            "name": f"iris-{number}",
            "annotations": {"deployment.kubernetes.io/revision": str(number)},
        }
        cluster.put(REPLICA_SETS, {**body, "spec": deployment_body(revision=digest)["spec"]})
        for pod in range(many):
            cluster.put(
                PODS, pod_body(f"iris-{number}-{pod}", revision=digest, owner=f"rs-{number}")
            )

    before = await observe(cluster, api)
    body = deployment_body(revision="three")
    body["metadata"] |= {"name": "iris-canary", "uid": "canary-uid"}
    cluster.put(DEPLOYMENTS, body)
    cluster.put(PODS, canary_pod("three"))
    meanwhile = await observe(cluster, api)

    assert "iris-2" == (before.earlier and before.earlier.name)
    assert "iris-1" == (meanwhile.earlier and meanwhile.earlier.name)
    assert 4 == len(meanwhile.pods)
    assert ["iris-canary-1"] == [one.name for one in meanwhile.canary.pods]
