"""Open Inference Protocol over gRPC: messages taken apart and put together."""

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.codecs.open_inference_grpc import (
    GrpcHead,
    asked_of,
    check_fields,
    read_message,
)
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from batchedapi_serving.codecs.results import TensorResults
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    LateError,
    MalformedError,
    PredictorError,
    TooLargeError,
)
from batchedapi_serving.predictor import Tensor
from protocols import (
    IRIS,
    ITEMS,
    PAIRS,
    RECEIPT,
    array,
    codec_of,
    failed_item,
    grpc,
    items,
    message,
    single,
    tensors,
    with_contents,
    with_raw,
)

HEAD = RequestHead(b"application/grpc", b"", ())
ROW = ("input", "FP32", (1, 4))
IRIS_ANSWER = tensors(IRIS, output=array("FP32", [[9, 9, 9], [0.1, 0.2, 0.7]]))


def iris(**members: Any) -> ModelInferRequest:
    """A request of one row."""
    return with_raw(message(**members), (*ROW, array("FP32", [[1, 2, 3, 4]])))


def response(answer: Answer) -> ModelInferResponse:
    """The message of an answer."""
    return ModelInferResponse.FromString(answer.body)


def test_a_response_has_the_members_of_the_protocol() -> None:
    """Tensors are raw; the model is called as it was asked for."""
    decoded = grpc(codec_of(IRIS), iris(id="42"))

    answer = decoded.reply.answer(IRIS_ANSWER, 1, 2, None)

    body = response(answer)
    (output,) = body.outputs
    assert 200 == answer.status
    assert ("iris", "1", "42") == (body.model_name, body.model_version, body.id)
    assert ("output", "FP32", [1, 3]) == (output.name, output.datatype, list(output.shape))
    assert [struct.pack("<3f", 0.1, 0.2, 0.7)] == list(body.raw_output_contents)
    assert {} == dict(body.parameters)


def test_only_the_requested_outputs_are_answered_in_their_order() -> None:
    """MLServer #514: the same as over HTTP."""
    request = with_raw(
        message(outputs=[{"name": "scaled"}]),
        ("ids", "INT64", (1, 2), array("INT64", [[1, 2]])),
        ("weights", "FP32", (1,), array("FP32", [1])),
    )
    results = tensors(PAIRS, sum=array("FP32", [1.5]), scaled=array("FP32", [[0.5, 1]]))

    body = response(grpc(codec_of(PAIRS), request).reply.answer(results, 0, 1, None))

    assert ["scaled"] == [output.name for output in body.outputs]
    assert [struct.pack("<2f", 0.5, 1)] == list(body.raw_output_contents)


def test_a_receipt_is_in_parameters_and_headers() -> None:
    """F8: each value in its own type."""
    answer = grpc(codec_of(IRIS), iris()).reply.answer(IRIS_ANSWER, 0, 1, RECEIPT)

    parameters = response(answer).parameters
    assert "b-7" == parameters["batch_id"].string_param
    assert 12 == parameters["batch_rows"].int64_param
    assert 1.5 == parameters["queue_ms"].double_param
    assert (b"x-batchedapi-process", b"1") in answer.headers


def test_no_parameters_without_a_receipt_for_them() -> None:
    """F8: the manifest says where receipts go."""
    decoded = grpc(codec_of(IRIS, Receipts.HEADERS), iris())

    assert {} == dict(response(decoded.reply.answer(IRIS_ANSWER, 0, 1, RECEIPT)).parameters)


def test_items_are_answered_as_json_texts() -> None:
    """BYTES, one element a row, each after its length."""
    request = with_contents(message(), ("x", "BYTES", (2,), "bytes_contents", [b"a", b"b"]))

    body = response(grpc(codec_of(ITEMS), request).reply.answer(items("x", 1), 0, 2, None))

    assert [b'\x03\0\0\0"x"\x01\0\0\x001'] == list(body.raw_output_contents)
    assert ("BYTES", [2]) == (body.outputs[0].datatype, list(body.outputs[0].shape))
    assert "json" == body.outputs[0].parameters["content_type"].string_param


