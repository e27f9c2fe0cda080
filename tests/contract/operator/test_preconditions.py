"""An apiserver's treatment of uid, version and ownership: the real one, and those of unit tests.

One suite for both. Whatever differs is mended in `tests/unit/operator/worlds.py`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import uuid4

import pytest
from tests.contract.operator.world import Body, World, until
from tests.unit.operator.worlds import MemoryCluster, MemoryLeases

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    SERVICES,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError, ConflictError
from batchedapi_operator.kube import Kube

ANOTHER: Final = "11111111-1111-1111-1111-111111111111"
LABELS: Final = {"preconditions": "tested"}
LEASE_SECONDS: Final = 10.0
PAUSED: Final = {"predictor": {"path": "model:Model"}, "paused": True}
BODIES: Final[list[tuple[Resource, Body]]] = [
    (CONFIG_MAPS, {"data": {"a": "1"}}),
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
KINDS: Final = pytest.mark.parametrize(
    ("resource", "body"), BODIES, ids=lambda one: getattr(one, "kind", "")
)


class Ground(Protocol):
    """A namespace, and what somebody else does in it."""

    @property
    def namespace(self) -> str:
        """Where the objects are."""

    @property
    def kube(self) -> Kube:
        """As the operator has it."""

    async def create(self, resource: Resource, body: Body) -> Body:
        """A new object."""

    async def patch(self, resource: Resource, name: str, body: Body) -> Body:
        """A merge patch."""

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete an object that no finalizer holds."""


@dataclass(frozen=True)
class Memory:
    """The one of unit tests."""

    namespace: str = "demo"
    kube: MemoryCluster = field(default_factory=MemoryCluster)

    async def create(self, resource: Resource, body: Body) -> Body:
        """As `put`, with what an apiserver adds."""
        self.kube.version += 1
        metadata = {"namespace": self.namespace, "uid": str(uuid4()), "generation": 1}
        metadata |= {"resourceVersion": str(self.kube.version), **body["metadata"]}
        self.kube.put(resource, {**body, "metadata": metadata})
        return self.kube.objects[resource, ObjectKey.of({"metadata": metadata})]

    async def patch(self, resource: Resource, name: str, body: Body) -> Body:
        """Patch labels alone."""
        self.kube.version += 1
        live = self.kube.objects[resource, ObjectKey(self.namespace, name)]
        labels = {**live["metadata"].get("labels", {}), **body["metadata"]["labels"]}
        version = {"resourceVersion": str(self.kube.version)}
        self.kube.put(
            resource, {**live, "metadata": {**live["metadata"], "labels": labels, **version}}
        )
        return live

    async def delete(self, resource: Resource, name: str) -> None:
        """At once."""
        del self.kube.objects[resource, ObjectKey(self.namespace, name)]


BOTH: Final = ("memory", pytest.param("apiserver", marks=pytest.mark.cluster))


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest) -> str:
    """The namespace of a cluster; empty: in memory."""
    return "" if request.param == "memory" else str(request.getfixturevalue("namespace"))


@pytest.fixture
async def ground(place: str) -> AsyncIterator[Ground]:
    """Either, in turn."""
    if not place:
        yield Memory()
        return
    async with Kube.connected() as kube:
        yield World(kube, place)


@pytest.fixture
async def leases(place: str) -> AsyncIterator[Any]:
    """A store of Leases: the one in memory and the real one, in turn."""
    if not place:
        yield MemoryLeases()
        return
    async with Kube.connected() as kube:
        yield kube


def named(resource: Resource, ground: Ground, name: str, body: Body, **metadata: Any) -> Body:
    """To be applied."""
    told = {"name": name, "namespace": ground.namespace, **metadata}
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": told}


def told(kind: str) -> Body:
    """A status with one condition."""
    condition = {"type": kind, "status": "True", "reason": "Told", "message": "told"}
    return {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}


def version(body: Body | None) -> str:
    """The version of an object that is there."""
    assert body is not None
    return str(body["metadata"]["resourceVersion"])


@KINDS
async def test_a_child_that_was_replaced_is_not_applied_to(
    ground: Ground, resource: Resource, body: Body
) -> None:
    """It is a conflict, to be tried again, and no refusal that would be its user's to mend."""
    kind = resource.kind.lower()
    made = await ground.create(resource, {"metadata": {"name": f"kept-{kind}"}, **body})

    for uid, name in ((ANOTHER, f"kept-{kind}"), (made["metadata"]["uid"], f"gone-{kind}")):
        with pytest.raises(ConflictError):
            await ground.kube.apply(
                resource, named(resource, ground, name, body, uid=uid), force=True
            )


