"""An API that compares revisions, or tries them, on a real apiserver: what is made and told."""

import json
from typing import Final

import pytest
from tests.contract.operator.test_operator import IN_IMAGE, container
from tests.contract.operator.world import NAMED, Body, World, until

from batchedapi_core import contract
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, NETWORK_POLICIES, PODS, SERVICES
from batchedapi_operator.reconcile.canary import promotion

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]
ON: Final[Body] = {"predictor": IN_IMAGE, "updateStrategy": {"compare": {"mode": "On"}}}
SENTENCE: Final = "predict: a batch of 8 rows on average takes 18 ms"


async def pod(world: World, name: str, revision: str, status: Body) -> None:
    """A pod as its kubelet would tell of it; no scheduler takes it, so that no kubelet does."""
    labels = {contract.LABEL_API: "compared", contract.LABEL_REVISION: revision}
    spec = {"schedulerName": "nobody", "containers": [{"name": "serving", "image": "none"}]}
    await world.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    await world.patch(PODS, name, {"status": status}, "status")


def serving(state: Body) -> Body:
    """The status of a pod whose container is in that state."""
    told = {"name": "serving", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": "Running", "containerStatuses": [{**told, "state": state}]}


async def test_a_worse_revision_is_told_and_pods_find_each_other(world: World) -> None:
    """F12: by the Service NAME-peers, with what their environment says; off, it is not told."""
    api = await world.create_api("compared", {**ON, **NAMED})
    peers = await world.appears(SERVICES, "compared-peers")
    deployment = await world.deployment("compared")
    variables = {one["name"]: one.get("value") for one in container(deployment)["env"]}
    told = json.loads(variables[contract.ENV_COMPARE])
    revision = deployment["spec"]["template"]["metadata"]["labels"][contract.LABEL_REVISION]

    assert ("None", {contract.LABEL_API: "compared"}) == (
        peers["spec"]["clusterIP"], peers["spec"]["selector"],
    )  # fmt: skip
    assert api["metadata"]["uid"] == peers["metadata"]["ownerReferences"][0]["uid"]
    assert (f"compared-peers.{world.namespace}.svc", revision) == (told["peers"], told["revision"])
    policy = await world.appears(NETWORK_POLICIES, "compared")
    own = {"podSelector": {"matchLabels": {contract.LABEL_API: "compared"}}}
    assert own in policy["spec"]["ingress"][1]["from"]
    await world.until_condition("compared", "Compared", "Comparing")

    message = json.dumps({"reason": "Slower", "message": SENTENCE})
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    await pod(world, "compared-new", revision, serving({"terminated": ended}))
    found = await world.until_condition("compared", "Compared", "Slower")

    assert ("False", True) == (
        found["status"], found["message"].startswith(f"pod compared-new: {SENTENCE}; make it"),
    )  # fmt: skip
    assert "Loaded" == (await world.condition("compared", "ModelLoaded"))["reason"]

    off = {"spec": {"updateStrategy": {"compare": {"mode": "Off"}}}}
    await world.patch(BATCHED_APIS, "compared", off)

    async def untold() -> bool:
        return not await world.condition("compared", "Compared")

    await until(untold, "the condition to go")
    labels = (await world.deployment("compared"))["spec"]["template"]["metadata"]["labels"]
    assert revision == labels[contract.LABEL_REVISION]


async def test_a_share_is_a_percentage(world: World) -> None:
    """As the apiserver refuses it, whoever sends it."""
    compare = {"mode": "On", "slower": "a third"}
    with pytest.raises(Exception, match=r"spec\.updateStrategy\.compare\.slower"):
        await world.create_api("third", {**ON, "updateStrategy": {"compare": compare}})


async def test_a_rollout_that_is_held_goes_back_by_itself(world: World) -> None:
    """After the real deadline, to the pods that answer, and until another revision is asked for."""
    predictor = {**IN_IMAGE, "startupTimeout": "1s"}
    update = {"autoRollback": True, "drainDelay": "1s"}
    unseen = {"schedulerName": "nobody"}  # by any kubelet, which would tell how its pods really are
    spec = {"predictor": predictor, "updateStrategy": update, "pod": unseen}
    await world.create_api("returned", spec)
    first = revision_of(await world.deployment("returned"))

    async def pods(revision: str) -> list[Body]:
        selector = f"{contract.LABEL_API}=returned,{contract.LABEL_REVISION}={revision}"
        return await world.kube.find(PODS, world.namespace, selector)

    async def has_pods() -> bool:
        return bool(await pods(first))

    await until(has_pods, "the first pod")
    await world.make_ready(await pods(first))
    await world.until_condition("returned", "Progressing", "RolloutComplete")
    (served,) = await pods(first)
    change = {"compute": {"cpu": "300m"}, "updateStrategy": {"drainDelay": "2s"}}
    await world.patch(BATCHED_APIS, "returned", {"spec": change})

    async def given_up() -> bool:
        return (await world.condition("returned", "Progressing")).get("reason") == "RolledBack"

    await until(given_up, "the rollout to be given up", 180.0)
    deployment, api = await world.deployment("returned"), await world.api("returned")
    status, second = api["status"], api["status"]["revision"]["rolledBack"]
    assert (first, f"returned-{first}") == (
        revision_of(deployment), status["revision"]["current"],
    )  # fmt: skip
    assert ("300m", "Degraded") == (api["spec"]["compute"]["cpu"], status["phase"])
    assert "True" == (await world.condition("returned", "Stalled"))["status"]
    assert [served["metadata"]["uid"]] == [one["metadata"]["uid"] for one in await pods(first)]

    async def rolled_out() -> bool:
        return not await pods(second.removeprefix("returned-"))

    await until(rolled_out, "the pods of the second revision to go")
    await world.patch(BATCHED_APIS, "returned", {"spec": {"autoscaling": {"maxReplicas": 5}}})

    async def known() -> bool:
        api = await world.api("returned")
        return bool(api["status"]["observedGeneration"] == api["metadata"]["generation"])

    await until(known, "the operator to know of more replicas")
    assert await given_up()
    assert [served["metadata"]["uid"]] == [one["metadata"]["uid"] for one in await pods(first)]
    mended = {"predictor": {"image": "none:3"}}
    await world.patch(BATCHED_APIS, "returned", {"spec": mended})
    await world.until_condition("returned", "Progressing", "NewRevision")
    assert revision_of(await world.deployment("returned")) not in {first, second}


def revision_of(deployment: Body) -> str:
    """The digest that its pods carry."""
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return str(labels[contract.LABEL_REVISION])


async def tried_pods(world: World, revision: str) -> list[Body]:
    """Pods of that revision, of the canary and others, that are to stay."""
    selector = f"{contract.LABEL_API}=tried,{contract.LABEL_REVISION}={revision}"
    found = await world.kube.find(PODS, world.namespace, selector)
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


async def start(world: World, revision: str, count: int) -> None:
    """Wait until there are so many of them, and make them ready."""

    async def ready() -> bool:
        found = await tried_pods(world, revision)
        await world.make_ready(found)
        return len(found) == count

    await until(ready, f"{count} pods of {revision}")


async def named(world: World, field: str) -> str:
    """The revision that the status has in that field, as soon as it has one."""
    found: list[str] = []

    async def told() -> bool:
        status = (await world.api("tried")).get("status") or {}
        found.extend(filter(None, [(status.get("revision") or {}).get(field)]))
        return bool(found)

    await until(told, f"status.revision.{field}", 180.0)
    return found[0]


async def test_a_canary_is_beside_what_answers_until_it_is_promoted_or_given_up(
    world: World,
) -> None:
    """One revision is promoted by hand, the next does not start until the real deadline."""
    predictor = {**IN_IMAGE, "startupTimeout": "1s"}
    update = {"canary": {"percent": 50, "for": "1h"}, "drainDelay": "1s"}
    unseen = {"schedulerName": "nobody"}  # as above
    spec = {"predictor": predictor, "updateStrategy": update, "pod": unseen}
    await world.create_api("tried", spec)
    first = revision_of(await world.deployment("tried"))
    await start(world, first, 1)
    await world.until_condition("tried", "Progressing", "RolloutComplete")
    (served,) = await tried_pods(world, first)
    await world.patch(BATCHED_APIS, "tried", {"spec": {"predictor": {"image": "none:2"}}})

    name = await named(world, "canary")
    second = name.removeprefix("tried-")
    canary = await world.appears(DEPLOYMENTS, "tried-canary")
    await world.until_condition("tried", "Progressing", "CanaryRuns")
    await start(world, second, 1)
    await world.until_condition("tried", "Ready", "AllReplicasReady")
    service = await world.appears(SERVICES, "tried")
    (tried,) = await tried_pods(world, second)
    assert service["spec"]["selector"].items() <= tried["metadata"]["labels"].items()
    assert (1, second) == (canary["spec"]["replicas"], revision_of(canary))
    assert first == revision_of(await world.deployment("tried"))
    assert [served["metadata"]["uid"]] == [
        one["metadata"]["uid"] for one in await tried_pods(world, first)
    ]

    named_by = promotion(name, (await world.api("tried"))["status"])
    promote = {"metadata": {"annotations": {contract.ANNOTATION_PROMOTE: named_by}}}
    await world.patch(BATCHED_APIS, "tried", promote)
    await start(world, second, 2)
    await world.until_condition("tried", "Progressing", "RolloutComplete")

    async def alone() -> bool:
        deployment = await world.appears(DEPLOYMENTS, "tried-canary")
        there = await tried_pods(world, second), await tried_pods(world, first)
        return deployment["spec"]["replicas"] == 0 and list(map(len, there)) == [1, 0]

    await until(alone, "the canary and the first revision to go")
    assert second == revision_of(await world.deployment("tried"))
    (served,) = await tried_pods(world, second)
    await world.patch(BATCHED_APIS, "tried", {"spec": {"predictor": {"image": "none:3"}}})

    third = (await named(world, "rolledBack")).removeprefix("tried-")
    assert third not in {first, second}
    await until(alone, "the canary to go")
    assert [served["metadata"]["uid"]] == [
        one["metadata"]["uid"] for one in await tried_pods(world, second)
    ]
    assert second == revision_of(await world.deployment("tried"))
    assert "Degraded" == (await world.api("tried"))["status"]["phase"]
