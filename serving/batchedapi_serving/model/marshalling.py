"""Between batch frames and the values of a method: its arguments, and its answer, checked.

The codecs write what is read here:

one tensor of fixed shape    the packed rows one after another               codecs/tensor_codec
named tensors, variable      the inputs one after another, each (rows, *shape) for the whole
                             batch; meta "lengths": {name: [of each row]}     codecs/named_codec
JSON items                   one JSON list                                    codecs/item_codec
one request                  uint32 length, JSON about it, its body           codecs/item_codec
several, one by one          these one after another; meta "calls": [lengths] codecs/item_codec

Of an answer, every check is here that stands between its mistakes and other people's answers: of
arrays together, of JSON items each on its own.
"""

import logging
import math
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.ma  # now: user code may change where modules are found
from orjson import dumps, loads

from batchedapi_serving.codecs.charsets import UTF_8, charset_of
from batchedapi_serving.codecs.forms import parse_form
from batchedapi_serving.codecs.interface import Array, Item
from batchedapi_serving.codecs.own_values import NotJsonError, json_of, utf8_of
from batchedapi_serving.codecs.results import (
    NOT_FINITE,
    OK,
    cut_back,
    error_object,
    item_frame,
    named_output,
)
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.logs import traceback_of
from batchedapi_serving.predictor import ItemError, MethodSpec, Response, Tensor
from batchedapi_serving.predictor.api import error_head, response_head

log = logging.getLogger(__name__)
Lengths = Mapping[str, Sequence[int]]
_LARGE: Final = 1 << 15  # bytes from which a copy less is worth a view
_WIDEST: Final = 8  # bytes of a number on the wire; longdouble has more
Arguments: TypeAlias = Callable[[Meta, Payload], tuple[Any, ...]]
"""The arguments of a method for one batch frame: its own to keep and to write into, while the
payload may be memory in which the next batch will be."""


def arguments_of(method: MethodSpec, beside: Sequence[str] = ()) -> Arguments:
    """Decide once how the arguments of every batch are made; see loading.BESIDE_ROWS."""
    if beside:
        rows = arguments_of(method)
        return lambda meta, payload: (
            *rows(meta, payload),
            *(_beside_rows(name, method, meta["lengths"]) for name in beside),
        )
    if not method.batched:
        return lambda _, payload: _call(payload)
    if not method.inputs:
        return lambda _, payload: (loads(payload),)
    if not method.single_input:
        return lambda meta, payload: (input_arrays(method, meta, payload),)
    (tensor,) = method.inputs.values()
    if tensor.variable or method.batch_dim[0]:
        return lambda meta, payload: tuple(input_arrays(method, meta, payload).values())
    dtype, shape = np.dtype(tensor.numpy_dtype), tensor.fixed_shape

    def one_array(meta: Meta, payload: Payload) -> tuple[Array]:
        rows = (meta["rows"], *shape)
        if type(payload) is memoryview:  # large, of which numpy asks for larger pages
            return (np.frombuffer(payload, dtype).reshape(rows).copy(),)
        # As input_arrays does, in a third of the time: the copy is the array's memory.
        return (np.ndarray(rows, dtype, bytearray(payload)),)

    return one_array


def input_arrays(method: MethodSpec, meta: Meta, payload: Payload) -> dict[str, Array]:
    """The inputs by name, rows along the method's batch dimension."""
    lengths = {name: max(of_rows) for name, of_rows in meta.get("lengths", {}).items()}
    arrays = {}
    offset = 0
    for name, tensor in method.inputs.items():
        shape = [meta["rows"], *(lengths[n] if isinstance(n, str) else n for n in tensor.shape)]
        view = np.frombuffer(payload, tensor.numpy_dtype, math.prod(shape), offset).reshape(shape)
        offset += view.nbytes
        dim = method.batch_dim[0]
        # A copy, because models may write into their input, and frombuffer's is read-only.
        arrays[name] = np.array(np.moveaxis(view, 0, dim) if dim else view, order="C")
    return arrays


