"""Open Inference Protocol v2 over HTTP: requests taken apart, responses put together."""

import dataclasses
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Answer, DecodedRequest, RequestHead, Results, Wire
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import (
    TensorResults,
)
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    LateError,
    MalformedError,
    PredictorError,
    TooLargeError,
    UnsupportedTypeError,
)
from batchedapi_serving.predictor import Tensor
from protocols import (
    IRIS,
    ITEMS,
    JSON_HEAD,
    PAIRS,
    RECEIPT,
    array,
    binary_head,
    codec_of,
    failed_item,
    items,
    named,
    single,
    tensor_json,
    tensors,
    v2,
    v2_binary,
)

ROW = [1.0, 2.0, 3.0, 4.0]
ONE = tensor_json("input", "FP32", [1, 4], ROW)
PAIR = (
    tensor_json("ids", "INT64", [1, 2], [1, 2]),
    tensor_json("weights", "FP32", [1], [0.5]),
)
IRIS_ANSWER = tensors(IRIS, output=array("FP32", [[0.1, 0.2, 0.7], [0.9, 0.1, 0]]))
PAIRS_ANSWER = tensors(PAIRS, sum=array("FP32", [1.5]), scaled=array("FP32", [[0.5, 1]]))


def body_of(answer: Answer) -> Any:
    """JSON of an answer without raw tensors."""
    return orjson.loads(answer.body)


def answered(decoded: DecodedRequest, results: Results, stop: int = 1) -> Any:
    """JSON with which rows [0, stop) are answered."""
    return body_of(decoded.reply.answer(results, 0, stop, None))


def split(answer: Answer) -> tuple[Any, bytes]:
    """JSON and raw tensors of an answer."""
    length = int(dict(answer.headers)[b"inference-header-content-length"])
    return orjson.loads(answer.body[:length]), answer.body[length:]


# ---------------------------------------------------------------------------- responses


def test_a_response_has_the_members_of_the_protocol() -> None:
    """Data is flat, in row-major order; float32 has its own shortest text."""
    decoded = v2(codec_of(IRIS), ONE, id="42")

    answer = decoded.reply.answer(IRIS_ANSWER, 1, 2, None)

    expected = {
        "model_name": "iris",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "output", "datatype": "FP32", "shape": [1, 3], "data": [0.9, 0.1, 0.0]}
        ],
    }
    assert (200, b"application/json") == answer[:2]
    assert expected == body_of(answer)


def test_without_an_id_none_is_answered() -> None:
    """And a method beside `predict` is a model of its own."""
    embed = dataclasses.replace(IRIS, name="embed")

    body = answered(v2(codec_of(embed), ONE), IRIS_ANSWER)

    assert "id" not in body
    assert "iris.embed" == body["model_name"]


def test_only_the_requested_outputs_are_answered_in_their_order() -> None:
    """MLServer #514: it answers all of them under batching."""
    codec = codec_of(PAIRS)

    one = answered(v2(codec, *PAIR, outputs=[{"name": "scaled"}]), PAIRS_ANSWER)
    both = answered(v2(codec, *PAIR, outputs=[{"name": "scaled"}, {"name": "sum"}]), PAIRS_ANSWER)
    every = answered(v2(codec, *PAIR), PAIRS_ANSWER)

    assert ["scaled"] == [output["name"] for output in one["outputs"]]
    assert ["scaled", "sum"] == [output["name"] for output in both["outputs"]]
    assert ["sum", "scaled"] == [output["name"] for output in every["outputs"]]


