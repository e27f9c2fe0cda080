"""Whatever others do to what the operator has set, it is put right, and their own is left alone."""

import asyncio
from typing import Any, Final

import pytest
from tests.contract.operator.world import CHILDREN, Body, World, until
from tests.support import drift

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    Resource,
)
from batchedapi_operator.errors import ApplyError, RefusedError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

SPEC: Final[Body] = {
    "predictor": {"path": "model:Iris", "env": [{"name": "A", "value": "1"}]},
    "networking": {"grpc": True, "allowFrom": [{"podSelector": {}}]},
}
SHARE: Final = 7
"""Every seventh field of a pod's template is tried."""
KINDS: Final = {one.kind: one for one in CHILDREN}
JSON_PATCH: Final = "application/json-patch+json"
FOREIGN: Final = "example.com/theirs"


async def patched(world: World, resource: Resource, name: str, patch: Any) -> Body:
    """As somebody else."""
    path, query = resource.path(world.namespace, name), {"fieldManager": "somebody"}
    return await world.kube._request("PATCH", path, query, list(patch), content_type=JSON_PATCH)


async def settled(world: World, name: str) -> dict[str, Body]:
    """The children, once nobody writes them any more."""
    await world.until_condition(name, "SpecValid", "Accepted")
    before: dict[str, str] = {}
    children: dict[str, Body] = {}

    async def unwritten() -> bool:
        nonlocal before, children
        await asyncio.sleep(0.5)
        last, children = before, await world.children(name)
        before = {key: body["metadata"]["resourceVersion"] for key, body in children.items()}
        return len(before) >= len(KINDS) and before == last

    await until(unwritten, f"{len(KINDS)} children of {name} that nobody writes")
    return children


def sampled(body: Body) -> list[drift.Edit]:
    """All of what is short, and of a pod's template a share."""
    found = list(drift.edits(body, contract.FIELD_MANAGER))
    deep = [edit for edit in found if "f:template" in edit.path]
    return [edit for edit in found if edit not in deep] + deep[::SHARE]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_field_of_ours_is_put_right(world: World, kind: str) -> None:
    """Another value or none, of whatever managedFields says is ours; others' fields are kept."""
    name, resource = f"drift-{kind.lower()}", KINDS[kind]
    await world.create_api(name, SPEC)
    (child,) = [key for key in await settled(world, name) if key.startswith(kind)]
    child = child.partition("/")[2]
    theirs = {"metadata": {"labels": {FOREIGN: "1"}, "annotations": {FOREIGN: "1"}}}
    await world.patch(resource, child, theirs)
    before = (await settled(world, name))[f"{kind}/{child}"]
    owned = drift.owned(before, contract.FIELD_MANAGER)
    taken = 0

    for edit in sampled(before):
        live = await world.get(resource, child)
        assert live is not None
        for patch in edit.patches(live):
            try:
                await patched(world, resource, child, patch)
            except RefusedError:
                continue  # the apiserver itself guards it
            except ApplyError as error:
                if "immutable" in error.message:
                    continue
                raise
            taken += 1
            break

        async def right() -> bool:
            return drift.whole(await world.get(resource, child), owned)

        await until(right, f"{kind}: {edit}")

    live = await world.get(resource, child)
    assert live is not None
    assert "1" == live["metadata"]["labels"][FOREIGN] == live["metadata"]["annotations"][FOREIGN]
    assert taken > 8


SERVICE_PORTS: Final = "/spec/ports/0"
CONTAINER: Final = "/spec/template/spec/containers/0"
MANIFEST: Final = "/spec/template/spec/volumes/0"
TCP_PROBE: Final = {"tcpSocket": {"port": 1}}
SECCOMP: Final = "/spec/template/spec/securityContext/seccompProfile"


