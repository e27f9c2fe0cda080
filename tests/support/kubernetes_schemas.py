"""Schemas of Kubernetes objects for kubeconform, made offline from Kubernetes' own API description.

kubeconform downloads its schemas; the description they are made from also lies in the Go module of
Kubernetes, which a machine that has built the test cluster holds.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

MODULE: Final = "k8s.io/kubernetes@v1.34.4"
SPEC: Final = Path("api") / "openapi-spec" / "swagger.json"
LOCATION: Final = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""kubeconform's own naming, below the folder that `write_schemas` fills."""

_PREFIX: Final = "#/definitions/"
_LOOSE: Final[dict[str, dict[str, Any]]] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
"""Described as strings, although the apiserver takes numbers too."""


def api_description() -> Path | None:
    """The API description in the Go module cache, or None where there is none."""
    try:
        answer = subprocess.run(
            ["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    path = Path(answer.stdout.strip()) / MODULE / SPEC
    return path if path.exists() else None


def write_schemas(description: Path, folder: Path) -> None:
    """One strict schema a kind: an unknown field is an error, as with `kubectl apply`."""
    definitions = json.loads(description.read_text(encoding="utf-8"))["definitions"]
    strict = {name: _LOOSE.get(name) or _closed(body) for name, body in definitions.items()}
    for name, body in definitions.items():
        kinds = body.get("x-kubernetes-group-version-kind", ())
        if len(kinds) != 1:  # options and lists that every group shares: never in a manifest
            continue
        schema = {"$ref": _PREFIX + name, "definitions": _reachable(name, strict)}
        (folder / _file_name(kinds[0])).write_text(json.dumps(schema), encoding="utf-8")


def _closed(schema: Any) -> Any:
    """The schema with every object that lists its properties closed to others."""
    if isinstance(schema, list):
        return [_closed(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(member) for key, member in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def _reachable(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = definitions[current]
            waiting.extend(_references(definitions[current]))
    return found


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for member in schema for name in _references(member)]
    if not isinstance(schema, dict):
        return []
    below = [name for member in schema.values() for name in _references(member)]
    reference = schema.get("$ref")
    return [*below, reference.removeprefix(_PREFIX)] if isinstance(reference, str) else below


def _file_name(kind: dict[str, str]) -> str:
    group = kind["group"].split(".", maxsplit=1)[0]
    parts = [kind["kind"], *([group] if group else []), kind["version"]]
    return "-".join(parts).lower() + ".json"
