"""The CRD in a real apiserver judges a manifest as Python does (C15)."""

import subprocess
from collections.abc import Iterator

import pytest
from crds.generate_kubernetes import CHOICES, REQUIRED, TAKEN
from tests.contract.operator.corpus import ACCEPTED, GOOD, REFUSED, REFUSED_NAMES, document
from tests.contract.operator.world import Body, World

from batchedapi_core.manifest import ManifestError, kubernetes, parse_api
from batchedapi_core.manifest.rules import ManifestModel
from batchedapi_operator.cluster import BATCHED_APIS, NETWORK_POLICIES, ObjectKey
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.resources.exposure import build_policy

pytestmark = pytest.mark.cluster


async def apiserver_accepts(world: World, body: Body) -> Body:
    """Create without keeping, as strict as kubectl is."""
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    return await world.kube._request("POST", BATCHED_APIS.path(world.namespace), query, body)


@pytest.mark.parametrize("name", ACCEPTED)
async def test_both_sides_accept(world: World, name: str) -> None:
    """A laptop that accepts what the cluster refuses (or the reverse) breaks the one manifest."""
    body = document(ACCEPTED[name])

    stored = await apiserver_accepts(world, body)

    assert parse_api(stored).spec == parse_api(body).spec


@pytest.mark.parametrize("name", REFUSED)
async def test_both_sides_refuse_and_name_the_field(world: World, name: str) -> None:
    """A refusal helps only if it names the whole path of the field to change."""
    spec, path = REFUSED[name]
    body = document(spec)

    with pytest.raises(ManifestError) as laptop:
        parse_api(body)
    with pytest.raises(ApplyError) as apiserver:
        await apiserver_accepts(world, body)

    assert path in str(laptop.value)
    assert path in apiserver.value.message


@pytest.mark.parametrize("name", REFUSED_NAMES)
async def test_both_sides_refuse_names_that_children_cannot_have(world: World, name: str) -> None:
    """The API's name is also that of its Service and the head of its revisions' names."""
    body = document(GOOD, name)

    with pytest.raises(ManifestError, match=r"metadata\.name"):
        parse_api(body)
    with pytest.raises(ApplyError, match=r"metadata\.name"):
        await apiserver_accepts(world, body)


def wide(namespace: str, name: str) -> str:
    """The wide table that kubectl prints of an API."""
    command = ["kubectl", "get", "bapi", name, "-n", namespace, "-o", "wide"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def test_the_wide_table_has_the_sentences_of_reconciler_and_autoscaler(world: World) -> None:
    """A problem and its remedy are read without a describe, whichever of the two found it."""
    name, told = "sentences", {"SLOMet": "p99 is 2 s; raise it", "MetricsAvailable": "1 of 2 told"}
    made = await world.create_api(name, {**GOOD, "paused": True})
    common = {"status": "False", "reason": "Told", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{**common, "type": kind, "message": text} for kind, text in told.items()]
    status = {"message": "paused; resume it", "conditions": conditions}
    key, uid = ObjectKey(world.namespace, name), made["metadata"]["uid"]
    await world.kube.apply_status(key, uid, status, "contract-tests")

    shown = wide(world.namespace, name)

    for text in ("paused; resume it", *told.values()):
        assert text in shown


async def test_addresses_left_out_of_a_block_reach_the_policy(world: World) -> None:
    """A client that is not strict is not told of a field that the apiserver takes out."""
    peers = [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]
    made = await world.create_api("hole", {**GOOD, "networking": {"allowFrom": peers}})
    policy = build_policy(parse_api(made), admin_peers=[])
    assert policy is not None

    stored = await world.create(NETWORK_POLICIES, policy)

    assert peers == stored["spec"]["ingress"][0]["from"]


async def test_kubernetes_own_parts_are_those_of_the_apiserver(world: World) -> None:
    """They are generated from its client: that must not know more than the apiserver does."""
    schemas = {}
    for group in ("api/v1", "apis/networking.k8s.io/v1"):
        described = await world.kube._request("GET", f"/openapi/v3/{group}")
        parts = described["components"]["schemas"].items()
        schemas |= {name.rpartition(".")[2]: schema for name, schema in parts}

    for kind, taken in TAKEN.items():
        model, theirs = getattr(kubernetes, kind), schemas[kind]
        required = {f.alias or name for name, f in model.model_fields.items() if f.is_required()}
        added = {place.partition(".")[2] for place in REQUIRED if place.startswith(f"{kind}.")}
        fields = {field.alias or name for name, field in model.model_fields.items()}
        assert fields <= theirs["properties"].keys(), kind
        assert taken or fields == theirs["properties"].keys(), kind
        assert required - added == fields & {*theirs.get("required", ())} - added, kind
        for field in fields:
            words = theirs["properties"][field].get("enum")
            ours = {*CHOICES.get(f"{kind}.{field}", ())}
            assert words is None or ours <= {*words}, f"{kind}.{field}"


def _models(base: type[ManifestModel]) -> Iterator[type[ManifestModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def test_every_rule_is_broken_by_some_document() -> None:
    """A rule that no document of the corpus breaks would be compared on neither side."""
    said = set()
    bodies = [document(spec) for spec, _ in REFUSED.values()]
    bodies += [document(GOOD, name) for name in REFUSED_NAMES]
    for body in bodies:
        with pytest.raises(ManifestError) as refused:
            parse_api(body)
        said |= set(refused.value.problems)

    rules = {rule.message for model in _models(ManifestModel) for rule in model.rules}
    assert all(any(line.endswith(rule) for line in said) for rule in rules)
