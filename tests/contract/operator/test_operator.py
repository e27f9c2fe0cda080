"""The operator as a process against a real apiserver."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest
from tests.contract.operator.conftest import OperatorProcess, start_operator, until_ready
from tests.contract.operator.world import NAMED, NAMESPACES, Body, World, until

from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    ObjectKey,
    Resource,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

VERSION = "resourceVersion"
IN_IMAGE: Body = {"path": "model:Iris", "env": [{"name": "A", "value": "1"}, {"name": "B"}]}


def container(deployment: Body) -> Body:
    """The serving container."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    body: Body = found
    return body


def template(deployment: Body) -> str:
    """The pod template, whose changes roll the pods."""
    return json.dumps(deployment["spec"]["template"], sort_keys=True)


async def replicas(world: World, name: str) -> int:
    """Asked of the Deployment."""
    count: int = (await world.deployment(name))["spec"]["replicas"]
    return count


async def with_source(world: World, name: str) -> None:
    """An API and the ConfigMap that it names."""
    source = {"metadata": {"name": f"{name}-model"}, "data": {"model.py": "class Iris: ..."}}
    await world.create(CONFIG_MAPS, source)
    predictor = {**IN_IMAGE, "source": {"configMap": f"{name}-model"}}
    scaling = {"autoscaling": {"minReplicas": 2}}
    await world.create_api(name, {"predictor": predictor, **scaling, **NAMED})


async def test_an_api_becomes_deployment_service_and_revision(world: World) -> None:
    """The first promise of the operator; owned children go with their API and need no finalizer."""
    await with_source(world, "first")
    deployment = await world.deployment("first")
    await world.until_condition("first", "SpecValid", "Accepted")

    api = await world.api("first")
    children = await world.children("first")
    revision = api["status"]["revision"]["current"]
    kinds = ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy")
    assert {*(f"{kind}/first" for kind in kinds), f"ConfigMap/{revision}"} == set(children)
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (api["metadata"]["uid"], True) == (owner["uid"], owner["controller"])
    data = children[f"ConfigMap/{revision}"]["data"]
    assert {"batchedapi.yaml", "model.py"} == set(data)
    assert container(deployment)["image"] == "batchedapi-serving:dev"
    assert f"http://first.{world.namespace}.svc/first" == api["status"]["url"]


async def test_the_first_count_goes_through_scale_and_survives_applies(world: World) -> None:
    """A replica count in an apply would fight the autoscaler, an HPA and the user."""
    await with_source(world, "counted")
    await world.deployment("counted")

    async def scaled() -> bool:
        return await replicas(world, "counted") == 2

    await until(scaled, "minReplicas")
    await world.patch(DEPLOYMENTS, "counted", {"spec": {"replicas": 5}}, "scale")
    env = [{"name": "A", "value": "changed"}]
    await world.patch(BATCHED_APIS, "counted", {"spec": {"predictor": {"env": env}}})

    async def applied() -> bool:
        return bool(container(await world.deployment("counted"))["env"] == env)

    await until(applied, "the new environment")
    deployment = await world.deployment("counted")
    managers = {
        entry["manager"]: "f:replicas" in entry["fieldsV1"].get("f:spec", {})
        for entry in deployment["metadata"]["managedFields"]
        if entry.get("subresource") != "status"
    }
    assert deployment["spec"]["replicas"] == 5
    assert managers["batchedapi-operator"] is False
    assert managers["contract-tests"] is True


async def test_an_env_entry_that_is_removed_is_gone(world: World) -> None:
    """Fields of a POST would be nobody's, and no later apply could take them away."""
    await world.create_api("env", {"predictor": IN_IMAGE})
    assert ["A", "B"] == [e["name"] for e in container(await world.deployment("env"))["env"]]

    await world.patch(BATCHED_APIS, "env", {"spec": {"predictor": {"env": [{"name": "A"}]}}})

    async def removed() -> bool:
        entries = container(await world.deployment("env"))["env"]
        return [entry["name"] for entry in entries] == ["A"]

    await until(removed, "B to be gone")


