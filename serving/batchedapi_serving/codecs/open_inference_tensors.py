"""Tensors of the Open Inference Protocol, whichever way they travelled.

JSON lists, typed protobuf lists and raw bytes all become an `Input`; from there on the three are
one, and what they hold is checked and encoded as if it had come as rows.

Raw elements lie in row-major order, little endian, without gaps; BOOL is one byte, 0 or 1; a BYTES
element is its length as uint32 and then its bytes.

Arrays go out as what they are. JSON items go out as BYTES, one JSON text a row, always: a datatype
that followed the values would differ from request to request, and from what metadata says.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson

from batchedapi_serving.codecs.arrays import packed_numbers, wrong_number
from batchedapi_serving.codecs.interface import Array, Codec, Encoded, Head, Item, Results
from batchedapi_serving.codecs.json_values import (
    check_row_count,
    check_value_count,
    parse_items,
    read_non_finite,
)
from batchedapi_serving.codecs.results import OK, ItemResults, TensorResults
from batchedapi_serving.errors import InvalidInputError, MalformedError, PredictorError, brief
from batchedapi_serving.predictor import DTYPES, SINGLE_OUTPUT, MethodSpec

BYTES: Final = "BYTES"
_LENGTH: Final = struct.Struct("<I")
_DATATYPES: Final = {np.dtype(text).str: name for name, text in DTYPES.items()}
Elements: TypeAlias = Array | Sequence[Any]
_MAX_DIMENSIONS: Final = 32
"""numpy's own limit lies above this; nobody has come near it."""
CONTENT_TYPE: Final = "content_type"
"""Parameter of BYTES tensors: `json` says that every element is a JSON text, not a string."""
JSON_TEXT: Final = "json"


class Input(NamedTuple):
    """One input tensor; its elements are as many as its shape says, in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Rows first."""
    elements: Elements
    """A flat array of the datatype; of BYTES, the elements: as bytes, or as text from JSON."""
    place: str
    listed: Sequence[Any] | None = None
    """The same as JSON had them: 0.1 is no float32."""
    as_json: bool = False
    """Whether each element of BYTES is a JSON text."""


def checked_shape(value: Any, place: str) -> tuple[int, ...]:
    """The shape of an input.

    Raises:
        InvalidInputError: not a list of lengths >= 1, or without the dimension of rows.
        TooLargeError: more rows than there may be.
    """
    if (
        not isinstance(value, Sequence)
        or not 1 <= len(value) <= _MAX_DIMENSIONS
        or not all(type(n) is int and n >= 1 for n in value)
    ):
        raise InvalidInputError(
            f"{place}.shape: expected 1 to {_MAX_DIMENSIONS} lengths >= 1, rows first,"
            f" got {brief(value)}"
        )
    check_row_count(value[0])
    return tuple(value)


def checked_datatype(value: Any, place: str) -> str:
    """A name of a datatype that can be read.

    Raises:
        InvalidInputError: it is none of those.
    """
    if value == BYTES or (isinstance(value, str) and value in DTYPES):
        return str(value)
    raise InvalidInputError(
        f"{place}.datatype: expected one of {', '.join(DTYPES)} and {BYTES}, got {brief(value, 40)}"
    )


def elements_of(datatype: str, flat: list[Any], place: str) -> Elements:
    """Elements from a flat list: an array, or the checked texts of BYTES.

    Raises:
        InvalidInputError: an element is not of the datatype; the message names it.
    """
    if datatype == BYTES:
        for i, element in enumerate(flat):
            if type(element) is not str and type(element) is not bytes:
                raise InvalidInputError(f"{place}[{i}]: expected a string, got {brief(element)}")
        return flat
    types = set(map(type, flat))
    packed: bytes | None = None
    if types == {bool} if datatype == "BOOL" else bool not in types:
        packed = packed_numbers(datatype, flat)
        if packed is None and datatype.startswith("FP"):  # the codec says whether they are allowed
            flat = read_non_finite(flat)
            packed = packed_numbers(datatype, flat)
    if packed is None:
        i = wrong_number(datatype, flat)
        raise InvalidInputError(f"{place}[{i}]: expected {datatype}, got {brief(flat[i])}")
    return packed_array(datatype, packed)