def test_each_request_of_a_batch_gets_its_rows_id_and_outputs() -> None:
    """MLServer #1306: one request got three answers, and two got none."""
    codec = codec_of(IRIS)
    first = v2(codec, ONE, id="a")
    second = v2(codec, ONE, id="b", outputs=[{"name": "output"}])

    a = body_of(first.reply.answer(IRIS_ANSWER, 0, 1, None))
    b = body_of(second.reply.answer(IRIS_ANSWER, 1, 2, None))

    assert ("a", [[0.1, 0.2, 0.7]]) == (a["id"], [out["data"] for out in a["outputs"]])
    assert ("b", [[0.9, 0.1, 0.0]]) == (b["id"], [out["data"] for out in b["outputs"]])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"name": "nope"}], r"outputs\[0\].name: expected 'sum' or 'scaled', got 'nope'"),
        ([{"name": "sum"}, {"name": "sum"}], r"outputs\[1\].name: 'sum' is there twice"),
        ([{}], r"outputs\[0\].name: expected 'sum' or 'scaled', got None"),
        ([5], r"outputs\[0\]: expected an object, got 5"),
        ({"name": "sum"}, "outputs: expected a list of tensors"),
    ],
)
def test_an_output_that_there_is_not_is_refused(outputs: Any, message: str) -> None:
    """Before the request joins a batch, where that can be known."""
    with pytest.raises(InvalidInputError, match=message):
        v2(codec_of(PAIRS), *PAIR, outputs=outputs)


def test_outputs_that_are_not_declared_are_known_once_there_is_an_answer() -> None:
    """The request is at fault even then."""
    method = named({"a": Tensor("FP32", [])}, {})
    decoded = v2(codec_of(method), tensor_json("a", "FP32", [1], [1]), outputs=[{"name": "c"}])

    with pytest.raises(InvalidInputError, match="outputs: expected 'b', got 'c'"):
        decoded.reply.answer(tensors(method, b=array("FP32", [1])), 0, 1, None)


def test_a_receipt_is_in_parameters_and_headers() -> None:
    """F8: which batch, how many rows and requests, how long, why, where."""
    decoded = v2(codec_of(IRIS, Receipts.ALL), ONE)

    answer = decoded.reply.answer(IRIS_ANSWER, 0, 1, RECEIPT)

    expected = {
        "batch_id": "b-7",
        "batch_rows": 12,
        "batch_requests": 3,
        "my_rows": 2,
        "queue_ms": 1.5,
        "exec_ms": 4.0,
        "elapsed_ms": 5.5,
        "reason": "full",
        "replica": "iris-0",
        "process": 1,
    }
    assert expected == body_of(answer)["parameters"]
    assert (b"x-batchedapi-batch-id", b"b-7") in answer.headers


@pytest.mark.parametrize(
    ("mode", "receipt"), [(Receipts.HEADERS, RECEIPT), (Receipts.ALL, None)], ids=["headers", "off"]
)
def test_no_parameters_without_a_receipt_for_them(mode: Receipts, receipt: Any) -> None:
    """F8: the manifest says where receipts go."""
    answer = v2(codec_of(IRIS, mode), ONE).reply.answer(IRIS_ANSWER, 0, 1, receipt)

    assert "parameters" not in body_of(answer)
    assert bool(receipt) == bool(answer.headers)


# ---------------------------------------------------------------------------- raw tensors


def test_outputs_go_out_raw_when_all_are_asked_for_so() -> None:
    """The header says where the JSON ends; the tensors follow in the order of outputs."""
    decoded = v2(codec_of(PAIRS), *PAIR, parameters={"binary_data_output": True})

    answer = decoded.reply.answer(PAIRS_ANSWER, 0, 1, None)

    body, raw = split(answer)
    sizes = [output["parameters"]["binary_data_size"] for output in body["outputs"]]
    assert b"application/octet-stream" == answer.content_type
    assert [4, 8] == sizes
    assert struct.pack("<3f", 1.5, 0.5, 1) == raw
    assert all("data" not in output for output in body["outputs"])


def test_each_output_may_travel_in_its_own_way() -> None:
    """`binary_data` of an output beats `binary_data_output` of the request."""
    outputs = [{"name": "sum"}, {"name": "scaled", "parameters": {"binary_data": False}}]
    decoded = v2(codec_of(PAIRS), *PAIR, outputs=outputs, parameters={"binary_data_output": True})

    body, raw = split(decoded.reply.answer(PAIRS_ANSWER, 0, 1, None))

    assert struct.pack("<f", 1.5) == raw
    assert [0.5, 1.0] == body["outputs"][1]["data"]


