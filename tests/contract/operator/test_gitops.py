"""GitOps tools apply a manifest again and again: nothing changes, and nobody is set back.

kubectl is what runs. Argo CD merges three ways as `kubectl apply` does, or applies server-side
with force as its own manager. Flux's kustomize-controller always does the latter.
"""

import json
import subprocess
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.contract.operator.conftest import OperatorProcess
from tests.contract.operator.corpus import Document
from tests.contract.operator.generated import LEAVES, tried, with_company
from tests.contract.operator.test_operator import IN_IMAGE, replicas
from tests.contract.operator.world import World, until

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, parse_api
from batchedapi_operator.cluster import BATCHED_APIS
from batchedapi_operator.errors import ConflictError

pytestmark = pytest.mark.cluster

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
EACH: Final = 1
"""Values of each field; 4 are a thousand manifests, and five minutes."""
WAYS: Final = {
    "argo, merged here": [],
    "argo, server-side": [
        "--server-side",
        "--force-conflicts",
        "--field-manager=argocd-controller",
    ],
    "flux": ["--server-side", "--force-conflicts", "--field-manager=kustomize-controller"],
}
EXTERNAL: Final = {"predictor": IN_IMAGE, "autoscaling": {"mode": "External"}}


def document(name: str, spec: Document) -> Document:
    """A BatchedAPI as it is in Git."""
    head = {"apiVersion": contract.API_VERSION, "kind": contract.KIND}
    return {**head, "metadata": {"name": name}, "spec": spec}


async def until_in_sync(world: World, documents: Sequence[Document], *options: str) -> None:
    """Until `kubectl diff` finds nothing: the operator may write a status between its two reads."""

    async def same() -> bool:
        try:
            return kubectl("diff", world.namespace, documents, *options) == ""
        except AssertionError:
            return False

    await until(same, "Git and the cluster to be the same")


def kubectl(verb: str, namespace: str, documents: Sequence[Document], *options: str) -> str:
    """What kubectl prints of these documents; it fails where `diff` finds a difference."""
    command = ["kubectl", verb, "-n", namespace, *options, "-f", "-"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accepted(spec: Document) -> bool:
    """By the rules that laptop and cluster share."""
    try:
        parse_api(document("any", spec))
    except ManifestError:
        return False
    return True


def generated() -> list[Document]:
    """For every field a spec that has it, as far as its likely values can be accepted."""
    specs = ((with_company(place, value) for value in tried(place)) for place in LEAVES)
    return [spec for each in specs for spec in islice(filter(accepted, each), EACH)]


def from_examples() -> list[Document]:
    """The BatchedAPIs that users copy."""
    files = sorted(EXAMPLES.glob("*/*.yaml"))
    found = [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
    return [one for one in found if one["kind"] == contract.KIND]


def named(documents: Sequence[Document]) -> list[Document]:
    """Each under a name of its own."""
    return [document(f"m{index}", one["spec"]) for index, one in enumerate(documents)]


@pytest.mark.parametrize("kind", ["examples", "generated"])
def test_a_second_apply_changes_nothing(unwatched: str, kind: str) -> None:
    """A default inside a list, which tools compare whole, would be a change each time."""
    documents = named(from_examples() if kind == "examples" else [{"spec": s} for s in generated()])

    kubectl("apply", unwatched, documents)
    lines = kubectl("apply", unwatched, documents).splitlines()
    subprocess.run(["kubectl", "delete", "bapi", "--all", "-n", unwatched], check=True)

    assert len(documents) == len(lines) > 5
    assert [] == [line for line in lines if not line.endswith(" unchanged")]


async def scaled_by_an_hpa(world: World, name: str, count: int) -> None:
    """An HPA reads /scale and puts it back with another number."""
    path = BATCHED_APIS.path(world.namespace, name, "scale")
    query = {"fieldManager": "kube-controller-manager"}

    async def put() -> bool:
        scale = await world.kube._request("GET", path)
        scale["spec"]["replicas"] = count
        try:
            await world.kube._request("PUT", path, query, scale)
        except ConflictError:
            return False  # as often as its status is written meanwhile
        return True

    await until(put, "the HPA to scale")


async def until_replicas(world: World, name: str, count: int) -> None:
    """The Deployment follows."""

    async def there() -> bool:
        return await replicas(world, name) == count

    await until(there, f"{count} replicas of {name}")


async def number(world: World, name: str) -> Any:
    """`spec.replicas` of the API."""
    return (await world.api(name))["spec"].get("replicas")


@pytest.mark.parametrize("way", WAYS)
async def test_git_without_replicas_leaves_them_to_the_hpa_and_may_take_them_over(
    operator: OperatorProcess, world: World, way: str
) -> None:
    """The operator writes the first number, so that an HPA can begin; Git never sets it back."""
    assert operator.process.poll() is None
    name, options = f"git-{list(WAYS).index(way)}", WAYS[way]
    external = [document(name, EXTERNAL)]
    kubectl("apply", world.namespace, external, *options)

    async def begun() -> bool:
        return await number(world, name) == 1

    await until(begun, "the first number")
    await scaled_by_an_hpa(world, name, 3)
    await until_replicas(world, name, 3)

    kubectl("apply", world.namespace, external, *options)
    await until_in_sync(world, external, *options)
    assert 3 == await number(world, name) == await replicas(world, name)

    kubectl("apply", world.namespace, [document(name, {"predictor": IN_IMAGE})], *options)
    await until_in_sync(world, [document(name, {"predictor": IN_IMAGE})], *options)

    async def native() -> bool:
        active = await world.condition(name, "AutoscalingActive")
        return bool(active) and active["reason"] != "External"

    await until(native, "the operator to decide")
    assert 3 == await replicas(world, name)


@pytest.mark.parametrize("way", WAYS)
async def test_a_number_that_leaves_git_changes_no_replica(
    operator: OperatorProcess, world: World, way: str
) -> None:
    """That is the step with which a team begins to use an HPA."""
    assert operator.process.poll() is None
    name, options = f"left-{list(WAYS).index(way)}", WAYS[way]
    kubectl("apply", world.namespace, [document(name, {**EXTERNAL, "replicas": 2})], *options)
    await until_replicas(world, name, 2)

    kubectl("apply", world.namespace, [document(name, EXTERNAL)], *options)

    async def again() -> bool:
        return await number(world, name) == 2

    await until(again, "the number to be written")
    assert 2 == await replicas(world, name)


def test_replicas_are_not_set_in_mode_native(unwatched: str) -> None:
    """The operator decides there; only what an HPA has left behind is taken, and ignored."""
    written = document("native", {"predictor": IN_IMAGE, "replicas": 5})

    with pytest.raises(AssertionError, match="cannot be set while"):
        kubectl("apply", unwatched, [written])
