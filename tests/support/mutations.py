"""JSON objects as another release may write them: any field removed, added or retyped.

for what, value in mutated({"a": [1]}):     # "a removed", {}; "a = 'text'", {"a": "text"}; ...
"""

import copy
from collections.abc import Iterator
from typing import Any, Final

ODD: Final[tuple[Any, ...]] = ("text", "", -1, 1.5, 2**63 - 1, True, None, [], {}, [[]], {"new": 1})
_NEW: Final = "added_by_another_release"


def mutated(value: Any, *, except_in: str = "") -> Iterator[tuple[str, Any]]:
    """Changes of `value`, each with the changed copy; nothing is changed inside of `except_in`."""
    for path in _paths(value, except_in):
        *outer, last = path
        place = ".".join(map(str, path))
        if last == _NEW:
            yield f"{place} added", _changed(value, outer, last, "1")
            continue
        yield f"{place} removed", _changed(value, outer, last)
        for odd in ODD:
            yield f"{place} = {odd!r}", _changed(value, outer, last, odd)


def _paths(value: Any, except_in: str) -> Iterator[list[Any]]:
    """The path of every member, and of one more in every object."""
    if isinstance(value, dict):
        yield [_NEW]
        members = list(value.items())
    else:
        members = list(enumerate(value))
    for key, member in members:
        yield [key]
        if isinstance(member, dict | list) and key != except_in:
            yield from ([key, *path] for path in _paths(member, except_in))


def _changed(value: Any, outer: list[Any], last: Any, *new: Any) -> Any:
    changed = copy.deepcopy(value)
    inside = changed
    for key in outer:
        inside = inside[key]
    if new:
        inside[last] = new[0]
    else:
        del inside[last]
    return changed