def test_a_failed_row_fails_the_call_with_its_own_status() -> None:
    """A failure is never an OK, as it is with KServe's batcher."""
    request = with_contents(message(), ("x", "BYTES", (2,), "bytes_contents", [b"a", b"b"]))

    answer = grpc(codec_of(ITEMS), request).reply.answer(
        items(1, failed_item(409, "taken")), 0, 2, None
    )

    assert (409, b"row 1: taken") == (answer.status, answer.body)


def test_an_error_is_its_status_and_message() -> None:
    """The server makes a code and details of them."""
    answer = grpc(codec_of(IRIS), iris()).reply.problem(LateError("too late", 2.5), "my-id")

    assert (429, b"too late", 3) == (answer.status, answer.body, answer.retry_after)


def test_nan_is_never_answered() -> None:
    """Raw tensors could carry it, and clients would compute on."""
    results = TensorResults(IRIS, {"output": np.full((1, 3), np.nan, "<f4")}, [0])

    with pytest.raises(PredictorError, match="NaN or Infinity"):
        grpc(codec_of(IRIS), iris()).reply.answer(results, 0, 1, None)


def test_a_message_that_was_read_is_not_read_again() -> None:
    """The server reads it to learn the model's name."""
    codec = codec_of(IRIS)

    decoded = codec.decode(Wire.GRPC, GrpcHead(iris(), ()), b"not looked at")

    assert grpc(codec, iris()).payload == decoded.payload


@pytest.mark.parametrize(
    ("tensor", "message_part"),
    [
        ((*ROW, "fp32_contents", [1, 2, 3]), r"fp32_contents: expected 4 elements for FP32.*got 3"),
        ((*ROW, "fp64_contents", [1, 2, 3, 4]), r"inputs\[0\].contents.fp32_contents.*got 0"),
        ((*ROW, "fp32_contents", [1, 2, 3, float("nan")]), "finite"),
        (("input", "FP16", (1, 4), "fp32_contents", [1] * 4), "FP16 travels in raw_input_contents"),
        (("input", "INT8", (1, 4), "int_contents", [1, 2, 3, 200]), r"\[3\]: expected INT8"),
        (("input", "BYTES", (1, 4), "bytes_contents", [b"a"] * 4), "expected FP32 as declared"),
        (("input", "FP32", (), "fp32_contents", []), r"inputs\[0\].shape"),
        (("input", "FP32", (-1, 4), "fp32_contents", []), r"inputs\[0\].shape"),
        (("input", "float", (1, 4), "fp32_contents", []), r"inputs\[0\].datatype"),
    ],
)
def test_a_wrong_tensor_is_refused_by_its_place(tensor: Any, message_part: str) -> None:
    """INVALID_ARGUMENT in the end."""
    with pytest.raises(InvalidInputError, match=message_part):
        grpc(codec_of(IRIS), with_contents(message(), tensor))


def test_raw_tensors_are_for_all_inputs_or_for_none() -> None:
    """The protocol's rule; two ways might say two things."""
    both = with_contents(iris(), ("b", "FP32", (1,), "fp32_contents", [1]))
    twice = iris()
    twice.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])

    with pytest.raises(InvalidInputError, match="expected 2, one for each input, got 1"):
        grpc(codec_of(IRIS), both)
    with pytest.raises(InvalidInputError, match="either contents or raw_input_contents, got both"):
        grpc(codec_of(IRIS), twice)


def test_a_raw_tensor_is_as_long_as_its_shape() -> None:
    """FP16 included, which travels only so."""
    codec = codec_of(single(Tensor("FP16", [2])))
    short = with_raw(message(), ("input", "FP16", (1, 2), array("FP16", [[1]])))

    with pytest.raises(InvalidInputError, match=r"raw_input_contents\[0\]: expected 4 bytes"):
        grpc(codec, short)


