"""What a real apiserver heeds of uid and version; `worlds.MemoryCluster` does the same."""

from typing import Any

import pytest
from tests.contract.operator.world import World, until

from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    JsonObject,
    ObjectKey,
)
from batchedapi_operator.errors import ApplyError, ConflictError

pytestmark = pytest.mark.cluster

ANOTHER = "11111111-1111-1111-1111-111111111111"
LABELS = {"preconditions": "tested"}
PAUSED = {"predictor": {"path": "model:Model"}, "paused": True}
TOLD = {
    "conditions": [
        {
            "type": "Told",
            "status": "True",
            "reason": "Told",
            "message": "told",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
}
BODIES = [
    (CONFIG_MAPS, {"data": {}}),
    (SERVICES, {"spec": {"ports": [{"port": 80}]}}),
    (
        DEPLOYMENTS,
        {
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": LABELS},
                "template": {
                    "metadata": {"labels": LABELS},
                    "spec": {"containers": [{"name": "serving", "image": "none"}]},
                },
            }
        },
    ),
]


def named(resource: object, world: World, name: str, body: JsonObject, uid: str) -> JsonObject:
    """To be applied to the object with that uid."""
    metadata = {"name": name, "namespace": world.namespace, "uid": uid}
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}  # type: ignore[attr-defined]
    return {**kind, **body, "metadata": metadata}


@pytest.mark.parametrize(("resource", "body"), BODIES, ids=lambda one: getattr(one, "kind", ""))
async def test_a_child_that_was_replaced_is_not_applied_to(
    world: World, resource: object, body: JsonObject
) -> None:
    """It is a conflict, to be tried again, and no refusal that would be its user's to mend."""
    kind = resource.kind.lower()  # type: ignore[attr-defined]
    made = await world.create(resource, {"metadata": {"name": f"kept-{kind}"}, **body})  # type: ignore[arg-type]

    for uid, name in ((ANOTHER, f"kept-{kind}"), (made["metadata"]["uid"], f"gone-{kind}")):
        with pytest.raises(ConflictError):
            await world.kube.apply(
                resource,  # type: ignore[arg-type]
                named(resource, world, name, body, uid),
                force=True,
            )


async def test_a_deployment_is_scaled_as_it_was_decided_on_or_not_at_all(world: World) -> None:
    """Its uid and its version are heeded; without a version whatever its state is."""
    resource, body = BODIES[2]
    made = await world.create(resource, {"metadata": {"name": "scaled"}, **body})
    key, uid = ObjectKey(world.namespace, "scaled"), made["metadata"]["uid"]

    async def scaled_as_it_is() -> bool:  # its own controller may write between the two calls
        live = await world.kube.get(DEPLOYMENTS, key)
        assert live is not None
        try:
            await world.kube.scale(key, 0, uid=uid, version=live["metadata"]["resourceVersion"])
        except ConflictError:
            return False
        return True

    for other in ({"uid": ANOTHER}, {"uid": uid, "version": "1"}):
        with pytest.raises(ConflictError):
            await world.kube.scale(key, 2, **other)
    await until(scaled_as_it_is, "a scale at the version that it has")
    await world.kube.scale(key, 0, uid=uid)

    with pytest.raises(ApplyError) as gone:
        await world.kube.scale(ObjectKey(world.namespace, "gone"), 2, uid=uid)
    assert 404 == gone.value.status


async def test_a_status_is_written_to_that_api_whatever_has_its_name_by_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor is made after the operator has looked whose the name is."""
    key, look = ObjectKey(world.namespace, "successor"), world.kube.get_metadata
    made = await world.create_api(key.name, PAUSED)
    looks = 0

    async def too_early(*asked: Any) -> JsonObject | None:
        nonlocal looks
        looks += 1
        found = await look(*asked)
        if looks == 1:
            await world.delete(BATCHED_APIS, key.name)
            await world.create_api(key.name, PAUSED)
        return found

    monkeypatch.setattr(world.kube, "get_metadata", too_early)
    uid = made["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await world.kube.apply_status(key, uid, TOLD, "contract-tests")
    with pytest.raises(ApplyError) as gone:
        await world.kube.apply_status(key, uid, TOLD, "contract-tests")

    assert (404, 2) == (gone.value.status, looks)
    assert "told" not in str(await world.api(key.name))
