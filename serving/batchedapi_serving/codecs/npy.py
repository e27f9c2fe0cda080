"""The .npy format in and out, without pickle and without trusting the header's sizes.

numpy evaluates a header as a Python literal; here it is matched against the forms that the format
has, so that no text of a client ever reaches Python's parser.
"""

import io
import math
import re
from typing import Any, Final

import numpy as np

from batchedapi_serving.codecs.arrays import Array, check_dtype, check_shape, converted
from batchedapi_serving.errors import MalformedError
from batchedapi_serving.predictor.api import Tensor

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
_MEMBERS: Final = {"descr", "fortran_order", "shape"}
_MALFORMED: Final = "body: expected a file written by numpy.save (.npy 1.0 or 2.0)"


def decode_npy(body: bytes, tensor: Tensor) -> Array:
    """The array (rows, *tensor.shape), in the tensor's type.

    Raises:
        MalformedError: not an .npy file, or shorter than its header says.
        InvalidInputError: shape or type do not fit, or values are not finite.
    """
    header, data = _split(body)
    try:
        members = _members(header)
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


def _split(body: bytes) -> tuple[bytes, memoryview]:
    """Header and data."""
    length_bytes = _LENGTH_BYTES.get(body[:8])
    if length_bytes is None:
        raise MalformedError(_MALFORMED)
    start = 8 + length_bytes
    stop = start + int.from_bytes(body[8:start], "little")
    if stop - start > _MAX_HEADER or stop > len(body):
        raise MalformedError(_MALFORMED)
    return body[start:stop], memoryview(body)[stop:]


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
