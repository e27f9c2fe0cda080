"""The operator with the rights that its chart grants, and no other: it needs each of them.

On a control plane of its own, whose audit log has every request of the operator. No pod ever runs.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from crds.crd import crd
from kubernetes.aio import client, config
from tests.bench.harness.control_plane import ADMIN, ControlPlane, control_plane
from tests.cluster.devcluster import paths, pki
from tests.contract.operator.conftest import OperatorProcess, start_operator, until_ready
from tests.contract.operator.test_exposure import EVERYWHERE
from tests.contract.operator.test_operator import IN_IMAGE, with_source
from tests.contract.operator.world import CUSTOM_RESOURCES, NAMESPACES, Body, World, until

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    EVENTS,
    SYSTEM_NAMESPACE,
    ObjectKey,
)
from batchedapi_operator.election import WANTED
from batchedapi_operator.kube import Kube
from batchedapi_operator.resources.exposure import ADDRESSES
from chart import Objects, granted, of_operator, only, render
from gateway_api import definitions

pytestmark = pytest.mark.skipif(
    not list(paths.CACHE.glob("kube-*")), reason="no Kubernetes was built here: CLUSTER=local does"
)

OPERATOR: Final = pki.Identity("granted", "/CN=operator")
"""Its requests are those that the control plane audits; it is in no group that may anything."""
HERE, LATER = "team-a", "team-b"
"""One namespace is there when the operator starts, and one is made afterwards."""
EVERY_KIND: Final = (
    "networkPolicies.enabled=true",
    "exposure.gateway=true",
    "exposure.ingress=true",
)
SETTINGS: Final = (f"watchNamespaces={{{HERE},{LATER}}}", *EVERY_KIND)
SYSTEM: Final = "system"
"""Where the operator is installed, and its own Lease is."""
APPLY: Final = "application/apply-patch+yaml"
FINALIZERS: Final = ("batchedapi.dev", "batchedapis/finalizers", "update")
"""Asked for by an admission plugin, which is on here; audit logs have requests alone."""
Rights = set[tuple[str, str, str]]
LONG: Final = 180.0
"""Seconds: a list is tried again every half a minute, a refused child every minute."""
LACKED: Final = [
    ("apps", "deployments", "patch"),
    ("apps", "deployments/scale", "patch"),
    ("policy", "poddisruptionbudgets", "create"),
    ("networking.k8s.io", "networkpolicies", "get"),
    ("", "pods", "list"),
]
FORBIDDEN: Final = [
    *((HERE, "", "secrets", verb) for verb in ("get", "list", "watch", "create", "delete")),
    *((HERE, "", "pods", verb) for verb in ("create", "patch", "delete", "deletecollection")),
    *((HERE, "", f"pods/{sub}", "create") for sub in ("exec", "attach", "eviction", "portforward")),
    (HERE, "", "pods/log", "get"),
    (HERE, "", "serviceaccounts/token", "create"),
    (HERE, "", "serviceaccounts", "impersonate"),
    (HERE, "", "configmaps", "deletecollection"),
    (HERE, "", "services", "delete"),
    (HERE, "apps", "deployments", "delete"),
    (HERE, "apps", "daemonsets", "create"),
    (HERE, "batch", "jobs", "create"),
    *((HERE, "batchedapi.dev", "batchedapis", verb) for verb in ("create", "patch", "delete")),
    *((HERE, "rbac.authorization.k8s.io", "roles", verb) for verb in ("create", "bind")),
    (HERE, "rbac.authorization.k8s.io", "rolebindings", "create"),
    ("", "rbac.authorization.k8s.io", "clusterroles", "escalate"),
    ("", "", "namespaces", "list"),
    ("", "", "nodes", "list"),
    ("", "apiextensions.k8s.io", "customresourcedefinitions", "get"),
    ("", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "create"),
    ("", "batchedapi.dev", "batchedapis", "list"),
    ("kube-system", "", "configmaps", "get"),
    ("default", "apps", "deployments", "get"),
]


@dataclass(frozen=True)
class Ground:
    """Where the tests run: a control plane, what the chart grants, and the operator with it."""

    plane: ControlPlane
    chart: Objects
    operator: OperatorProcess

    def said(self, text: str) -> bool:
        """Whether the operator has logged something with that in it."""
        lines = self.operator.log.read_text().splitlines()
        return any(text in json.loads(line).get("error", "") for line in lines if line[:1] == "{")


async def connected(plane: ControlPlane) -> client.ApiClient:
    """As the administrator."""
    made: Any = await config.new_client_from_config(str(plane.kubeconfig(ADMIN)))  # type: ignore[no-untyped-call]
    assert isinstance(made, client.ApiClient)
    return made


async def grant(kube: Kube, objects: Objects, namespace: str) -> None:
    """Roles and bindings of one namespace, which is made first; bound to our user."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await put(kube, f"{NAMESPACES}/{namespace}", body)
    for one in objects:
        if one["kind"] in {"Role", "RoleBinding"} and one["metadata"]["namespace"] == namespace:
            await bound(kube, one, f"namespaces/{namespace}/")


