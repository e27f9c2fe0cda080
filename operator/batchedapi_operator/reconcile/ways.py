"""What others have put beside our fields so that ours cannot be applied any more. Pure.

An apply leaves foreign fields alone. Some exclude ours: a port under the name of ours, another kind
of probe or volume in the place of ours. The apiserver then refuses every apply, and names fields.
What an apply no longer sets it takes away from the object, if nobody else owns it: so those foreign
fields are written down as ours, and the next apply, in one write, removes them and sets ours.
"""

import copy
import json
import re
from collections.abc import Iterator, Sequence
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
    whole = [entry for entry in managed if not entry.get("subresource")]
    our_name = (contract.FIELD_MANAGER, "Apply")
    named = (one for one in whole if (one.get("manager"), one.get("operation")) == our_name)
    ours = next(named, None)
    if ours is None:
        return None
    found = False
    for field in refused:
        # as steps of `fieldsV1`; which item of a list it was says nothing about ours
        pattern: list[str] = []
        for part in field.split("."):
            pattern += [f"f:{_ITEM.sub('', part)}", *[_ANY] * len(_ITEM.findall(part))]
        for theirs in (entry["fieldsV1"] for entry in whole if entry is not ours):
            for path in tuple(_in_the_way(theirs, live, body, tuple(pattern))):
                *above, last = path
                place = ours["fieldsV1"]
                for step in above:
                    place = place.setdefault(step, {})
                place[last] = _taken(theirs, path)
                found = True
    return managed if found else None


def _in_the_way(
    fields: JsonObject, live: JsonObject, body: JsonObject, pattern: _Path
) -> Iterator[_Path]:
    """Paths of a foreign entry's `fields` that hold the refused one, or what excludes it."""
    *around, last = pattern
    for path in _matching(fields, tuple(around)):
        held, own = fields, _at(body, path)
        for step in path:
            held = held[step]
        if own is None:  # an item of somebody's in a list of ours: by that field is it like ours
            name, item = last.removeprefix("f:"), _at(live, path) if last in held else None
            items = _at(body, path[:-1]) or ()
            if item is not None and any(item.get(name) == one.get(name) for one in items):
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
