"""The Open Inference Protocol (v2) over HTTP: a request to rows, results to a response.

Tensors may travel in JSON or raw behind it, in both directions and each on its own; the rows are
the same either way, and the same as those of any other language. With raw tensors, the body is a
JSON text, whose length is in a header, followed by them in the order of `inputs`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    DecodedRequest,
    Head,
    Receipt,
    Results,
)
from batchedapi_serving.codecs.json_values import is_json, parse_json, unsupported
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION, model_name
from batchedapi_serving.codecs.open_inference_tensors import (
    BYTES,
    CONTENT_TYPE,
    JSON_TEXT,
    Input,
    Output,
    checked_datatype,
    checked_outputs,
    checked_shape,
    elements_of,
    encode_inputs,
    failed_row,
    output_tensors,
    raw_elements,
    raw_of,
    requested,
    wants_json,
)
from batchedapi_serving.codecs.replies import JSON_TYPE, receipt_headers, receipt_values
from batchedapi_serving.codecs.results import json_text
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    MalformedError,
    OverloadedError,
    ServingError,
    brief,
)

HEADER_LENGTH: Final = b"inference-header-content-length"
OCTETS: Final = b"application/octet-stream"
_MAX_DIGITS: Final = 18
BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_OUTPUT: Final = "binary_data_output"


def decode_v2(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """A request of Wire.V2; see Codec.decode."""
    request = read_request(split_body(head, body))
    names = checked_outputs(codec.method, [output.name for output in request.outputs])
    encoded = encode_inputs(codec, request.inputs, head)
    binary = frozenset(output.name for output in request.outputs if output.binary)
    return encoded.decoded(
        OpenInferenceReply(
            model_name(codec.api_name, codec.method.name),
            request.id,
            names,
            binary if names else request.binary,
            codec.receipts,
        )
    )


@dataclass(frozen=True, slots=True)
class OpenInferenceReply:
    """Writes an inference response; see Reply."""

    model: str
    id: str | None
    outputs: tuple[str, ...]
    """In the order to answer them; empty: all."""
    binary: frozenset[str] | bool
    """Names of the outputs to send raw, or whether to send all so."""
    receipts: Receipts

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer.

        The protocol knows no row that failed. The status is that of the first one, as in the other
        languages, and `error` says which; the outputs are there as well, so nothing is lost.
        """
        response: dict[str, object] = {"model_name": self.model, "model_version": MODEL_VERSION}
        if self.id is not None:
            response["id"] = self.id
        if receipt is not None and self.receipts is Receipts.ALL:
            response["parameters"] = receipt_values(receipt)
        failed = failed_row(results, start, stop)
        if failed is not None:
            response["error"] = failed.message
        members, raws = [], []
        for output in requested(output_tensors(results, start, stop), self.outputs):
            if self.binary if isinstance(self.binary, bool) else output.name in self.binary:
                member, raw = output_binary(output)
                raws.append(raw)
            else:
                member = output_json(output)
            members.append(member)
        response["outputs"] = members
        text, headers = orjson.dumps(response), receipt_headers(receipt)
        status = 200 if failed is None else failed.status
        if not raws:
            return Answer(status, JSON_TYPE, text, headers=headers)
        headers = (*headers, (HEADER_LENGTH, b"%d" % len(text)))
        return Answer(status, OCTETS, b"".join((text, *raws)), headers=headers)

    def problem(self, error: ServingError, request_id: str | None) -> Answer:  # noqa: ARG002 - the protocol has no place for it; the header has it
        """See Reply.problem."""
        return open_inference_problem(error)


def open_inference_problem(error: ServingError) -> Answer:
    """An error as the protocol's clients read it: a string."""
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, JSON_TYPE, orjson.dumps({"error": str(error)}), retry_after)


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
    request_id = value.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise InvalidInputError(f"id: expected a string, got {brief(request_id)}")
    asked = []
    for i, output in enumerate(outputs):
        place = f"outputs[{i}].parameters"
        parameters = _object(output.get("parameters"), place)
        as_binary = _flag(parameters, BINARY, place, default=binary)
        asked.append(RequestedOutput(output.get("name"), as_binary))
    return InferRequest(request_id, inputs, asked, binary)


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
    flat = _unnested(data, shape, place) if data and type(data[0]) is list else data
    count = math.prod(shape)
    if len(flat) != count:
        raise InvalidInputError(
            f"{place}: expected {count} elements for shape {list(shape)}, got {len(flat)}"
        )
    return flat


def _unnested(data: list[Any], shape: Sequence[int], place: str) -> list[Any]:
    level: list[Any] = [data]
    for length in shape:
        for part in level:
            if type(part) is not list or len(part) != length:
                got = f"a list of {len(part)}" if type(part) is list else brief(part)
                raise InvalidInputError(
                    f"{place}: expected lists nested as shape {list(shape)},"
                    f" got {got} for one of {length}"
                )
        level = [element for part in level for element in part]
    return level


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
