"""Arrays that come in whole, .npy and binary tensors: checked, and converted to what is declared.

numpy evaluates the header of an .npy file as a Python literal; here it is matched against the forms
that the format has, so that no text of a client ever reaches Python's parser, and its sizes are not
trusted.
"""

import io
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from batchedapi_serving.codecs.interface import Array
from batchedapi_serving.codecs.json_values import check_row_count
from batchedapi_serving.errors import InvalidInputError, MalformedError, TooLargeError, brief
from batchedapi_serving.predictor import MethodSpec, Tensor

MAX_WIDENED_BYTES: Final = 64 * 1024 * 1024
"""Most for one input after its values were converted to a wider type; what is sent in the declared
type is bounded by the body alone."""
_PLACE: Final = "array"
_MAX_HEADER: Final = 10_000  # bytes; numpy's own limit
_LENGTH_BYTES: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
"""How long the header's length is, by a file's first bytes."""
_MEMBER: Final = re.compile(
    rb"""\s*(?:
        'descr'\s*:\s*'(?P<descr>[<>|=]?[A-Za-z][0-9]{0,9}(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?)'
        | 'fortran_order'\s*:\s*(?P<fortran_order>True|False)
        | 'shape'\s*:\s*\((?P<shape>[0-9, ]*)\)
    )\s*(?:,|$)""",
    re.VERBOSE,
)
STRUCT_CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
REFUSED: Final = (struct.error, OverflowError, TypeError)
"""Raised by `struct` for a number that is none, or out of range."""
_MEMBERS: Final = {"descr", "fortran_order", "shape"}
_MALFORMED: Final = "body: expected a file written by numpy.save (.npy 1.0 or 2.0)"


def checked_arrays(
    method: MethodSpec, arrays: Mapping[str, Array], place: str
) -> tuple[list[Array], dict[str, int]]:
    """Arrays of all inputs in declared order and type, and the lengths of named dimensions.

    Raises:
        InvalidInputError: names, shapes or types do not fit, values are not finite, no row.
        TooLargeError: more rows than there may be.
    """
    if set(arrays) != set(method.inputs):
        raise InvalidInputError(
            f"{place}: expected the inputs {', '.join(method.inputs)},"
            f" got {brief(list(arrays))[1:-1] or 'none'}"
        )
    lengths: dict[str, int] = {}
    for name, tensor in method.inputs.items():
        check_dtype(arrays[name].dtype, tensor, f"{place}[{name!r}]")
        check_shape(arrays[name].shape, tensor, f"{place}[{name!r}]", lengths)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name}: {count}" for name, count in rows.items())
        raise InvalidInputError(f"{place}: expected as many rows in each input, got {counts}")
    checked = [
        converted(arrays[name], tensor, f"{place}[{name!r}]")
        for name, tensor in method.inputs.items()
    ]
    return checked, lengths


def check_shape(
    shape: tuple[int, ...], tensor: Tensor, place: str, lengths: dict[str, int]
) -> None:
    """Check the shape of a batch, rows first.

    Args:
        lengths: Of the named dimensions seen so far; those of this array are added.

    Raises:
        InvalidInputError: dimensions or lengths are not the tensor's, or there is no row.
        TooLargeError: more rows than there may be.
    """
    fits = len(shape) == len(tensor.shape) + 1
    for length, expected in zip(shape[1:], tensor.shape, strict=False):
        if isinstance(expected, str):
            expected = lengths.setdefault(expected, length)  # noqa: PLW2901 - the name's length
            fits = fits and length >= 1
        fits = fits and length == expected
    if not fits:
        names = [
            f"{n}={lengths[n]}" if isinstance(n, str) and lengths.get(n, 0) > 0 else str(n)
            for n in tensor.shape
        ]
        wanted = f"(rows, {', '.join(names)})" if names else "(rows,)"
        raise InvalidInputError(f"{place}: expected shape {wanted}, got {shape}")
    check_row_count(shape[0])
    if shape[0] < 1:
        raise InvalidInputError(f"{place}: expected at least one row, got shape {shape}")


def check_dtype(dtype: np.dtype[Any], tensor: Tensor, place: str) -> None:
    """Check that values of `dtype` are values of the tensor's type.

    Raises:
        InvalidInputError: they are of another kind, or objects.
    """
    if dtype.hasobject or not np.can_cast(dtype, tensor.numpy_dtype, casting="same_kind"):
        raise InvalidInputError(f"{place}: expected {tensor.dtype} or narrower, got dtype {dtype}")


def converted(array: Array, tensor: Tensor, place: str) -> Array:
    """The array in C order, little endian, of the tensor's type.

    Raises:
        InvalidInputError: a value is out of the type's range, or not finite though it must be.
        TooLargeError: a narrower type was sent, and the declared one takes too many bytes.
    """
    size = array.size * np.dtype(tensor.numpy_dtype).itemsize
    if size > max(array.nbytes, MAX_WIDENED_BYTES):
        raise TooLargeError(
            f"{place}: expected at most {MAX_WIDENED_BYTES} bytes as {tensor.dtype}, got {size};"
            f" send fewer rows at a time, or values that are {tensor.dtype} already"
        )
    return cast(array, tensor, place)


