"""docs/reference/batchedapi.md: every field, rule, status field and printer column."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from batchedapi_core import contract
from batchedapi_core.manifest.removed import REMOVED
from batchedapi_core.manifest.rules import ManifestModel
from batchedapi_core.manifest.spec import BatchedAPI, BatchedAPISpec
from batchedapi_core.manifest.status import BatchedAPIStatus
from batchedapi_core.manifest.units import (
    DURATION_PATTERN,
    QUANTITY_PATTERN,
    format_duration,
)
from crds.crd import PRINTER_COLUMNS, field_rows, kubernetes_parts
from crds.markdown import HEADER, code

_KNOWN_PATTERNS: Final = (DURATION_PATTERN, QUANTITY_PATTERN)
"""Said by the type already."""
_INTRODUCTION: Final = (
    f"`{contract.API_VERSION}`, kind `{contract.KIND}`, short name `{contract.SHORT_NAME}`,"
    " namespaced, with subresources `status` and `scale`.\n\n"
    "Durations are written `5ms`, `2s`, `1m30s`; quantities `500m`, `2`, `1Gi`. Every object below"
    " `spec` except `predictor` may be left out; an unknown field is refused. Types with a"
    " capital are Kubernetes' own, without what would reach the node or undo what the operator"
    " sets; `kubectl explain` shows their fields.\n"
)
_KUBERNETES: Final = kubernetes_parts()
"""Fields that Kubernetes' own reference describes."""
_ABOUT_REMOVED: Final = (
    "This release still accepts them, with a warning on a laptop and the condition `SpecAdvice` in"
    " a cluster. The next release refuses them.\n"
)
_ABOUT_RULES: Final = (
    "Checked by the API server on every write, and by `batchedapi serve -f` on a laptop, with the"
    " same words.\n"
)


def page() -> str:
    """The whole page."""
    return "\n".join(
        (
            f"{HEADER}# The BatchedAPI resource\n",
            _INTRODUCTION,
            *_sections(_spec_fields(), "spec"),
            "## Rules\n",
            _ABOUT_RULES,
            *_rule_lines(),
            "",
            "## Removed fields\n",
            _ABOUT_REMOVED,
            *(f"- `spec.{one.path}`: {one.instead}" for one in REMOVED),
            "",
            *_sections(_status_fields(), "status"),
            "## kubectl get\n",
            "`kubectl get bapi` prints these columns. Those marked wide need `-o wide`.\n",
            *_column_lines(),
            "",
        )
    )


def _sections(fields: Iterable[tuple[str, str, str]], root: str) -> Iterator[str]:
    """A heading for each object and, below it, one for each of its fields."""
    objects: dict[str, list[tuple[str, str, str]]] = {root: []}
    for field in fields:
        parent = field[0].rpartition(".")[0]
        top = ".".join(parent.split(".")[:2])
        objects.setdefault(top, [])
        objects.setdefault(parent, []).append(field)
    for parent, members in sorted(objects.items(), key=lambda item: _place(item[0], objects)):
        yield f"{'#' * min(3, 2 + parent.count('.') // 2)} {parent}\n"
        for path, facts, meaning in members:
            yield f"#### {path}\n"
            yield f"{facts}\n"
            if meaning:
                yield f"{' '.join(_without_emphasis(meaning).split())}\n"


def _without_emphasis(text: str) -> str:
    """Stars stay stars where Markdown would read them."""
    parts = text.split("`")
    return "`".join(part if n % 2 else part.replace("*", "\\*") for n, part in enumerate(parts))


def _place(parent: str, objects: Iterable[str]) -> tuple[int, int]:
    """The sections below one are written right after it, in the order of the schema."""
    order = list(objects)
    return order.index(".".join(parent.split(".")[:2])), order.index(parent)


def spec_fields() -> list[str]:
    """Paths of every field of `spec`; an object of Kubernetes' own is one field."""
    return [path for path, _ in _expanded(BatchedAPISpec, "spec")]


def _spec_fields() -> Iterator[tuple[str, str, str]]:
    required = set(_required(BatchedAPISpec, "spec"))
    for path, schema in _expanded(BatchedAPISpec, "spec"):
        facts = [f"Type: {_KUBERNETES.get(path) or _type(schema)}"]
        if path in required:
            facts.append("required")
        elif "default" in schema:
            default = json.dumps(schema["default"]).strip('"')
            facts.append(f"default: {code(default or chr(34) * 2)}")
        if limits := ", ".join(_limits(schema, path)):
            facts.append(f"range: {limits}")
        yield path, " · ".join(facts), schema.get("description", "")