def _beside_rows(name: str, method: MethodSpec, lengths: Lengths) -> Any:
    """The lengths of rows by dimension, or a mask: 1 where a row has numbers, and 0 behind it."""
    if name == "lengths":
        return {dimension: np.array(of_rows) for dimension, of_rows in lengths.items()}
    mask: Array = np.ones((1,) * (1 + len(lengths)), np.int64)
    for axis, of_rows in enumerate(lengths.values(), 1):
        within = np.arange(max(of_rows)) < np.array(of_rows)[:, np.newaxis]
        others = [1 + i for i in range(len(lengths)) if 1 + i != axis]
        mask = mask * np.expand_dims(within, others)
    return np.moveaxis(mask, 0, method.batch_dim[0])


def calls_of(meta: Meta, payload: Payload) -> Iterator[tuple[Any, ...]]:
    """The arguments of each call of a batch that is run one by one."""
    start = 0
    for length in meta["calls"]:
        yield _call(payload[start : start + length])
        start += length


def _call(payload: Payload) -> tuple[Any, ...]:
    length = int.from_bytes(payload[:4], "little")
    about = loads(payload[4 : 4 + length])
    body = bytes(payload[4 + length :])
    value: Any = body
    if about["json"]:
        value = loads(body)
    elif about["text"]:
        value = body.decode()
    elif "form" in about:
        value = parse_form(about["form"].encode("latin-1"), body)
    query = dict(urllib.parse.parse_qsl(about["query"], keep_blank_values=True))
    return value, query, dict(about["headers"])


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
        lengths: Of each variable dimension in each row; None: there are none.

    Raises:
        PredictorError: a missing output, wrong number of rows, shape, type or range.
    """
    lengths = lengths or {}
    known = {name: max(of_rows) for name, of_rows in lengths.items()}
    arrays = {}
    wrong: set[int] = set()
    for name, value in _named(method, answer).items():
        tensor = method.outputs.get(name)
        place = "" if method.single_output else f"output {name!r}: "
        array = _rows_first(_as_array(value, tensor, place), method.batch_dim[1], rows, place)
        if tensor is not None:
            _check_shape(array, tensor, known, place)
        arrays[name] = _converted(array, tensor, place)
        if not _all_finite(arrays[name]):
            # Where a value is not finite and must be; where it may be, what overflowed must not.
            refused = ~np.isfinite(arrays[name])
            if tensor is not None and tensor.allow_non_finite:
                refused &= np.isfinite(array)
            # Cut back, as what a model computes for padding does not count.
            column = cut_back(method, name, refused, lengths)
            wrong.update(i for i, row in enumerate(column) if row.any())
    if wrong:
        facts = {"method": method.name, "error": NOT_FINITE, "wrong": len(wrong), "rows": rows}
        log.error("wrong answer", extra=facts)
    outputs = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    meta: Meta = {"kind": "tensors", "outputs": outputs, "not_finite": sorted(wrong)}
    if lengths:
        meta["lengths"] = lengths
    return meta, [_contents(array) for array in arrays.values()]


def _rows_first(array: Array, batch_dim: int, rows: int, place: str) -> Array:
    if array.ndim <= batch_dim or array.shape[batch_dim] != rows:
        dimension = f"dimension {batch_dim} (batch_dim)" if batch_dim else "the first dimension"
        raise PredictorError(
            f"{place}expected {rows} rows, got an answer of shape {list(array.shape)};"
            f" {dimension} must have one for each row of the input"
        )
    return np.moveaxis(array, batch_dim, 0) if batch_dim else array


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
        if _is_named_tuple(answer):
            raise PredictorError(f"expected one array, got {type(answer).__name__}, a named tuple")
        return {named_output(method): answer}
    expected = ", ".join(method.outputs)
    if not isinstance(answer, Mapping):
        raise PredictorError(f"expected a dict of {expected}, got {type(answer).__name__}")
    if set(answer) != set(method.outputs):
        raise PredictorError(
            f"expected a dict of {expected}, got one of {', '.join(map(str, answer)) or 'nothing'}"
        )
    return {name: answer[name] for name in method.outputs}


def _is_named_tuple(answer: Any) -> bool:
    """Whether members are fields of one answer, and no rows: torch.max answers one, too."""
    return isinstance(answer, tuple) and type(answer) is not tuple


def _as_array(value: Any, tensor: Tensor | None, place: str) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: torch, requires_grad
        raise PredictorError(
            f"{place}expected an array, got {type(value).__name__} ({error})"
        ) from error
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise PredictorError(f"{place}expected numbers, got masked values; fill them")
    if array.ndim == 0:
        raise PredictorError(
            f"{place}expected an array with rows, got {type(value).__name__} of shape []"
        )
    if tensor is None or array.dtype.str != tensor.numpy_dtype:
        _check_type(array, tensor, place)
    return array


def _check_type(array: Array, tensor: Tensor | None, place: str) -> None:
    if tensor is not None:
        declared = np.dtype(tensor.numpy_dtype)
        # Integers of any kind are taken for integers: their range is checked.
        integers = array.dtype.kind in "iu" and declared.kind in "iu"
        if not (integers or np.can_cast(array.dtype, declared, "same_kind")):
            raise PredictorError(
                f"{place}expected {tensor.dtype} values, got an array of {array.dtype}"
            )
    if array.dtype.kind not in "biuf" or (tensor is None and array.dtype.itemsize > _WIDEST):
        raise PredictorError(f"{place}expected numbers, got an array of {array.dtype}")


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
    # An overflow becomes inf, and that row fails; user code may have had all of them raise.
    with np.errstate(all="ignore"):
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


def split_items(answer: Any, meta: Meta) -> tuple[Meta, Sequence[bytes]]:
    """Check the list that a method answered and write each item as JSON.

    Raises:
        PredictorError: not a list of as many items as came in.
    """
    rows = meta["rows"]
    if isinstance(answer, np.ndarray):
        answer = list(answer)
    if not isinstance(answer, list | tuple) or _is_named_tuple(answer):
        raise PredictorError(f"expected a list of {rows} answers, got {type(answer).__name__}")
    if isinstance(answer, list) and type(answer) is not list:
        answer = list(list.__iter__(answer))  # what it holds: its own class tells any length
    if len(answer) != rows:
        raise PredictorError(f"expected {rows} answers, got {len(answer)}")
    items: list[Item] = []
    told = False
    for value in answer:
        try:
            items.append(_item(value))
        except NotJsonError as error:
            items.append(_refused(error, told=told))
            told = True  # one line a batch says it
    return item_frame(items)


def split_call(value: Any, _: Meta) -> tuple[Meta, Sequence[bytes]]:
    """Write what a method answered to one request: bytes, text, or a value as JSON."""
    return item_frame([call_item(value)])


def call_item(value: Any) -> Item:
    """One answer of a method that takes one request at a time.

    Raises:
        Exception: what the methods of its type raise, or those of a Response whose head is wrong.
    """
    if isinstance(value, Response):
        item = call_item(value.content)
        if item.status != OK:
            return item
        status, headers = response_head(value)
        charset = charset_of(headers.get("content-type", "").encode("latin-1"))
        if charset != UTF_8 and item.kind != "bytes":
            # What it is written in is not what the header says.
            return _refused(NotJsonError(f"a text in {charset:.40}, not as bytes"), told=False)
        return item._replace(said=(status, headers))
    if isinstance(value, bytes | bytearray | memoryview):
        return Item(OK, "bytes", value if type(value) is bytes else memoryview(value).tobytes())
    try:
        return Item(OK, "text", utf8_of(value)) if isinstance(value, str) else _item(value)
    except NotJsonError as error:
        return _refused(error, told=False)


def error_item(error: ItemError) -> Item:
    """The answer of an item that failed on its own.

    Raises:
        Exception: its status or message is wrong; see error_head.
    """
    status, message = error_head(error)
    return Item(status, "json", _error_json("item_failed", message))


def _item(value: Any) -> Item:
    try:
        return (
            error_item(value) if isinstance(value, ItemError) else Item(OK, "json", json_of(value))
        )
    except (NotJsonError, MemoryError):  # of the latter: a smaller batch may fit
        raise
    except BaseException as error:  # noqa: BLE001 - user code: of the value's own type
        log.error("wrong answer", extra={"traceback": traceback_of(error)})  # noqa: TRY400 - it may not be shown
        return failed_item(str(PredictorError.logged("answered what cannot be sent")))


def _refused(error: NotJsonError, *, told: bool) -> Item:
    if not told:
        log.error("wrong answer", extra={"error": str(error)})
    return failed_item(f"the predictor answered {error}")


def failed_item(message: str) -> Item:
    """The answer of an item at which the predictor failed."""
    return Item(PredictorError.status, "json", _error_json(PredictorError.code, message))


def _error_json(code: str, message: str) -> bytes:
    # orjson refuses half a surrogate, which a text of a predictor's may hold.
    return dumps(error_object(code, message.encode("utf-8", "replace").decode()))
