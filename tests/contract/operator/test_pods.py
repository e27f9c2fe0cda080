"""Pods that a platform can place, against a real apiserver under Pod Security `restricted`."""

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.corpus import document
from tests.contract.operator.test_settings import label, observed
from tests.contract.operator.world import NAMESPACES, Body, World, until

import pod_specs
from batchedapi_core.manifest import SPREAD, parse_api
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, PODS
from batchedapi_operator.errors import ApplyError, ConflictError
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.deployment import build_deployment

pytestmark = pytest.mark.cluster

RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
OF_THE_CLUSTER: Final = (
    "priorityClassName", "runtimeClassName", "serviceAccountName", "serviceAccount",
)  # fmt: skip
"""Objects that a pod must find; a Deployment need not."""
SPEC: Final[Body] = {
    "predictor": {
        "path": "model:Iris",
        "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": pod_specs.KEY}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
        "envFrom": [{"secretRef": {"name": "s"}, "prefix": "X_"}],
    },
    # without those that would have every pod refused: then other defaults are taken at once
    "pod": {
        name: value
        for name, value in pod_specs.ACCEPTED["every setting of the pods"]["pod"].items()
        if name not in OF_THE_CLUSTER
    },
    "compute": {"cpu": "0.5", "cpuLimit": 1, "ephemeralStorage": "1024Mi", "gpu": 1},
}
"""As the apiserver would not write it: it fills in versions, modes and kinds of volumes."""


NOWHERE: Final[Body] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}


async def restricted(world: World, name: str) -> World:
    """A namespace that enforces it."""
    there = World(world.kube, f"{world.namespace}-{name}")
    head = {"name": there.namespace, "labels": RESTRICTED}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": head}
    await world.kube._request("POST", NAMESPACES, {}, body)
    return there


@pytest.mark.parametrize("name", pod_specs.ACCEPTED)
async def test_what_the_schema_takes_is_a_pod_that_is_admitted(world: World, name: str) -> None:
    """A pod that is refused later is told of in a condition; better is to refuse it at once."""
    api = parse_api(document(pod_specs.ACCEPTED[name]))
    made = build_deployment(api, revision_of(api, {}, {}, None, SPREAD), "image:1")
    made["metadata"] = {"name": "corpus"}
    head = {"name": "corpus", "labels": made["spec"]["template"]["metadata"]["labels"]}
    pod = {"metadata": head, "spec": {**made["spec"]["template"]["spec"]}}
    for missing in OF_THE_CLUSTER:
        pod["spec"].pop(missing, None)
    there = await restricted(world, f"admitted-{[*pod_specs.ACCEPTED].index(name)}")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    try:
        path = f"/api/v1/namespaces/{there.namespace}/serviceaccounts"
        await there.kube._request("POST", path, {}, account)
    except ApplyError:
        pass  # its controller was quicker

    for resource, body in ((DEPLOYMENTS, made), (PODS, pod)):
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        await there.kube._request("POST", resource.path(there.namespace), query, full)


async def test_pods_stay_as_they_are_until_their_next_revision(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the apiserver's defaults nor other defaults of the chart count as a change."""
    there = await restricted(world, "placed")
    first = start_operator(there.namespace, tmp_path / "first.log")
    try:
        await until_ready(first)
        await there.create_api("placed", SPEC)
        before = await there.deployment("placed")
        await observed(there, "placed", 1)
        limit = {"spec": {"autoscaling": {"maxReplicas": 7}}}
        made = await there.patch(BATCHED_APIS, "placed", limit)
        await observed(there, "placed", made["metadata"]["generation"])
        found = await there.get(DEPLOYMENTS, "placed")
        assert found is not None
        assert before["spec"]["template"] == found["spec"]["template"]
    finally:
        first.process.terminate()
        first.process.wait(timeout=30)

    monkeypatch.setenv("BATCHEDAPI_POD_DEFAULTS", json.dumps({"labels": {"cost": "1"}}))
    second = start_operator(there.namespace, tmp_path / "second.log")
    try:
        await until_ready(second)
        limit = {"spec": {"autoscaling": {"maxReplicas": 8}}}
        made = await there.patch(BATCHED_APIS, "placed", limit)
        await observed(there, "placed", made["metadata"]["generation"])
        await asyncio.sleep(1)
        found = await there.get(DEPLOYMENTS, "placed")
        assert found is not None
        assert before["spec"]["template"] == found["spec"]["template"]

        name = await label(there, "placed")
        moved = {"spec": {"pod": {"nodeSelector": {"pool": "other"}}}}
        await there.patch(BATCHED_APIS, "placed", moved)

        async def renamed() -> bool:
            return await label(there, "placed") != name

        await until(renamed, "another revision")
        template = (await there.deployment("placed"))["spec"]["template"]
        assert {"team": "a", "cost": "1"}.items() <= template["metadata"]["labels"].items()
    finally:
        second.process.terminate()
        second.process.wait(timeout=30)
        await world.kube._request("DELETE", f"{NAMESPACES}/{there.namespace}", {})


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (0, {"labels": {"a b": "c"}}),
        (1, {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
        (2, {"nodeSelector": {"a b": "c"}}),
        (3, {"affinity": {"nodeAffinity": NOWHERE}}),
    ],
)  # fmt: skip
async def test_what_kubernetes_itself_refuses_is_told_with_the_field_of_the_manifest(
    world: World, number: int, settings: Body
) -> None:
    """Its rules for its own parts are not written again; whoever breaks one reads it."""
    name = f"refused-{number}"
    await world.create_api(name, pod_specs.pod(**settings))

    told = await world.until_condition(name, "SpecValid", "PodTemplateRefused")

    assert f"spec.pod.{next(iter(settings))}" in told["message"]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("left", [False, True], ids=["taken out", "taken out before"])
async def test_a_service_account_that_is_taken_out_of_a_manifest_leaves_the_pods(
    world: World, *, left: bool
) -> None:
    """The apiserver keeps it under its old name, too, from which it came back.

    An earlier operator owned one name alone, and left the other to nobody.
    """
    name = f"account-{left:d}"
    await world.create_api(name, pod_specs.pod(serviceAccountName="models"))

    async def accounts() -> tuple[Body | None, Body | None]:
        spec = (await world.deployment(name))["spec"]["template"]["spec"]
        return spec.get("serviceAccountName"), spec.get("serviceAccount")

    async def given() -> bool:
        return await accounts() == ("models", "models")

    async def gone() -> bool:
        return await accounts() == (None, None)

    async def left_to_nobody() -> bool:
        found = await world.deployment(name)
        for entry in found["metadata"]["managedFields"]:
            of_pod = entry["fieldsV1"].get("f:spec", {}).get("f:template", {}).get("f:spec", {})
            of_pod.pop("f:serviceAccount", None)
            of_pod.pop("f:serviceAccountName", None)
        try:
            await world.kube.set_managers(DEPLOYMENTS, found, found["metadata"]["managedFields"])
        except ConflictError:  # its controller has written since
            return False
        return True

    await until(given, "the account")
    if left:
        await until(left_to_nobody, "the account to be nobody's")
    await world.patch(BATCHED_APIS, name, {"spec": {"pod": {"serviceAccountName": None}}})

    await until(gone, "no account")
