"""Observe, plan and execute together, against a cluster in memory."""

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    KEY,
    WALL,
    MemoryCluster,
    api_body,
    child_body,
    deliver_all,
    pod_body,
)

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    SERVICES,
    JsonObject,
    ObjectKey,
)
from batchedapi_operator.errors import (
    ApplyError,
    ConflictError,
    NamespaceGoingError,
    NotPermittedError,
    RefusedError,
    WebhookError,
)
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.reconcile.plan import NO_POLICIES
from batchedapi_operator.reconcile.reconciler import Reconciler
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.store import Store

pytestmark = pytest.mark.looptime


class Operator:
    """A reconciler and its outbox; what it is to write is written before the next run."""

    def __init__(
        self,
        cluster: MemoryCluster,
        forget: Callable[[ObjectKey], None] = lambda _: None,
        policies: Policies = NO_POLICIES,
    ) -> None:
        self.outbox = Outbox(monotonic=lambda: self.now)
        self.reconciler = Reconciler(
            cluster,
            Store(),
            self.outbox,
            IMAGE,
            policies=policies,
            forget=forget,
            wall=lambda: self.wall,
        )

    now: float = 0.0
    wall: datetime = WALL

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Once, a long time after the last."""
        self.now += 100.0
        try:
            again = await self.reconciler.reconcile(key)
            await deliver_all(self.outbox)
        finally:
            await asyncio.sleep(100.0)
        return again


def reconciler_of(cluster: MemoryCluster, policies: Policies = NO_POLICIES) -> Operator:
    """One that has done nothing yet."""
    return Operator(cluster, policies=policies)


@pytest.fixture
def cluster() -> MemoryCluster:
    """One API and nothing else."""
    memory = MemoryCluster()
    memory.put(BATCHED_APIS, api_body(autoscaling={"minReplicas": 2}))
    return memory


async def test_a_plan_that_was_carried_out_is_not_carried_out_again(cluster: MemoryCluster) -> None:
    """An idle API is not written to: neither its status nor a child."""
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)
    cluster.writes.clear()

    again = await reconciler.reconcile(KEY)

    assert again is None
    assert [] == cluster.writes


async def test_a_deployment_that_was_scaled_is_not_applied_again(cluster: MemoryCluster) -> None:
    """Replicas are in no apply: a hundred scaled at once would be a hundred writes of nothing."""
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)
    uid = cluster.objects[DEPLOYMENTS, KEY]["metadata"]["uid"]
    await cluster.scale(KEY, 5, uid=uid)
    cluster.writes.clear()

    await reconciler.reconcile(KEY)

    assert [] == [what for verb, what in cluster.writes if verb != "status"]


async def test_a_new_manifest_is_never_told_as_rolled_out_with_the_replicas_before(
    cluster: MemoryCluster,
) -> None:
    """The status that followed the apply was made of the Deployment as it had been."""
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)
    body = cluster.objects[DEPLOYMENTS, KEY]
    done = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    counts = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "conditions": [done]}
    body["status"] = {**counts, "observedGeneration": body["metadata"]["generation"]}
    await reconciler.reconcile(KEY)
    before = told(cluster)
    changed = cluster.objects[BATCHED_APIS, KEY]
    changed["metadata"]["generation"] += 1
    changed["spec"] |= {"updateStrategy": {"drainDelay": "7s"}}
    cluster.statuses.clear()

    await reconciler.reconcile(KEY)

    assert {"Ready": "AllReplicasReady", "Progressing": "RolloutComplete"} == before
    assert 1 == len(cluster.statuses)
    assert "NewRevision" == told(cluster)["Progressing"]


def told(cluster: MemoryCluster) -> dict[str, str]:
    """Reasons of two conditions."""
    found = cluster.objects[BATCHED_APIS, KEY]["status"]["conditions"]
    return {one["type"]: one["reason"] for one in found if one["type"] in {"Ready", "Progressing"}}


@pytest.mark.parametrize("part", ["spec", "labels", "ownerReferences"])
async def test_a_deployment_that_was_edited_is_applied_again(
    cluster: MemoryCluster, part: str
) -> None:
    """Whatever an apply could put right."""
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)
    body = copy.deepcopy(cluster.objects[DEPLOYMENTS, KEY])
    if part == "spec":
        body["spec"]["template"]["spec"]["containers"][0]["image"] = "edited"
    else:
        del body["metadata"][part]
        body["metadata"]["managedFields"].append({"manager": contract.FIELD_MANAGER})
    cluster.put(DEPLOYMENTS, body)
    cluster.writes.clear()

    await reconciler.reconcile(KEY)

    assert ("apply", "Deployment/iris") in cluster.writes


async def test_what_an_api_was_told_is_not_told_its_successor(cluster: MemoryCluster) -> None:
    """It has the name, and the watch may tell of it late."""
    store, outbox = Store(), Outbox()
    await Reconciler(cluster, store, outbox, IMAGE).reconcile(KEY)
    successor = api_body()
    successor["metadata"]["uid"] = "another"
    cluster.put(BATCHED_APIS, successor)

    await deliver_all(outbox)

    assert [] == cluster.statuses
    assert [] == cluster.events


async def test_an_operator_that_restarts_settles_without_a_status_write(
    cluster: MemoryCluster,
) -> None:
    """It applies once to be sure; the apiserver stores nothing new for that."""
    for _ in range(3):
        await reconciler_of(cluster).reconcile(KEY)
    cluster.writes.clear()

    await reconciler_of(cluster).reconcile(KEY)

    assert {"apply"} == {verb for verb, _ in cluster.writes}


async def test_a_pause_writes_its_phase_and_nothing_else_until_it_ends(
    cluster: MemoryCluster,
) -> None:
    """Edited while paused: the edit is rolled out when the pause is over, once."""
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)
    edited = {"autoscaling": {"minReplicas": 2}, "compute": {"cpu": "1"}}
    for paused in (True, False):
        cluster.writes.clear()
        status = cluster.objects[BATCHED_APIS, KEY]["status"]
        cluster.put(BATCHED_APIS, {**api_body(**edited, paused=paused), "status": status})
        for _ in range(3):
            await reconciler.reconcile(KEY)
        kinds = {what.partition("/")[0] for verb, what in cluster.writes if verb != "status"}
        phase = cluster.objects[BATCHED_APIS, KEY]["status"]["phase"]
        assert ({"Deployment"} <= kinds, bool(kinds)) == (not paused, not paused)
        assert paused == (phase == "Paused")


async def test_the_children_are_made_in_order_and_then_scaled(cluster: MemoryCluster) -> None:
    """The status comes last: it tells of what has been done."""
    await reconciler_of(cluster).reconcile(KEY)

    verbs = [verb for verb, _ in cluster.writes]
    kinds = [what.partition("/")[0] for _, what in cluster.writes]
    assert ["create", "create", "create", "scale", "status"] == verbs
    assert ["ConfigMap", "Service", "Deployment"] == kinds[:3]
    assert ["NewRevision"] == [event["reason"] for event in cluster.events]


async def test_an_api_that_others_scale_is_given_its_first_number_once() -> None:
    """It is written last, and the write is news that leads to no other."""
    cluster = MemoryCluster()
    cluster.put(BATCHED_APIS, api_body(autoscaling={"mode": "External"}))
    reconciler = reconciler_of(cluster)
    for _ in range(3):
        await reconciler.reconcile(KEY)

    assert 1 == cluster.objects[BATCHED_APIS, KEY]["spec"]["replicas"]
    assert [("scale", "1"), ("scale_api", "1")] == [
        write for write in cluster.writes if write[0].startswith("scale")
    ]


@pytest.mark.parametrize("failing", range(4))
async def test_dying_before_any_write_ends_in_the_same_state(
    cluster: MemoryCluster, failing: int
) -> None:
    """Level-triggered: a new process finds out what is missing (O6)."""
    calls = count()

    def die(_verb: str, _what: str) -> ApplyError | None:
        return ApplyError("connection lost", 0) if next(calls) == failing else None

    cluster.fail = die
    with pytest.raises(ApplyError):
        await reconciler_of(cluster).reconcile(KEY)
    cluster.fail = lambda _verb, _what: None
    for _ in range(2):
        await reconciler_of(cluster).reconcile(KEY)

    assert 2 == cluster.objects[DEPLOYMENTS, KEY]["spec"]["replicas"]
    assert (SERVICES, KEY) in cluster.objects
    assert 1 == len(await cluster.find(CONFIG_MAPS, KEY.namespace))
    assert "Pending" == cluster.objects[BATCHED_APIS, KEY]["status"]["phase"]


async def test_a_refused_child_becomes_a_condition(cluster: MemoryCluster) -> None:
    """The user reads what the apiserver said, and the queue does not hammer it."""

    def refuse(_verb: str, what: str) -> ApplyError | None:
        return RefusedError("422 image is wrong", 422) if "Deployment" in what else None

    cluster.fail = refuse

    again = await reconciler_of(cluster).reconcile(KEY)

    (condition,) = [
        one
        for one in cluster.objects[BATCHED_APIS, KEY]["status"]["conditions"]
        if one["type"] == "SpecValid"
    ]
    assert again is not None
    assert 0.375 <= again <= 0.5
    assert "PodTemplateRefused" == condition["reason"]
    assert condition["message"].startswith("422 image is wrong; change what is named")


LACKING = NotPermittedError(
    'PATCH /apis/apps/v1: 403 deployments.apps "iris" is forbidden: User "operator" cannot patch'
    ' resource "deployments" in API group "apps"',
    403,
)


def progressing(cluster: MemoryCluster) -> tuple[str, str]:
    """Reason and message of the condition, as users read it."""
    status = cluster.objects[BATCHED_APIS, KEY]["status"]
    (found,) = [one for one in status["conditions"] if one["type"] == "Progressing"]
    return found["reason"], found["message"]


async def test_a_right_to_write_that_is_lacking_is_told_and_tried_again(
    cluster: MemoryCluster,
) -> None:
    """It is the queue that tries again; once the right is granted nothing of it is left."""
    operator = reconciler_of(cluster)
    cluster.fail = lambda _verb, what: LACKING if what == "Deployment/iris" else None

    with pytest.raises(NotPermittedError):
        await operator.reconcile(KEY)
    await deliver_all(operator.outbox)

    reason, message = progressing(cluster)
    assert "NotPermitted" == reason
    assert 'cannot patch resource "deployments"' in message
    assert message in cluster.objects[BATCHED_APIS, KEY]["status"]["message"]
    cluster.fail = lambda _verb, _what: None
    await operator.reconcile(KEY)
    assert "NewRevision" == progressing(cluster)[0]


async def test_a_right_to_read_that_is_lacking_leaves_the_rest_of_the_status(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of the replicas then: what was said of them before is not taken back."""
    operator = reconciler_of(cluster)
    await operator.reconcile(KEY)
    before = cluster.objects[BATCHED_APIS, KEY]["status"]

    async def refused(*_: Any) -> Any:
        raise LACKING

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "find", refused)
        with pytest.raises(NotPermittedError):
            await operator.reconcile(KEY)
    await deliver_all(operator.outbox)

    after = cluster.objects[BATCHED_APIS, KEY]["status"]
    assert "NotPermitted" == progressing(cluster)[0]
    assert before["revision"] == after["revision"]
    told = [{one["type"] for one in status["conditions"]} for status in (before, after)]
    assert {"Reconciling", "Stalled"} == told[0] ^ told[1]
    await operator.reconcile(KEY)
    assert "NewRevision" == progressing(cluster)[0]


