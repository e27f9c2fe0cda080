"""Documents made from the schema: every field with what it may be and with what it may not."""

import copy
import re
from collections.abc import Iterator
from typing import Any, Final

from tests.contract.operator.corpus import GOOD, Document

from batchedapi_core.manifest.crd import crd

SPEC: Final[Document] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
    "spec"
]
VALUES: Final[tuple[Any, ...]] = (
    True, 0, 1, -1, 1.5, 3600, 10**9, 2**63, "", "1", "true", "no such word", "5", "5ms", "1h",
    "1000h", "-5ms", "1.5s", "0.5", "1Gi", "25%", "m:C", "/x", "x" * 400, "ü",
    [], ["a"], [1, 1], [{}], {}, {"a": 1},
)  # fmt: skip
"""What every field is tried with."""

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

_NEEDED: Final[dict[str, Document]] = {
    "env": {"name": "A"},
    "methods": {"name": "a"},
    "policies": {"type": "Pods", "value": 1, "periodSeconds": 15},
    "model": {"uri": "file:///x"},
    "matchExpressions": {"key": "k", "operator": "In", "values": ["a"]},
    "matchFields": {"key": "k", "operator": "In", "values": ["a"]},
    "imagePullSecrets": {"name": "a"},
    "nodePublishSecretRef": {"name": "a"},
    "configMapKeyRef": {"name": "a", "key": "k"},
    "secretKeyRef": {"name": "a", "key": "k"},
    "configMapRef": {"name": "a"},
    "secretRef": {"name": "a"},
    "items": {"key": "k", "path": "p"},
    "requiredDuringSchedulingIgnoredDuringExecution": {"topologyKey": "z"},
    "podAffinityTerm": {"topologyKey": "z"},
    "resourceFieldRef": {"resource": "limits.cpu"},
    "topologySpreadConstraints": {
        "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
    },
    "volumes": {"name": "a"},
    "volumeMounts": {"name": "a", "mountPath": "/a"},
    "secret": {"secretName": "s"},
    "persistentVolumeClaim": {"claimName": "c"},
    "csi": {"driver": "d"},
}  # fmt: skip
"""What a list's member, or an object, must have beside the field that is tried."""


def words(place: Place) -> str:
    """As the apiserver writes it."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "spec" + "".join(parts)


def with_value(place: Place, value: Any) -> Document:
    """The smallest spec in which that field has that value."""
    spec: Any = copy.deepcopy(GOOD)
    here: Any = spec
    for index, part in enumerate(place[:-1]):
        if isinstance(part, int):
            here.append(copy.deepcopy(_NEEDED.get(str(place[index - 1]), {})))
            here = here[0]
        elif isinstance(place[index + 1], int):
            here = here.setdefault(part, [])
        else:
            here = here.setdefault(part, copy.deepcopy(_NEEDED.get(part, {})))
    if isinstance(place[-1], int):
        here.append(value)
    else:
        here[place[-1]] = value
    return dict(spec)


def snake(name: str) -> str:
    """A field as Python, and other servers, write it."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def values_of(place: Place) -> list[Any]:
    """What that field is tried with: the common values, and its own with their neighbours."""
    schema = FIELDS[place]
    own: list[Any] = [*schema.get("enum", ()), schema.get("default")]
    for bound in (schema.get("minimum"), schema.get("maximum")):
        own += [] if bound is None else [bound - 1, bound, bound + 1]
    for rule in schema.get("x-kubernetes-validations", ()):
        own += re.findall(r"duration\('(\w+)'\)", rule["rule"])
    distinct: list[Any] = []
    for value in (*VALUES, *own):
        if value is not None and (type(value), value) not in [(type(v), v) for v in distinct]:
            distinct.append(value)
    return distinct
