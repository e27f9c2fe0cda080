"""One language for kubectl and the laptop: a manifest refused by one is refused by the other."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from crds.crd import crd
from tests.contract.operator import texts
from tests.contract.operator.corpus import Document, document
from tests.contract.operator.generated import (
    FIELDS,
    OBJECTS,
    Place,
    snake,
    values_of,
    with_value,
    words,
)
from tests.contract.operator.world import World

from batchedapi_core.manifest import (
    AUTO,
    CPU_COUNT,
    PLATFORM,
    ManifestError,
    UnknownFields,
    parse_api,
)
from batchedapi_operator.cluster import BATCHED_APIS
from batchedapi_operator.errors import ApplyError
from batchedapi_serving.cli.documents import DocumentError, load_api, read_documents

pytestmark = pytest.mark.cluster

_PLACE: Final = re.compile(r"[\w.\[\]]+")
_REFUSED: Final = re.compile(
    r"((?:spec|metadata)[\w.\[\]]*): (?:Invalid|Required|Too|Unsupported|Duplicate)"
)
_UNKNOWN: Final = re.compile(r'unknown field \\?"([^"\\]+)')
_OUR_WORDS: Final = frozenset(
    words
    for words in re.findall(r'"message": "([^"]+)"', json.dumps(crd()))
    if not words.endswith((CPU_COUNT, AUTO, PLATFORM))  # of texts their pattern says it there
)


def laptop(body: Document) -> str:
    """The error message of `serve -f` for a file with that document; empty if it is accepted."""
    (read,) = read_documents(json.dumps(body))
    try:
        parse_api(read)
    except ManifestError as error:
        return "\n".join(error.problems)
    return ""


async def apiserver(world: World, body: Document) -> str:
    """The apiserver's error message, as strict as kubectl asks it to be; empty if it accepts."""
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        await world.kube._request("POST", BATCHED_APIS.path(world.namespace), query, body)
    except ApplyError as error:
        return error.message
    return ""


def disagreement(here: str, there: str) -> str | None:
    """How two answers differ in verdict, field, or our own words."""
    if bool(here) != bool(there):
        return f"laptop: {here or 'accepted'}, apiserver: {there or 'accepted'}"
    places = {found[0] for line in here.splitlines() if (found := _PLACE.match(line))}
    if "strict decoding error" in there:  # then it looks no further
        unsaid = {
            path
            for path in _UNKNOWN.findall(there)
            if not any(path == place or path.startswith(f"{place}.") for place in places)
        }
    else:
        unsaid = places - set(_REFUSED.findall(there))
    unsaid |= {ours for ours in _OUR_WORDS if ours in here and ours not in there}
    return f"{unsaid}: laptop: {here}, apiserver: {there}" if unsaid else None


async def disagreements(world: World, specs: dict[str, Document]) -> dict[str, str]:
    """The documents, out of many, that are judged differently."""
    bodies = {name: document(spec) for name, spec in specs.items()}
    answers = await asyncio.gather(*(apiserver(world, body) for body in bodies.values()))
    found = {}
    for (name, body), there in zip(bodies.items(), answers, strict=True):
        if (difference := disagreement(laptop(body), there)) is not None:
            found[name] = difference
    return found


@pytest.mark.parametrize("place", FIELDS, ids=words)
async def test_every_value_of_every_field_is_judged_alike(world: World, place: Place) -> None:
    """Types, bounds, patterns and words, out of the schema itself."""
    specs = {repr(value): with_value(place, value) for value in values_of(place)}

    assert {} == await disagreements(world, specs)


@pytest.mark.parametrize("place", OBJECTS, ids=words)
async def test_a_name_that_is_none_is_refused_alike(world: World, place: Place) -> None:
    """`max_batch_size` as other servers write it, a slip, and what does not exist at all."""
    names = OBJECTS[place]
    tried = {*map(snake, names), *(f"{name}s" for name in names), "other"} - {*names}
    specs = {name: with_value((*place, name), 1) for name in tried}

    assert all(laptop(document(spec)) for spec in specs.values())
    assert {} == await disagreements(world, specs)


@pytest.fixture(scope="session")
def default_namespace(installed_crd: None) -> None:  # noqa: ARG001 - needed, not used
    """Where kubectl works; in a cluster without controllers nobody has made it yet."""
    subprocess.run(["kubectl", "create", "namespace", "default"], capture_output=True, check=False)


@pytest.mark.usefixtures("default_namespace")
@pytest.mark.parametrize("name", texts.TEXTS)
def test_a_file_is_read_as_kubectl_reads_it(tmp_path: Path, name: str) -> None:
    """YAML means different things to different readers: `y`, `1e3`, `1:30`, nulls."""
    file = tmp_path / "api.yaml"
    file.write_text(texts.TEXTS[name])

    command = ["kubectl", "apply", "--dry-run=server", "-o", "json", "-f", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        with pytest.raises((DocumentError, ManifestError)):
            load_api(file, None, UnknownFields.REFUSE)
        return
    here = load_api(file, None, UnknownFields.REFUSE)
    applied = json.loads(done.stdout)
    there = parse_api(applied["items"][0] if applied["kind"] == "List" else applied)
    assert (here.metadata.name, here.spec) == (there.metadata.name, there.spec)
