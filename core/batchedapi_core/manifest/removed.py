"""Fields that this release still accepts and the next one will not: one table, and what they mean.

A manifest with one of them works: the field is taken out before the manifest is checked, and a
warning says what to write instead. A replica is still given the field, so no revision changes.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

Place = tuple[str | int, ...]
"""Where a value is below `spec`."""


def _batching_off(spec: dict[str, Any]) -> None:
    """Turn batching off for all methods, whatever sizes they have."""
    for place in ("serverSideBatching", _OF_METHOD):
        for _, batching in _objects(spec, place.split(".")):
            batching["maxBatchSize"] = 1


def _in_image(spec: dict[str, Any]) -> None:
    """Without a ConfigMap there is nothing left of a source."""
    if not spec["predictor"]["source"]:
        del spec["predictor"]["source"]


@dataclass(frozen=True, slots=True)
class Removed:
    """A field of an earlier release."""

    path: str
    """Below `spec`."""
    instead: str
    unset: JsonValue = None
    """Its default, which stored manifests have and nobody wrote: it needs no warning."""
    effect: Callable[[dict[str, Any]], None] | None = None
    """The change that any other value makes to the spec; None: none."""
    schema: Mapping[str, JsonValue] = field(
        default_factory=lambda: {"x-kubernetes-preserve-unknown-fields": True}
    )
    """For the API server; a rule in CEL sees a field only if it has a type."""

    @property
    def note(self) -> str:
        """For people, behind the field's path."""
        return f"removed, and refused by the next release; {self.instead}"


_FOR_ALL: Final = (
    "leave it out: methods have spec.serverSideBatching's; a method that needs another goes into a"
    " BatchedAPI of its own"
)
_IN_THE_MODEL: Final = "leave it out, and instead of Pad write Tensor(..., pad=0) in the model"
_BY_ITSELF: Final = (
    "leave it out; for a model that fills batches up to sizes which it was compiled for, set"
    " maxBatchSize to one of those"
)
_OF_METHOD: Final = "predictor.methods[].serverSideBatching"
REMOVED: Final = (
    Removed(
        "serverSideBatching.enabled",
        "write maxBatchSize: 1 in its place to turn batching off",
        unset=True,
        effect=_batching_off,
    ),
    Removed(
        "serverSideBatching.tuning",
        "leave it out: status.recommendation is always there and changes nothing",
        unset="Recommend",
    ),
    Removed("serverSideBatching.shapePolicy", _IN_THE_MODEL, unset="Bucket"),
    Removed(f"{_OF_METHOD}.shapePolicy", _IN_THE_MODEL),
    Removed("serverSideBatching.preferredBatchSizes", _BY_ITSELF, unset=[]),
    Removed(f"{_OF_METHOD}.preferredBatchSizes", _BY_ITSELF),
    Removed(
        "predictor.threadSafe",
        "leave it out: with threadsPerProcess: 1, the default, the class is never called twice at"
        " once in a process",
        unset=True,
    ),
    Removed(
        "predictor.source.inImage",
        "leave source out: the code is in the image",
        effect=_in_image,
        schema={"type": "object", "properties": {}},
    ),
    Removed(
        "autoscaling.initReplicas",
        "leave it out: an API begins with minReplicas, and mode External with spec.replicas",
    ),
    *(Removed(f"{_OF_METHOD}.{name}", _FOR_ALL) for name in ("strategy", "sizeUnit", "queueOrder")),
)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A spec without removed fields."""

    spec: Any
    warnings: tuple[str, ...] = ()
    before: tuple[tuple[Place, Any], ...] = ()
    """The values that were changed, by their place; None: there was none."""


def without_removed(spec: Any) -> Mapped:
    """`spec` as this release reads it; the argument is left as it is."""
    if not isinstance(spec, Mapping):
        return Mapped(spec)
    if not any(_found(dict(spec))):
        return Mapped(spec)
    kept = copy.deepcopy(dict(spec))
    for one, _, parent, name in [*_found(kept)]:
        if parent[name] in (None, one.unset):
            del parent[name]
    before = copy.deepcopy(kept)
    written = [*_found(kept)]
    for _, _, parent, name in written:
        parent.pop(name, None)
    for one, *_ in written:
        if one.effect is not None:
            one.effect(kept)
    warnings = tuple(f"{_path((*place, name))}: {one.note}" for one, place, _, name in written)
    return Mapped(kept, warnings, tuple(_changed(before, kept)))


def _found(spec: Any) -> Iterator[tuple[Removed, Place, dict[str, Any], str]]:
    """Removed fields of a spec, each with its place and object; not those of a wrong type."""
    for one in REMOVED:
        *above, name = one.path.split(".")
        for place, parent in _objects(spec, above):
            unset = name in parent and parent[name] in (None, one.unset)
            if unset or (name in parent and ("type" not in one.schema or parent[name] == {})):
                yield one, place, parent, name


def put_back(told: dict[str, Any], before: tuple[tuple[Place, Any], ...]) -> None:
    """Write the fields that changed back into the manifest `told` of a replica."""
    for (*above, name), value in before:
        parent: Any = told
        for part in above:
            parent = parent[part]
        if value is None:
            parent.pop(name, None)
        else:
            parent[name] = value


def _objects(top: Any, parts: list[str], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every object that the path leads to, with its place."""
    if not isinstance(top, dict):
        return
    if not parts:
        yield place, top
        return
    name = parts[0].removesuffix("[]")
    inner = top.get(name)
    if parts[0] == name:
        yield from _objects(inner, parts[1:], (*place, name))
    elif isinstance(inner, list):
        for index, one in enumerate(inner):
            yield from _objects(one, parts[1:], (*place, name, index))


def _changed(before: Any, after: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The values of `before` that are others in `after`, and None for those only `after` has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from _changed(before.get(name), after.get(name), (*place, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _changed(*pair, (*place, index))
    elif before != after:
        yield place, before


def _path(place: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f"spec{''.join(parts)}"
