"""The CRD in a real apiserver judges a manifest as Python does (C15)."""

import pytest
from tests.contract.operator.corpus import ACCEPTED, GOOD, REFUSED, REFUSED_NAMES, document
from tests.contract.operator.world import Body, World

from batchedapi_core.manifest import ManifestError, parse_api
from batchedapi_core.manifest.rules import ManifestModel
from batchedapi_operator.cluster import BATCHED_APIS
from batchedapi_operator.errors import ApplyError

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


def test_every_rule_is_broken_by_some_document() -> None:
    """A rule that no document of the corpus breaks would be compared on neither side."""
    said = set()
    bodies = [document(spec) for spec, _ in REFUSED.values()]
    bodies += [document(GOOD, name) for name in REFUSED_NAMES]
    for body in bodies:
        with pytest.raises(ManifestError) as refused:
            parse_api(body)
        said |= set(refused.value.problems)

    rules = {rule.message for model in ManifestModel.__subclasses__() for rule in model.rules}
    assert all(any(line.endswith(rule) for line in said) for rule in rules)
