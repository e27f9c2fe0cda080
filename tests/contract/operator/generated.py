"""Documents made from the schema: every field with what it may be and with what it may not."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from crds.crd import crd
from tests.contract.operator.corpus import GOOD, Document

SPEC: Final[Document] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
    "spec"
]
VALUES: Final[tuple[Any, ...]] = (
    True, 0, 1, -1, 1.5, 3600, 10**9, 2**63, "", "1", "true", "no such word", "5", "5ms", "1h",
    "1000h", "-5ms", "1.5s", "0.5", "1Gi", "25%", "m:C", "/x", "x" * 400, "ü",
    [], ["a"], [1, 1], [{}], {}, {"a": 1},
)  # fmt: skip
"""What every field is tried with."""
HOSTILE: Final[tuple[str, ...]] = (
    " ", " x ", "a\nb", "a\x00b", "../../etc/passwd", "$(HOME)", "{{ .Values.x }}", "%s%n",
    "'; --", "\u202eabc", "🚀", "A.B", "a:b:c", "a/b@sha256:1", "-1", "1e3", "0x10", "+5", "1_000",
    ".5", "5.", "0s", "1ns", "0.1ns", "24h", "86400s", "1h1m1s", "1m", "999P", "100%", "0%",
    "x" * 40_000,
)  # fmt: skip
"""Texts in which something downstream may see more than a text; quantities and durations of odd
form."""

RUNTIME_CLASS: Final = "sandboxed"
"""Whoever wants pods of it makes it beforehand."""

Place = tuple[str | int, ...]


def fields(schema: Document = SPEC, place: Place = ()) -> Iterator[tuple[Place, Document]]:
    """Every field of `spec` with its schema; of lists, those of the first member."""
    for name, member in schema.get("properties", {}).items():
        here = (*place, name)
        yield here, member
        yield from fields(member, here)
        if member.get("type") == "array":
            first = (*here, 0)
            yield first, member["items"]
            yield from fields(member["items"], first)


FIELDS: Final = dict(fields())
OBJECTS: Final[dict[Place, list[str]]] = {
    (): list(SPEC["properties"]),
    **{place: list(f["properties"]) for place, f in FIELDS.items() if f.get("properties")},
}
"""Objects with their fields."""
LEAVES: Final = tuple(
    place
    for place, field in FIELDS.items()
    if not field.get("properties") and not field.get("items")
)
"""Fields without fields of their own."""

_TEXTS: Final = ("a", "m:C", "A", "/a", "a/b", "1s", "1", "file:///x", "0" * 64, "https://a", "1%")
"""One of them is what a text with a pattern may be."""


def least(schema: Document) -> Any:
    """The least that a field of that schema may be: an object has what it must have."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "integer" or schema.get("x-kubernetes-int-or-string"):
        return max(1, schema.get("minimum", 1))
    if schema.get("type") == "boolean":
        return True
    if schema.get("type") == "array":
        return [least(schema["items"])]
    if schema.get("type") == "string":
        return next(text for text in _TEXTS if re.search(schema.get("pattern", ""), text))
    members = schema.get("properties", {})
    return {name: least(members[name]) for name in schema.get("required", ())}


GOOD_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "volumeMounts[0].name": ("a",),  # before that of all names
    "matchFields[0].operator": ("In",),  # before that of all operators
    "path": ("iris:Iris", "iris.py:Iris", "a.b.c:_D"),
    "configMap": ("iris", "iris.v1", "1-a"),
    "uri": (
        "file:///x",
        "https://host/a?b=c%20d",
        "s3://b/k",
        "gs://b/k",
        "az://b/k",
        "pvc://claim",
        "pvc://claim/a/b",
        "hf://org/name@v1/a.onnx",
        f"oci://host/name@sha256:{'0' * 64}",
    ),
    "sha256": ("0" * 64, "0123456789abcdef" * 4),
    "image": ("iris", "host.example:5000/team/iris:v1_2", "iris@sha256:" + "0" * 64),
    "name": ("predict", "__call__", "PATHS"),
    "endpoint": ("/v1/iris", "/a.b_c~d/-"),
    "fieldPath": ("metadata.name",),
    "resource": ("limits.cpu", "requests.memory"),
    "matchFields[0].key": ("metadata.name",),
    "priorityClassName": ("system-cluster-critical",),
    "runtimeClassName": (RUNTIME_CLASS,),
    "allowOrigins[0]": ("https://a", "*"),
    "operator": ("Exists",),
    "resources.requests": ({"storage": "1Gi"},),
    "autoscaling.mode": ("External",),
    "maxBodySize": ("1Mi",),
    "window": ("1m",),
}
"""What values of a form of their own may be, by the end of the field's path."""
_BESIDE: Final[dict[str, Document]] = {
    "spec.replicas": {"autoscaling": {"mode": "External"}},
    "spec.predictor.methods[0].outputBatchDim": {
        "predictor": {**GOOD["predictor"], "methods": [{"name": "a", "batchDim": 1}]}
    },
    "spec.networking.gateway.grpcHostnames": {"networking": {"grpc": True}},
    "spec.pod.volumeMounts[0]": {"pod": {"volumes": [{"name": "a", "emptyDir": {}}]}},
    "spec.pod.volumes[0].projected.sources[0].serviceAccountToken": {
        "pod": {"serviceAccountName": "default"}
    },
}
"""What a spec has to have beside some fields, by the beginning of their path."""


