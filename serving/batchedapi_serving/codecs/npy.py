"""The .npy format in and out, without pickle and without trusting the header's sizes."""

import io
import math
import tokenize
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from batchedapi_serving.codecs.arrays import Array, check_dtype, check_shape, converted
from batchedapi_serving.errors import MalformedError
from batchedapi_serving.predictor.api import Tensor

_PLACE: Final = "array"
_MAX_HEADER: Final = 10_000  # bytes; numpy's own limit for headers it evaluates
_BAD_HEADER: Final = (
    ValueError, KeyError, EOFError,
    # numpy tokenizes and parses a header as Python; each of these was seen with hostile ones
    tokenize.TokenError, SyntaxError, RecursionError, MemoryError, TypeError, OverflowError,
)  # fmt: skip


def decode_npy(body: bytes, tensor: Tensor) -> Array:
    """The array (rows, *tensor.shape), in the tensor's type.

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
    check_shape(shape, tensor, _PLACE, {})
    check_dtype(dtype, tensor, _PLACE)
    size = math.prod(shape) * dtype.itemsize
    data = memoryview(body)[stream.tell() :]
    if len(data) != size:
        raise MalformedError(
            f"body: expected {size} bytes of data after the header, got {len(data)}"
        )
    order: Any = "F" if fortran_order else "C"
    return converted(np.frombuffer(data, dtype=dtype).reshape(shape, order=order), tensor, _PLACE)


def encode_npy(array: Array) -> bytes:
    """The array as numpy.save writes it."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()
