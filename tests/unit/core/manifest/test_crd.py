"""The generated CRD: structural, and saying the same as the models."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from crds.crd import (
    PRINTER_COLUMNS,
    crd,
    field_rows,
    kubernetes_parts,
    structural_schema,
)
from pydantic import BaseModel

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPIStatus, ConditionType, parse_api, serving_slice

SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
MANIFEST = {
    "apiVersion": contract.API_VERSION,
    "kind": contract.KIND,
    "metadata": {"name": "iris"},
    "spec": {"predictor": {"path": "model:Iris"}},
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below, with its path."""
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = dict(nodes(SCHEMA))


def test_it_is_the_same_on_every_call_and_names_our_resource() -> None:
    """`make verify` compares it with the file."""
    assert crd() == crd()
    assert crd()["metadata"]["name"] == f"{contract.PLURAL}.{contract.GROUP}"
    assert crd()["spec"]["names"]["shortNames"] == [contract.SHORT_NAME]


@pytest.mark.parametrize("path", NODES)
def test_every_node_is_structural(path: str) -> None:
    """The apiserver refuses references, nulls and nodes without a type."""
    schema = NODES[path]

    assert not {"$ref", "$defs", "allOf", "oneOf", "title", "const", "exclusiveMinimum"} & set(
        schema
    )
    assert schema.get("type") != "null"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        assert "type" not in schema
        assert [{"type": "integer"}, {"type": "string"}] == schema["anyOf"]
    else:
        assert isinstance(schema["type"], str)
        assert "anyOf" not in schema
    if schema.get("type") == "array":
        assert "items" in schema
    if schema.get("type") == "object" and "properties" not in schema and path != ".metadata":
        assert "additionalProperties" in schema or "inImage" in path


@pytest.mark.parametrize("path", [path for path, node in NODES.items() if "default" in node])
def test_every_default_has_the_type_of_its_field(path: str) -> None:
    """The apiserver refuses a CRD with a default that its own schema refuses."""
    schema = NODES[path]
    default = schema["default"]
    types = {"string": str, "integer": int, "object": dict, "array": list, "boolean": bool}

    expected = types.get(schema.get("type", ""), (str, int))
    assert isinstance(default, expected)
    assert default in schema.get("enum", [default])
    assert schema.get("minimum", 0) <= default if isinstance(default, int) else True


def filled(schema: dict[str, Any], value: Any) -> Any:
    """`value` with defaults put in as the apiserver does."""
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, member in schema.get("properties", {}).items():
        if name not in result and "default" in member:
            result[name] = member["default"]
        if name in result:
            result[name] = filled(member, result[name])
    return result


def test_the_apiservers_defaults_are_the_models_own() -> None:
    """Else a manifest would mean one thing on a laptop and another in the cluster."""
    written = filled(SCHEMA, MANIFEST)

    assert written != MANIFEST
    assert parse_api(MANIFEST) == parse_api(written)


def test_defaults_that_a_new_crd_fills_in_change_no_revision() -> None:
    """Objects that are in the cluster already get them on every read: no pod may roll for it."""
    by_hand, from_cluster = (
        serving_slice(parse_api(one)) for one in (MANIFEST, filled(SCHEMA, MANIFEST))
    )

    assert json.dumps(by_hand) == json.dumps(from_cluster)


def test_no_required_field_has_a_default_and_every_required_field_exists() -> None:
    """The first would never be used, the second could never be met."""
    for path, schema in NODES.items():
        for name in schema.get("required", ()):
            assert "default" not in schema["properties"].get(name, {}), f"{path}.{name}"
            assert name in schema["properties"]


@pytest.mark.parametrize("path", [path for path in NODES if path.startswith(".spec.")])
def test_every_field_of_the_spec_is_described(path: str) -> None:
    """`kubectl explain` is the reference that everybody has."""
    own_words = {".spec.predictor.env[].name", ".spec.predictor.env[].value"}
    kubernetes = tuple(f".{part}{after}" for part in kubernetes_parts() for after in (".", "["))

    assert (
        NODES[path].get("description")
        or path.endswith(("[]", "{}"))
        or path in own_words
        or path.startswith(kubernetes)
    )


@pytest.mark.parametrize(
    "path", [path for path, node in NODES.items() if node.get("format") == "duration"]
)
def test_durations_are_bounded_text(path: str) -> None:
    """Bounds on a number mean nothing for text, and CEL's cost is estimated from the length."""
    assert not {"minimum", "maximum"} & set(NODES[path])
    assert NODES[path]["maxLength"] == 32


def test_status_and_scale_are_subresources() -> None:
    """The operator writes the one, an HPA the other."""
    subresources = crd()["spec"]["versions"][0]["subresources"]

    assert {"status", "scale"} == set(subresources)
    for path in subresources["scale"].values():
        assert path in NODES


def test_printer_columns_show_fields_that_exist() -> None:
    """A column of a field that nobody writes is always empty."""
    for _, _, path, _, _ in PRINTER_COLUMNS:
        condition = re.search(r'\[\?\(@\.type=="(\w+)"\)\]', path)
        if condition is not None:
            assert condition[1] in list(ConditionType)
        field = path if condition is None else path.replace(condition[0], "[]")
        assert field in NODES or field == ".metadata.creationTimestamp"


def test_the_reference_lists_every_leaf_once() -> None:
    """These rows are the source of docs/reference."""
    paths = [path for path, _ in field_rows()]

    assert len(paths) == len(set(paths))
    assert "spec.predictor.path" in paths
    assert "spec.serverSideBatching" not in paths
    assert {f".{path}" for path in paths} <= set(NODES)


def test_a_status_is_optional_throughout() -> None:
    """Nothing is known before the first reconciliation."""
    assert "required" not in structural_schema(BatchedAPIStatus)
    assert BatchedAPIStatus().conditions == []


def test_a_single_literal_is_an_enum_of_one() -> None:
    """Structural schemas know no `const`."""

    class Fixed(BaseModel):
        kind: Literal["only"] = "only"

    properties = structural_schema(Fixed)["properties"]

    assert {"type": "string", "enum": ["only"], "default": "only"} == properties["kind"]
