"""The fields of an object that a field manager owns, and how others might change them.

A path is a tuple of the steps of `fieldsV1`: `f:NAME` is a field, `k:{...}` the item of a list that
has those keys, `v:VALUE` a value of a set.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]
MISSING: Final = object()
ITEM: Final = object()
"""That an item of a list is there; what is in it has paths of its own, or is somebody else's."""
_OTHERS: Final = {
    "ClusterIP": "NodePort",
    "RollingUpdate": "Recreate",
    "TCP": "UDP",
    "IfNotPresent": "Always",
    "FallbackToLogsOnError": "File",
    "RuntimeDefault": "Unconfined",
    "ALL": "CHOWN",
    "DoNotSchedule": "ScheduleAnyway",
}
"""What else may stand where a word of a closed list stands."""


@dataclass(frozen=True)
class Edit:
    """One thing that somebody else might do to a field."""

    path: Path
    others: tuple[Any, ...] = ()
    """Values, the first of which that the apiserver takes is the edit; none: it is removed."""

    def patches(self, body: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
        """JSON patches of the object as it is now: items of lists may have moved."""
        pointer = _pointer(body, self.path)
        if not self.others:
            return [[{"op": "remove", "path": pointer}]]
        return [[{"op": "replace", "path": pointer, "value": one}] for one in self.others]

    def __str__(self) -> str:
        return f"{'change' if self.others else 'remove'} {'.'.join(self.path)}"


def owned(body: Mapping[str, Any], manager: str) -> dict[Path, Any]:
    """Fields that an apply of `manager` has set, with their values; items of lists as well."""
    found: dict[Path, Any] = {}
    for entry in body["metadata"]["managedFields"]:
        if entry["manager"] == manager and entry["operation"] == "Apply":
            for path, leaf in _paths(entry["fieldsV1"], ()):
                found[path] = value_at(body, path) if leaf else ITEM
    return found


def whole(body: Mapping[str, Any] | None, found: Mapping[Path, Any]) -> bool:
    """Whether everything that was `owned` is as it was."""
    return body is not None and all(
        value_at(body, path) == value if value is not ITEM else value_at(body, path) is not MISSING
        for path, value in found.items()
    )


def value_at(body: Any, path: Path) -> Any:
    """The value at that path; MISSING without it."""
    for step in path:
        place = _place(body, step)
        if place is None:
            return MISSING
        body = body[place]
    return body


def edits(body: Mapping[str, Any], manager: str) -> Iterator[Edit]:
    """Another value of each owned field, and its removal."""
    for path, value in owned(body, manager).items():
        if others := _others(value):
            yield Edit(path, tuple(others))
        yield Edit(path)


def _paths(fields: Mapping[str, Any], above: Path) -> Iterator[tuple[Path, bool]]:
    """Paths, and whether nothing of theirs is further down."""
    if not fields:
        yield above, True
    for step, below in fields.items():
        if step == ".":
            if above[-1].startswith("k:"):
                yield above, False
        else:
            yield from _paths(below, (*above, step))


def _place(body: Any, step: str) -> Any:
    """The key or index of a step; None where it leads nowhere."""
    kind, _, rest = step.partition(":")
    if kind == "f":
        return rest if isinstance(body, dict) and rest in body else None
    if not isinstance(body, list):
        return None
    wanted = json.loads(rest)
    for index, item in enumerate(body):
        if item == wanted:
            return index
        if kind == "k" and all(item.get(key) == value for key, value in wanted.items()):
            return index
    return None


def _pointer(body: Any, path: Path) -> str:
    parts = []
    for step in path:
        place = _place(body, step)
        parts.append(str(place).replace("~", "~0").replace("/", "~1"))
        body = body[place]
    return "".join(f"/{part}" for part in parts)


def _others(value: Any) -> list[Any]:
    others: list[Any] = []
    match value:
        case bool():
            others = [not value]
        case int():
            others = [value + 1, value - 1]
        case str():
            others = [
                *([_OTHERS[value]] if value in _OTHERS else []),
                f"{value}x",
                "1",
                "7Mi",
                "77",
            ]
        case [*_, last]:
            other = [] if isinstance(last, dict) else [_OTHERS.get(last, f"{last}x")]
            others = [[*value[:-1], *other]]
        case {"uid": _, "controller": True}:
            others = [{**value, "controller": False}]
        case dict() if all(isinstance(one, str) for one in value.values()):  # such as selectors
            others = [{key: f"{one}x" for key, one in value.items()}]
    return [other for other in others if other != value]