def cast(array: Array, tensor: Tensor, place: str) -> Array:
    """The same, however many bytes it takes; no integer is wrapped, no number becomes Infinity.

    Raises:
        InvalidInputError: a value is out of the type's range, or not finite though it must be.
    """
    with np.errstate(over="ignore"):  # an overflow becomes inf and is refused below
        packed = np.ascontiguousarray(array, dtype=tensor.numpy_dtype).reshape(array.shape)
    if packed.dtype.kind == "f":
        if tensor.allow_non_finite:
            # What is Infinity only because the declared type is too narrow for it.
            wrong = np.isfinite(array) & ~np.isfinite(packed)
            if wrong.any():
                raise InvalidInputError(
                    f"{place}{_path_of_first(wrong)}: expected {tensor.dtype} values,"
                    " got one out of range"
                )
        check_finite(packed, tensor, place)
    elif not np.can_cast(array.dtype, packed.dtype) and not (packed == array).all():
        raise InvalidInputError(f"{place}: expected {tensor.dtype} values, got one out of range")
    return packed


def check_finite(array: Array, tensor: Tensor, place: str) -> None:
    """Refuse NaN and Infinity, unless the tensor allows them.

    Raises:
        InvalidInputError: there is one; the message has its place.
    """
    if array.dtype.kind != "f" or tensor.allow_non_finite:
        return
    finite = np.isfinite(array)
    if not finite.all():
        raise InvalidInputError(
            f"{place}{_path_of_first(~finite)}: expected finite {tensor.dtype} values,"
            " got NaN or Infinity"
        )


def _path_of_first(wrong: Array) -> str:
    return "".join(f"[{i}]" for i in np.argwhere(wrong)[0])


def decode_npy(body: bytes, tensor: Tensor) -> Array:
    """The array (rows, *tensor.shape), in the tensor's type.

    Raises:
        MalformedError: not an .npy file, or shorter than its header says.
        InvalidInputError: shape or type do not fit, or values are not finite.
    """
    length_bytes = _LENGTH_BYTES.get(body[:8])
    if length_bytes is None:
        raise MalformedError(_MALFORMED)
    start = 8 + length_bytes
    stop = start + int.from_bytes(body[8:start], "little")
    if stop - start > _MAX_HEADER or stop > len(body):
        raise MalformedError(_MALFORMED)
    data = memoryview(body)[stop:]
    try:
        members = _members(body[start:stop])
        shape = _lengths(members["shape"])
        dtype = np.dtype(members["descr"].decode("ascii"))
    except (ValueError, TypeError, KeyError) as error:  # TypeError: numpy has no such type
        raise MalformedError(_MALFORMED) from error
    check_shape(shape, tensor, _PLACE, {})
    check_dtype(dtype, tensor, _PLACE)
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise MalformedError(
            f"body: expected {size} bytes of data after the header, got {len(data)}"
        )
    order: Any = "F" if members["fortran_order"] == b"True" else "C"
    return converted(np.frombuffer(data, dtype=dtype).reshape(shape, order=order), tensor, _PLACE)


def _members(header: bytes) -> dict[str, bytes]:
    """Each of the three once, in any order."""
    text = header.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise ValueError("no dict")
    text = text[1:-1].strip()
    found: dict[str, bytes] = {}
    position = 0
    while position < len(text):
        match = _MEMBER.match(text, position)
        if match is None or match.lastgroup is None or match.lastgroup in found:
            raise ValueError("no member, or one that was there")
        found[match.lastgroup] = match[match.lastgroup]
        position = match.end()
    if set(found) != _MEMBERS:
        raise ValueError("a member is missing")
    return found


def _lengths(text: bytes) -> tuple[int, ...]:
    """`(3,)` has the comma of a tuple; int() bounds the digits by itself."""
    parts = text.split(b",")
    if len(parts) == 1 and text.strip():
        raise ValueError("a number, no tuple")
    if not parts[-1].strip():
        parts.pop()
    return tuple(int(part) for part in parts)


def encode_npy(array: Array) -> bytes:
    """The array as numpy.save writes it."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def packed_numbers(dtype: str, numbers: Sequence[Any]) -> bytes | None:
    """Bytes of JSON numbers, little endian; None: one of them is not of the type."""
    try:
        return struct.pack(f"<{len(numbers)}{STRUCT_CODES[dtype]}", *numbers)
    except REFUSED:
        return None


def wrong_number(dtype: str, numbers: Sequence[Any]) -> int:
    """The place of the first of several JSON numbers that is not of the type."""
    is_bool = dtype == "BOOL"
    for i, number in enumerate(numbers):
        if (type(number) is bool) != is_bool or packed_numbers(dtype, (number,)) is None:
            return i
    raise AssertionError(f"{dtype}: every number packs alone, but not together")