def test_raw_and_json_inputs_may_be_mixed() -> None:
    """Each input says for itself how it travels."""
    raw = array("INT64", [[1, 2]]).tobytes()
    ids = {
        "name": "ids", "datatype": "INT64", "shape": [1, 2],
        "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    text = orjson.dumps({"inputs": [ids, PAIR[1]]})
    codec = codec_of(PAIRS)

    decoded = codec.decode(Wire.V2, binary_head(len(text)), text + raw)

    assert v2(codec, *PAIR).payload == decoded.payload


def with_size(size: Any, raw: bytes, **more: Any) -> tuple[bytes, RequestHead]:
    """Body and head of a request whose one raw input says it is `size` bytes long."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4], **more}
    text = orjson.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]})
    return text + raw, binary_head(len(text))


@pytest.mark.parametrize(
    ("size", "data", "error", "message"),
    [
        (16, b"\0" * 12, MalformedError, "binary_data_size: expected 0 to 12"),
        (16, b"\0" * 20, MalformedError, "expected 16 bytes of raw tensors after the JSON"),
        (12, b"\0" * 12, InvalidInputError, r"inputs\[0\]: expected 16 bytes for FP32 of shape"),
        (-1, b"\0" * 16, MalformedError, "expected 0 to 16.*got -1"),
        (True, b"\0" * 16, MalformedError, "expected 0 to 16.*got True"),
        ("16", b"\0" * 16, MalformedError, "expected 0 to 16.*got '16'"),
        (16, struct.pack("<4f", 1, 2, float("nan"), 4), InvalidInputError, "finite"),
        (16, struct.pack("<4f", 1, 2, 3, float("inf")), InvalidInputError, "finite"),
    ],
)
def test_raw_tensors_must_add_up(
    size: Any, data: bytes, error: type[Exception], message: str
) -> None:
    """400 where JSON and bytes disagree, 422 where bytes and shape do."""
    body, head = with_size(size, data)

    with pytest.raises(error, match=message):
        codec_of(IRIS).decode(Wire.V2, head, body)


def test_a_tensor_travels_in_one_way_only() -> None:
    """Two ways might say two things."""
    body, head = with_size(16, b"\0" * 16, data=ROW)

    with pytest.raises(InvalidInputError, match="either data or binary_data_size, got both"):
        codec_of(IRIS).decode(Wire.V2, head, body)


@pytest.mark.parametrize("value", [b"-1", b"x", b"", b"99999", b"9" * 40])
def test_the_length_of_the_json_must_lie_in_the_body(value: bytes) -> None:
    """It is a number of another's making."""
    head = RequestHead(b"", b"", ((b"inference-header-content-length", value),))

    with pytest.raises(MalformedError, match="Inference-Header-Content-Length: expected 0 to 2"):
        codec_of(IRIS).decode(Wire.V2, head, b"{}")


def test_other_content_types_are_refused() -> None:
    """Raw tensors without the length of the JSON cannot be read."""
    head = RequestHead(b"application/octet-stream", b"", ())

    with pytest.raises(UnsupportedTypeError, match="with Inference-Header-Content-Length"):
        codec_of(IRIS).decode(Wire.V2, head, b"{}")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x02\0\0\0a",
        b"\x01\0\0\0ab",
        b"\x01\0\0",
        b"\xff\xff\xff\xffa",
        b"\x01\0\0\0a\x01\0\0\0b",
    ],
    ids=["short", "long", "no length", "huge length", "two"],
)
def test_bytes_elements_must_fill_their_tensor(raw: bytes) -> None:
    """Lengths within the data are a client's claim too."""
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1]}
    text = orjson.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]})

    with pytest.raises(InvalidInputError, match=r"inputs\[0\]: expected 1 elements, each after"):
        codec_of(ITEMS).decode(Wire.V2, binary_head(len(text)), text + raw)


def test_bool_is_one_byte_of_zero_or_one() -> None:
    """To numpy 2 is True, and compares unequal to True."""
    codec = codec_of(single(Tensor("BOOL", [2])))

    with pytest.raises(InvalidInputError, match="bytes 0 and 1 for BOOL"):
        v2_binary(codec, ("input", "BOOL", (1, 2), array("UINT8", [[1, 2]])))


