"""Problems of a manifest, in lines: place, expectation, what came, remedy."""

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from batchedapi_core import contract
from batchedapi_core.manifest.rules import REPEATED, WORDS

SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_time": ("batchInterval",),
    "batch_timeout": ("batchInterval",),
    "batch_size": ("maxBatchSize",),
    "max_latency_ms": ("maxLatency",),
    "concurrency": ("targetReplicaConcurrency",),
    "max_concurrency": ("maxReplicaConcurrency",),
    "max_replica_concurrency": ("maxReplicaConcurrency",),
    "workers": ("processesPerReplica",),
    "processes": ("processesPerReplica",),
    "threads": ("threadsPerProcess",),
    "batching": ("serverSideBatching",),
    "signature": ("methods",),
    "signatures": ("methods",),
    "memory": ("mem",),
}
"""Words that other servers have for our fields, in lower case with underscores."""
_ALIKE: Final = 0.75
_EXPECTED: Final[Mapping[str, str]] = {
    "model_type": "expected an object",
    "dict_type": "expected an object",
    "list_type": "expected a list",
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
}
"""Instead of pydantic's words, which are of Python."""


def problem(root: type[BaseModel], detail: Any) -> str:
    """One line for one error that pydantic found in a document of the model `root`."""
    place, kind, message = place_of(detail["loc"]), detail["type"], str(detail["msg"])
    if kind == "rule":  # its message mostly begins with the field itself
        place += detail["ctx"]["below"]
        place = place.removeprefix(".")
        return message if message.startswith(f"{place} ") else f"{place}: {message}"
    if kind == "extra_forbidden":
        return f"{place}: unknown field; {_remedy(root, detail['loc'])}"
    if kind == "missing":
        return f"{place}: required, but missing"
    if kind == REPEATED:
        return f"{place}[{detail['ctx']['index']}]: {message}"
    if kind == "string_pattern_mismatch":
        message = WORDS[detail["ctx"]["pattern"]]
    message = _EXPECTED.get(kind, message).removeprefix("Value error, ")
    value = detail["input"]
    got = "" if ", got " in message else f", got {value!r:.100}"
    return f"{place}: {message}{got}{_quotes(kind, value)}"


def _quotes(kind: str, value: Any) -> str:
    """A remedy where YAML read a word without quotes as no word."""
    if kind in {"enum", "string_type"} and isinstance(value, bool):
        return "; YAML takes On, Yes, Off and No for true and false: write the word in quotes"
    if kind == "string_type" and isinstance(value, int | float):
        return f'; write it in quotes: "{value}"'
    return ""


def place_of(parts: Sequence[str | int]) -> str:
    """As the apiserver writes it: `spec.predictor.env[0].name`."""
    place = ""
    for part in parts:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    return place.removeprefix(".")


def _remedy(root: type[BaseModel], parts: Sequence[str | int]) -> str:
    """The field that may have been meant."""
    written = str(parts[-1])
    model: type[BaseModel] | None = root
    for part in parts[:-1]:
        if isinstance(part, str):
            model = model_of(fields_of(model).get(part))
    here = list(fields_of(model))
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in written).replace("-", "_")
    meant = [to_camel(written), *SPELLINGS.get(snake, ())]
    for name in meant:
        if name in here and name != written:
            return f"did you mean {name}?"
    folded = {name.lower(): name for name in here}
    bare = written.replace("_", "").replace("-", "").lower()
    close = difflib.get_close_matches(bare, folded, n=1, cutoff=_ALIKE)
    if close:
        return f"did you mean {folded[close[0]]}?"
    elsewhere = next(filter(None, (_likely_place(root, name) for name in meant)), None)
    if elsewhere:
        return f"did you mean {elsewhere}?"
    return f"see the reference of {contract.KIND} for the known ones"


def _likely_place(root: type[BaseModel], name: str) -> str | None:
    """Path of the outermost field of a name; None if there is none, or several as far inside."""
    places = sorted(_places(root).get(name, ()), key=_depth)
    if places and (len(places) == 1 or _depth(places[0]) < _depth(places[1])):
        return places[0]
    return None


def fields_of(model: type[BaseModel] | None) -> dict[str, Any]:
    """Annotations by the names that a manifest has for them; none of what is no object."""
    fields = {} if model is None else model.model_fields
    return {field.alias or name: field.annotation for name, field in fields.items()}


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The object that an annotation stands for, alone, in a list or as one of several."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
        if candidate is not annotation and (inner := model_of(candidate)) is not None:
            return inner
    return None


@functools.cache
def _places(root: type[BaseModel]) -> dict[str, list[str]]:
    """Paths of every field by its name, but for those of the members of lists."""
    found: dict[str, list[str]] = {}
    for path in _paths(root, ""):
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return found


def _depth(path: str) -> int:
    """How far inside it is: of several places for a name, the outermost is the likely one."""
    return path.count(".")


def _paths(model: type[BaseModel], head: str) -> Iterator[str]:
    for name, annotation in fields_of(model).items():
        yield f"{head}{name}"
        inner = model_of(annotation)
        if inner is not None and "list[" not in str(annotation):
            yield from _paths(inner, f"{head}{name}.")
