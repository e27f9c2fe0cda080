"""The .npy format in and out, without pickle and without trusting the header's sizes."""

import io
import math
import tokenize
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from batchedapi_serving.codecs.json_values import check_row_count
from batchedapi_serving.errors import InvalidInputError, MalformedError
from batchedapi_serving.predictor.api import Tensor

_MAX_HEADER: Final = 10_000  # bytes; numpy's own limit for headers it evaluates
_BAD_HEADER: Final = (
    ValueError, KeyError, EOFError,
    # numpy tokenizes and parses a header as Python; each of these was seen with hostile ones
    tokenize.TokenError, SyntaxError, RecursionError, MemoryError, TypeError, OverflowError,
)  # fmt: skip


def decode_npy(body: bytes, tensor: Tensor) -> tuple[int, bytes]:
    """Rows and packed bytes of an array (rows, *tensor.shape).

    Raises:
        MalformedError: not an .npy file, or shorter than its header says.
        InvalidInputError: shape or type do not fit, or values are not finite.
    """
    stream = io.BytesIO(body)
    try:
        version = npy_format.read_magic(stream)
        read = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}[
            version
        ]
        shape, fortran_order, dtype = read(stream, max_header_size=_MAX_HEADER)
    except _BAD_HEADER as error:
        raise MalformedError(
            "body: expected a file written by numpy.save (.npy 1.0 or 2.0)"
        ) from error
    _check_header(shape, dtype, tensor)
    size = math.prod(shape) * dtype.itemsize
    data = memoryview(body)[stream.tell() :]
    if len(data) != size:
        raise MalformedError(
            f"body: expected {size} bytes of data after the header, got {len(data)}"
        )
    order: Any = "F" if fortran_order else "C"
    array = np.frombuffer(data, dtype=dtype).reshape(shape, order=order)
    with np.errstate(over="ignore"):  # an overflow becomes inf and is refused below
        packed = np.ascontiguousarray(array, dtype=tensor.numpy_dtype)
    if packed.dtype.kind == "f" and not np.isfinite(packed).all():
        raise InvalidInputError(
            f"array: expected finite {tensor.dtype} values, got NaN or Infinity"
        )
    return shape[0], packed.tobytes()


def _check_header(shape: tuple[int, ...], dtype: np.dtype[Any], tensor: Tensor) -> None:
    expected = f"(rows, {', '.join(map(str, tensor.shape))})" if tensor.shape else "(rows,)"
    if len(shape) != len(tensor.shape) + 1 or shape[1:] != tensor.shape:
        raise InvalidInputError(f"array: expected shape {expected}, got {shape}")
    check_row_count(shape[0])
    if shape[0] < 1:
        raise InvalidInputError(f"array: expected at least one row, got shape {shape}")
    if dtype.hasobject or not np.can_cast(dtype, tensor.numpy_dtype, casting="same_kind"):
        raise InvalidInputError(f"array: expected {tensor.dtype} or narrower, got dtype {dtype}")


def encode_npy(array: np.ndarray[Any, Any]) -> bytes:
    """The array as numpy.save writes it."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()
