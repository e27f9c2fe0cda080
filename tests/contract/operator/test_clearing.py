"""An obstacle to an API that has gone: the operator finds out without a restart."""

import asyncio
import subprocess
from functools import partial
from typing import Final

import pytest
from tests.contract.operator.world import CHILDREN, Body, World, until

from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, SERVICES, Resource

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

SPEC: Final[Body] = {
    "predictor": {"path": "model:Iris"},
    "networking": {"allowFrom": [{"podSelector": {}}]},
}
HOLDER: Final = "example.com/keep"


def foreign(resource: Resource, name: str) -> Body:
    """An object of somebody else's, with the name of a child."""
    labels = {"app": "theirs"}
    if resource is SERVICES:
        return {"metadata": {"name": name}, "spec": {"selector": labels, "ports": [{"port": 80}]}}
    pod = {"containers": [{"name": "main", "image": "theirs"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


async def told(world: World, name: str, words: str) -> None:
    """Until the status' message has those words."""

    async def said() -> bool:
        status = (await world.api(name)).get("status") or {}
        return words in status.get("message", "")

    await until(said, f"{name} to say: {words}")


async def accepted(world: World, name: str) -> None:
    """Until the API has its children."""

    async def good() -> bool:
        valid = (await world.condition(name, "SpecValid")).get("reason") == "Accepted"
        return valid and len(await world.children(name)) == len(CHILDREN)

    await until(good, f"{name} to be accepted")


@pytest.mark.parametrize(
    ("name", "resource"), [("taken-d", DEPLOYMENTS), ("taken-s", SERVICES)], ids=["d", "s"]
)
async def test_not_owned_clears_when_its_user_does_what_it_says(
    world: World, name: str, resource: Resource
) -> None:
    """It stayed in Error until the operator was restarted."""
    await world.create(resource, foreign(resource, name))
    await world.create_api(name, SPEC)
    await world.until_condition(name, "SpecValid", "NotOwned")

    await world.delete(resource, name)

    await accepted(world, name)
    assert "Error" != (await world.api(name))["status"]["phase"]


async def test_a_foreign_child_held_in_deletion_is_named_with_its_holder(world: World) -> None:
    """And is made anew as soon as the finalizer is gone."""
    body = foreign(DEPLOYMENTS, "held")
    body["metadata"]["finalizers"] = [HOLDER]
    await world.create(DEPLOYMENTS, body)
    await world.create_api("held", SPEC)
    await world.delete(DEPLOYMENTS, "held")

    await told(world, "held", f"being deleted, and held by {HOLDER}")
    await world.patch(DEPLOYMENTS, "held", {"metadata": {"finalizers": None}})

    await accepted(world, "held")


async def test_a_child_of_ours_held_in_deletion_is_waited_for_with_a_word(world: World) -> None:
    """Not adopted, not hammered, and not passed over in silence."""
    await world.create_api("leaving", SPEC)
    await accepted(world, "leaving")
    first = (await world.deployment("leaving"))["metadata"]["uid"]
    await world.patch(DEPLOYMENTS, "leaving", {"metadata": {"finalizers": [HOLDER]}})
    await world.delete(DEPLOYMENTS, "leaving")

    await world.until_condition("leaving", "Progressing", "WaitingForDeletion")
    await told(world, "leaving", f"held by {HOLDER}")
    await world.patch(DEPLOYMENTS, "leaving", {"metadata": {"finalizers": None}})

    async def anew() -> bool:
        found = await world.get(DEPLOYMENTS, "leaving")
        return found is not None and found["metadata"]["uid"] != first

    await until(anew, "another Deployment")


async def test_an_api_held_in_deletion_says_by_whom(world: World) -> None:
    """In its status and in the column that `kubectl get -o wide` shows."""
    await world.create_api("going", SPEC)
    await accepted(world, "going")
    await world.patch(BATCHED_APIS, "going", {"metadata": {"finalizers": [HOLDER]}})
    await world.delete(BATCHED_APIS, "going")

    await told(world, "going", f"held by {HOLDER}")

    command = ["kubectl", "get", "bapi", "going", "-n", world.namespace, "-o", "wide"]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=True)
    shown = (await asyncio.to_thread(run)).stdout
    assert "MESSAGE" in shown
    assert "Deleting" in shown
    assert f"held by {HOLDER}: whoever set that has to remove it" in shown
    await world.patch(BATCHED_APIS, "going", {"metadata": {"finalizers": None}})

    async def gone() -> bool:
        return await world.get(BATCHED_APIS, "going") is None

    await until(gone, "the API to go")
