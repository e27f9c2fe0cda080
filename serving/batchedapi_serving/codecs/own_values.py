"""Values of user code as JSON: each type in one form, or refused; no value becomes another.

orjson writes nearly everything at once. What it refuses, and what it may have written as null
though it is none, is walked: there is one place that says what a value becomes.

    named tuples, tuples            lists, as the standard library, pydantic and msgspec have them
    numpy: numbers, texts, dates    lists, also of text (dtypes U, T and object), in any layout
    masked values                   null
    floats that are not finite      refused, or words where the reader takes them (NON_FINITE)
    integers beyond 64 bits, sets, bytes, complex, Decimal, longdouble ...      refused
    keys                            text, as orjson has them; refused if two become the same
"""

import dataclasses
import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Never

import numpy as np
import orjson
from orjson import dumps  # as it is before user code has done anything to it

from batchedapi_serving.codecs.interface import Array
from batchedapi_serving.codecs.json_values import NON_FINITE

_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_ANY_KEY: Final = _NUMPY | orjson.OPT_NON_STR_KEYS
_AS_THEY_ARE: Final = (
    str, int, bool, type(None), dt.datetime, dt.date, dt.time, uuid.UUID,
    orjson.Fragment,
)  # fmt: skip
_WIDEST: Final = 8
"""Bytes of a float that JSON's readers have, too; longdouble has more."""
_DEEPEST: Final = 250
"""Levels; orjson's own limit is 254."""
_Walk = Callable[[float], Any]
"""Replaces a float that is not finite."""


class NotJsonError(ValueError):
    """A value has no form in JSON.

    Attributes:
        what: It is, in words.
        path: Where it is, as in `.scores[3]`.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""

    def __str__(self) -> str:
        return f"{self.what} at {self.path:.200}" if self.path else self.what


def json_of(value: Any, *, spelled: bool = False) -> bytes:
    """JSON text of a value.

    Args:
        spelled: Whether NaN and Infinity are written as NON_FINITE reads them.

    Raises:
        NotJsonError: it, or a part of it, has no form in JSON.
    """
    try:
        text = dumps(value, option=_NUMPY)
    except TypeError:
        pass
    else:
        if b"null" not in text:  # which is what NaN and Infinity are written as
            return text
    walked = _walked(value, _spelled if spelled else _refused, 0)
    try:
        return dumps(walked, option=_ANY_KEY)
    except TypeError as error:
        raise NotJsonError(f"something that is not JSON: {error}") from error


def utf8_of(text: str) -> bytes:
    """The bytes of a text.

    Raises:
        NotJsonError: it holds half a surrogate, which is no character.
    """
    try:
        return str.encode(text)  # a subclass may have another encode
    except UnicodeEncodeError as error:
        raise NotJsonError(f"text with half a surrogate at {error.start}") from error


def _refused(_: float) -> Never:
    raise NotJsonError("NaN or Infinity")


def _spelled(value: float) -> str | None:
    return next(word for word, number in NON_FINITE.items() if number == value or math.isnan(value))


def _walked(value: Any, odd: _Walk, depth: int) -> Any:
    """The same made of what orjson writes as it is."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if depth > _DEEPEST:
        raise NotJsonError(f"something that is not JSON: more than {_DEEPEST} levels")
    if isinstance(value, np.generic):
        return _scalar(value, odd)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else odd(value)
    if isinstance(value, np.ndarray):
        return _array(value, odd, depth)
    if isinstance(value, enum.Enum):
        return _walked(value.value, odd, depth + 1)
    return _container(value, odd, depth)


def _container(value: Any, odd: _Walk, depth: int) -> Any:
    if isinstance(value, dict):
        return _object(value, odd, depth)
    if isinstance(value, list | tuple):
        return _list(value, odd, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(_attributes(value), odd, depth)
    if isinstance(value, _AS_THEY_ARE):  # a subclass: orjson says whether it is one of its
        return value
    raise NotJsonError(f"something that is not JSON: {type(value).__name__:.80}")


def _list(members: Iterable[Any], odd: _Walk, depth: int) -> list[Any]:
    walked: list[Any] = []
    try:
        for member in members:
            # Most are texts and numbers, for which a call would take as long as the rest.
            kind = type(member)
            fine = math.isfinite(member) if kind is float else kind in _AS_THEY_ARE
            walked.append(member if fine else _walked(member, odd, depth + 1))
    except NotJsonError as error:
        error.path = f"[{len(walked)}]{error.path}"
        raise
    return walked


def _object(members: Mapping[Any, Any], odd: _Walk, depth: int) -> dict[Any, Any]:
    walked: dict[Any, Any] = {}
    for name, member in members.items():
        try:
            walked[_key(name)] = _walked(member, odd, depth + 1)
        except NotJsonError as error:
            error.path = f".{name!s:.40}{error.path}"
            raise
    if len(set(map(type, walked))) > 1 and _fewer_texts(walked):
        raise NotJsonError("keys that are the same in JSON")
    return walked


def _key(name: Any) -> Any:
    if isinstance(name, np.generic):
        name = name.item()
    if isinstance(name, enum.Enum):
        name = name.value
    return _refused(name) if isinstance(name, float) and not math.isfinite(name) else name


def _fewer_texts(names: Iterable[Any]) -> bool:
    """Whether two of the keys are one text: 1 and "1"."""
    try:
        texts = [dumps({name: 0}, option=_ANY_KEY) for name in names]
    except TypeError as error:
        raise NotJsonError(f"something that is not JSON: {error}") from error
    return len(set(texts)) < len(texts)


def _attributes(value: Any) -> Mapping[str, Any]:
    """The attributes of a dataclass that orjson writes."""
    known: Mapping[str, Any] = getattr(value, "__dict__", None) or {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value)
    }
    return {name: member for name, member in known.items() if not name.startswith("_")}


def _scalar(value: Any, odd: _Walk) -> Any:
    kind = value.dtype.kind
    if kind == "f" and value.itemsize <= _WIDEST:
        return value if np.isfinite(value) else odd(float(value))
    if kind in "biuMU":
        return value
    raise NotJsonError(f"something that is not JSON: numpy {value.dtype}")


def _array(array: Array, odd: _Walk, depth: int) -> Any:
    kind = array.dtype.kind
    if kind in "UTO" or isinstance(array, np.ma.MaskedArray):
        listed = array.tolist()
        return _list(listed, odd, depth) if array.ndim else _walked(listed, odd, depth + 1)
    if kind not in "biufM" or (kind == "f" and array.itemsize > _WIDEST):
        raise NotJsonError(f"something that is not JSON: an array of {array.dtype}")
    if not array.ndim:
        return _scalar(array[()], odd)
    if kind == "f" and not np.isfinite(array).all():
        return _list(array.tolist(), odd, depth)
    # What is transposed or sliced, or has the bytes of another machine, orjson does not read.
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
