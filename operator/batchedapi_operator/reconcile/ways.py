"""What others have put beside our fields so that ours cannot be applied any more. Pure.

An apply leaves foreign fields alone. Some exclude ours: a port under the name of ours, another kind
of probe or volume in the place of ours. The apiserver then refuses every apply, and names fields.
What an apply no longer sets it takes away from the object, if nobody else owns it: so those foreign
fields are written down as ours, and the next apply, in one write, removes them and sets ours.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject

_ITEM: Final = re.compile(r"\[\d+\]")
_ANY: Final = "*"
_NEVER: Final = ("f:spec", "f:metadata", "f:status")
"""Structs of which only a field that was named is taken: too much else is in them."""
_Path = tuple[str, ...]


def cleared(live: JsonObject, body: JsonObject, refused: Sequence[str]) -> list[JsonObject] | None:
    """The `managedFields` with which an apply of `body` removes what excludes it.

    Args:
        live: The object as it is.
        body: What we would apply.
        refused: Fields that the apiserver has named, such as `spec.ports[1].name`.

    Returns:
        None where nothing foreign is in the way of those fields.
    """
    managed = copy.deepcopy(live["metadata"].get("managedFields") or [])
    ours = next((entry for entry in managed if _is_ours(entry)), None)
    if ours is None:
        return None
    found = False
    for field in refused:
        pattern = _steps(field)
        for entry in managed:
            if entry is ours or entry.get("subresource"):
                continue
            for path in tuple(_in_the_way(entry["fieldsV1"], live, body, pattern)):
                _put(ours["fieldsV1"], path, _taken(entry["fieldsV1"], path))
                found = True
    return managed if found else None


def _is_ours(entry: Mapping[str, Any]) -> bool:
    named = entry.get("manager") == contract.FIELD_MANAGER and entry.get("operation") == "Apply"
    return named and not entry.get("subresource")


def _steps(field: str) -> _Path:
    """`spec.ports[1].name` as steps of `fieldsV1`; which item it was says nothing about ours."""
    steps: list[str] = []
    for part in field.split("."):
        steps.append(f"f:{_ITEM.sub('', part)}")
        steps += [_ANY] * len(_ITEM.findall(part))
    return tuple(steps)


def _in_the_way(
    fields: JsonObject, live: JsonObject, body: JsonObject, pattern: _Path
) -> Iterator[_Path]:
    """Paths of a foreign entry's `fields` that hold the refused one, or what excludes it."""
    *around, last = pattern
    for path in _matching(fields, tuple(around)):
        held, own = _node(fields, path), _at(body, path)
        if own is None:  # an item of somebody's in a list of ours: by that field is it like ours
            if last in held and _same(live, body, path, last):
                yield path
        elif last in held and not _has(own, last):
            yield (*path, last)
        elif _has(own, last) and path[-1] not in _NEVER:
            yield from ((*path, step) for step in held if step != "." and not _has(own, step))


def _has(own: Any, step: str) -> bool:
    return isinstance(own, dict) and step.removeprefix("f:") in own


def _matching(fields: JsonObject, pattern: _Path, above: _Path = ()) -> Iterator[_Path]:
    if not pattern:
        yield above
        return
    for step, below in fields.items():
        if step == pattern[0] or (pattern[0] == _ANY and step.startswith("k:")):
            yield from _matching(below, pattern[1:], (*above, step))


def _same(live: JsonObject, body: JsonObject, path: _Path, last: str) -> bool:
    """Whether the foreign item at `path` has that field as one of ours in the same list has it."""
    name = last.removeprefix("f:")
    item, items = _at(live, path), _at(body, path[:-1])
    return item is not None and any(item.get(name) == one.get(name) for one in items or ())


def _at(body: JsonObject, path: _Path) -> Any:
    place: Any = body
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "k":
            wanted = json.loads(rest).items()
            place = next((one for one in place if wanted <= one.items()), None)
        else:
            place = place.get(rest)
        if place is None:
            return None
    return place


def _node(fields: JsonObject, path: _Path) -> JsonObject:
    for step in path:
        fields = fields[step]
    return fields


def _taken(fields: JsonObject, path: _Path) -> JsonObject:
    """Cut out; a struct of which nothing is left would say that all of it is owned."""
    first, *rest = path
    if not rest:
        taken: JsonObject = fields.pop(first)
        return taken
    taken = _taken(fields[first], tuple(rest))
    if not fields[first]:
        del fields[first]
    return taken


def _put(fields: JsonObject, path: _Path, node: JsonObject) -> None:
    *above, last = path
    for step in above:
        fields = fields.setdefault(step, {})
    fields[last] = node