@pytest.mark.parametrize(
    ("resource", "patch"),
    [
        pytest.param(
            SERVICES,
            {"op": "replace", "path": f"{SERVICE_PORTS}/port", "value": 81},
            id="our name on another port",
        ),
        pytest.param(
            DEPLOYMENTS,
            {"op": "replace", "path": f"{CONTAINER}/ports/0/containerPort", "value": 81},
            id="our name on another port of the container",
        ),
        pytest.param(
            DEPLOYMENTS,
            {"op": "replace", "path": MANIFEST, "value": {"name": "revision", "emptyDir": {}}},
            id="another kind of volume",
        ),
        pytest.param(
            DEPLOYMENTS,
            {"op": "replace", "path": f"{CONTAINER}/startupProbe", "value": TCP_PROBE},
            id="another kind of probe",
        ),
        pytest.param(
            DEPLOYMENTS,
            {"op": "replace", "path": f"{CONTAINER}/env/0", "value": {
                "name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}},
            id="a variable from elsewhere",
        ),
        pytest.param(
            DEPLOYMENTS,
            {"op": "replace", "path": SECCOMP, "value": {
                "type": "Localhost", "localhostProfile": "theirs"}},
            id="a profile of their own",
        ),
    ],
)  # fmt: skip
async def test_what_excludes_our_fields_gives_way_to_them(
    world: World, resource: Resource, patch: Body
) -> None:
    """An apply leaves foreign fields alone; beside these the apiserver refuses ours for ever."""
    name = "excluded"
    if await world.get(resource, name) is None:
        await world.create_api(name, SPEC)
    await settled(world, name)
    theirs = {"op": "add", "path": "/metadata/annotations", "value": {FOREIGN: "1"}}
    before = await patched(world, resource, name, [theirs])
    owned = drift.owned(before, contract.FIELD_MANAGER)

    await patched(world, resource, name, [patch])

    async def right() -> bool:
        return drift.whole(await world.get(resource, name), owned)

    await until(right, "our fields")
    live = await world.get(resource, name)
    assert live is not None
    assert "1" == live["metadata"]["annotations"][FOREIGN]
    assert len(before["spec"].get("ports", ())) == len(live["spec"].get("ports", ()))


async def test_an_older_revision_gets_its_label_and_its_owner_back(world: World) -> None:
    """Nothing applies it any more; without its owner it would outlive its API."""
    await world.create_api("older", SPEC)
    (first,) = (key for key in await settled(world, "older") if key.startswith("ConfigMap"))
    await world.patch(
        BATCHED_APIS, "older", {"spec": {"serverSideBatching": {"batchInterval": "3ms"}}}
    )

    async def second() -> bool:
        return len(await world.revisions("older")) == 2

    await until(second, "another revision")
    child = first.partition("/")[2]
    before = (await settled(world, "older"))[first]
    bare = [{"op": "remove", "path": f"/metadata/{part}"} for part in ("labels", "ownerReferences")]

    await patched(world, CONFIG_MAPS, child, bare)

    async def right() -> bool:
        return drift.whole(
            await world.get(CONFIG_MAPS, child), drift.owned(before, contract.FIELD_MANAGER)
        )

    await until(right, "label and owner")
    live = await world.get(CONFIG_MAPS, child)
    assert live is not None
    assert before["data"] == live["data"]


async def test_a_horizontal_pod_autoscaler_is_copied_and_not_fought(world: World) -> None:
    """It writes the scale of the API; the Deployment follows, and nobody turns it back."""
    spec = {**SPEC, "autoscaling": {"mode": "External"}, "replicas": 2}
    await world.create_api("external-hpa", spec)
    await settled(world, "external-hpa")

    for count in (5, 3):
        await world.patch(BATCHED_APIS, "external-hpa", {"spec": {"replicas": count}}, "scale")

        async def followed(wanted: int = count) -> bool:
            live = await world.deployment("external-hpa")
            return bool(live["spec"]["replicas"] == wanted)

        await until(followed, f"{count} replicas")
        for _ in range(30):
            assert await followed()
            await asyncio.sleep(0.1)