async def bound(kube: Kube, one: Body, place: str = "") -> None:
    """A role, or a binding, but to our user."""
    body = deepcopy(one)
    if one["kind"].endswith("Binding"):
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}
        body["subjects"] = [user]
    plural, name = f"{one['kind'].lower()}s", one["metadata"]["name"]
    await put(kube, f"/apis/rbac.authorization.k8s.io/v1/{place}{plural}/{name}", body)


async def put(kube: Kube, path: str, body: Body) -> None:
    """A server-side apply of the whole."""
    query = {"fieldManager": "rights", "force": "true"}
    await kube._request("PATCH", path, query, body, content_type=APPLY)


def without(objects: Objects, lacked: tuple[str, str, str]) -> Objects:
    """The same, less one right."""
    group, resource, verb = lacked
    made = deepcopy(objects)
    for role in made:
        for rule in role.get("rules", ()):
            if group in rule["apiGroups"] and resource in rule["resources"]:
                rule["verbs"] = [one for one in rule["verbs"] if one != verb]
        if "rules" in role:
            role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    return made


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The CRD, the first namespace and its rights; then the operator."""
    with running(tmp_path_factory.mktemp("rights"), f"{HERE} {LATER}", *SETTINGS) as found:
        yield found


@pytest.fixture
def everywhere(tmp_path: Path) -> Iterator[Ground]:
    """The same of the default installation."""
    with running(tmp_path, "", *EVERY_KIND) as found:
        yield found


@contextmanager
def running(folder: Path, namespaces: str, *settings: str) -> Iterator[Ground]:
    """The operator for these namespaces, with what the chart grants by these settings."""
    chart = of_operator(render(*settings))
    plugin = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
    with control_plane(folder / "plane", plugin) as plane:
        keys = plane.folder / "pki"
        pki.issue(keys, OPERATOR)
        admin = json.loads(plane.kubeconfig(ADMIN).read_text())
        server = admin["clusters"][0]["cluster"]["server"]
        plane.kubeconfig(OPERATOR).write_text(pki.kubeconfig(keys, OPERATOR, server))
        asyncio.run(prepare(plane, chart))
        kubeconfig = str(plane.kubeconfig(OPERATOR))
        operator = start_operator(
            namespaces,
            folder / "operator.log",
            release=only(chart, "Deployment")["metadata"]["name"],
            KUBECONFIG=kubeconfig,
            BATCHEDAPI_LEASE_NAMESPACE=SYSTEM,
            BATCHEDAPI_EXPOSURE="gateway ingress",
        )
        try:
            asyncio.run(until_ready(operator))
            yield Ground(plane, chart, operator)
        finally:
            operator.process.terminate()
            operator.process.wait(timeout=30)


async def prepare(plane: ControlPlane, chart: Objects) -> None:
    """By whoever may; the operator waits until the custom resource is served."""
    async with await connected(plane) as api:
        kube = Kube(api)
        for one in (crd(), *definitions()):
            await put(kube, f"{CUSTOM_RESOURCES}/{one['metadata']['name']}", one)
        places = {one["metadata"]["namespace"] for one in chart if one["kind"] == "Role"}
        for place in (places | {HERE}) - {LATER}:
            await grant(kube, chart, place)
        for one in chart:
            if one["kind"].startswith("ClusterRole"):
                await bound(kube, one)

        async def served() -> bool:
            return await kube.get(BATCHED_APIS, ObjectKey(HERE, "nobody")) is None

        await until(served, "the custom resource to be served")


@pytest.fixture
async def world(ground: Ground) -> AsyncIterator[World]:
    """The namespace that was there first, as the administrator sees it."""
    async with await connected(ground.plane) as api:
        yield World(Kube(api), HERE)


async def test_a_namespace_that_is_made_later_is_served_without_a_restart(
    ground: Ground, world: World
) -> None:
    """Until then neither it nor the right to it is there, and the others are served."""
    await world.create_api("first", {"predictor": IN_IMAGE})
    await world.deployment("first")
    assert ground.said(f'in the namespace "{LATER}"')

    await grant(world.kube, ground.chart, LATER)
    later = World(world.kube, LATER)
    await later.create_api("late", {"predictor": IN_IMAGE})

    async def there() -> bool:
        return bool(await later.children("late"))

    await until(there, "the children in the namespace that was made later", LONG)


@pytest.mark.parametrize("lacked", LACKED, ids=" ".join)
async def test_a_right_that_is_lacking_is_told_and_heals_once_it_is_granted(
    ground: Ground, world: World, lacked: tuple[str, str, str]
) -> None:
    """Whoever upgrades the operator and not its roles reads what is missing in the status."""
    _, resource, verb = lacked
    name = f"lacks-{verb}-{resource.replace('/', '-')}"
    await grant(world.kube, without(ground.chart, lacked), HERE)
    try:
        await world.create_api(name, {"predictor": IN_IMAGE})
        told = await world.until_condition(name, "Progressing", "NotPermitted")
    finally:
        await grant(world.kube, ground.chart, HERE)

    text = f'cannot {verb} resource "{resource}"'
    assert text in told["message"]
    assert text in (await world.api(name))["status"]["message"]
    assert ground.said(text)

    async def healed() -> bool:
        return (await world.condition(name, "Progressing")).get("reason") == "NewRevision"

    await until(healed, "the right to be used", LONG)
    await world.deployment(name)


async def test_children_hold_their_api_only_with_the_right_to_its_finalizers(
    ground: Ground, world: World
) -> None:
    """Some clusters ask for it: without, the children are refused."""
    await grant(world.kube, without(ground.chart, FINALIZERS), HERE)
    try:
        await world.create_api("holds", {"predictor": IN_IMAGE})
        told = await world.until_condition("holds", "SpecValid", "PodTemplateRefused")
    finally:
        await grant(world.kube, ground.chart, HERE)

    assert "cannot set blockOwnerDeletion" in told["message"]
    batching = {"serverSideBatching": {"batchInterval": "3ms"}}
    await world.patch(BATCHED_APIS, "holds", {"spec": batching})
    await world.deployment("holds")


async def test_what_is_granted_is_what_is_used(ground: Ground, world: World) -> None:
    """A right too many is a way into the cluster, one too few an API that does not come up."""
    await use_everything(world)

    await until_used(granted(ground.chart), partial(used, ground.plane))


async def test_what_is_granted_for_all_namespaces_is_what_is_used(everywhere: Ground) -> None:
    """The default; a right in every namespace has to be used in one that is not the operator's.

    A claim is one that another release may still act on: it is taken away.
    """
    async with await connected(everywhere.plane) as api:
        world = World(Kube(api), HERE)
        await world.create(CONFIG_MAPS, claim("team-a/gone"))
        await use_everything(world)

    of_cluster = [one for one in everywhere.chart if one["kind"] == "ClusterRole"]
    asked = partial(used, everywhere.plane, apart_from=SYSTEM)
    await until_used(granted(of_cluster), asked)
    assert used(everywhere.plane) <= granted(everywhere.chart)


def claim(release: str) -> Body:
    """To a namespace, that nobody acts on yet."""
    notes = {contract.ANNOTATION_CLAIM: WANTED, contract.ANNOTATION_NAMESPACES: HERE}
    labels = {contract.LABEL_LEASE: "true"}
    metadata = {"name": contract.CLAIM, "labels": labels, "annotations": notes}
    return {"metadata": metadata, "data": {"holderIdentity": release, "leaseDurationSeconds": "30"}}


async def use_everything(world: World) -> None:
    """Children are made, changed and put right, revisions made until old ones are deleted."""
    await with_source(world, "every")
    for number in range(1, 9):
        batching = {"serverSideBatching": {"batchInterval": f"{number}ms"}}
        changed = await world.patch(BATCHED_APIS, "every", {"spec": batching})
        generation = changed["metadata"]["generation"]

        async def seen(wanted: int = generation) -> bool:
            status = (await world.api("every")).get("status") or {}
            return bool(status.get("observedGeneration") == wanted)

        await until(seen, f"revision {number}")
    external = {"predictor": IN_IMAGE, "autoscaling": {"mode": "External"}}
    await world.create_api("external", external)
    await world.create_api("exposed", EVERYWHERE)
    for kind in ADDRESSES:
        await world.appears(kind, "exposed")
    nothing = {"networking": {"gateway": None, "ingress": None}}
    await world.patch(BATCHED_APIS, "exposed", {"spec": nothing})
    await world.patch(BATCHED_APIS, "every", {"spec": {"networking": {"allowFrom": None}}})
    missing = {"predictor": {**IN_IMAGE, "source": {"configMap": "nowhere"}}}
    await world.create_api("eventful", missing)

    async def recorded() -> bool:
        return bool(await world.kube.find(EVENTS, HERE))

    await until(recorded, "an event")
    assert len(await world.revisions("every")) < 9
    assert await world.get(CONFIG_MAPS, "every-model")


async def until_used(wanted: Rights, asked: Callable[[], Rights]) -> None:
    """Wait until each right has been used, and see that no other was."""

    async def all_used() -> bool:
        return wanted <= asked() | {FINALIZERS}

    try:
        await until(all_used, "every right to be used")
    except AssertionError:
        assert set() == wanted - asked() - {FINALIZERS}, "granted, and not used"
        raise
    assert set() == asked() - wanted, "used, and not granted"


def used(plane: ControlPlane, apart_from: str = "") -> Rights:
    """Group, resource and verb of every request; also of those that were refused.

    Whoever applies, or puts, what is not there has to have the right to create it, too. Of one
    namespace they may be left out.
    """
    found = set()
    for entry in plane.audited():
        place = entry.get("objectRef", {})
        if "resource" not in place:  # which groups there are: anybody may ask
            assert entry["requestURI"].startswith(("/api", "/apis", "/version")), entry
            continue
        if apart_from and place.get("namespace") == apart_from:
            continue
        names = [place["resource"], *([place["subresource"]] if "subresource" in place else [])]
        verbs = {entry["verb"]}
        if entry.get("responseStatus", {}).get("code") == 201:
            verbs.add("create")
        found |= {(place.get("apiGroup", ""), "/".join(names), verb) for verb in verbs}
    return found


@pytest.mark.parametrize("asked", FORBIDDEN, ids=" ".join)
async def test_what_the_operator_does_not_need_is_denied(
    world: World, asked: tuple[str, str, str, str]
) -> None:
    """By the apiserver's own word: what would harm, should somebody get hold of its token."""
    namespace, group, resource, verb = asked
    name, _, sub = resource.partition("/")
    place = {"namespace": namespace, "group": group, "resource": name, "subresource": sub}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "operator", "resourceAttributes": {**place, "verb": verb}},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

    answer = await world.kube._request("POST", path, {}, body)

    assert answer["status"]["allowed"] is False


async def test_kube_system_is_served_by_its_name_alone(
    ground: Ground, world: World, tmp_path: Path
) -> None:
    """Whoever may write there by accident must not get pods of theirs there."""
    ground.operator.process.terminate()  # a second release over the same namespaces is refused
    ground.operator.process.wait(timeout=30)
    system, other = World(world.kube, SYSTEM_NAMESPACE), World(world.kube, "team-c")
    for place in (system, other):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace}}
        await put(world.kube, f"{NAMESPACES}/{place.namespace}", body)
        await place.create_api("anywhere", {"predictor": IN_IMAGE})
    kubeconfig = str(ground.plane.kubeconfig(ADMIN))

    async def served(namespaces: str, place: World) -> None:
        operator = start_operator(namespaces, tmp_path / "log", KUBECONFIG=kubeconfig)
        try:
            await place.deployment("anywhere")
            await place.until_condition("anywhere", "SpecValid", "Accepted")
        finally:
            operator.process.terminate()
            operator.process.wait(timeout=30)

    await served("", other)
    assert {} == await system.condition("anywhere", "SpecValid")
    assert {} == await system.children("anywhere")
    await served(SYSTEM_NAMESPACE, system)