def wants_json(content_type: Any, place: str) -> bool:
    """Whether elements of a BYTES tensor are JSON texts, from its `content_type` parameter.

    Raises:
        InvalidInputError: it says something that cannot be read.
    """
    if content_type in (None, "str"):
        return False
    if content_type in (JSON_TEXT, "application/json"):
        return True
    raise InvalidInputError(
        f"{place}.parameters.{CONTENT_TYPE}: expected str or {JSON_TEXT},"
        f" got {brief(content_type, 40)}"
    )


def encode_inputs(codec: Codec, inputs: Sequence[Input], head: Head) -> Encoded:
    """The rows of a request's tensors, as the codec wants them.

    Raises:
        InvalidInputError: names, row counts, types or values are not what the method takes.
    """
    if not inputs:
        raise InvalidInputError("inputs: expected at least one tensor, got none")
    names: set[str] = set()
    for tensor in inputs:
        if tensor.name in names:
            raise InvalidInputError(f"{tensor.place}.name: {brief(tensor.name)} is there twice")
        names.add(tensor.name)
        if tensor.shape[0] != inputs[0].shape[0]:
            raise InvalidInputError(
                f"{tensor.place}.shape: expected {inputs[0].shape[0]} rows as in inputs[0], got"
                f" {tensor.shape[0]}"
            )
    if codec.method.inputs:
        arrays = {tensor.name: _array(codec.method, tensor) for tensor in inputs}
        return codec.from_arrays(arrays, "inputs")
    # JSON items: of one tensor its rows, of several an object of each row's.
    columns = {tensor.name: _rows(tensor) for tensor in inputs}
    if len(columns) == 1:
        return codec.from_rows(columns[inputs[0].name], "inputs", head)
    items = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return codec.from_rows(items, "inputs", head)


def _array(method: MethodSpec, tensor: Input) -> Array:
    if not isinstance(tensor.elements, np.ndarray):
        declared = ", ".join(sorted({each.dtype for each in method.inputs.values()}))
        raise InvalidInputError(
            f"{tensor.place}.datatype: expected {declared} as declared, got {BYTES}"
        )
    if tensor.name not in method.inputs:
        named = " or ".join(map(repr, method.inputs))
        hint = " (a single Tensor is called so)" if method.single_input else ""
        raise InvalidInputError(
            f"{tensor.place}.name: expected {named}{hint}, got {brief(tensor.name)}"
        )
    return tensor.elements.reshape(tensor.shape)


def _rows(tensor: Input) -> Sequence[Any]:
    if tensor.datatype == BYTES:
        flat: list[Any] = [_text(tensor, i) for i in range(len(tensor.elements))]
        # Clients that want a batch dimension on everything send strings as a column.
        shape = tensor.shape[:1] if tensor.shape[1:] == (1,) else tensor.shape
    else:
        if not isinstance(tensor.elements, np.ndarray):
            raise TypeError(f"{tensor.place}: {tensor.datatype} without an array")
        if tensor.elements.dtype.kind == "f" and not np.isfinite(tensor.elements).all():
            raise InvalidInputError(f"{tensor.place}: expected finite values, got NaN or Infinity")
        listed = tensor.listed
        if listed is None:
            check_value_count(tensor.elements.size, tensor.place)
        flat, shape = tensor.elements.tolist() if listed is None else list(listed), tensor.shape
    for length in reversed(shape[1:]):
        flat = [flat[i : i + length] for i in range(0, len(flat), length)]
    return flat