# ---------------------------------------------------------------------------- wrong requests


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"shape": [1, 3]}, r"inputs\[0\].data: expected 3 elements for shape \[1, 3\], got 4"),
        ({"shape": [4], "data": [ROW]}, r"inputs\[0\].data: expected lists nested as shape \[4\]"),
        ({"data": [[1, 2], [3, 4]]}, r"nested as shape \[1, 4\], got a list of 2 for one of 1"),
        ({"data": [[1, 2, 3]]}, "got a list of 3 for one of 4"),
        ({"data": [1, 2, "3", 4]}, r"inputs\[0\].data\[2\]: expected FP32, got '3'"),
        ({"data": [1, 2, True, 4]}, r"inputs\[0\].data\[2\]: expected FP32, got True"),
        ({"data": [1, 2, None, 4]}, r"inputs\['input'\]\[0\]\[2\]: expected finite FP32 values"),
        ({"data": [1, 2, [3], 4]}, r"inputs\[0\].data\[2\]: expected FP32, got \[3\]"),
        ({"data": [1, 2, 1e39, 4]}, r"inputs\[0\].data\[2\]: expected FP32, got 1e\+39"),
        ({"data": "1234"}, r"inputs\[0\].data: expected a list, got '1234'"),
        ({"datatype": "FP31"}, r"inputs\[0\].datatype: expected one of BOOL, .* got 'FP31'"),
        ({"datatype": "BYTES", "data": list("abcd")}, "expected FP32 as declared, got BYTES"),
        ({"datatype": ["FP32"]}, r"inputs\[0\].datatype: expected one of"),
        ({"shape": []}, r"inputs\[0\].shape: expected 1 to 32 lengths >= 1, rows first, got \[\]"),
        ({"shape": [0, 4], "data": []}, r"inputs\[0\].shape: expected 1 to 32 lengths >= 1"),
        ({"shape": [1, -4]}, r"inputs\[0\].shape"),
        ({"shape": [1, 4.0]}, r"inputs\[0\].shape"),
        ({"shape": [True, 4]}, r"inputs\[0\].shape"),
        ({"shape": "14"}, r"inputs\[0\].shape"),
        ({"shape": [1] * 33}, r"inputs\[0\].shape"),
        ({"shape": [1, 2**62]}, r"expected \d+ elements"),
        ({"shape": [1, 2, 2]}, "shape"),
        ({"name": 5}, r"inputs\[0\].name: expected a string, got 5"),
        ({"parameters": []}, r"inputs\[0\].parameters: expected an object, got \[\]"),
    ],
)
def test_a_wrong_tensor_is_refused_by_its_place(tensor: dict[str, Any], message: str) -> None:
    """422; nothing is rounded, cut or guessed."""
    with pytest.raises(InvalidInputError, match=message):
        v2(codec_of(IRIS), {**ONE, **tensor})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "body: expected an object"),
        ({}, "inputs: expected a list of tensors, got None"),
        ({"inputs": []}, "inputs: expected at least one tensor"),
        ({"inputs": [ONE], "id": 5}, "id: expected a string, got 5"),
        ({"inputs": [ONE], "parameters": 5}, "parameters: expected an object"),
        ({"inputs": [ONE], "parameters": {"binary_data_output": 1}}, "expected true or false"),
        ({"inputs": [ONE, ONE]}, r"inputs\[1\].name: 'input' is there twice"),
    ],
)
def test_a_wrong_request_is_refused(value: Any, message: str) -> None:
    """Members that are read are checked; others are the client's own."""
    with pytest.raises(InvalidInputError, match=message):
        codec_of(IRIS).decode(Wire.V2, JSON_HEAD, orjson.dumps(value))


def test_inputs_have_the_declared_names_and_as_many_rows() -> None:
    """The message says which there are."""
    codec = codec_of(PAIRS)

    with pytest.raises(InvalidInputError, match="weights"):
        v2(codec, PAIR[0])
    with pytest.raises(InvalidInputError, match="other"):
        v2(codec, *PAIR, tensor_json("other", "FP32", [1], [1]))
    with pytest.raises(InvalidInputError, match=r"inputs\[1\].shape: expected 1 rows as in inputs"):
        v2(codec, PAIR[0], tensor_json("weights", "FP32", [2], [1, 2]))


