"""Raw tensors: the binary tensor data extension over HTTP, and `raw_*_contents` over gRPC.

Elements lie in row-major order, little endian, without gaps; BOOL is one byte, 0 or 1; a BYTES
element is its length as uint32 and then its bytes. Over HTTP, the body is a JSON text, whose length
is in a header, followed by the raw tensors in the order of `inputs`.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_serving.codecs.interface import Array, Head
from batchedapi_serving.codecs.json_values import check_value_count, is_json, unsupported
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    MalformedError,
    PredictorError,
)
from batchedapi_serving.predictor.tensor import DTYPES

BYTES: Final = "BYTES"
HEADER_LENGTH: Final = b"inference-header-content-length"
OCTETS: Final = b"application/octet-stream"
_MAX_DIGITS: Final = 18
_LENGTH: Final = struct.Struct("<I")
_DATATYPES: Final = {np.dtype(text).str: name for name, text in DTYPES.items()}

Elements = Array | Sequence[Any]


class SplitBody(NamedTuple):
    """A body whose JSON ends before raw tensors begin."""

    text: bytes
    raw: memoryview


def split_body(head: Head, body: bytes) -> SplitBody:
    """Where the JSON ends: at the length the header gives; without it, at the end.

    Raises:
        MalformedError: the header is not a length, or one beyond the body.
        UnsupportedTypeError: neither JSON nor raw tensors.
    """
    value = next((value for name, value in head.headers if name == HEADER_LENGTH), None)
    if value is None:
        if not is_json(head.content_type):
            raise unsupported(
                head.content_type,
                f"application/json, or {OCTETS.decode()} with Inference-Header-Content-Length",
            )
        return SplitBody(body, memoryview(b""))
    if not value.isdigit() or len(value) > _MAX_DIGITS or int(value) > len(body):
        raise MalformedError(
            f"header Inference-Header-Content-Length: expected 0 to {len(body)}, the length of the"
            f" body, got {value.decode('latin-1')!r:.40}"
        )
    return SplitBody(body[: int(value)], memoryview(body)[int(value) :])


def raw_bytes(head: Head, body: bytes) -> int:
    """How many bytes of a body are tensors that are not taken apart: none if texts are among them.

    Nor if an escape in the JSON may hide the name of their datatype.
    """
    try:
        text, raw = split_body(head, body)
    except ClientError:
        return 0
    return 0 if BYTES.encode() in text or b"\\" in text else len(raw)


def raw_elements(
    datatype: str, shape: Sequence[int], raw: bytes | memoryview, place: str
) -> Elements:
    """The elements of a raw tensor: a flat array, or for BYTES the list of them.

    Raises:
        InvalidInputError: `raw` is not as long as datatype and shape say.
    """
    count = math.prod(shape)
    if datatype == BYTES:
        check_value_count(count, place)
        return _bytes_elements(raw, count, place)
    expected = count * np.dtype(DTYPES[datatype]).itemsize
    if len(raw) != expected:
        raise InvalidInputError(
            f"{place}: expected {expected} bytes for {datatype} of shape {list(shape)},"
            f" got {len(raw)}"
        )
    if datatype == "BOOL" and expected and np.frombuffer(raw, "u1").max() > 1:
        raise InvalidInputError(f"{place}: expected bytes 0 and 1 for BOOL, got others")
    return packed_array(datatype, raw)


def _bytes_elements(raw: bytes | memoryview, count: int, place: str) -> list[bytes]:
    elements: list[bytes] = []
    offset = 0
    while offset < len(raw) and len(elements) < count:
        start = offset + _LENGTH.size
        if start > len(raw):
            break
        offset = start + _LENGTH.unpack_from(raw, offset)[0]
        if offset > len(raw):
            break
        elements.append(bytes(raw[start:offset]))
    if len(elements) != count or offset != len(raw):
        raise InvalidInputError(
            f"{place}: expected {count} elements, each after its length as uint32, in"
            f" {len(raw)} bytes; got {len(elements)} that fit"
        )
    return elements


def packed_array(datatype: str, packed: bytes | memoryview) -> Array:
    """A flat, read-only array over elements of any datatype but BYTES; nothing is copied."""
    return np.frombuffer(packed, dtype=DTYPES[datatype])


def raw_of(elements: Array | Sequence[bytes]) -> bytes:
    """The reverse of `raw_elements`; an array may have any shape."""
    if isinstance(elements, np.ndarray):
        return elements.astype(elements.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type.

    Raises:
        PredictorError: it has none.
    """
    name = _DATATYPES.get(dtype.newbyteorder("<").str)
    if name is None:
        raise PredictorError(
            f"the predictor answered numpy type {dtype}, for which the Open Inference Protocol has"
            f" no name; expected one of {', '.join(DTYPES)}"
        )
    return name
