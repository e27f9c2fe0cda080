"""The policies that platform teams enforce are met by fields of a manifest, on a real apiserver.

They are in the shape of Gatekeeper's and Kyverno's most common ones: labels and annotations that
every object needs, images by digest, no default service account, Pod Security `restricted`.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.outcomes import RESTRICTED
from tests.contract.operator.world import CHILDREN, NAMESPACES, World, until

from batchedapi_operator.cluster import PODS, REPLICA_SETS
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube

pytestmark = pytest.mark.cluster

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
IMAGE: Final = f"registry.example.invalid/serving@sha256:{'0' * 64}"
PLATFORM: Final = {"labels": {"team": "vision"}, "annotations": {"example.com/owner": "a@b"}}
MET: Final[dict[str, Any]] = {
    "predictor": {"path": "model:Iris", "image": IMAGE},
    "pod": {**PLATFORM, "serviceAccountName": "model"},
    "childMetadata": PLATFORM,
    "networking": {"allowFrom": [{"podSelector": {}}]},
}
WEB: Final = {
    "queue": {"redis": {"host": "127.0.0.1"}, "web": {"pod": {"serviceAccountName": "web"}}}
}
RULES: Final = [
    {"apiGroups": [""], "resources": ["services", "configmaps", "pods"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"]},
]
OF_PODS: Final = "object.kind != 'Pod' || "
DEMANDED: Final = {
    "has(object.metadata.labels) && 'team' in object.metadata.labels": "needs the label team",
    "has(object.metadata.annotations) && 'example.com/owner' in object.metadata.annotations": (
        "needs the annotation example.com/owner"
    ),
    f"{OF_PODS}object.spec.containers.all(c, c.image.contains('@sha256:'))": (
        "needs images by digest"
    ),
    f"{OF_PODS}object.spec.serviceAccountName != 'default'": (
        "must not use the default service account"
    ),
}
"""Condition in CEL -> what is told where it does not hold."""


def policy(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The policy and its binding to the namespace `name`, by the collections they belong to."""
    labels = {"kubernetes.io/metadata.name": name}
    operations = [{**rule, "apiVersions": ["*"], "operations": ["*"]} for rule in RULES]
    demanded = [{"expression": one, "message": told} for one, told in DEMANDED.items()]
    spec = {"matchConstraints": {"resourceRules": operations}, "validations": demanded}
    # what the cluster itself puts into each namespace is nobody's to label
    spec["matchConditions"] = [
        {"name": "not-of-the-cluster", "expression": "request.name != 'kube-root-ca.crt'"},
        {"name": "not-deleted", "expression": "request.operation != 'DELETE'"},
    ]
    bound = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": labels}},
    }
    return [
        ("validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec}),
        ("validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": bound}),
    ]


@pytest.fixture
async def strict(installed_crd: None, tmp_path: Path) -> AsyncIterator[World]:  # noqa: ARG001 - needed, not used
    """A namespace with those policies, service accounts of its own, and an operator."""
    name = f"strict-{random.randrange(16**8):08x}"
    async with Kube.connected() as kube:
        metadata = {"name": name, "labels": RESTRICTED}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        await kube._request("POST", NAMESPACES, {}, namespace)
        for account in ("model", "web"):
            body = {"metadata": {"name": account}}
            await kube._request("POST", f"{NAMESPACES}/{name}/serviceaccounts", {}, body)
        for kind, body in policy(name):
            await kube._request("POST", f"{ADMISSION}/{kind}", {}, body)
        world = World(kube, name)
        await until_enforced(world)
        operator = start_operator(name, tmp_path / "operator.log")
        try:
            await until_ready(operator)
            yield world
        finally:
            operator.process.terminate()
            operator.process.wait(30)
            for kind, _ in policy(name):
                await kube._request("DELETE", f"{ADMISSION}/{kind}/{name}", {})
            await kube._request("DELETE", f"{NAMESPACES}/{name}", {})


async def until_enforced(world: World) -> None:
    """The apiserver enforces a policy some seconds after it was made."""
    path = f"{NAMESPACES}/{world.namespace}/configmaps"

    async def denied() -> bool:
        try:
            await world.kube._request("POST", path, {"dryRun": "All"}, {"metadata": {"name": "x"}})
        except ApplyError:
            return True
        return False

    await until(denied, "the policy to be enforced")


async def test_an_api_without_the_fields_is_told_which_demand_it_does_not_meet(
    strict: World,
) -> None:
    """The user must learn what the platform wants, in the platform's words."""
    await strict.create_api("bare", {"predictor": {"path": "model:Iris"}})

    async def told() -> bool:
        return "needs the label team" in str((await strict.api("bare")).get("status"))

    await until(told, "the demand to be told")


@pytest.mark.parametrize("batching", [{}, WEB], ids=["replicas", "a queue"])
async def test_every_demand_is_met_by_fields(strict: World, batching: dict[str, Any]) -> None:
    """All children are made, and pods of every role are admitted."""
    await strict.create_api("met", {**MET, "serverSideBatching": batching})
    roles = 2 if batching else 1

    async def admitted() -> bool:
        pods = await strict.kube.find(PODS, strict.namespace, "batchedapi.dev/api=met")
        sets = await strict.kube.find(REPLICA_SETS, strict.namespace, "batchedapi.dev/api=met")
        owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in pods}
        return roles == len(sets) == len(owners)

    await until(admitted, "pods of every role")
    children = await strict.children("met")
    assert {kind.kind for kind in CHILDREN} == {name.partition("/")[0] for name in children}
    for body in children.values():
        assert PLATFORM["labels"].items() <= body["metadata"]["labels"].items()
    assert (await strict.until_condition("met", "SpecValid", "Accepted"))["status"] == "True"
