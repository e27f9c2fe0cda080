"""The generated CRD: structural, and saying the same as the models."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

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


def is_structural(path: str, schema: dict[str, Any]) -> bool:
    """Whether the apiserver takes it: it refuses references, nulls and nodes without a type."""
    refused = {"$ref", "$defs", "allOf", "oneOf", "title", "const", "exclusiveMinimum"}
    kind = schema.get("type")
    if refused & set(schema) or kind == "null":
        return False
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    if schema.get("x-kubernetes-int-or-string"):
        either = [{"type": "integer"}, {"type": "string"}]
        return kind is None and schema["anyOf"] == either
    inside = {"array": ("items",), "object": ("properties", "additionalProperties")}
    open_ended = path == ".metadata" or "inImage" in path
    known = kind not in inside or open_ended or any(name in schema for name in inside[kind])
    return isinstance(kind, str) and "anyOf" not in schema and known


def test_every_node_is_structural() -> None:
    """The apiserver refuses the whole definition for one that is not."""
    assert [] == [path for path, schema in NODES.items() if not is_structural(path, schema)]


def test_every_default_has_the_type_of_its_field() -> None:
    """The apiserver refuses a CRD with a default that its own schema refuses."""
    types = {"string": str, "integer": int, "object": dict, "array": list, "boolean": bool}

    for path, schema in NODES.items():
        default = schema.get("default")
        if default is not None:
            assert isinstance(default, types.get(schema.get("type", ""), (str, int))), path
            assert default in schema.get("enum", [default]), path
            assert not isinstance(default, int) or schema.get("minimum", 0) <= default, path


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


def test_every_field_of_the_spec_is_described() -> None:
    """`kubectl explain` is the reference that everybody has."""
    own_words = {".spec.predictor.env[].name", ".spec.predictor.env[].value"}
    kubernetes = tuple(f".{part}{after}" for part in kubernetes_parts() for after in (".", "["))

    assert [] == [
        path
        for path, schema in NODES.items()
        if path.startswith(".spec.") and not schema.get("description")
        if not (path.endswith(("[]", "{}")) or path in own_words or path.startswith(kubernetes))
    ]


def test_durations_are_bounded_text() -> None:
    """Bounds on a number mean nothing for text, and CEL's cost is estimated from the length."""
    durations = [node for node in NODES.values() if node.get("format") == "duration"]

    assert durations
    for schema in durations:
        assert not {"minimum", "maximum"} & set(schema)
        assert schema["maxLength"] == 32


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