def test_one_request_has_a_bounded_number_of_rows() -> None:
    """413, as on every route."""
    with pytest.raises(TooLargeError, match="at most 65536 rows"):
        v2(codec_of(ITEMS), tensor_json("x", "UINT8", [65537], [1] * 65537))


def test_strings_must_be_utf8_and_json_texts_json() -> None:
    """A bad item must not reach a batch."""
    codec = codec_of(ITEMS)

    with pytest.raises(InvalidInputError, match=r"inputs\[0\].data\[1\]: expected UTF-8"):
        v2_binary(codec, ("x", "BYTES", (2,), [b"a", b"\xff"]))
    with pytest.raises(InvalidInputError, match=r"inputs\[0\].data\[0\]: expected a JSON text"):
        v2(codec, tensor_json("x", "BYTES", [1], ["{"]), parameters={"content_type": "json"})
    with pytest.raises(InvalidInputError, match="at most 64 levels"):
        v2(
            codec,
            tensor_json("x", "BYTES", [1], ["[" * 65 + "]" * 65]),
            parameters={"content_type": "json"},
        )
    with pytest.raises(InvalidInputError, match="content_type: expected str or json, got 'np'"):
        v2(codec, tensor_json("x", "BYTES", [1], ["a"]), parameters={"content_type": "np"})
    with pytest.raises(InvalidInputError, match=r"inputs\[0\].data\[0\]: expected a string, got 1"):
        v2(codec, tensor_json("x", "BYTES", [1], [1]))


def test_items_of_raw_numbers_are_finite() -> None:
    """JSON has no NaN, and orjson would write null for it."""
    with pytest.raises(InvalidInputError, match=r"inputs\[0\]: expected finite values"):
        v2_binary(codec_of(ITEMS), ("x", "FP64", (1,), array("FP64", [float("nan")])))


# ---------------------------------------------------------------------------- items and errors


def test_items_are_answered_as_json_texts() -> None:
    """Always: a datatype that followed the values would differ from what metadata says."""
    decoded = v2(codec_of(ITEMS), tensor_json("x", "BYTES", [3], ["a", "b", "c"]))

    body = answered(decoded, items({"k": 1}, "text", 0.5), 3)

    expected = {
        "name": "output",
        "datatype": "BYTES",
        "shape": [3],
        "parameters": {"content_type": "json"},
        "data": ['{"k":1}', '"text"', "0.5"],
    }
    assert [expected] == body["outputs"]


def test_text_and_bytes_of_a_predictor_go_out_as_they_are() -> None:
    """They are no JSON; and bytes that are no text go out raw or not at all."""
    call = dataclasses.replace(ITEMS, batched=False)
    in_json = v2(codec_of(call), tensor_json("x", "BYTES", [1], ["a"]))
    raw = v2(
        codec_of(call),
        tensor_json("x", "BYTES", [1], ["a"]),
        parameters={"binary_data_output": True},
    )
    results = items(Item(200, "bytes", b"\xff\xfe"))

    text = answered(in_json, items(Item(200, "text", b"hello")))
    _, sent = split(raw.reply.answer(results, 0, 1, None))

    assert {"name": "output", "datatype": "BYTES", "shape": [1], "data": ["hello"]} == text[
        "outputs"
    ][0]
    assert b"\x02\0\0\0\xff\xfe" == sent
    with pytest.raises(InvalidInputError, match=r'not UTF-8.*"binary_data": true'):
        in_json.reply.answer(results, 0, 1, None)


def test_a_failed_row_gives_the_status_and_its_neighbours_stay() -> None:
    """KServe's batcher answers a failure with 200."""
    decoded = v2(codec_of(ITEMS), tensor_json("x", "BYTES", [2], ["a", "b"]))

    answer = decoded.reply.answer(items(1, failed_item(409, "taken")), 0, 2, None)

    body = body_of(answer)
    assert (409, "row 1: taken") == (answer.status, body["error"])
    assert "1" == body["outputs"][0]["data"][0]
    assert "taken" == orjson.loads(body["outputs"][0]["data"][1])["error"]["message"]


