"""Schemas of Kubernetes objects for kubeconform, made from Kubernetes' own API description.

kubeconform downloads its schemas; the description they are made from also lies in the Go module of
each release.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from chart import tool

MODULE: Final = "k8s.io/kubernetes"
RELEASES: Final = ("v1.33.13", "v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2")
"""One of each minor version that users may have; the last is the one of the test cluster."""
SPEC: Final = Path("api") / "openapi-spec" / "swagger.json"
LOCATION: Final = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""kubeconform's own naming, below the folder that `write_schemas` fills."""
NOT_KUBERNETES: Final = (
    "ServiceMonitor,PodMonitor,PrometheusRule,CustomResourceDefinition,HTTPRoute,GRPCRoute"
)
"""Kinds without a schema there; the CRD is checked by the apiserver."""

_PREFIX: Final = "#/definitions/"
_LOOSE: Final[dict[str, dict[str, Any]]] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
"""Described as strings, although the apiserver takes numbers too."""


def api_description(release: str) -> Path | None:
    """The API description of a release in the Go module cache, or None where there is none."""
    try:
        answer = subprocess.run(
            ["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    path = Path(answer.stdout.strip()) / f"{MODULE}@{release}" / SPEC
    return path if path.exists() else None


def downloaded(release: str) -> Path:
    """The same; it is downloaded where it is not there, 20 MB."""
    path = api_description(release)
    if path is None:
        subprocess.run(["go", "mod", "download", f"{MODULE}@{release}"], check=True, timeout=600)
        path = api_description(release)
    assert path is not None
    return path


def conformity(manifests: str, description: Path, folder: Path) -> Any:
    """Kubeconform's report on some manifests; only what is wrong is listed in it."""
    write_schemas(description, folder)
    location = ("-schema-location", f"{folder}/{LOCATION}")
    flags = ("-strict", *location, "-skip", NOT_KUBERNETES, "-output", "json", "-summary")
    result = subprocess.run(
        [tool("kubeconform"), *flags, "-"],
        input=manifests,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return json.loads(result.stdout)


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
