"""Rows of a declared tensor: from JSON numbers to packed bytes, and from an array to JSON text.

`struct` packs and checks in one call (it refuses text, null and nested lists, and says so of floats
out of range), so a row costs about as much as copying it. `true` and `false` are numbers to it:
they are looked for only if the body contains such a word at all. Where NaN and Infinity are
allowed, JSON says them as json_values.NON_FINITE has it, in and out; out, NaN is null.
"""

import contextlib
import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_serving.codecs.json_values import read_non_finite
from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor.api import Tensor

_STRUCT_CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip


_REFUSED: Final = (struct.error, OverflowError, TypeError)
"""What `struct` raises of a number that is none, or out of range."""
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_NULL: Final = b"null"
_N: Final = _NULL[0]


class RowPacker:
    """Packs JSON rows of one tensor without variable dimensions."""

    __slots__ = ("_flat", "_is_bool", "_pack", "_shape", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._shape = tensor.fixed_shape
        self._pack = struct.Struct(f"<{tensor.items_per_row}{_STRUCT_CODES[tensor.dtype]}").pack
        self._flat = len(tensor.shape) == 1
        self._is_bool = tensor.dtype == "BOOL"

    def pack(self, row: Any, place: str, *, may_hold_bool: bool) -> bytes:
        """Bytes of one row, little endian, in C order.

        Args:
            row: A parsed JSON value.
            place: JSON path of the row, for errors.
            may_hold_bool: False if the body cannot contain `true` or `false`.

        Raises:
            InvalidInputError: shape, type or range is not the tensor's.
        """
        numbers = row if self._flat else self._flattened(row, place)
        if type(numbers) is not list:
            raise self._wrong_shape(row, place)
        if (may_hold_bool or self._is_bool) and not self._types_fit(numbers):
            raise self._culprit(numbers, place)
        try:
            return self._pack(*numbers)
        except _REFUSED as error:
            if self._flat and len(numbers) != self._shape[0]:
                raise self._wrong_shape(row, place) from error
            if self._tensor.allow_non_finite:
                with contextlib.suppress(*_REFUSED):
                    return self._pack(*read_non_finite(numbers))
            raise self._culprit(numbers, place) from error

    def _flattened(self, row: Any, place: str) -> list[Any]:
        level = [row]
        for length in self._shape:
            if not all(type(part) is list and len(part) == length for part in level):
                raise self._wrong_shape(row, place)
            level = list(itertools.chain.from_iterable(level))
        return level

    def _types_fit(self, numbers: Sequence[Any]) -> bool:
        return all((type(number) is bool) == self._is_bool for number in numbers)

    def _wrong_shape(self, row: Any, place: str) -> InvalidInputError:
        return wrong_shape(row, self._tensor, place)

    def _culprit(self, numbers: Sequence[Any], place: str) -> InvalidInputError:
        one = struct.Struct(f"<{_STRUCT_CODES[self._tensor.dtype]}")
        if self._tensor.allow_non_finite:
            numbers = read_non_finite(numbers)
        for i, number in enumerate(numbers):
            path = place + "".join(f"[{k}]" for k in _unravel(i, self._shape))
            try:
                if (type(number) is bool) == self._is_bool:
                    one.pack(number)
                    continue
            except _REFUSED:
                pass
            return InvalidInputError(f"{path}: expected {self._tensor.dtype}, got {brief(number)}")
        raise AssertionError(f"{place}: every number packs alone, but not together")


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    indices = []
    for length in reversed(shape):
        index, rest = divmod(index, length)
        indices.append(rest)
    return indices[::-1]


def wrong_shape(row: Any, tensor: Tensor, place: str) -> InvalidInputError:
    """The error for a row whose shape is not the tensor's."""
    return InvalidInputError(
        f"{place}: expected {tensor.dtype} of shape {list(tensor.shape)}, got {_shape_of(row)}"
    )


def _shape_of(value: Any) -> str:
    """A shape as far as it is regular, in words for an error."""
    if type(value) is not list:
        return brief(value)
    shape = []
    while type(value) is list:
        shape.append(len(value))
        if not value or not all(
            type(part) is list and type(value[0]) is list and len(part) == len(value[0])
            for part in value
        ):
            ragged = any(type(part) is list for part in value)
            return f"shape {shape}" + (" with parts of different lengths" if ragged else "")
        value = value[0]
    return f"shape {shape}"


def json_rows(array: np.ndarray[Any, Any]) -> list[bytes]:
    """JSON text of each row of `array`, (rows, ...), rows >= 1.

    The whole batch is written at once and cut between rows, which is far cheaper than a call a row;
    float32 gets its own shortest text (0.1, not 0.10000000149011612).
    """
    text = json_text(array)
    depth = array.ndim - 1
    if depth == 0:
        return text[1:-1].split(b",")
    if not array.size:  # no numbers, no closing brackets to cut at
        return [orjson.dumps(row.tolist()) for row in array]
    opening, closing = b"[" * depth, b"]" * depth
    inner = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [b"%b%b%b" % (opening, row, closing) for row in inner]


def json_text(array: np.ndarray[Any, Any]) -> bytes:
    """JSON text of an array: NaN is null, Infinity and -Infinity are texts of that name."""
    text = orjson.dumps(np.ascontiguousarray(array), option=_NUMPY)
    # No number, true or false has the letter; to search for a byte costs next to nothing.
    if _N not in text or not np.isinf(array).any():
        return text
    pieces = text.split(_NULL)
    for i, number in enumerate(array[~np.isfinite(array)]):
        pieces[i] += _NULL if np.isnan(number) else b'"Infinity"' if number > 0 else b'"-Infinity"'
    return b"".join(pieces)


def array_of(
    payload: bytes, dtype: str, shape: Sequence[int], offset: int = 0
) -> np.ndarray[Any, Any]:
    """A read-only array over packed bytes; copies nothing."""
    if len(shape) == 1:
        return np.frombuffer(payload, dtype, shape[0], offset)
    return np.frombuffer(payload, dtype, math.prod(shape), offset).reshape(shape)
