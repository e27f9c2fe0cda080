"""Checks of the fields of JSON objects in the queue, which perhaps another release wrote.

A table has the fields that a kind of object must have. Lists may have more members than are known,
and objects more fields: a later release put them there.
"""

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT, METHOD_BATCH
from batchedapi_serving.ipc import BrokenFrameError
from batchedapi_serving.tracing.spans import QUEUE_WAIT

Fits: TypeAlias = Callable[[Any], bool]
"""Whether a field may have that value; MISSING is the value of one that is not there."""
MISSING: Final = object()
UNREADABLE: Final = (
    ArithmeticError, AttributeError, BrokenFrameError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError, struct.error,
)  # fmt: skip
"""Errors from a value that is not of the type, shape or size that it has to have."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DTYPE: Final = re.compile(r"[<>|][biuf][0-9]{1,2}")
"""Never of objects, which numpy would take for addresses."""
_INT64: Final = 1 << 63
_STATUSES: Final = range(200, 600)


class UnreadableError(ValueError):
    """Something that another process wrote cannot be read here.

    The message says what it is, in words of ours alone: there are not many different ones.
    """


def object_of(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object of a text; `what` it is to be, for errors.

    Raises:
        UnreadableError: it is none.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"{what} that is not JSON") from error
    if not isinstance(value, dict):
        raise UnreadableError(f"{what} that is no JSON object")
    return value


def unread_of(value: Mapping[str, Any], fields: Mapping[str, Fits]) -> tuple[str, ...]:
    """Names of the fields that cannot be read."""
    get = value.get
    return tuple([name for name, fits in fields.items() if not fits(get(name, MISSING))])


def is_name(value: object) -> bool:
    """Whether a process may be called so: it is a part of keys."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_whole(value: object) -> bool:
    """0 or more; true and false are none."""
    return type(value) is int and value >= 0


def are_whole(value: object) -> bool:
    """A list of such."""
    return isinstance(value, list) and all(map(is_whole, value))


def _is(kind: type) -> Fits:
    return lambda value: isinstance(value, kind)


_is_text: Final = _is(str)
_is_flag: Final = _is(bool)


def _is_there(value: object) -> bool:
    return value is not MISSING


def _is_number(value: object) -> bool:
    return (type(value) is int or type(value) is float) and value >= 0


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_status(value: object) -> bool:
    return type(value) is int and value in _STATUSES


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _or(fits: Fits, other: object) -> Fits:
    return lambda value: value is other or fits(value)


def _each(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _list(*fits: Fits) -> Fits:
    """A list of these, and perhaps more behind them."""
    places = tuple(enumerate(fits))

    def begins_so(value: Any) -> bool:
        if not isinstance(value, list) or len(value) < len(places):
            return False
        for place, one in places:  # noqa: SIM110 - all() takes twice the time, of each answer
            if not one(value[place]):
                return False
        return True

    return begins_so


def _is_fact(value: object) -> bool:
    return type(value) in {float, str} or (type(value) is int and abs(value) < _INT64)


def is_trace_of_answer(value: Any) -> bool:
    """Whether an answer may say so of what a span has learned; it may be missing."""
    if value is MISSING:
        return True
    if not isinstance(value, dict) or not isinstance(value.get("facts"), dict):
        return False
    facts = value["facts"]
    return (
        all(map(_is_fact, facts.values()))
        and _is_number(facts.get(QUEUE_WAIT, 0))
        and _each(_are_texts)(value.get("links"))
    )


is_receipt: Final[Fits] = _or(
    _list(
        _is_text, is_whole, is_whole, is_whole, _is_number, _is_number, _is_text, _is_text, is_whole
    ),
    None,
)
"""Members of Receipt, in their order."""
_is_known_item: Final = _list(_is_status, lambda kind: kind in ("json", "text", "bytes"), is_whole)
_is_said: Final = _list(_is_status, _are_texts)


def is_item(value: Any) -> bool:
    """An item of results, see codecs/results."""
    return _is_known_item(value) and all(map(_is_said, value[3:4]))


is_output: Final[Fits] = _list(
    _is_text,
    lambda dtype: isinstance(dtype, str) and _DTYPE.fullmatch(dtype) is not None,
    lambda shape: bool(shape) and (are_whole(shape) or _each(are_whole)(shape)),
)
"""An output of results, see codecs/results."""

ANSWER: Final[Mapping[str, Fits]] = {"receipt": is_receipt, "trace": is_trace_of_answer}
"""Beside results, which are as good without it; beside an error there is no receipt."""
ANSWERED_ERROR: Final[Mapping[str, Fits]] = {"trace": is_trace_of_answer}
REQUEST: Final[Mapping[str, Fits]] = {
    "client": is_whole,
    "rows": lambda rows: _is_count(rows) and rows <= MAX_BATCH_SIZE_LIMIT,
    "timeout": _or(_is_number, None),
    "sizes": _or(_each(_is_count), None),
    "shapes": _or(_each(_or(are_whole, None)), None),
    "payload": _is_there,
    "trace": _or(_are_texts, MISSING),
}
"""And whoever waits for its answer."""
ERROR: Final[Mapping[str, Fits]] = {
    "code": _is_text,
    "message": _is_text,
    "retry_after": _is_number,
}
WORKER: Final[Mapping[str, Fits]] = {
    "signature": _is_text,
    "revision": _is_text,
    "started": _is_number,
    "draining": _is_flag,
    "capacity": lambda value: (
        isinstance(value, dict) and all(map(_list(is_whole, is_whole, _is_number), value.values()))
    ),
}
METHODS: Final[Mapping[str, Fits]] = {
    "methods": _each(_is(dict)),
    "default": _or(_is_text, None),
    "at": _is_number,
}
_is_tensors: Final = _each(_list(_is_text, _is_text, _is(list), _is_flag))
METHOD: Final[Mapping[str, Fits]] = {
    "name": lambda name: _is_text(name) and bool(name.removesuffix(METHOD_BATCH).isidentifier()),
    "batched": _is_flag,
    "is_async": _is_flag,
    "streams": _is_flag,
    "inputs": _is_tensors,
    "single_input": _is_flag,
    "outputs": _is_tensors,
    "single_output": _is_flag,
    "batch_dim": _list(is_whole, is_whole),
    "max_batch_size": _is_count,
    "size_of": _or(_list(_is_text, _or(_is_text, None), _is_number), None),
    "example": _is_there,
}