_CLAIM: Final[Document] = {
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
}
_ENOUGH: Final[dict[str | int, Document]] = {
    "projected": {"sources": [{"configMap": {"name": "a"}}]},
    "ephemeral": {"volumeClaimTemplate": _CLAIM},
}
"""Objects that must have more than their schema says, by a rule of ours or of the apiserver's."""
_SIBLINGS: Final[dict[str, Document]] = {
    "resourceFieldRef.divisor": {"resource": "limits.cpu"},
    "envFrom[0].prefix": {"configMapRef": {"name": "a"}},
    "tolerations[0].effect": {"key": "a"},
    "tolerations[0].tolerationSeconds": {"key": "a", "effect": "NoExecute"},
    "tolerations[0].value": {"key": "a"},
    "matchExpressions[0].key": {"operator": "Exists"},
    "matchFields[0].key": {"operator": "In", "values": ["a"]},
    "matchFields[0].operator": {"key": "metadata.name", "values": ["a"]},
    "matchFields[0].values[0]": {"key": "metadata.name", "operator": "In"},
    **{
        f"{term}.{keys}[0]": {"labelSelector": {}}
        for term in ("podAffinityTerm", "requiredDuringSchedulingIgnoredDuringExecution[0]")
        for keys in ("matchLabelKeys", "mismatchLabelKeys")
    },
    "volumes[0].name": {"emptyDir": {}},
    "resourceClaims[0].name": {"resourceClaimTemplateName": "a"},
}
"""What has to stand beside some fields, in the same object, by the end of their path."""


def _of_end(ends: Mapping[str, Any], place: Place) -> Any:
    """The value kept for a field, found by the end of its path; None if there is none."""
    return next((ends[end] for end in ends if words(place).endswith(f".{end}")), None)


def tried(place: Place) -> list[Any]:
    """The values to try in that field, likely ones first, so that a few will do."""
    likely = (*(_of_end(GOOD_VALUES, place) or ()), least(FIELDS[place]))
    return _distinct((*likely, *values_of(place), *HOSTILE))


def with_company(place: Place, value: Any) -> Document:
    """The smallest spec in which that field may have a value of its own."""
    beside = next((_BESIDE[start] for start in _BESIDE if words(place).startswith(start)), {})
    return with_value(place, value, {**GOOD, **beside})


def words(place: Place) -> str:
    """As the apiserver writes it."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "spec" + "".join(parts)


def with_value(place: Place, value: Any, base: Document = GOOD) -> Document:
    """`base`, the smallest spec, in which that field has that value."""
    spec: Any = copy.deepcopy(base)
    here: Any = spec
    holder: Any = spec
    for index, part in enumerate(place[:-1]):
        inside = FIELDS[place[: index + 1]]
        if isinstance(part, int):
            if not here:
                here.append(least(inside))
            here = here[0]
        elif isinstance(place[index + 1], int):
            here = here.setdefault(part, [])
        else:
            enough = {} if place[index + 1] == "sources" else _ENOUGH.get(part, least(inside))
            here = here.setdefault(part, copy.deepcopy(enough))
        holder = here if isinstance(here, dict) else holder
    holder.update(copy.deepcopy(_of_end(_SIBLINGS, place) or {}))
    if not isinstance(place[-1], int):
        here[place[-1]] = value
    elif here:
        here[0] = value
    else:
        here.append(value)
    return dict(spec)


def snake(name: str) -> str:
    """A field as Python, and other servers, write it."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def values_of(place: Place) -> list[Any]:
    """The values to try in that field: the common ones, and its own with their neighbours."""
    schema = FIELDS[place]
    own: list[Any] = [*schema.get("enum", ()), schema.get("default")]
    for bound in (schema.get("minimum"), schema.get("maximum")):
        own += [] if bound is None else [bound - 1, bound, bound + 1]
    for rule in schema.get("x-kubernetes-validations", ()):
        own += re.findall(r"duration\('(\w+)'\)", rule["rule"])
    return _distinct(value for value in (*VALUES, *own) if value is not None)


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each once; 1, 1.0 and true are three."""
    found: list[Any] = []
    for value in values:
        if (type(value), value) not in [(type(v), v) for v in found]:
            found.append(value)
    return found