@KINDS
async def test_an_apply_that_changes_nothing_makes_no_version(
    ground: Ground, resource: Resource, body: Body
) -> None:
    """Otherwise what is applied again at each look would wake whoever watches, and roll pods."""
    wanted = named(resource, ground, f"same-{resource.kind.lower()}", body, labels=LABELS)
    key = ObjectKey.of(wanted)
    made = await ground.kube.apply(resource, wanted, force=True)

    again = await ground.kube.apply(resource, wanted, force=True)
    assert made["metadata"]["uid"] == again["metadata"]["uid"]
    if resource is not DEPLOYMENTS:  # whose controller writes its status
        assert version(made) == version(again)
    generation = again["metadata"].get("generation")

    wanted["metadata"]["labels"] = {**LABELS, "more": "1"}
    changed = await ground.kube.apply(resource, wanted, force=True)
    assert version(again) != version(changed)
    assert version(changed) <= version(await ground.kube.get(resource, key))
    assert generation == changed["metadata"].get("generation")


async def test_a_generation_is_of_the_spec(ground: Ground) -> None:
    """By it the operator tells whether the Deployment's controller has seen its last apply."""
    resource, body = BODIES[2]
    before = await ground.kube.apply(
        resource, named(resource, ground, "generations", body), force=True
    )

    changed = {"spec": {**body["spec"], "minReadySeconds": 5}}
    after = await ground.kube.apply(
        resource, named(resource, ground, "generations", changed), force=True
    )

    assert 1 == after["metadata"]["generation"] - before["metadata"]["generation"]


async def test_an_apply_takes_away_what_it_has_set_and_leaves_what_others_have(
    ground: Ground,
) -> None:
    """So a child follows its manifest, and a sidecar injector's label stays."""
    resource, body = BODIES[2]
    spec = {**body["spec"], "minReadySeconds": 5}
    del spec["replicas"]
    first = named(resource, ground, "owned", {"spec": spec}, labels={"ours": "1", "gone": "1"})
    made = await ground.kube.apply(resource, first, force=False)
    await ground.patch(resource, "owned", {"metadata": {"labels": {"theirs": "1"}}})
    key, uid = ObjectKey.of(first), made["metadata"]["uid"]
    await ground.kube.scale(key, 0, uid=uid)

    less = {name: value for name, value in spec.items() if name != "minReadySeconds"}
    second = named(resource, ground, "owned", {"spec": less}, labels={"ours": "1"}, uid=uid)
    live = await ground.kube.apply(resource, second, force=True)

    labels = live["metadata"]["labels"]
    assert {"ours": "1", "theirs": "1"} == {name: labels[name] for name in ("ours", "theirs")}
    assert "gone" not in labels
    assert 0 == live["spec"]["replicas"]
    assert not live["spec"].get("minReadySeconds")


async def test_without_force_what_is_of_others_is_a_conflict(ground: Ground) -> None:
    """Somebody was quicker to take the name: what is theirs is not overwritten."""
    theirs = {"metadata": {"name": "taken", "labels": {"of": "them"}}, "data": {"a": "theirs"}}
    await ground.create(CONFIG_MAPS, theirs)
    ours = named(CONFIG_MAPS, ground, "taken", {"data": {"a": "ours"}}, labels={"of": "us"})

    with pytest.raises(ConflictError):
        await ground.kube.apply(CONFIG_MAPS, ours, force=False)
    same = named(CONFIG_MAPS, ground, "taken", {"data": {"a": "theirs"}})
    assert {"a": "theirs"} == (await ground.kube.apply(CONFIG_MAPS, same, force=False))["data"]
    assert {"a": "ours"} == (await ground.kube.apply(CONFIG_MAPS, ours, force=True))["data"]


async def test_managers_are_written_of_exactly_one_version(ground: Ground) -> None:
    """They were read before: what somebody has taken since is not given away."""
    wanted = named(CONFIG_MAPS, ground, "managed", {"data": {"a": "1"}})
    live = await ground.kube.apply(CONFIG_MAPS, wanted, force=True)
    await ground.patch(CONFIG_MAPS, "managed", {"metadata": {"labels": {"theirs": "1"}}})

    with pytest.raises(ConflictError):
        await ground.kube.set_managers(CONFIG_MAPS, live, [{}])
    now = await ground.kube.get(CONFIG_MAPS, ObjectKey.of(wanted))
    assert now is not None
    await ground.kube.set_managers(CONFIG_MAPS, now, [{}])

    left = await ground.kube.get(CONFIG_MAPS, ObjectKey.of(wanted))
    assert left is not None
    assert not [one for one in left["metadata"].get("managedFields", ()) if one]