def test_the_only_row_that_failed_says_why() -> None:
    """Without counting to one."""
    decoded = v2(codec_of(ITEMS), tensor_json("x", "BYTES", [1], ["a"]))

    answer = decoded.reply.answer(items(1, failed_item(422, "too short")), 1, 2, None)

    assert (422, "too short") == (answer.status, body_of(answer)["error"])


def test_errors_are_a_string() -> None:
    """The protocol's clients show `error` as it is."""
    reply = v2(codec_of(IRIS), ONE).reply

    answer = reply.problem(LateError("too late", 2.5), "my-id")

    expected = Answer(429, b"application/json", b'{"error":"too late"}', 3)
    assert expected == answer


@pytest.mark.parametrize("binary", [False, True], ids=["JSON", "raw"])
def test_nan_is_never_answered(binary: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Raw tensors could carry it, and clients would compute on."""
    decoded = v2(codec_of(IRIS), ONE, parameters={"binary_data_output": binary})
    results = TensorResults(IRIS, {"output": np.full((1, 3), np.nan, "<f4")}, [0])

    with pytest.raises(PredictorError, match="NaN or Infinity"):
        decoded.reply.answer(results, 0, 1, None)


def test_a_numpy_type_without_a_name_is_the_predictors_fault() -> None:
    """complex64 is none of the protocol's."""
    decoded = v2(codec_of(IRIS), ONE)

    with pytest.raises(PredictorError, match="complex64, for which"):
        decoded.reply.answer(tensors(IRIS, output=np.zeros((1, 3), "c8")), 0, 1, None)


def test_big_endian_answers_are_sent_little_endian() -> None:
    """An array keeps the byte order of what it computed on; the protocol has one."""
    decoded = v2(codec_of(IRIS), ONE, parameters={"binary_data_output": True})

    _, raw = split(decoded.reply.answer(tensors(IRIS, output=np.ones((1, 3), ">f4")), 0, 1, None))

    assert struct.pack("<3f", 1, 1, 1) == raw


# ---------------------------------------------------------------------------- anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
MEMBER = st.sampled_from(["input", "ids", "FP32", "BYTES", "INT64", 1, 4, [1, 4], [1], ROW]) | JSON
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": MEMBER,
        "datatype": MEMBER,
        "shape": MEMBER,
        "data": MEMBER,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-1, 20) | JSON, "content_type": MEMBER}
        ),
    },
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "id": MEMBER,
        "inputs": st.lists(TENSOR, max_size=3) | JSON,
        "outputs": st.lists(st.fixed_dictionaries({}, optional={"name": MEMBER})) | JSON,
        "parameters": JSON,
    },
)


@pytest.mark.parametrize("method", [IRIS, PAIRS, ITEMS], ids=["one", "named", "items"])
@given(request=REQUEST | JSON, raw=st.binary(max_size=20), cut=st.integers(-3, 3))
@example(request={"inputs": [{**ONE, "data": []}]}, raw=b"", cut=0)
def test_any_request_is_decoded_or_refused(method: Any, request: Any, raw: bytes, cut: int) -> None:
    """Whatever is sent, a ClientError or rows; never another exception."""
    text = orjson.dumps(request)
    head = binary_head(max(0, len(text) + cut))

    try:
        decoded = codec_of(method).decode(Wire.V2, head, text + raw)
    except ClientError:
        return
    assert 1 <= decoded.rows


@given(body=st.binary(), content_type=st.binary(max_size=40), length=st.binary(max_size=4))
def test_any_bytes_are_decoded_or_refused(body: bytes, content_type: bytes, length: bytes) -> None:
    """The same, with neither JSON nor a sensible head."""
    headers = ((b"inference-header-content-length", length),)

    for head in (RequestHead(content_type, b"", headers), JSON_HEAD):
        try:
            decoded = codec_of(ITEMS).decode(Wire.V2, head, body)
        except ClientError:
            continue
        assert 1 <= decoded.rows