def test_other_bytes_are_no_message() -> None:
    """The client's fault, which gRPC alone would call internal."""
    with pytest.raises(MalformedError, match="expected a ModelInferRequest"):
        codec_of(IRIS).decode(Wire.GRPC, HEAD, b"\xff\xff")


@given(body=st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    """Whatever is sent, a ClientError or rows; never another exception."""
    for method in (IRIS, PAIRS, ITEMS):
        try:
            decoded = codec_of(method).decode(Wire.GRPC, HEAD, body)
        except ClientError:
            continue
        assert 1 <= decoded.rows


INPUTS = st.lists(
    st.builds(
        ModelInferRequest.InferInputTensor,
        name=st.sampled_from(["input", "ids", "weights"]) | st.text(),
        datatype=st.sampled_from(["FP32", "INT64", "BYTES", "BOOL", "FP16"]) | st.text(),
        shape=st.sampled_from([(1, 4), (1, 2), (1,)])
        | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        contents=st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "fp32_contents": st.lists(st.floats(width=32), max_size=4),
                "int64_contents": st.lists(st.integers(-9, 9), max_size=4),
                "bytes_contents": st.lists(st.binary(max_size=3), max_size=4),
            },
        ),
    ),
    max_size=3,
)


@pytest.mark.parametrize("method", [IRIS, PAIRS, ITEMS], ids=["one", "named", "items"])
@given(inputs=INPUTS, raws=st.lists(st.binary(max_size=20), max_size=3), text=st.text())
def test_any_message_is_decoded_or_refused(
    method: Any, inputs: Any, raws: list[bytes], text: str
) -> None:
    """The same, past what protobuf checks."""
    request = message(
        inputs=inputs,
        raw_input_contents=raws,
        parameters={"content_type": {"string_param": text}} if text else {},
    )

    try:
        decoded = grpc(codec_of(method), request)
    except ClientError:
        return
    assert 1 <= decoded.rows


@pytest.mark.parametrize(
    "unit",
    [b"\x2a\x00", b"\x32\x00", b"\x22\x00", b"\x3a\x00", b"\x0a\x00"],
    ids=["inputs", "outputs", "parameters", "raw contents", "names"],
)
def test_more_fields_than_there_may_be_are_refused(unit: bytes) -> None:
    """Two bytes become a message of a hundred."""
    with pytest.raises(TooLargeError, match="message: expected at most 16384 fields"):
        read_message(unit * (contract.MAX_MESSAGE_FIELDS + 1))


@pytest.mark.parametrize("tag", [b"\x2a", b"\x32"], ids=["inputs", "outputs"])
def test_fields_of_inner_messages_count(tag: bytes) -> None:
    """One input with a million parameters is as large as a million inputs."""
    inner = (b"\x22\x00" if tag == b"\x2a" else b"\x12\x00") * contract.MAX_MESSAGE_FIELDS
    length = len(inner)
    varint = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])

    with pytest.raises(TooLargeError, match="fields"):
        read_message(tag + varint + inner)


def test_contents_of_tensors_are_not_counted_as_fields() -> None:
    """A hundred thousand texts in one tensor are an ordinary request."""
    texts = [b"text"] * 100_000
    tensor = ("input", "BYTES", [len(texts)], "bytes_contents", texts)
    body = with_contents(message(), tensor).SerializeToString()

    assert texts == list(read_message(body).inputs[0].contents.bytes_contents)


def test_a_number_where_the_name_belongs_is_no_name() -> None:
    """A field of another type is one that nobody knows."""
    assert ("iris", "") == asked_of(message().SerializeToString() + b"\x08\x01")[:2]


@given(st.binary(max_size=64))
def test_fields_are_found_or_refused_whatever_the_bytes(body: bytes) -> None:
    """A message that protobuf can read is never refused for its fields."""
    try:
        read = ModelInferRequest.FromString(body)
    except DecodeError:
        with contextlib.suppress(MalformedError):
            asked_of(body)
        return

    check_fields(body)
    assert (read.model_name, read.model_version) == asked_of(body)[:2]
