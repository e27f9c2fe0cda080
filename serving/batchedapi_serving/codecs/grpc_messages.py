"""The Open Inference Protocol over gRPC: a ModelInferRequest to rows, results to a response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs.grpc_fields import check_fields
from batchedapi_serving.codecs.interface import Answer, Codec, Decoded, Head, Receipt, Results
from batchedapi_serving.codecs.json_values import check_value_count
from batchedapi_serving.codecs.open_inference_binary import BYTES, raw_elements, raw_of
from batchedapi_serving.codecs.open_inference_inputs import (
    CONTENT_TYPE,
    JSON_TEXT,
    Input,
    checked_datatype,
    checked_shape,
    elements_of,
    encode_inputs,
    wants_json,
)
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION
from batchedapi_serving.codecs.open_inference_outputs import (
    Output,
    checked_outputs,
    failed_row,
    output_tensors,
    requested,
)
from batchedapi_serving.codecs.open_inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
)
from batchedapi_serving.codecs.replies import receipt_headers, receipt_values
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    OverloadedError,
    ServingError,
)

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


def decode_grpc(codec: Codec, head: Head, body: bytes) -> Decoded:
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
    count = 1
    for length in shape:
        count *= length
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
            outputs=[_output(output) for output in outputs],
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


def _output(output: Output) -> ModelInferResponse.InferOutputTensor:
    parameters = {CONTENT_TYPE: _parameter(JSON_TEXT)} if output.as_json else {}
    return ModelInferResponse.InferOutputTensor(
        name=output.name, datatype=output.datatype, shape=output.shape, parameters=parameters
    )


def _parameter(value: str | float) -> InferParameter:
    match value:
        case str():
            return InferParameter(string_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
