"""The JSON of an inference request and of its response."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from batchedapi_serving.codecs.json_values import parse_json
from batchedapi_serving.codecs.open_inference_binary import (
    BYTES,
    SplitBody,
    raw_elements,
    raw_of,
)
from batchedapi_serving.codecs.open_inference_inputs import (
    CONTENT_TYPE,
    JSON_TEXT,
    Input,
    checked_datatype,
    checked_shape,
    elements_of,
    wants_json,
)
from batchedapi_serving.codecs.open_inference_outputs import Output
from batchedapi_serving.codecs.results import json_text
from batchedapi_serving.errors import InvalidInputError, MalformedError, brief

BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_OUTPUT: Final = "binary_data_output"


class RequestedOutput(NamedTuple):
    """One member of `outputs`."""

    name: Any
    binary: bool


class InferRequest(NamedTuple):
    """A request as its JSON and its raw tensors say it."""

    id: str | None
    inputs: Sequence[Input]
    outputs: Sequence[RequestedOutput]
    """Empty: all of them."""
    binary: bool
    """How outputs travel that are not requested one by one."""


def read_request(body: SplitBody) -> InferRequest:
    """Take a request apart; what its tensors mean to the method is not looked at.

    Raises:
        MalformedError: not JSON, or raw tensors and JSON do not add up.
        InvalidInputError: a member is not what the protocol says.
    """
    value = parse_json(body.text)
    if type(value) is not dict:
        raise InvalidInputError(
            f'body: expected an object {{"inputs": [...]}}, got {type(value).__name__}'
        )
    parameters = _object(value.get("parameters"), "parameters")
    binary = _flag(parameters, BINARY_OUTPUT, "parameters", default=False)
    content_type = parameters.get(CONTENT_TYPE)
    inputs, offset = [], 0
    for i, tensor in enumerate(_objects(value.get("inputs"), "inputs")):
        one, taken = _input(tensor, f"inputs[{i}]", body.raw[offset:], content_type)
        inputs.append(one)
        offset += taken
    if offset != len(body.raw):
        raise MalformedError(
            f"body: expected {offset} bytes of raw tensors after the JSON, as {BINARY_SIZE} of the"
            f" inputs add up to, got {len(body.raw)}"
        )
    wanted = value.get("outputs")
    outputs = [] if wanted is None else _objects(wanted, "outputs")
    return InferRequest(
        _id(value.get("id")),
        inputs,
        [_requested(output, f"outputs[{i}]", binary) for i, output in enumerate(outputs)],
        binary,
    )


def _input(
    tensor: dict[str, Any], place: str, raw: memoryview, content_type: Any
) -> tuple[Input, int]:
    """One input, and how many bytes of `raw` it took."""
    name = tensor.get("name")
    if not isinstance(name, str):
        raise InvalidInputError(f"{place}.name: expected a string, got {brief(name)}")
    datatype = checked_datatype(tensor.get("datatype"), place)
    shape = checked_shape(tensor.get("shape"), place)
    parameters = _object(tensor.get("parameters"), f"{place}.parameters")
    as_json = datatype == BYTES and wants_json(parameters.get(CONTENT_TYPE, content_type), place)
    size = parameters.get(BINARY_SIZE)
    if size is None:
        flat = _flat(tensor.get("data"), shape, f"{place}.data")
        elements = elements_of(datatype, flat, f"{place}.data")
        return Input(name, datatype, shape, elements, place, flat, as_json), 0
    if "data" in tensor:
        raise InvalidInputError(f"{place}: expected either data or {BINARY_SIZE}, got both")
    if type(size) is not int or not 0 <= size <= len(raw):
        raise MalformedError(
            f"{place}.parameters.{BINARY_SIZE}: expected 0 to {len(raw)}, what is left of the body,"
            f" got {brief(size, 40)}"
        )
    elements = raw_elements(datatype, shape, raw[:size], place)
    return Input(name, datatype, shape, elements, place, None, as_json), size


def _flat(data: Any, shape: Sequence[int], place: str) -> list[Any]:
    """Elements in row-major order of data that is flat, or nested as the shape says.

    The flat form of one dimension is the nested one, so only what nests is looked into.
    """
    if type(data) is not list:
        raise InvalidInputError(f"{place}: expected a list, got {brief(data)}")
    nested = bool(data) and type(data[0]) is list
    level: list[Any] = [data]
    for length in shape if nested else ():
        for part in level:
            if type(part) is not list or len(part) != length:
                got = f"a list of {len(part)}" if type(part) is list else brief(part)
                raise InvalidInputError(
                    f"{place}: expected lists nested as shape {list(shape)},"
                    f" got {got} for one of {length}"
                )
        level = [element for part in level for element in part]
    flat = level if nested else data
    count = 1
    for length in shape:
        count *= length
    if len(flat) != count:
        raise InvalidInputError(
            f"{place}: expected {count} elements for shape {list(shape)}, got {len(flat)}"
        )
    return flat


def _id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInputError(f"id: expected a string, got {brief(value)}")
    return value


def _requested(output: dict[str, Any], place: str, default: bool) -> RequestedOutput:  # noqa: FBT001 - a member's default, not a mode
    parameters = _object(output.get("parameters"), f"{place}.parameters")
    place = f"{place}.parameters"
    return RequestedOutput(output.get("name"), _flag(parameters, BINARY, place, default=default))


def _object(value: Any, place: str) -> dict[str, Any]:
    if value is None:
        return {}
    if type(value) is not dict:
        raise InvalidInputError(f"{place}: expected an object, got {brief(value)}")
    return value


def _objects(value: Any, place: str) -> list[dict[str, Any]]:
    if type(value) is not list:
        raise InvalidInputError(f"{place}: expected a list of tensors, got {brief(value)}")
    for i, member in enumerate(value):
        if type(member) is not dict:
            raise InvalidInputError(f"{place}[{i}]: expected an object, got {brief(member)}")
    return value


def _flag(parameters: dict[str, Any], name: str, place: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise InvalidInputError(f"{place}.{name}: expected true or false, got {brief(value, 40)}")
    return value


def output_json(output: Output) -> dict[str, Any]:
    """One member of `outputs` in a response, its data in JSON.

    Raises:
        InvalidInputError: bytes that are no UTF-8, which only raw tensors can carry.
    """
    elements = output.elements
    try:
        data: Any = (
            orjson.Fragment(json_text(elements.reshape(-1)))
            if isinstance(elements, np.ndarray)
            else [element.decode() for element in elements]
        )
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"outputs: {output.name!r} is not UTF-8 and cannot be said in JSON; ask for it with"
            f' "parameters": {{"{BINARY}": true}}'
        ) from error
    return {**_about(output, {}), "data": data}


def output_binary(output: Output) -> tuple[dict[str, Any], bytes]:
    """One member of `outputs` in a response, and its data as a raw tensor."""
    raw = raw_of(output.elements)
    return _about(output, {BINARY_SIZE: len(raw)}), raw


def _about(output: Output, parameters: dict[str, Any]) -> dict[str, Any]:
    if output.as_json:
        parameters[CONTENT_TYPE] = JSON_TEXT
    about = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
    return {**about, "parameters": parameters} if parameters else about


def dump(value: dict[str, Any]) -> bytes:
    """JSON text of a response."""
    return orjson.dumps(value)