def _status_fields() -> Iterator[tuple[str, str, str]]:
    for path, schema in _expanded(BatchedAPIStatus, "status"):
        yield path, f"Type: {_type(schema)}", schema.get("description", "")


def _column_lines() -> Iterator[str]:
    for name, _, json_path, priority, description in PRINTER_COLUMNS:
        yield f"- {name.upper()}{' (wide)' * bool(priority)}, from {code(json_path)}: {description}"


def _rule_lines() -> Iterator[str]:
    for rule in BatchedAPI.rules:
        yield f"- {rule.message}"
    for _, model in _objects(BatchedAPISpec, "spec"):
        for rule in model.rules:
            yield f"- {rule.message}"


def _expanded(model: type[BaseModel], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The leaves, and below a list of objects the fields of one element."""
    for leaf, schema in field_rows(model, path, _KUBERNETES):
        yield leaf, schema
        if leaf not in _KUBERNETES:
            yield from _elements(schema, leaf)


def _elements(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The leaves of one element of a list of objects."""
    for name, member in schema.get("items", {}).get("properties", {}).items():
        if "properties" not in member:
            yield f"{path}[].{name}", member
        if f"{path}[].{name}" in _KUBERNETES:
            yield f"{path}[].{name}", member
            continue
        for inner, leaf in member.get("properties", {}).items():
            yield f"{path}[].{name}.{inner}", leaf


def _type(schema: dict[str, Any]) -> str:
    if schema.get("pattern") == QUANTITY_PATTERN:
        return "quantity"
    if schema.get("x-kubernetes-int-or-string"):
        word = schema["pattern"].strip("^$")
        return f"integer or {code(word)}" if word.isidentifier() else "integer or percentage"
    if schema.get("format"):
        return str(schema["format"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return str(schema["type"])


def _limits(schema: dict[str, Any], path: str) -> Iterator[str]:
    word = schema.get("pattern", "").strip("^$")
    if schema.get("x-kubernetes-int-or-string") and word.isidentifier():
        yield schema["x-kubernetes-validations"][0]["message"].removeprefix("expected ")
        return
    if "enum" in schema:
        yield " ".join(code(member) for member in schema["enum"])
    bounds = _bounds(schema, path)
    if bounds:
        yield bounds
    if "pattern" in schema and schema["pattern"] not in _KNOWN_PATTERNS:
        yield code(schema["pattern"])
    if "maxLength" in schema and schema.get("format") != "duration":
        yield f"up to {schema['maxLength']} characters"
    if "maxItems" in schema:
        yield f"up to {schema['maxItems']} elements"


def _bounds(schema: dict[str, Any], path: str) -> str:
    """`1 to 64`; bounds of durations are not in the schema but on the model's field."""
    if schema.get("format") != "duration":
        if "minimum" in schema and "maximum" in schema:
            return f"{schema['minimum']} to {schema['maximum']}"
        return f"at least {schema['minimum']}" if "minimum" in schema else ""
    words = []
    for constraint in _field_at(path).metadata:
        match constraint:
            case Ge(ge=float() | int() as bound):
                words.append(f"at least {format_duration(bound)}")
            case Gt(gt=float() | int() as bound):
                words.append(f"above {format_duration(bound)}")
            case Le(le=float() | int() as bound):
                words.append(f"at most {format_duration(bound)}")
            case Lt(lt=float() | int() as bound):
                words.append(f"below {format_duration(bound)}")
            case _:
                continue
    return ", ".join(words)


def _field_at(path: str) -> FieldInfo:
    """The model's field at `spec.a.b`."""
    model: type[ManifestModel] = BatchedAPISpec
    _, *names = path.replace("[]", "").split(".")
    for name in names[:-1]:
        model = _model(_by_alias(model)[name].annotation) or model
    return _by_alias(model)[names[-1]]


def _by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _objects(model: type[ManifestModel], path: str) -> Iterator[tuple[str, type[ManifestModel]]]:
    """The object at `path` and every object below it."""
    yield path, model
    for alias, field in _by_alias(model).items():
        below = _model(field.annotation)
        if below is not None:
            element = "[]" * _is_list(field.annotation)
            yield from _objects(below, f"{path}.{alias}{element}")


def _required(model: type[ManifestModel], path: str) -> Iterator[str]:
    for below, owner in _objects(model, path):
        for alias, field in _by_alias(owner).items():
            if field.is_required():
                yield f"{below}.{alias}"


def _model(annotation: Any) -> type[ManifestModel] | None:
    """The object type that a field holds: directly, as `X | None`, or in a list."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, ManifestModel):
            return candidate
    return None


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list
