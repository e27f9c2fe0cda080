"""The Open Inference Protocol over gRPC: a ModelInferRequest to rows, results to a response.

Its fields are counted and found on the wire before any object is made of them: a message of two
bytes becomes an object of a hundred, so a body may hold only so many. Inside of a tensor's contents
there are numbers and texts alone, which take at most eight times their bytes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    DecodedRequest,
    Head,
    Receipt,
    Results,
)
from batchedapi_serving.codecs.json_values import check_value_count
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION
from batchedapi_serving.codecs.open_inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
)
from batchedapi_serving.codecs.open_inference_tensors import (
    BYTES,
    CONTENT_TYPE,
    JSON_TEXT,
    Input,
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
from batchedapi_serving.codecs.replies import receipt_headers, receipt_values
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    OverloadedError,
    ServingError,
    TooLargeError,
)

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTH: Final = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT: Final = 10
_NAME, _VERSION, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 1, 2, 4, 5, 6, 7
_NESTED: Final = {_PARAMETERS: (), _INPUTS: (_PARAMETERS,), _OUTPUTS: (2,)}
"""Fields of a request that are messages, and which of theirs are."""
_TEXTS: Final = b"BYTES"
"""A datatype whose elements are taken apart, raw or not."""
MESSAGE: Final = b"application/grpc"
_TEXT: Final = b"text/plain; charset=utf-8"
_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


class GrpcHead(NamedTuple):
    """A Head of a call whose message was read already, to know which model it asks."""

    message: ModelInferRequest
    headers: Sequence[tuple[bytes, bytes]]
    """The call's metadata, names in lower case."""
    content_type: bytes = MESSAGE
    query: bytes = b""


def read_message(body: bytes) -> ModelInferRequest:
    """The message of a ModelInfer call.

    Raises:
        MalformedError: the bytes are none.
        TooLargeError: more fields than there may be; nothing was built for them.
    """
    if len(body) > 2 * contract.MAX_MESSAGE_FIELDS:  # fewer bytes hold no more than that
        check_fields(body)
    try:
        message = ModelInferRequest()
        message.ParseFromString(body)
    except DecodeError as error:
        raise MalformedError("message: expected a ModelInferRequest, got other bytes") from error
    return message