async def test_only_the_object_with_that_uid_is_deleted(ground: Ground) -> None:
    """The one that has its name by then is another; one that is gone is well."""
    made = await ground.create(CONFIG_MAPS, {"metadata": {"name": "deleted"}, "data": {}})
    key, uid = ObjectKey(ground.namespace, "deleted"), made["metadata"]["uid"]

    with pytest.raises(ConflictError):
        await ground.kube.delete(CONFIG_MAPS, key, ANOTHER)
    await ground.kube.delete(CONFIG_MAPS, key, uid)
    await ground.kube.delete(CONFIG_MAPS, key, uid)

    assert await ground.kube.get(CONFIG_MAPS, key) is None
    assert await ground.kube.get_metadata(CONFIG_MAPS, key) is None


async def test_what_was_read_is_a_copy_and_found_by_its_label(ground: Ground) -> None:
    """An edit of it changes nothing for others; metadata come without the rest."""
    labels = {"found": uuid4().hex[:8]}
    await ground.create(CONFIG_MAPS, {"metadata": {"name": "f", "labels": labels}, "data": {}})
    key, selector = ObjectKey(ground.namespace, "f"), f"found={labels['found']}"

    read = await ground.kube.get(CONFIG_MAPS, key)
    assert read is not None
    read["metadata"]["labels"].clear()
    (found,) = await ground.kube.find(CONFIG_MAPS, ground.namespace, selector)
    (listed,), at = await ground.kube.list_metadata(CONFIG_MAPS, ground.namespace, selector)
    alone = await ground.kube.get_metadata(CONFIG_MAPS, key)

    assert alone is not None
    assert "data" not in {*listed, *alone}
    assert labels == found["metadata"]["labels"] == alone["metadata"]["labels"]
    assert int(version(found)) <= int(at)
    for namespace, other in (("elsewhere", selector), (ground.namespace, "found=other")):
        assert [] == await ground.kube.find(CONFIG_MAPS, namespace, other)


async def test_a_deployment_is_scaled_as_it_was_decided_on_or_not_at_all(ground: Ground) -> None:
    """Its uid and its version are heeded; without a version whatever its state is."""
    resource, body = BODIES[2]
    made = await ground.create(resource, {"metadata": {"name": "scaled"}, **body})
    key, uid = ObjectKey(ground.namespace, "scaled"), made["metadata"]["uid"]

    async def scaled_as_it_is() -> bool:  # its own controller may write between the two calls
        live = await ground.kube.get(DEPLOYMENTS, key)
        try:
            await ground.kube.scale(key, 0, uid=uid, version=version(live))
        except ConflictError:
            return False
        return True

    for other in ({"uid": ANOTHER}, {"uid": uid, "version": "1"}):
        with pytest.raises(ConflictError):
            await ground.kube.scale(key, 2, **other)
    await until(scaled_as_it_is, "a scale at the version that it has")
    await ground.kube.scale(key, 0, uid=uid)

    live = await ground.kube.get(DEPLOYMENTS, key)
    assert live is not None
    (ours,) = (
        one
        for one in live["metadata"]["managedFields"]
        if one["manager"] == contract.AUTOSCALER_FIELD_MANAGER
    )
    assert {"f:spec": {"f:replicas": {}}} == ours["fieldsV1"]
    with pytest.raises(ApplyError) as gone:
        await ground.kube.scale(ObjectKey(ground.namespace, "gone"), 2, uid=uid)
    assert 404 == gone.value.status


