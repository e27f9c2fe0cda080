"""Arrays that a method answered: every check between its mistakes and other people's answers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from batchedapi_serving.codecs.results import cut_back, named_output
from batchedapi_serving.dispatch.frames import Meta, Payload
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.predictor.api import MethodSpec, Tensor

Array = np.ndarray[Any, Any]
Lengths = Mapping[str, Sequence[int]]
_LARGE: Final = 1 << 15  # bytes from which a copy less is worth a view
_WIDEST: Final = 8  # bytes of a number on the wire; longdouble has more


class TensorSplitter:
    """Frames the answers of one method; knows what the usual one is like."""

    __slots__ = ("_any_value", "_method", "_name", "_usual")

    def __init__(self, method: MethodSpec) -> None:
        self._method = method
        self._name = named_output(method)
        self._usual: tuple[np.dtype[Any], str, tuple[int, ...]] | None = None
        """Type, its name, and shape of a row; None: the method declares not enough to say."""
        tensor = method.outputs.get(self._name)
        self._any_value = tensor is not None and tensor.allow_non_finite
        if method.single_output and not method.batch_dim[1] and tensor and not tensor.variable:
            dtype = np.dtype(tensor.numpy_dtype)
            self._usual = dtype, dtype.str, tensor.fixed_shape

    def split(self, answer: Any, meta: Meta) -> tuple[Meta, Sequence[Payload]]:
        """`split_tensors` for the answer to the batch frame `meta`.

        An array of just the declared shape and type with allowed values, as nearly every answer is,
        needs no other check, and these take a third of the time.
        """
        rows = meta["rows"]
        if self._usual is not None and type(answer) is np.ndarray:
            dtype, name, shape = self._usual
            fits = answer.dtype == dtype and answer.shape == (rows, *shape)
            if fits and (self._any_value or _all_finite(answer)):
                outputs = [[self._name, name, [rows, *shape]]]
                result: Meta = {"kind": "tensors", "outputs": outputs, "not_finite": []}
                return result, (_contents(answer),)
        return split_tensors(self._method, answer, rows, meta.get("lengths"))


def split_tensors(
    method: MethodSpec, answer: Any, rows: int, lengths: Lengths | None = None
) -> tuple[Meta, Sequence[Payload]]:
    """Check the array, or the dict of arrays, that a method answered, and frame it.

    Args:
        method: Declares the outputs and along which dimension their rows lie.
        answer: As it came from the method.
        rows: Of the batch.
        lengths: Of each variable dimension in each row; None: there are none.

    Raises:
        PredictorError: a missing output, wrong number of rows, shape, type or range.
    """
    known = {name: max(of_rows) for name, of_rows in (lengths or {}).items()}
    arrays = {}
    refused: dict[str, Array] = {}
    for name, value in _named(method, answer).items():
        place = "" if method.single_output else f"output {name!r}: "
        tensor = method.outputs.get(name)
        array = _rows_first(_as_array(value, tensor, place), rows, method.batch_dim[1], place)
        if tensor is not None:
            _check_shape(array, tensor, known, place)
        arrays[name] = _converted(array, tensor, place)
        if not _all_finite(arrays[name]):
            refused[name] = _refused(array, arrays[name], tensor)
    not_finite = _rows_with(method, refused, lengths or {})
    outputs = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    meta: Meta = {"kind": "tensors", "outputs": outputs, "not_finite": not_finite}
    if lengths:
        meta["lengths"] = lengths
    return meta, [_contents(array) for array in arrays.values()]


def _contents(array: Array) -> Payload:
    """The bytes, in C order; of a large array where they are, as they are copied on their way."""
    if array.nbytes < _LARGE:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _named(method: MethodSpec, answer: Any) -> Mapping[str, Any]:
    if method.single_output:
        if not isinstance(answer, np.ndarray) and isinstance(answer, Mapping):
            remedy = "" if method.outputs else "; declare outputs={...} to answer several"
            raise PredictorError(f"expected one array, got a dict of {', '.join(answer)}{remedy}")
        return {named_output(method): answer}
    expected = ", ".join(method.outputs)
    if not isinstance(answer, Mapping):
        raise PredictorError(f"expected a dict of {expected}, got {type(answer).__name__}")
    if set(answer) != set(method.outputs):
        raise PredictorError(
            f"expected a dict of {expected}, got one of {', '.join(map(str, answer)) or 'nothing'}"
        )
    return {name: answer[name] for name in method.outputs}


def _as_array(value: Any, tensor: Tensor | None, place: str) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: torch, requires_grad
        raise PredictorError(
            f"{place}expected an array, got {type(value).__name__} ({error})"
        ) from error
    if array.ndim == 0:
        raise PredictorError(
            f"{place}expected an array with rows, got {type(value).__name__} of shape []"
        )
    if tensor is not None and array.dtype.str == tensor.numpy_dtype:
        return array
    if tensor is not None and not _castable(array.dtype, np.dtype(tensor.numpy_dtype)):
        raise PredictorError(
            f"{place}expected {tensor.dtype} values, got an array of {array.dtype}"
        )
    if array.dtype.kind not in "biuf" or (tensor is None and array.dtype.itemsize > _WIDEST):
        raise PredictorError(f"{place}expected numbers, got an array of {array.dtype}")
    return array


def _castable(given: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    """Whether values are of a fitting kind; integers of any, for their range is checked."""
    integers = given.kind in "iu" and declared.kind in "iu"
    return integers or np.can_cast(given, declared, "same_kind")


def _rows_first(array: Array, rows: int, batch_dim: int, place: str) -> Array:
    if array.ndim <= batch_dim or array.shape[batch_dim] != rows:
        where = "the first dimension" if batch_dim == 0 else f"dimension {batch_dim} (batch_dim)"
        raise PredictorError(
            f"{place}expected {rows} rows, got an answer of shape {list(array.shape)};"
            f" {where} must have one for each row of the input"
        )
    return np.moveaxis(array, batch_dim, 0) if batch_dim else array


def _check_shape(array: Array, tensor: Tensor, known: dict[str, int], place: str) -> None:
    """Dimensions named by inputs have their length; other names the one of their first output."""
    got = array.shape[1:]
    if got == tensor.shape:
        return
    fits = len(got) == len(tensor.shape)
    for length, expected in zip(got, tensor.shape, strict=False):
        wanted = known.setdefault(expected, length) if isinstance(expected, str) else expected
        fits = fits and length == wanted
    if not fits:
        lengths = {n: known[n] for n in tensor.names if n in known}
        shown = f", {', '.join(f'{n}={v}' for n, v in lengths.items())}" if lengths else ""
        raise PredictorError(
            f"{place}expected rows of shape {list(tensor.shape)} (outputs={tensor}{shown}),"
            f" got {list(got)}"
        )


def _converted(array: Array, tensor: Tensor | None, place: str) -> Array:
    """C order, little endian, of the declared type."""
    if tensor is not None and array.dtype.str == tensor.numpy_dtype:
        return np.ascontiguousarray(array)
    little = array.dtype.newbyteorder("<") if tensor is None else np.dtype(tensor.numpy_dtype)
    with np.errstate(over="ignore"):  # an overflow becomes inf, and that row fails
        converted = np.ascontiguousarray(array, dtype=little)
    if (
        little.kind != "f"
        and not np.can_cast(array.dtype, little)
        and not (converted == array).all()
    ):
        expected = tensor.dtype if tensor is not None else little.name
        raise PredictorError(f"{place}expected {expected} values, got one out of range")
    return converted


def _all_finite(array: Array) -> bool:
    # Counted, because numpy does that in C and `.all()` in Python: 0.8 instead of 1.6 microseconds.
    return array.dtype.kind != "f" or bool(np.count_nonzero(np.isfinite(array)) == array.size)


def _refused(array: Array, converted: Array, tensor: Tensor | None) -> Array:
    """Where an answer is not finite and must be; where it is allowed, what overflowed is not."""
    refused: Array = ~np.isfinite(converted)
    return refused & np.isfinite(array) if tensor and tensor.allow_non_finite else refused


def _rows_with(method: MethodSpec, refused: Mapping[str, Array], lengths: Lengths) -> list[int]:
    """Rows with a refused number; what a model computes for padding does not count."""
    rows: set[int] = set()
    for name, array in refused.items():
        column = cut_back(method, name, array, lengths)
        rows.update(i for i, row in enumerate(column) if row.any())
    return sorted(rows)