def _text(tensor: Input, i: int) -> Any:
    element = tensor.elements[i]
    place = f"{tensor.place}.data[{i}]"
    try:
        text = element if isinstance(element, str) else element.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{place}: expected UTF-8, got {brief(element, 40)}") from error
    if not tensor.as_json:
        return text
    try:
        return parse_items(text.encode())
    except MalformedError as error:
        raise InvalidInputError(
            f"{place}: expected a JSON text, as {CONTENT_TYPE} says; {error}"
        ) from error


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
    expected = count * np.dtype(DTYPES[datatype]).itemsize
    if len(raw) != expected:
        raise InvalidInputError(
            f"{place}: expected {expected} bytes for {datatype} of shape {list(shape)},"
            f" got {len(raw)}"
        )
    if datatype == "BOOL" and expected and np.frombuffer(raw, "u1").max() > 1:
        raise InvalidInputError(f"{place}: expected bytes 0 and 1 for BOOL, got others")
    return packed_array(datatype, raw)


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


class Output(NamedTuple):
    """One output tensor: an array, or of BYTES one element a row."""

    name: str
    datatype: str
    shape: Sequence[int]
    elements: Array | Sequence[bytes]
    as_json: bool = False


class FailedRow(NamedTuple):
    """The first row of an answer that failed, counted from the request's first."""

    row: int
    status: int
    message: str


def output_tensors(results: Results, start: int, stop: int) -> list[Output]:
    """Rows [start, stop) as tensors: numbers as what they are, JSON items as BYTES of their text.

    Raises:
        PredictorError: NaN, Infinity, rows of different shapes, or a type the protocol lacks.
    """
    if isinstance(results, TensorResults):
        return [
            Output(name, datatype_of(array.dtype), array.shape, array)
            for name, array in results.arrays(start, stop).items()
        ]
    items = _item_rows(results, start, stop)
    texts = [item.body if item.status == OK else b'{"error":%b}' % item.body for item in items]
    as_json = all(item.status != OK or item.kind == "json" for item in items)
    return [Output(SINGLE_OUTPUT, BYTES, (len(texts),), texts, as_json)]


def failed_row(results: Results, start: int, stop: int) -> FailedRow | None:
    """The first row of [start, stop) that a predictor failed by itself; None if it failed none."""
    if isinstance(results, TensorResults):
        return None
    for i, item in enumerate(_item_rows(results, start, stop)):
        if item.status != OK:
            message = str(orjson.loads(item.body).get("message", ""))
            return FailedRow(
                i, item.status, message if stop - start == 1 else f"row {i}: {message}"
            )
    return None


def _item_rows(results: Results, start: int, stop: int) -> Sequence[Item]:
    if not isinstance(results, ItemResults):
        raise TypeError(f"expected TensorResults or ItemResults, got {type(results).__name__}")
    return results.items(start, stop)


def checked_outputs(method: MethodSpec, names: Sequence[Any]) -> tuple[str, ...]:
    """The requested outputs, in the order in which they were asked for; none: all.

    Raises:
        InvalidInputError: a name that the method does not answer, or twice the same.
    """
    known = output_names(method)
    seen: set[str] = set()
    for i, name in enumerate(names):
        if not isinstance(name, str) or (known is not None and name not in known):
            expected = "a string" if known is None else " or ".join(map(repr, known))
            raise InvalidInputError(f"outputs[{i}].name: expected {expected}, got {brief(name)}")
        if name in seen:
            raise InvalidInputError(f"outputs[{i}].name: {brief(name)} is there twice")
        seen.add(name)
    return tuple(names)


def output_names(method: MethodSpec) -> tuple[str, ...] | None:
    """Names of what a method answers; None: known only once it has answered."""
    if method.outputs:
        return tuple(method.outputs)
    return (SINGLE_OUTPUT,) if method.single_output or not method.inputs else None


def requested(outputs: Sequence[Output], names: Sequence[str]) -> list[Output]:
    """Select the outputs that were asked for, as `checked_outputs` gives them.

    Raises:
        InvalidInputError: an output that the method did not declare and does not answer.
    """
    if not names:
        return list(outputs)
    by_name = {output.name: output for output in outputs}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InvalidInputError(
            f"outputs: expected {' or '.join(map(repr, by_name))}, got {brief(missing[0])}"
        )
    return [by_name[name] for name in names]