async def test_a_status_has_the_parts_of_two_and_loses_what_one_does_not_say_again(
    ground: Ground,
) -> None:
    """The reconciler and the autoscaler write side by side; each write is a new version."""
    made = await ground.create(BATCHED_APIS, {"metadata": {"name": "shared"}, "spec": PAUSED})
    key, uid = ObjectKey(ground.namespace, "shared"), made["metadata"]["uid"]

    await ground.kube.apply_status(key, uid, {**told("Told"), "message": "a"}, "first")
    await ground.kube.apply_status(key, uid, {**told("Seen"), "phase": "Live"}, "second")
    both = await ground.kube.get(BATCHED_APIS, key)
    await ground.kube.apply_status(key, uid, {"message": "b"}, "first")
    one = await ground.kube.get(BATCHED_APIS, key)

    assert both is not None
    assert one is not None
    assert ("a", "Live") == (both["status"]["message"], both["status"]["phase"])
    assert {"Told", "Seen"} == {one["type"] for one in both["status"]["conditions"]}
    assert ("b", "Live") == (one["status"]["message"], one["status"]["phase"])
    assert ["Seen"] == [one["type"] for one in one["status"]["conditions"]]
    assert 3 == len({version(body) for body in (made, both, one)})
    await ground.kube.apply_status(key, uid, {"message": "b"}, "first")
    assert version(one) == version(await ground.kube.get(BATCHED_APIS, key))
    times = {
        entry["manager"]: entry["time"]
        for entry in one["metadata"]["managedFields"]
        if entry.get("subresource") == "status"
    }
    assert {"first", "second"} == times.keys()
    assert all(datetime.fromisoformat(time).tzinfo for time in times.values())
    assert made["metadata"]["generation"] == one["metadata"]["generation"]


async def test_a_status_of_an_api_that_is_gone_is_told_to_be(ground: Ground) -> None:
    """By the status of HTTP alone the operator knows that it need not be tried again."""
    made = await ground.create(BATCHED_APIS, {"metadata": {"name": "follows"}, "spec": PAUSED})
    await ground.delete(BATCHED_APIS, "follows")
    await ground.create(BATCHED_APIS, {"metadata": {"name": "follows"}, "spec": PAUSED})

    for name in ("follows", "nobody"):
        key = ObjectKey(ground.namespace, name)
        with pytest.raises(ApplyError) as gone:
            await ground.kube.apply_status(key, made["metadata"]["uid"], told("Told"), "first")
        assert 404 == gone.value.status


@pytest.mark.cluster
async def test_a_status_is_written_to_that_api_whatever_has_its_name_by_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor is made between the two calls: after the look whose the name is."""
    key, look = ObjectKey(world.namespace, "successor"), world.kube.get_metadata
    made = await world.create_api(key.name, PAUSED)
    looks = 0

    async def too_early(*asked: Any) -> Body | None:
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
        await world.kube.apply_status(key, uid, told("Told"), "contract-tests")
    with pytest.raises(ApplyError) as gone:
        await world.kube.apply_status(key, uid, told("Told"), "contract-tests")

    assert (404, 2) == (gone.value.status, looks)
    assert "told" not in str(await world.api(key.name))


@pytest.mark.parametrize(
    ("resource", "told"), [(LEASES, "spec"), (CONFIG_MAPS, "data")], ids=["lease", "claim"]
)
async def test_a_lock_is_taken_once_and_renewed_at_the_version_that_was_read(
    leases: Any, place: str, resource: Resource, told: str
) -> None:
    """Only one of two takers gets it; a change that its holder did not see ends its lead."""
    label = f"locks-{uuid4().hex[:8]}"
    metadata = {"name": label, "namespace": place or "demo", "labels": {label: "a"}}
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    key = ObjectKey.of({"metadata": metadata})
    body = {**kind, "metadata": metadata, told: {"holderIdentity": "first"}}
    seconds = LEASE_SECONDS
    assert await leases.read_lock(resource, key, seconds=seconds) is None
    named = {**body, "metadata": {**metadata, "resourceVersion": "1"}}
    with pytest.raises(ApplyError) as gone:
        await leases.change_lock(resource, named, seconds=seconds)
    made = await leases.create_lock(resource, body, seconds=seconds)
    with pytest.raises(ConflictError):
        await leases.create_lock(resource, body, seconds=seconds)
    taken = {**made, told: {"holderIdentity": "second"}}
    changed = await leases.change_lock(resource, taken, seconds=seconds)
    with pytest.raises(ConflictError):
        await leases.change_lock(resource, made, seconds=seconds)

    assert 404 == gone.value.status
    read = await leases.read_lock(resource, key, seconds=seconds)
    assert "second" == read[told]["holderIdentity"]
    assert version(made) != version(changed) == version(read)
    found = await leases.claims(label, seconds=seconds)
    assert [key] * (resource is CONFIG_MAPS) == [ObjectKey.of(one) for one in found]
    assert [] == await leases.claims(f"{label}=b", seconds=seconds)