async def test_a_foreign_deployment_is_refused_and_left_alone(world: World) -> None:
    """Adopting what happens to have the name would roll somebody else's pods."""
    labels = {"app": "theirs"}
    pod = {"containers": [{"name": "main", "image": "theirs"}]}
    theirs = await world.create(
        DEPLOYMENTS,
        {
            "metadata": {"name": "foreign"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    )

    await world.create_api("foreign", {"predictor": IN_IMAGE})
    refused = await world.until_condition("foreign", "SpecValid", "NotOwned")

    deployment = await world.deployment("foreign")
    assert theirs["spec"] == deployment["spec"]
    assert "ownerReferences" not in deployment["metadata"]
    assert f"Deployment {world.namespace}/foreign exists" in refused["message"]
    assert "Error" == (await world.api("foreign"))["status"]["phase"]
    assert {} == await world.children("foreign")


async def test_editing_the_source_makes_a_new_revision(world: World) -> None:
    """The user's ConfigMap carries no label of ours, and must be noticed all the same."""
    await with_source(world, "edited")
    before = template(await world.deployment("edited"))
    data = {"data": {"model.py": "class Iris: pass"}}

    await world.patch(CONFIG_MAPS, "edited-model", data)

    async def rolled() -> bool:
        return template(await world.deployment("edited")) != before

    await until(rolled, "the new revision")
    revisions = await world.revisions("edited")
    sources = sorted(body["data"]["model.py"] for body in revisions.values())
    assert ["class Iris: ...", "class Iris: pass"] == sources
    assert all(body["immutable"] for body in revisions.values())


async def test_a_missing_source_is_waited_for(world: World) -> None:
    """Files are applied in any order."""
    predictor = {**IN_IMAGE, "source": {"configMap": "late-model"}}
    await world.create_api("late", {"predictor": predictor})
    await world.until_condition("late", "SpecValid", "SourceMissing")

    await world.create(CONFIG_MAPS, {"metadata": {"name": "late-model"}, "data": {"model.py": ""}})

    await world.deployment("late")


async def test_raising_max_replicas_rolls_nothing(world: World) -> None:
    """A limit of the autoscaler is no business of a running model."""
    await world.create_api("limits", {"predictor": IN_IMAGE})
    before = template(await world.deployment("limits"))
    generation = (
        await world.patch(BATCHED_APIS, "limits", {"spec": {"autoscaling": {"maxReplicas": 7}}})
    )["metadata"]["generation"]

    async def seen() -> bool:
        status = (await world.api("limits")).get("status") or {}
        return bool(status.get("observedGeneration") == generation)

    await until(seen, "the change to be observed")
    assert before == template(await world.deployment("limits"))
    assert 1 == len(await world.revisions("limits"))


async def test_in_mode_external_spec_replicas_is_copied(world: World) -> None:
    """`kubectl scale bapi` and an HPA write spec.replicas through our /scale."""
    spec = {"predictor": IN_IMAGE, "autoscaling": {"mode": "External"}, "replicas": 3}
    await world.create_api("external", spec)

    async def count(expected: int) -> bool:
        return await replicas(world, "external") == expected

    await until(lambda: count(3), "3 replicas")
    await world.patch(BATCHED_APIS, "external", {"spec": {"replicas": 4}}, "scale")
    await until(lambda: count(4), "4 replicas")


async def test_a_second_autoscaler_of_the_deployment_is_told_of(world: World) -> None:
    """An HPA that aims at the Deployment and not at the API fights with the operator."""
    await world.create_api("fought", {"predictor": IN_IMAGE})
    await world.deployment("fought")
    await world.until_condition("fought", "SpecValid", "Accepted")
    await world.patch(DEPLOYMENTS, "fought", {"spec": {"replicas": 3}}, "scale")

    async def told() -> bool:
        events = await world.kube.find(EVENTS, world.namespace)
        ours = [one for one in events if one["regarding"]["name"] == "fought"]
        return "ScaledByAnother" in {one["reason"] for one in ours}

    await until(told, "the event")


async def test_a_hand_edited_child_is_put_right_and_a_deleted_one_made_anew(world: World) -> None:
    """Children of the operator stay as the API says (O13, O14)."""
    await world.create_api("drift", {"predictor": IN_IMAGE})
    await world.deployment("drift")
    await world.appears(SERVICES, "drift")
    await world.patch(
        DEPLOYMENTS, "drift", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    )
    await world.delete(SERVICES, "drift")

    async def right() -> bool:
        spec = (await world.deployment("drift"))["spec"]["template"]["spec"]
        return bool(spec["terminationGracePeriodSeconds"] == 45)

    await until(right, "the grace period")
    await world.appears(SERVICES, "drift")


async def test_a_deployment_that_was_deleted_has_the_replicas_that_it_had(world: World) -> None:
    """Also with External mode; web pods of a queue are in a Deployment like any other."""
    await world.create_api("scaled", {"predictor": IN_IMAGE})
    queue = {"serverSideBatching": {"queue": {"redis": {}}}}
    external = {"autoscaling": {"mode": "External"}, "replicas": 1}
    await world.create_api("asked", {"predictor": IN_IMAGE, **external, **queue})
    before = {}
    for name, api in (("scaled", "scaled"), ("asked-web", "asked")):
        uid = before[name] = (await world.deployment(name))["metadata"]["uid"]
        await world.until_condition(api, "SpecValid", "Accepted")
        await world.kube.scale(ObjectKey(world.namespace, name), 3, uid=uid)
    before["asked"] = (await world.deployment("asked"))["metadata"]["uid"]
    await world.patch(BATCHED_APIS, "asked", {"spec": {"replicas": 3}})

    async def told() -> bool:
        statuses = [(await world.api(name))["status"] for name in ("scaled", "asked")]
        asked = [status.get("desiredReplicas") for status in (*statuses, statuses[1]["web"])]
        return asked == [3, 3, 3]

    await until(told, "three replicas of each to be told")
    for name in before:
        await world.delete(DEPLOYMENTS, name)

    async def back() -> bool:
        found = {name: await world.get(DEPLOYMENTS, name) for name in before}
        return all(
            body is not None
            and body["metadata"]["uid"] != before[name]
            and body["spec"]["replicas"] == 3
            for name, body in found.items()
        )

    await until(back, "three replicas of each again")


@pytest.mark.parametrize(
    ("resource", "edit"),
    [
        (DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": 5}}),
        (NETWORK_POLICIES, {"spec": {"ingress": [{}]}}),
    ],
    ids=["budget", "network"],
)
async def test_a_policy_that_is_edited_or_deleted_is_as_it_was(
    world: World, resource: Resource, edit: Body
) -> None:
    """Opened by hand it would stay open, and nobody would notice."""
    name = f"guarded-{resource.plural[0]}"
    await world.create_api(name, {"predictor": IN_IMAGE, **NAMED})
    before = (await world.appears(resource, name))["spec"]
    await world.patch(resource, name, edit)

    async def right() -> bool:
        return (await world.appears(resource, name))["spec"] == before

    await until(right, "the edit to be undone")
    await world.delete(resource, name)
    await until(right, "it to be made anew")


async def test_old_revisions_are_deleted_but_for_the_youngest(world: World) -> None:
    """A source that is edited every day must not fill etcd."""
    await world.create_api("many", {"predictor": IN_IMAGE})
    await world.deployment("many")
    for interval in range(1, 12):
        before = template(await world.deployment("many"))
        batching = {"serverSideBatching": {"batchInterval": f"{interval}ms"}}
        await world.patch(BATCHED_APIS, "many", {"spec": batching})

        async def rolled(old: str = before) -> bool:
            return template(await world.deployment("many")) != old

        if interval != 10:  # the default
            await until(rolled, f"revision {interval}")

    async def few() -> bool:
        # in use: the current one and those of the old ReplicaSets that a Deployment keeps
        return len(await world.revisions("many")) <= 1 + 5 + 5

    await until(few, "old revisions to go")


async def test_deleting_the_api_leaves_nothing(world: World) -> None:
    """Owner references do it, with the operator up or down."""
    await with_source(world, "gone")
    await world.deployment("gone")

    await world.delete(BATCHED_APIS, "gone")

    async def nothing() -> bool:
        pods = await world.kube.find(PODS, world.namespace, "batchedapi.dev/api=gone")
        return not pods and not await world.children("gone")

    await until(nothing, "the children to be collected", seconds=30)
    assert await world.get(CONFIG_MAPS, "gone-model") is not None


async def test_an_idle_api_is_not_written_to_and_carries_nothing_of_kopf(world: World) -> None:
    """Writes nobody needs cost etcd and wake every watcher; a finalizer outlives its operator."""
    await with_source(world, "idle")
    await world.until_condition("idle", "AutoscalingActive", "MetricsMissing")
    await asyncio.sleep(2)

    async def versions() -> dict[str, str]:
        objects = {**await world.children("idle"), "api": await world.api("idle")}
        # Others write the status of these two; what we write shows in the generation.
        theirs = ("Deployment/", "PodDisruptionBudget/")
        return {
            name: str(body["metadata"]["generation" if name.startswith(theirs) else VERSION])
            for name, body in objects.items()
        }

    before, said = await versions(), (await world.api("idle"))["status"]
    await asyncio.sleep(12)

    api = await world.api("idle")
    assert said == api["status"]
    assert before == await versions()
    assert "finalizers" not in api["metadata"]
    assert "kopf" not in json.dumps(api["metadata"].get("annotations", {}))


async def test_a_dozen_namespaces_leave_connections_for_the_rest(
    world: World, tmp_path: Path
) -> None:
    """Each has a watch of ConfigMaps that is open all the time; eleven are not there yet."""
    many = World(world.kube, f"{world.namespace}-many")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": many.namespace}}
    await world.kube._request("POST", NAMESPACES, {}, body)
    names = [many.namespace, *(f"{many.namespace}-{number}" for number in range(11))]
    running = start_operator(" ".join(names), tmp_path / "log")
    try:
        await until_ready(running)
        await many.create_api("one", {"predictor": IN_IMAGE})
        await many.until_condition("one", "SpecValid", "Accepted")
    finally:
        running.process.terminate()
        running.process.wait(timeout=30)
        await world.kube._request("DELETE", f"{NAMESPACES}/{many.namespace}", {})


async def test_the_operator_answers_on_its_admin_port(operator: OperatorProcess) -> None:
    """Kubelet and Prometheus ask there."""
    assert (200, "ok\n") == operator.admin("/livez")
    assert (200, "ok\n") == operator.admin("/readyz")
    assert "batchedapi_operator_reconciles_total" in operator.admin("/metrics")[1]


async def test_it_starts_and_stops_within_seconds(world: World, tmp_path: Path) -> None:
    """A rollout of the operator should not be noticed."""
    begun = time.monotonic()
    second = start_operator(f"{world.namespace}-none", tmp_path / "log")
    await until_ready(second)
    started = time.monotonic() - begun
    second.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()

    assert 0 == second.process.wait(timeout=10)
    # 1.1 s and 0.4 s on an idle machine; the margin is for one that is busy
    assert started < 20.0
    assert time.monotonic() - begun < 5.0
