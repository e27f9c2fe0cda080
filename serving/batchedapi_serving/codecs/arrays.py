"""Arrays that come in whole (.npy, binary tensors): checked, and converted to what is declared."""

from typing import Any, Final

import numpy as np

from batchedapi_serving.codecs.json_values import check_row_count
from batchedapi_serving.errors import InvalidInputError, TooLargeError
from batchedapi_serving.predictor.api import Tensor

Array = np.ndarray[Any, Any]
MAX_WIDENED_BYTES: Final = 64 * 1024 * 1024
"""Of one input after its values were converted to a wider type; what is sent in the declared type
is bounded by the body alone."""


def check_shape(
    shape: tuple[int, ...], tensor: Tensor, place: str, lengths: dict[str, int]
) -> None:
    """Check the shape of a batch, rows first.

    Args:
        shape: Of the whole array.
        tensor: One row of it.
        place: What messages call the array.
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
        raise InvalidInputError(
            f"{place}: expected shape {_expected(tensor, lengths)}, got {shape}"
        )
    check_row_count(shape[0])
    if shape[0] < 1:
        raise InvalidInputError(f"{place}: expected at least one row, got shape {shape}")


def _expected(tensor: Tensor, lengths: dict[str, int]) -> str:
    names = [
        f"{n}={lengths[n]}" if isinstance(n, str) and lengths.get(n, 0) > 0 else str(n)
        for n in tensor.shape
    ]
    return f"(rows, {', '.join(names)})" if names else "(rows,)"


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
    with np.errstate(over="ignore"):  # an overflow becomes inf and is refused below
        packed = np.ascontiguousarray(array, dtype=tensor.numpy_dtype).reshape(array.shape)
    if packed.dtype.kind == "f":
        if tensor.allow_non_finite:
            _check_range(array, packed, tensor, place)
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


def _check_range(array: Array, packed: Array, tensor: Tensor, place: str) -> None:
    """Refuse numbers that are Infinity only because the declared type is too narrow for them."""
    wrong = np.isfinite(array) & ~np.isfinite(packed)
    if wrong.any():
        raise InvalidInputError(
            f"{place}{_path_of_first(wrong)}: expected {tensor.dtype} values, got one out of range"
        )


def _path_of_first(wrong: Array) -> str:
    return "".join(f"[{i}]" for i in np.argwhere(wrong)[0])