TROUBLE = (
    (WebhookError('500 failed calling webhook "x"', 500), "WebhookFailed"),
    (ApplyError("503 not ready", 503), "RequestFailed"),
    (ApplyError("no answer", 0), "RequestFailed"),
    (ApplyError("429 slow down", 429), "RequestFailed"),
    (ApplyError("401 Unauthorized", 401), "RequestFailed"),
    (ConflictError("409", 409), "RequestFailed"),
)
KINDS = ("ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "2")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("error", "reason"), TROUBLE, ids=str)
async def test_whatever_fails_at_whichever_child_is_in_the_status_and_goes_when_it_is_over(
    cluster: MemoryCluster, kind: str, error: ApplyError, reason: str
) -> None:
    """Also of a new API, of which nothing else is known yet: its user looks there first."""
    peers = [{"podSelector": {}}]
    cluster.put(
        BATCHED_APIS, api_body(autoscaling={"minReplicas": 2}, networking={"allowFrom": peers})
    )
    operator = reconciler_of(cluster, Policies(admin_peers=tuple(peers)))
    cluster.fail = lambda verb, what: error if kind in what and verb != "status" else None

    with pytest.raises(type(error)):
        await operator.reconcile(KEY)
    await deliver_all(operator.outbox)

    status = cluster.objects[BATCHED_APIS, KEY]["status"]
    told = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert ("False", reason) == told["Progressing"]
    assert ("True", reason) == told["Reconciling"]
    assert ("False", reason) == told["Ready"]
    assert ("True", "Accepted") == told["SpecValid"]
    assert f"{error.message}; it is tried again" in status["message"]
    cluster.fail = lambda _verb, _what: None
    await operator.reconcile(KEY)
    assert "NewRevision" == progressing(cluster)[0]
    assert ["NewRevision"] == [one["reason"] for one in cluster.events]


@pytest.mark.parametrize("verb", ["find", "list_metadata"])
async def test_an_api_whose_children_cannot_be_read_says_so_from_the_first_look_on(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """An empty status says nothing to a user, and to kstatus that all is well."""
    operator = reconciler_of(cluster)

    async def failing(*_: Any) -> Any:
        raise ApplyError("504 timed out", 504)

    monkeypatch.setattr(cluster, verb, failing)
    with pytest.raises(ApplyError):
        await operator.reconcile(KEY)
    await deliver_all(operator.outbox)

    status = cluster.objects[BATCHED_APIS, KEY]["status"]
    told = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert {
        "Ready": ("False", "RequestFailed"),
        "Progressing": ("False", "RequestFailed"),
        "Reconciling": ("True", "RequestFailed"),
    } == told
    assert ("Pending", "504 timed out; it is tried again") == (status["phase"], status["message"])


@pytest.mark.parametrize(
    "error", [RefusedError("422 no", 422), TROUBLE[0][0], LACKING], ids=["refused", "down", "right"]
)
async def test_what_was_refused_is_sent_ever_more_rarely_however_often_one_looks(
    cluster: MemoryCluster, error: ApplyError
) -> None:
    """A look is worth its reads, since it tells what else has changed; a write is not."""
    operator, sent = reconciler_of(cluster), list[float]()
    clock = asyncio.get_running_loop().time

    def refuse(_verb: str, what: str) -> ApplyError | None:
        if what != "Deployment/iris":
            return None
        sent.append(clock())
        return error

    cluster.fail = refuse
    while clock() < 600.0:
        with suppress(ApplyError):
            await operator.reconciler.reconcile(KEY)
        await asyncio.sleep(3.0)

    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert 3.0 == pauses[0]
    assert 45.0 <= pauses[-1] <= 63.0


async def test_a_change_of_the_api_or_of_what_is_in_its_way_is_sent_at_once(
    cluster: MemoryCluster,
) -> None:
    """Whoever has mended it must not wait for a minute, nor know that there is one."""
    operator, sent = reconciler_of(cluster), list[str]()
    await operator.reconcile(KEY)
    body = cluster.objects[BATCHED_APIS, KEY]

    def refuse(_verb: str, what: str) -> ApplyError | None:
        if what != "Deployment/iris":
            return None
        sent.append(what)
        return RefusedError("422 no", 422)

    async def looks() -> int:
        before = len(sent)
        for _ in range(5):
            await operator.reconciler.reconcile(KEY)
        return len(sent) - before

    cluster.fail = refuse
    cluster.put(BATCHED_APIS, {**body, "spec": {**body["spec"], "networking": {"grpc": True}}})
    assert 1 == await looks()
    assert 0 == await looks()
    body = cluster.objects[BATCHED_APIS, KEY]
    cluster.put(BATCHED_APIS, {**body, "spec": {**body["spec"], "autoscaling": {}}})
    assert 1 == await looks()
    cluster.objects[DEPLOYMENTS, KEY]["metadata"]["labels"] = {}
    assert 1 == await looks()


async def test_a_name_that_was_taken_in_between_is_left_to_its_owner(
    cluster: MemoryCluster,
) -> None:
    """The first apply is without force, so that it cannot overwrite."""

    def taken(verb: str, what: str) -> ApplyError | None:
        return ConflictError("409", 409) if (verb, what) == ("create", "Deployment/iris") else None

    cluster.fail = taken

    with pytest.raises(ConflictError):
        await reconciler_of(cluster).reconcile(KEY)


async def test_a_revision_name_that_is_taken_is_refused(cluster: MemoryCluster) -> None:
    """It carries no label of ours, so no list showed it."""
    await reconciler_of(cluster).reconcile(KEY)
    (revision,) = await cluster.find(CONFIG_MAPS, KEY.namespace)
    name = revision["metadata"]["name"]
    owners = [{"kind": "Other", "name": "x", "uid": "other", "controller": True}]
    cluster.put(CONFIG_MAPS, child_body(name, labels={}, ownerReferences=owners))

    await reconciler_of(cluster).reconcile(KEY)

    conditions = cluster.objects[BATCHED_APIS, KEY]["status"]["conditions"]
    (found,) = [one for one in conditions if one["type"] == "SpecValid"]
    assert found["reason"] == "NotOwned"
    assert name in found["message"]


@pytest.mark.parametrize("older", [False, True])
async def test_a_revision_that_was_robbed_of_its_label_gets_it_back(
    cluster: MemoryCluster, *, older: bool
) -> None:
    """No list shows it, and the name is ours: it is applied with force, its data as it is."""
    operator = reconciler_of(cluster)
    await operator.reconcile(KEY)
    (first,) = await cluster.find(CONFIG_MAPS, KEY.namespace)
    if older:
        cluster.put(BATCHED_APIS, api_body(serverSideBatching={"batchInterval": "3ms"}))
        await operator.reconcile(KEY)
    robbed = {**first["metadata"], "labels": {}, "resourceVersion": "edited"}
    cluster.put(CONFIG_MAPS, {**first, "metadata": robbed})

    await operator.reconcile(KEY)

    found = await cluster.get(CONFIG_MAPS, ObjectKey.of(first))
    assert found is not None
    assert (first["metadata"]["labels"], first["data"]) == (
        found["metadata"]["labels"],
        found["data"],
    )


@pytest.mark.parametrize("found", [False, True])
async def test_an_apply_that_is_refused_is_sent_again_once_nothing_is_in_its_way(
    cluster: MemoryCluster, *, found: bool
) -> None:
    """Where nothing foreign is, the refusal is told as it came."""
    operator = reconciler_of(cluster)
    await operator.reconcile(KEY)
    service = copy.deepcopy(cluster.objects[SERVICES, KEY])
    item = {'k:{"port":81}': {"f:name": {}}}
    theirs = {"f:spec": {"f:ports": item}} if found else {}
    entries = [
        {"manager": contract.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}},
        {"manager": "somebody", "operation": "Update", "fieldsV1": theirs},
    ]
    service["metadata"] |= {"managedFields": entries, "resourceVersion": "edited"}
    service["spec"]["ports"] = [{"name": "http", "port": 81}]
    cluster.put(SERVICES, service)
    refusals = iter([RefusedError("422 duplicate", 422, ("spec.ports[1].name",))])
    cluster.fail = lambda verb, what: (
        next(refusals, None) if (verb, what) == ("apply", "Service/iris") else None
    )

    await operator.reconcile(KEY)

    written = ("managers", "Service/iris") in cluster.writes
    (valid,) = [
        one
        for one in cluster.objects[BATCHED_APIS, KEY]["status"]["conditions"]
        if one["type"] == "SpecValid"
    ]
    assert (found, "True" if found else "False") == (written, valid["status"])


async def test_a_namespace_on_its_way_out_is_left_alone(cluster: MemoryCluster) -> None:
    """Nothing can be made in it, and retrying would only fill the log (O19)."""
    cluster.fail = lambda _verb, _what: NamespaceGoingError("403", 403)

    assert await reconciler_of(cluster).reconcile(KEY) is None


async def test_an_api_that_is_deleted_during_its_reconcile_is_no_failure(
    cluster: MemoryCluster,
) -> None:
    """A deleted API needs no children; the next look finds out that it is gone."""
    cluster.fail = lambda verb, _what: ApplyError("404", 404) if verb == "scale" else None

    assert await reconciler_of(cluster).reconcile(KEY) is not None


async def test_a_status_that_is_true_again_is_not_written(cluster: MemoryCluster) -> None:
    """The status that waited for its turn is no longer true."""
    operator = reconciler_of(cluster)
    for _ in range(3):
        await operator.reconcile(KEY)
    settled = cluster.objects[BATCHED_APIS, KEY]
    cluster.writes.clear()
    generation = settled["metadata"]["generation"] + 1
    changed = {**settled, "metadata": {**settled["metadata"], "generation": generation}}

    for body in (changed, settled):
        cluster.put(BATCHED_APIS, body)
        await operator.reconciler.reconcile(KEY)
    operator.now += 100.0
    await deliver_all(operator.outbox)

    assert [] == cluster.writes


async def test_words_alone_are_told_every_two_minutes(cluster: MemoryCluster) -> None:
    """They are anew at each try; but numbers of nodes that are no more must not stay for hours."""
    operator = reconciler_of(cluster)
    cluster.wall = lambda: operator.wall

    async def told(nodes: int, seconds: float) -> tuple[bool, float | None]:
        """Whether the status has so many nodes, and when to look again; so long after the first."""
        words = f"0/{nodes} nodes are available"
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        cluster.put(PODS, pod_body(ready=False, conditions=[{**waits, "message": words}]))
        operator.wall = WALL + timedelta(seconds=seconds)
        again = await operator.reconcile(KEY)
        return words in cluster.objects[BATCHED_APIS, KEY]["status"]["message"], again

    for _ in range(3):
        await told(1, 0.0)

    assert (True, None) == await told(1, 0.0)
    assert (False, 120.0) == await told(2, 0.0)
    assert (False, 20.0) == await told(3, 100.0)
    assert (True, None) == await told(3, 120.0)
    assert (True, None) == await told(3, 121.0)
    assert (False, 119.0) == await told(4, 121.0)


@pytest.mark.looptime
async def test_a_status_that_is_true_again_follows_another_that_is_being_sent(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write under way cannot be held back, and may arrive after the status was read."""
    operator, arrives, write = reconciler_of(cluster), asyncio.Event(), cluster.apply_status
    for _ in range(3):
        await operator.reconcile(KEY)
    settled = cluster.objects[BATCHED_APIS, KEY]
    changed = {**settled, "metadata": {**settled["metadata"], "generation": 2}}

    async def slowly(*arguments: Any) -> None:
        await arrives.wait()
        await write(*arguments)

    monkeypatch.setattr(cluster, "apply_status", slowly)
    cluster.put(BATCHED_APIS, changed)
    sending = asyncio.create_task(operator.reconcile(KEY))
    await asyncio.sleep(1.0)
    cluster.put(BATCHED_APIS, settled)
    await operator.reconciler.reconcile(KEY)
    arrives.set()
    await sending
    operator.now += 100.0
    await deliver_all(operator.outbox)

    generations = [status["observedGeneration"] for _, status in cluster.statuses]
    assert [2, 1] == generations[-2:]


@pytest.mark.parametrize("brought", [False, True])
async def test_what_is_read_is_known_unless_a_watch_brings_more_meanwhile(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, *, brought: bool
) -> None:
    """A watch may be cut off, or be quicker than the reads of the children."""
    store, find = Store(), cluster.find
    first, read, newest = ({**api_body(), "spec": {"replicas": n}} for n in range(3))

    async def slowly(*arguments: Any) -> list[JsonObject]:
        if brought:
            store.put_api(newest)
        return await find(*arguments)

    monkeypatch.setattr(cluster, "find", slowly)
    store.put_api(first)
    cluster.put(BATCHED_APIS, read)
    await Reconciler(cluster, store, Outbox(), IMAGE).reconcile(KEY)

    known = store.api(KEY)
    assert known is not None
    assert (newest if brought else read)["spec"] == known.document["spec"]


async def test_a_deleted_api_is_forgotten(cluster: MemoryCluster) -> None:
    """Its children go by their owner references; the operator only forgets."""
    forgotten: list[ObjectKey] = []
    reconciler = Reconciler(cluster, Store(), Outbox(), IMAGE, forget=forgotten.append)
    await reconciler.reconcile(KEY)
    del cluster.objects[BATCHED_APIS, KEY]
    cluster.writes.clear()

    assert await reconciler.reconcile(KEY) is None
    assert [KEY] == forgotten
    assert [] == cluster.writes


@pytest.mark.parametrize(
    ("finalizers", "phase"),
    [(["foregroundDeletion"], "Pending"), (["example.com/keep"], "Deleting")],
)
async def test_an_api_in_deletion_is_left_alone_but_for_what_it_says(
    cluster: MemoryCluster, finalizers: list[str], phase: str
) -> None:
    """Kubernetes' own finalizers take care of themselves; of another's its user has to know."""
    forgotten: list[ObjectKey] = []
    reconciler = Operator(cluster, forgotten.append)
    for _ in range(2):
        await reconciler.reconcile(KEY)
    metadata = cluster.objects[BATCHED_APIS, KEY]["metadata"]
    metadata |= {"deletionTimestamp": "2026-01-02T03:00:00Z", "finalizers": finalizers}
    cluster.writes.clear()

    for _ in range(3):
        assert await reconciler.reconcile(KEY) is None

    assert {"status"} >= {verb for verb, _ in cluster.writes}
    assert len(cluster.writes) <= 1
    assert phase == cluster.objects[BATCHED_APIS, KEY]["status"]["phase"]
    assert {KEY} == set(forgotten)
