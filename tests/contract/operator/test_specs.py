"""A spec with arbitrary values is refused, told by a condition, or becomes a pod."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.corpus import GOOD, Document
from tests.contract.operator.generated import (
    LEAVES,
    Place,
    tried,
    with_company,
    with_value,
    words,
)
from tests.contract.operator.outcomes import (
    ADMITTED,
    RESTRICTED,
    TOLD,
    WRONG,
    Seen,
    outcome_of,
    settled,
    state_of,
    until_settled,
    watching,
)
from tests.contract.operator.world import NAMESPACES, World, until

from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS
from batchedapi_operator.kube import Kube

pytestmark = pytest.mark.cluster

SAMPLE: Final = 160
LANES: Final = 8
REPLICAS: Final = ("replicas", "minReplicas")
"""Not here: values of these are thousands of pods."""
UNMADE: Final = ("spec.networking.gateway", "spec.networking.ingress")
"""Nor here: the operator of this room makes none, and names the whole; see test_exposure.py."""


@pytest.fixture
async def room(installed_crd: None, tmp_path: Path) -> AsyncIterator[tuple[World, Seen]]:  # noqa: ARG001 - needed, not used
    """A namespace that admits `restricted` pods alone, and an operator that logs no warning."""
    name = f"specs-{random.randrange(16**8):08x}"
    metadata = {"name": name, "labels": RESTRICTED}
    async with Kube.connected() as kube:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        await kube._request("POST", NAMESPACES, {}, body)
        log = tmp_path / "operator.log"
        operator = start_operator(name, log)
        try:
            await until_ready(operator)
            world = World(kube, name)
            async with watching(world) as seen:
                yield world, seen
        finally:
            operator.process.terminate()
            operator.process.wait(30)
            await kube._request("DELETE", f"{NAMESPACES}/{name}", {})
    assert "Traceback" not in log.read_text()


def sample() -> list[tuple[Place, Any]]:
    """Some values of every kind of leaf, the same at every run."""
    found = [
        (place, value)
        for place in LEAVES
        for value in tried(place)
        if str(place[-1]) not in REPLICAS and "gpu" not in words(place).lower()
        if not words(place).startswith(UNMADE)
    ]
    return random.Random(1).sample(found, SAMPLE)


async def test_a_value_is_refused_or_becomes_a_pod_or_is_told_of(room: tuple[World, Seen]) -> None:
    """No spec leaves its user with neither pods nor a sentence that names the field."""
    world, seen = room
    waiting = enumerate(sample())
    wrong = []

    async def lane() -> None:
        for number, (place, value) in waiting:
            spec = with_company(place, value)
            outcome = await outcome_of(world, seen, f"case{number}q", place, spec)
            if outcome.kind == WRONG:
                wrong.append((words(place), value, outcome.said))

    await asyncio.gather(*(lane() for _ in range(LANES)))

    assert [] == wrong


async def test_characters_beyond_16_bits_arrive(room: tuple[World, Seen]) -> None:
    """The apiserver reads an apply as YAML, which knows no surrogates."""
    world, seen = room
    files = {"model.py": "# \U0001f680 ü \u2028\nclass Iris: ..."}
    await world.create(CONFIG_MAPS, {"metadata": {"name": "iris"}, "data": files})
    env = [{"name": "A", "value": "\U0001f680\x85\x7f"}]
    spec = {"predictor": {**GOOD["predictor"], "source": {"configMap": "iris"}, "env": env}}

    await world.create_api("beyondq", spec)
    outcome = await until_settled(seen, "beyondq")

    state = state_of(seen, "beyondq")
    (container,) = state["deployment"]["template"]["spec"]["containers"]
    assert (ADMITTED, env) == (outcome.kind, container["env"])
    assert files["model.py"] == state["data"]["model.py"]


async def test_a_spec_that_was_mended_leads_where_a_new_one_does(room: tuple[World, Seen]) -> None:
    """Nothing remains of the last spec's fields, or of its gaps."""
    world, seen = room
    good: Any = with_value(("networking", "grpc"), True)
    good = with_value(("predictor", "env", 0, "value"), "1", good)
    missing = with_value(("predictor", "source", "configMap"), "none")
    await world.create_api("newq", good)
    assert ADMITTED == (await until_settled(seen, "newq")).kind
    there = state_of(seen, "newq")
    await world.create_api("mendedq", with_value(("compute", "mem"), "1Gi", missing))
    assert TOLD == (await until_settled(seen, "mendedq")).kind

    await mend(world, seen, "mendedq", good)

    assert there == state_of(seen, "mendedq")


async def test_a_service_account_goes_with_its_field(room: tuple[World, Seen]) -> None:
    """The apiserver keeps it under an older name, too, and reads it out of that."""
    world, seen = room
    await world.create_api("plainq", GOOD)
    assert ADMITTED == (await until_settled(seen, "plainq")).kind
    await world.create_api("accountq", with_value(("pod", "serviceAccountName"), "default"))
    assert ADMITTED == (await until_settled(seen, "accountq")).kind

    await mend(world, seen, "accountq", GOOD)

    assert state_of(seen, "plainq") == state_of(seen, "accountq")


async def mend(world: World, seen: Seen, name: str, spec: Document) -> None:
    """Give an API another spec, and wait until it is that of pods."""
    patch: Any = [{"op": "replace", "path": "/spec", "value": spec}]
    path = BATCHED_APIS.path(world.namespace, name)
    await world.kube._request("PATCH", path, {}, patch, content_type="application/json-patch+json")
    generation = (await world.api(name))["metadata"]["generation"]

    async def arrived() -> bool:
        api = seen.apis.get(name, {"metadata": {"generation": 0}})
        found = settled(seen, name) if api["metadata"]["generation"] == generation else None
        return found is not None and found.kind == ADMITTED

    await until(arrived, f"{name} to be mended")
