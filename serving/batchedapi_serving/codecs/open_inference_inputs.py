"""Input tensors of the Open Inference Protocol, whichever way they travelled.

JSON lists, typed protobuf lists and raw bytes all become an `Input`; from there on the three are
one, and what they hold is checked and encoded as if it had come as rows.
"""

import contextlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_serving.codecs.interface import Array, Codec, Encoded, Head
from batchedapi_serving.codecs.json_values import (
    check_row_count,
    check_value_count,
    parse_json,
    read_non_finite,
)
from batchedapi_serving.codecs.open_inference_binary import BYTES, Elements, packed_array
from batchedapi_serving.errors import InvalidInputError, MalformedError, brief
from batchedapi_serving.predictor.api import SINGLE_INPUT, MethodSpec
from batchedapi_serving.predictor.tensor import DTYPES

_MAX_DIMENSIONS: Final = 32
"""numpy's own limit lies above this; nobody has come near it."""
_CODES: Final = {
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
    "BOOL": "?",
}  # fmt: skip
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
    """Of BYTES: each element is a JSON text."""


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
    code, types = _CODES[datatype], set(map(type, flat))
    if types == {bool} if datatype == "BOOL" else bool not in types:
        with contextlib.suppress(struct.error, OverflowError, TypeError):
            return packed_array(datatype, struct.pack(f"<{len(flat)}{code}", *flat))
        if datatype.startswith("FP"):  # whether they are allowed is for the codec to say
            flat = read_non_finite(flat)
            with contextlib.suppress(struct.error, OverflowError, TypeError):
                return packed_array(datatype, struct.pack(f"<{len(flat)}{code}", *flat))
    raise _culprit(datatype, flat, place)


def _culprit(datatype: str, flat: list[Any], place: str) -> InvalidInputError:
    one = struct.Struct(f"<{_CODES[datatype]}")
    for i, element in enumerate(flat):
        try:
            if (type(element) is bool) == (datatype == "BOOL"):
                one.pack(element)
                continue
        except (struct.error, OverflowError, TypeError):
            pass
        return InvalidInputError(f"{place}[{i}]: expected {datatype}, got {brief(element)}")
    raise AssertionError(f"{place}: every element packs alone, but not together")


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
    rows = inputs[0].shape[0]
    names: set[str] = set()
    for tensor in inputs:
        if tensor.name in names:
            raise InvalidInputError(f"{tensor.place}.name: {brief(tensor.name)} is there twice")
        names.add(tensor.name)
        if tensor.shape[0] != rows:
            raise InvalidInputError(
                f"{tensor.place}.shape: expected {rows} rows as in inputs[0], got {tensor.shape[0]}"
            )
    if codec.method.inputs:
        return codec.from_arrays(_named_arrays(codec.method, inputs), "inputs")
    return codec.from_rows(_items(inputs), "inputs", head)


def _named_arrays(method: MethodSpec, inputs: Sequence[Input]) -> Mapping[str, Array]:
    arrays = {}
    for tensor in inputs:
        if not isinstance(tensor.elements, np.ndarray):
            declared = ", ".join(sorted({t.dtype for t in method.inputs.values()}))
            raise InvalidInputError(
                f"{tensor.place}.datatype: expected {declared} as declared, got {BYTES}"
            )
        arrays[tensor.name] = tensor.elements.reshape(tensor.shape)
    if method.single_input and len(inputs) == 1:
        # The predictor has given no name, so none is wrong.
        return {SINGLE_INPUT: arrays[inputs[0].name]}
    return arrays


def _items(inputs: Sequence[Input]) -> Sequence[Any]:
    """JSON items: of one tensor its rows, of several an object of each row's."""
    columns = {tensor.name: _rows(tensor) for tensor in inputs}
    if len(columns) == 1:
        return columns[inputs[0].name]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


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
        return parse_json(text.encode())
    except MalformedError as error:
        raise InvalidInputError(
            f"{place}: expected a JSON text, as {CONTENT_TYPE} says; {error}"
        ) from error