def decode_grpc(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """A request of Wire.GRPC; see Codec.decode. The message of a GrpcHead is not read again."""
    message = head.message if isinstance(head, GrpcHead) else read_message(body)
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        raise InvalidInputError(
            f"raw_input_contents: expected {len(message.inputs)}, one for each input,"
            f" got {len(raws)}"
        )
    names = checked_outputs(codec.method, [output.name for output in message.outputs])
    content_type = _parameters(message.parameters).get(CONTENT_TYPE)
    inputs = [
        _input(tensor, i, raws[i] if raws else None, content_type)
        for i, tensor in enumerate(message.inputs)
    ]
    encoded = encode_inputs(codec, inputs, head)
    return encoded.decoded(GrpcReply(message.model_name, message.id, names, codec.receipts))


def _input(
    tensor: ModelInferRequest.InferInputTensor, i: int, raw: bytes | None, content_type: Any
) -> Input:
    place = f"inputs[{i}]"
    datatype = checked_datatype(tensor.datatype, place)
    shape = checked_shape(list(tensor.shape), place)
    said = _parameters(tensor.parameters).get(CONTENT_TYPE, content_type)
    as_json = datatype == BYTES and wants_json(said, place)
    if raw is not None:
        if tensor.HasField("contents"):
            raise InvalidInputError(
                f"{place}: expected either contents or raw_input_contents, got both"
            )
        elements = raw_elements(datatype, shape, raw, f"raw_input_contents[{i}]")
        return Input(tensor.name, datatype, shape, elements, place, None, as_json)
    member = _CONTENTS.get(datatype)
    if member is None:
        raise InvalidInputError(f"{place}: {datatype} travels in raw_input_contents only")
    contents = getattr(tensor.contents, member)
    check_value_count(len(contents), f"{place}.contents.{member}")
    flat = list(contents)
    count = math.prod(shape)
    if len(flat) != count:
        raise InvalidInputError(
            f"{place}.contents.{member}: expected {count} elements for {datatype} of shape"
            f" {list(shape)}, got {len(flat)}"
        )
    elements = elements_of(datatype, flat, f"{place}.contents.{member}")
    return Input(tensor.name, datatype, shape, elements, place, None, as_json)


def _parameters(parameters: Mapping[str, InferParameter]) -> dict[str, Any]:
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return values


@dataclass(frozen=True, slots=True)
class GrpcReply:
    """Writes a ModelInferResponse; see Reply. Of an error, the body is its message as text."""

    model: str
    """As it was asked for."""
    id: str
    outputs: tuple[str, ...]
    """In the order to answer them; empty: all."""
    receipts: Receipts

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer. A call has one status: a row that failed fails the call."""
        failed = failed_row(results, start, stop)
        if failed is not None:
            return Answer(failed.status, _TEXT, failed.message.encode())
        outputs = requested(output_tensors(results, start, stop), self.outputs)
        response = ModelInferResponse(
            model_name=self.model,
            model_version=MODEL_VERSION,
            id=self.id,
            outputs=[
                ModelInferResponse.InferOutputTensor(
                    name=output.name,
                    datatype=output.datatype,
                    shape=output.shape,
                    parameters={CONTENT_TYPE: _parameter(JSON_TEXT)} if output.as_json else {},
                )
                for output in outputs
            ],
            raw_output_contents=[raw_of(output.elements) for output in outputs],
        )
        if receipt is not None and self.receipts is Receipts.ALL:
            for name, value in receipt_values(receipt).items():
                response.parameters[name].CopyFrom(_parameter(value))
        body = response.SerializeToString()
        return Answer(200, MESSAGE, body, headers=receipt_headers(receipt))

    def problem(self, error: ServingError, request_id: str | None) -> Answer:  # noqa: ARG002 - it goes back in the trailing metadata
        """See Reply.problem."""
        return grpc_problem(error)


def grpc_problem(error: ServingError) -> Answer:
    """An error as the server reads it: its HTTP status, and its message as text."""
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, _TEXT, str(error).encode(), retry_after)


def _parameter(value: str | float) -> InferParameter:
    match value:
        case str():
            return InferParameter(string_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)


class Field(NamedTuple):
    """Where a text or message lies in another; fields of other types have the number 0."""

    number: int
    start: int
    stop: int


class _Fields:
    """Reads the fields of one body, and ends when there are too many of them."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = contract.MAX_MESSAGE_FIELDS

    def of(self, start: int, stop: int) -> Iterator[Field]:
        """Fields of the message at [start, stop); groups, which no message has, field by field."""
        while start < stop:
            self._left -= 1
            if self._left < 0:
                raise TooLargeError(
                    f"message: expected at most {contract.MAX_MESSAGE_FIELDS} fields outside of"
                    " tensors' contents, got more; send fewer inputs and parameters at a time"
                )
            tag, start = self._varint(start, stop)
            number, kind = tag >> 3, tag & 7
            first = start
            if kind == _VARINT:
                _, start = self._varint(start, stop)
            elif kind == _BYTES:
                length, first = self._varint(start, stop)
                start = first + length
            elif kind in _WIDTH:
                start += _WIDTH[kind]
            elif kind not in {_GROUP, _GROUP_END}:
                raise _malformed()
            if start > stop:
                raise _malformed()
            yield Field(number if kind == _BYTES else 0, first, start)

    def _varint(self, start: int, stop: int) -> tuple[int, int]:
        value = 0
        for i, byte in enumerate(self._body[start : min(start + _LONGEST_VARINT, stop)]):
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:  # noqa: PLR2004 - the last byte has no high bit
                return value, start + i + 1
        raise _malformed()


def check_fields(body: bytes) -> None:
    """Bound the objects that reading a ModelInferRequest makes.

    Raises:
        MalformedError: the bytes are no message.
        TooLargeError: more fields than there may be.
    """
    fields = _Fields(body)
    for field in fields.of(0, len(body)):
        inner = _NESTED.get(field.number)
        if inner is None:
            continue
        for member in fields.of(field.start, field.stop):
            if member.number in inner:
                for _ in fields.of(member.start, member.stop):
                    pass


class AskedModel(NamedTuple):
    """The first level of a ModelInferRequest, short of its tensors."""

    model: str
    version: str
    raw: int
    """Bytes of its tensors that lie in it as they do in memory, and are not taken apart."""


def asked_of(body: bytes) -> AskedModel:
    """Read the model that a ModelInferRequest asks for, and with how much; nothing else is read.

    Raises:
        MalformedError: the bytes are no message.
        TooLargeError: more fields than there may be.
    """
    names, raw = {_NAME: b"", _VERSION: b""}, 0
    for field in _Fields(body).of(0, len(body)):
        if field.number in names:
            names[field.number] = body[field.start : field.stop]
        elif field.number == _RAW:
            raw += field.stop - field.start
    try:
        model, version = names[_NAME].decode(), names[_VERSION].decode()
    except UnicodeDecodeError as error:
        raise _malformed() from error
    return AskedModel(model, version, 0 if _TEXTS in body else raw)


def _malformed() -> MalformedError:
    return MalformedError("message: expected a ModelInferRequest, got other bytes")
