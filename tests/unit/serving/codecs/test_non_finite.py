"""NaN and Infinity: values where a tensor allows them, else refused with their place."""

import io
import json
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Codec, DecodedRequest, Wire
from batchedapi_serving.codecs.named_codec import NamedCodec
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferResponse
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, NPY, ROWS
from batchedapi_serving.codecs.results import TensorResults, json_text
from batchedapi_serving.codecs.submits import rows_frame
from batchedapi_serving.errors import InvalidInputError, MalformedError
from batchedapi_serving.model.marshalling import TensorSplitter, split_tensors
from batchedapi_serving.predictor import MethodSpec, SubmitError, Tensor
from protocols import (
    JSON_HEAD,
    array,
    codec_of,
    grpc,
    message,
    named,
    npy,
    packed,
    plain,
    single,
    tensor_json,
    v1,
    v2,
    v2_binary,
    with_contents,
    with_raw,
)

NAN, INF = float("nan"), float("inf")
ANY = Tensor("FP32", [4], allow_non_finite=True)
ALLOWED = single(ANY, ANY)
FINITE = single(Tensor("FP32", [4]), Tensor("FP32", [4]))
VALUES = [[1.0, NAN, INF, -INF], [0.5, 2.0, 3.0, 4.0]]
ARRAY = array("FP32", VALUES)
SPELLED = [[1.0, None, "Infinity", "-Infinity"], [0.5, 2.0, 3.0, 4.0]]
FLAT = [*SPELLED[0], *SPELLED[1]]
LANGUAGES: dict[str, Callable[[Codec], DecodedRequest]] = {
    "JSON": lambda codec: plain(codec, SPELLED),
    "v1": lambda codec: v1(codec, SPELLED),
    "msgpack": lambda codec: packed(codec, VALUES),
    "npy": lambda codec: npy(codec, ARRAY),
    "v2": lambda codec: v2(codec, tensor_json("input", "FP32", [2, 4], FLAT)),
    "v2 raw": lambda codec: v2_binary(codec, ("input", "FP32", (2, 4), ARRAY)),
    "gRPC": lambda codec: grpc(codec, with_raw(message(), ("input", "FP32", (2, 4), ARRAY))),
    "gRPC typed": lambda codec: grpc(
        codec,
        with_contents(message(), ("input", "FP32", (2, 4), "fp32_contents", ARRAY.reshape(-1))),
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_allowed_one_is_a_value_like_others_in_every_language(language: str) -> None:
    """Models with missing values need it; the batch is the same whoever sent it."""
    decoded = LANGUAGES[language](codec_of(ALLOWED))

    assert ARRAY.tobytes() == decoded.payload


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_that_is_not_allowed_is_refused_with_its_place(language: str) -> None:
    """S10: a model that was never meant to see it answers nonsense, and takes it for an answer."""
    with pytest.raises(InvalidInputError, match=r"(\[0\]\[1\]|data\[1\]): expected") as caught:
        LANGUAGES[language](codec_of(FINITE))

    assert "FP32" in str(caught.value)


def test_in_json_nan_is_null_or_a_text_and_other_texts_are_wrong() -> None:
    """JSON has no number for NaN; pandas, JavaScript and protobuf write null or a text."""
    codec = codec_of(ALLOWED)

    nulls, texts = (
        np.frombuffer(plain(codec, [row]).payload, "<f4")
        for row in ([None] * 4, ["NaN", "NaN", "Infinity", "-Infinity"])
    )

    assert np.isnan(nulls).all()
    np.testing.assert_array_equal(array("FP32", [NAN, NAN, INF, -INF]), texts)
    for wrong in ("nan", "inf", "", [None], 1e39, True):
        with pytest.raises(InvalidInputError, match=r"instances\[0\]\[1\]: expected FP32, got"):
            plain(codec, [[None, wrong, "Infinity", 1]])
    with pytest.raises(MalformedError, match=r"JSON has no NaN and no Infinity: .* takes null"):
        codec.decode(Wire.PLAIN, JSON_HEAD, b"[NaN, 1, 2, 3]")


def test_what_overflows_is_not_infinity() -> None:
    """1e39 is no FP32, whatever is allowed: nobody sent Infinity."""
    wide = np.array([[1, NAN, INF, 1e39]])

    with pytest.raises(InvalidInputError, match=r"\[0\]\[3\]: expected FP32 values, got one out"):
        npy(codec_of(ALLOWED), wide)
    meta, _ = split_tensors(ALLOWED, np.concatenate([wide, np.array([[1, NAN, INF, 1]])]), 2)

    assert [0] == meta["not_finite"]


def results_of(method: MethodSpec, answer: Any) -> TensorResults:
    """Results that the web process reads from an answer."""
    meta, buffers = TensorSplitter(method).split(answer, {"rows": len(answer)})
    read = codec_of(method).results(json.loads(json.dumps(meta)), b"".join(buffers))
    assert isinstance(read, TensorResults)
    return read


def test_an_allowed_one_is_answered_in_every_language() -> None:
    """By the rule of requests: who sends the answer back sends the same row."""
    codec, results = codec_of(ALLOWED), results_of(ALLOWED, ARRAY)

    item, rows, instances, npy_answer = (
        reply.answer(results, 0, 2, None) for reply in (ITEM, ROWS, INSTANCES, NPY)
    )
    in_msgpack = packed(codec, VALUES).reply.answer(results, 0, 2, None)
    in_json, raw, over_grpc = (
        LANGUAGES[name](codec).reply.answer(results, 0, 2, None)
        for name in ("v2", "v2 raw", "gRPC")
    )

    assert SPELLED[0] == orjson.loads(item.body)
    assert SPELLED == orjson.loads(rows.body) == orjson.loads(instances.body)["predictions"]
    assert SPELLED == msgpack.unpackb(in_msgpack.body)["predictions"]
    np.testing.assert_array_equal(ARRAY, np.load(io.BytesIO(npy_answer.body)))
    assert FLAT == orjson.loads(in_json.body)["outputs"][0]["data"]
    assert FLAT == orjson.loads(raw.body)["outputs"][0]["data"]
    response = ModelInferResponse()
    response.ParseFromString(over_grpc.body)
    assert ARRAY.tobytes() == response.raw_output_contents[0]
    assert ARRAY.tobytes() == plain(codec, orjson.loads(rows.body)).payload


def test_each_output_allows_for_itself() -> None:
    """A row whose other output diverged fails, and only that row."""
    method = named(
        {"x": Tensor("FP32", [1])},
        {"a": Tensor("FP32", [1], allow_non_finite=True), "b": Tensor("FP32", [1])},
    )
    answer = {"a": array("FP32", [[NAN], [NAN]]), "b": array("FP32", [[1], [INF]])}

    meta, _ = split_tensors(method, answer, 2)

    assert [1] == meta["not_finite"]


def test_each_input_allows_for_itself_also_with_variable_dimensions() -> None:
    """The packers of one shape are told apart by it."""
    method = named(
        {"a": Tensor("FP32", ["n"], allow_non_finite=True), "b": Tensor("FP32", ["n"])}, {}
    )
    codec = NamedCodec(method, "api", Receipts.OFF)

    one = plain(codec, [{"a": [None, 1], "b": [1, 2]}])
    other = packed(codec, [{"a": [NAN, 1.0], "b": [1, 2]}])

    assert one.payload == other.payload
    with pytest.raises(InvalidInputError, match=r"instances\[0\].b\[1\]: expected FP32, got None"):
        plain(codec, [{"a": [1, 2], "b": [1, None]}])
    with pytest.raises(InvalidInputError, match=r"instances\[0\].b\[1\]: expected finite FP32"):
        packed(codec, [{"a": [1, 2], "b": [1, NAN]}])


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_json_of_an_array_says_each_of_them(dtype: str) -> None:
    """Also of single numbers a row, and the short text of a float32 stays."""
    numbers = np.array([0.1, NAN, INF, -INF, NAN, 1], dtype)

    assert [None, "Infinity", "-Infinity", None] == orjson.loads(json_text(numbers))[1:-1]
    assert json_text(numbers[:1]) == json_text(numbers)[:-1].split(b",")[0] + b"]"
    assert b"[null,1.0]" == json_text(numbers[4:])


def test_rows_between_methods_are_not_changed() -> None:
    """`context.submit` of rows of several lengths goes through JSON, which would make it null."""
    method = single(Tensor("FP32", ["n"], allow_non_finite=True))
    refusing = single(Tensor("FP32", ["n"]))

    meta, (text,) = rows_frame(method, [[1.0, NAN], np.array([INF, -INF, 0.5], "<f4")])

    assert [[1.0, None], ["Infinity", "-Infinity", 0.5]] == orjson.loads(text)
    assert {"method": "predict"} == meta
    assert [[1.0], [None]] == orjson.loads(rows_frame(method, [[1.0], [None]])[1][0])
    items = MethodSpec("items", batched=True)
    for spec, rows in [(refusing, [[NAN], [1.0, 2.0]]), (items, [{"a": (NAN,)}])]:
        with pytest.raises(SubmitError, match="NaN or Infinity"):
            rows_frame(spec, rows)
    assert [{"a": None}] == orjson.loads(rows_frame(items, [{"a": None}])[1][0])
