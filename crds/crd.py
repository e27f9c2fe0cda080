"""The CustomResourceDefinition, generated from the models: structural schema and CEL rules."""

from collections.abc import Container
from typing import Any, Final, cast

from pydantic import BaseModel

from batchedapi_core import contract
from batchedapi_core.manifest import kubernetes
from batchedapi_core.manifest.problems import fields_of, model_of
from batchedapi_core.manifest.removed import REMOVED
from batchedapi_core.manifest.spec import BatchedAPI, BatchedAPISpec, JsonObject
from batchedapi_core.manifest.status import BatchedAPIStatus, ConditionType

_KEPT: Final = (
    "type", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "required", "default", "description",
    "x-kubernetes-validations", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)  # fmt: skip


def _message_of(kind: ConditionType) -> str:
    """Path of a condition's sentence."""
    return f'.status.conditions[?(@.type=="{kind}")].message'


PRINTER_COLUMNS: Final = (
    ("Status", "string", ".status.phase", 0, "The state in one word"),
    ("Ready", "integer", ".status.readyReplicas", 0, "Replicas that answer"),
    ("Desired", "integer", ".status.desiredReplicas", 0, "Replicas asked for"),
    ("Batch", "string", ".status.batching.meanRows", 0, "Mean rows of a batch, last minute"),
    ("Max", "integer", ".status.batching.maxBatchSize", 0, "Rows of a full batch"),
    ("Fill%", "integer", ".status.batching.fillPercent", 0, "Mean batch / full batch"),
    ("Rows/s", "string", ".status.batching.rowsPerSecond", 0, "Rows arriving per second"),
    ("Queue", "integer", ".status.queue.rows", 0, "Rows in the one queue of all replicas"),
    ("Bottleneck", "string", ".status.batching.bottleneck", 0, "What limits throughput"),
    ("Age", "date", ".metadata.creationTimestamp", 0, ""),
    ("Reason", "string", ".status.autoscaling.lastDecision.reason", 1, "Of the replica count"),
    ("Revision", "string", ".status.revision.current", 1, ""),
    ("URL", "string", ".status.url", 1, ""),
    ("Message", "string", ".status.message", 1, "What is wrong, else how many replicas answer"),
    ("SLO", "string", _message_of(ConditionType.SLO_MET), 1, "Whether the latency target is met"),
    (
        "Metrics",
        "string",
        _message_of(ConditionType.METRICS_AVAILABLE),
        1,
        "Whether replicas tell their figures",
    ),
)


def crd() -> JsonObject:
    """The CRD as a JSON object, the same on every call."""
    names = {
        "plural": contract.PLURAL,
        "singular": contract.SINGULAR,
        "kind": contract.KIND,
        "listKind": f"{contract.KIND}List",
        "shortNames": [contract.SHORT_NAME],
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{contract.PLURAL}.{contract.GROUP}"},
        "spec": {
            "group": contract.GROUP,
            "names": names,
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> JsonObject:
    return {
        "name": contract.VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            | ({"description": description} if description else {})
            for name, kind, path, priority, description in PRINTER_COLUMNS
        ],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": (BatchedAPI.__doc__ or "").strip(),
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    # the name, so that the paths of rules on it exist
                    "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
                    "spec": _with_removed(structural_schema(BatchedAPISpec)),
                    "status": structural_schema(BatchedAPIStatus),
                },
                "x-kubernetes-validations": [rule.as_validation() for rule in BatchedAPI.rules],
            }
        },
    }


def _with_removed(schema: JsonObject) -> JsonObject:
    """The schema of `spec` that lets removed fields pass, whatever their value."""
    for field in REMOVED:
        *above, name = field.path.split(".")
        parent = schema
        for part in above:
            parent = parent["properties"][part.removesuffix("[]")]
            parent = parent["items"] if part.endswith("[]") else parent
        parent["properties"][name] = {
            "description": f"Removed; {field.instead}.",
            **field.schema,
        }
    return schema


def structural_schema(model: type[BaseModel]) -> JsonObject:
    """The model as Kubernetes' structural schema: references inlined, no null, no titles."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    merged = dict(schema)
    if "$ref" in schema:
        merged = definitions[schema["$ref"].rpartition("/")[2]] | merged
    merged = _without_null(merged, definitions)
    kept = {key: merged[key] for key in _KEPT if merged.get(key) is not None}
    if merged.get("x-kubernetes-int-or-string"):
        kept.pop("type", None)
        kept["anyOf"] = merged["anyOf"]
    if "const" in merged:
        kept["enum"] = [merged["const"]]
    if "properties" in merged:
        kept["properties"] = {
            name: _structural(member, definitions) for name, member in merged["properties"].items()
        }
        if kept.get("default") == {}:
            # the apiserver checks rules against a default as it stands, before it fills it
            kept["default"] = {
                name: member["default"]
                for name, member in kept["properties"].items()
                if "default" in member
            }
    for name in ("items", "additionalProperties"):
        if isinstance(merged.get(name), dict):
            kept[name] = _structural(merged[name], definitions)
    if "x-kubernetes-preserve-unknown-fields" in kept:
        kept.pop("additionalProperties", None)
    return kept


def _without_null(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    """`X | None` as X: an absent field, never a null, says that there is nothing."""
    if schema.get("x-kubernetes-int-or-string"):
        return schema
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if not options:
        return schema
    (option,) = options
    if "$ref" in option:
        option = definitions[option["$ref"].rpartition("/")[2]]
    outer = {key: value for key, value in schema.items() if key != "anyOf"}
    return cast(JsonObject, _without_null(option, definitions) | outer)


def field_rows(
    model: type[BaseModel] = BatchedAPISpec, path: str = "spec", whole: Container[str] = ()
) -> list[tuple[str, Any]]:
    """(path, structural schema) of every leaf field, and of objects that are told `whole`."""
    return list(_leaves(structural_schema(model), path, whole))


def _leaves(schema: JsonObject, path: str, whole: Container[str]) -> Any:
    for name, member in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if member.get("properties") and here not in whole:
            yield from _leaves(member, here, whole)
        else:
            yield here, member


def kubernetes_parts(model: type[BaseModel] = BatchedAPISpec, path: str = "spec") -> dict[str, str]:
    """Path of every field that is an object of Kubernetes' own, or a list of them -> its kind.

    What is in them is Kubernetes' to describe.
    """
    found = {}
    for name, annotation in fields_of(model).items():
        inner, here = model_of(annotation), f"{path}.{name}"
        if inner is None:
            continue
        own = (base.__name__ for base in inner.__mro__ if base.__module__ == kubernetes.__name__)
        listed = "[]" if "list[" in str(annotation) else ""
        if kind := next(own, None):
            found[here] = f"list of {kind}" if listed else kind
        else:
            found |= kubernetes_parts(inner, f"{here}{listed}")
    return found
