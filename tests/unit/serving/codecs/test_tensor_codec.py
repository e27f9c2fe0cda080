"""Methods with a declared tensor: every form of a request and of its answer."""

import dataclasses
import io
import json
from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Answer, Codec, Reply, RequestHead, Wire, codec_for
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, NPY, ROWS
from batchedapi_serving.codecs.results import (
    ItemResults,
)
from batchedapi_serving.codecs.tensor_codec import TensorCodec
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    PredictorError,
    TooLargeError,
    UnsupportedTypeError,
)
from batchedapi_serving.model.marshalling import split_tensors
from batchedapi_serving.predictor import MethodSpec, SizeOf, Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings
from protocols import named, single

METHOD = single(Tensor("FP32", [2]))
CODEC = TensorCodec(METHOD, "api", Receipts.OFF)
JSON_HEAD = RequestHead(b"application/json", b"", ())
NPY_HEAD = RequestHead(b"application/x-npy", b"", ())


def results_of(array: Any, codec: Codec = CODEC) -> Any:
    """The codec's reading of what a model process sends for `array`."""
    meta, parts = split_tensors(METHOD, array, len(array))
    return codec.results(json.loads(json.dumps(meta)), b"".join(parts))


def saved(array: Any) -> bytes:
    """The bytes that numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_one_json_value_is_one_row() -> None:
    """The plain form: a row in, a row out."""
    decoded = CODEC.decode(Wire.PLAIN, JSON_HEAD, b"[1, 2.5]")

    assert (1, ITEM) == (decoded.rows, decoded.reply)
    assert np.array([1, 2.5], "<f4").tobytes() == decoded.payload


def test_instances_are_many_rows_in_order() -> None:
    """N14: a spreadsheet in one call."""
    decoded = CODEC.decode(Wire.PLAIN, JSON_HEAD, b'{"instances": [[1, 2], [3, 4], [5, 6]]}')

    assert (3, INSTANCES) == (decoded.rows, decoded.reply)
    assert [1, 2, 3, 4, 5, 6] == np.frombuffer(decoded.payload, "<f4").tolist()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_list_one_level_deeper_than_a_row_is_many_rows(rows: int) -> None:
    """N14: what clients of other servers send, `[[5.1, 3.5, 1.4, 0.2]]`; one row is a list too."""
    decoded = CODEC.decode(Wire.PLAIN, JSON_HEAD, orjson.dumps([[1, 2]] * rows))

    answer = decoded.reply.answer(results_of(np.array([[3, 4]] * rows, "<f4")), 0, rows, None)

    assert (rows, ROWS) == (decoded.rows, decoded.reply)
    assert np.array([1, 2] * rows, "<f4").tobytes() == decoded.payload
    assert (200, [[3, 4]] * rows) == (answer.status, json.loads(answer.body))


@pytest.mark.parametrize(
    ("shape", "row"), [([], 7), ([1], [7]), ([2, 1], [[7], [8]]), ([1, 1, 2], [[[7, 8]]])]
)
def test_the_rank_of_a_body_tells_one_row_from_many(shape: list[int], row: Any) -> None:
    """The rank alone decides, whatever rank is declared, single numbers included."""
    codec = TensorCodec(single(Tensor("FP32", shape)), "api", Receipts.OFF)

    one, listed, many = (
        codec.decode(Wire.PLAIN, JSON_HEAD, orjson.dumps(body)) for body in (row, [row], [row, row])
    )

    assert [(1, ITEM), (1, ROWS), (2, ROWS)] == [
        (decoded.rows, decoded.reply) for decoded in (one, listed, many)
    ]
    assert one.payload == listed.payload == codec.part(many.payload, 1, 2)


def test_a_list_of_more_rows_than_there_may_be_is_too_large() -> None:
    """As of `instances`: 413."""
    codec = TensorCodec(single(Tensor("FP32", [])), "api", Receipts.OFF)

    with pytest.raises(TooLargeError, match="at most 65536 rows"):
        codec.decode(Wire.PLAIN, JSON_HEAD, b"[0" + b",0" * contract.MAX_BATCH_SIZE_LIMIT + b"]")
    with pytest.raises(InvalidInputError, match="rows: expected at least one row"):
        codec.decode(Wire.PLAIN, JSON_HEAD, b"[]")


def test_a_row_of_a_list_that_failed_is_named_and_the_others_are_there() -> None:
    """The body of an error is the same in every form."""
    results = ItemResults((Item(200, "json", b"[1]"), Item(409, "json", b'{"code":"item_failed"}')))

    answer = ROWS.answer(results, 0, 2, None)

    assert 409 == answer.status
    assert "rows[1] failed; see predictions" == json.loads(answer.body)["error"]["message"]
    assert [[1], {"error": {"code": "item_failed"}}] == json.loads(answer.body)["predictions"]


def test_npy_is_many_rows() -> None:
    """Without JSON in between; parameters of the content type do not matter."""
    body = saved(np.ones((3, 2), "<f4"))

    decoded = CODEC.decode(Wire.PLAIN, RequestHead(b"Application/X-NPY; v=1", b"", ()), body)

    assert (3, NPY) == (decoded.rows, decoded.reply)
    assert np.ones(6, "<f4").tobytes() == decoded.payload


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"[1]", "item"),
        (b'{"instances": [[1, 2], [3]]}', "instances[1]"),
        (b'{"instances": [[1, 2], [3, "x"]]}', "instances[1][1]"),
        (b'{"instances": [[1, 2], [3, true]]}', "instances[1][1]"),
        (b'{"a": 1}', "item"),
        (b"null", "item"),
        (b"[]", "item"),
        (b"[[]]", "rows[0]"),
        (b"[[1, 2], [3]]", "rows[1]"),
        (b"[[1, 2], 3]", "rows[1]"),
        (b"[[1, 2], [3, null]]", "rows[1][1]"),
        (b"[[1, 2], [true, 3]]", "rows[1][0]"),
        (b"[[[1, 2]]]", "rows[0]"),
        (b"[1, [2, 3]]", "item[1]"),
    ],
)
def test_the_path_of_what_is_wrong_is_named(body: bytes, path: str) -> None:
    """A bad row never reaches a batch (422)."""
    with pytest.raises(InvalidInputError) as caught:
        CODEC.decode(Wire.PLAIN, JSON_HEAD, body)

    assert str(caught.value).startswith(f"{path}: expected")


def test_a_float_too_large_for_json_is_refused_not_infinite() -> None:
    """1e999 parses as Infinity in many readers."""
    with pytest.raises((MalformedError, InvalidInputError)):
        CODEC.decode(Wire.PLAIN, JSON_HEAD, b"[1e999, 0]")


def test_another_content_type_names_those_that_are_taken() -> None:
    """Curl -d sends a form type by default."""
    head = RequestHead(b"application/x-www-form-urlencoded", b"", ())

    with pytest.raises(UnsupportedTypeError, match=r"application/json or application/x-npy.*curl"):
        CODEC.decode(Wire.PLAIN, head, b"[1, 2]")


def test_each_form_is_answered_in_kind() -> None:
    """An item by a value, instances by predictions, an array by an array."""
    results = results_of(np.array([[1, 2], [3, 4], [5, 6]], "<f4"))

    item = ITEM.answer(results, 1, 2, None)
    instances = INSTANCES.answer(results, 1, 3, None)
    npy = NPY.answer(results, 0, 2, None)

    assert Answer(200, b"application/json", b"[3.0,4.0]") == item
    assert {"predictions": [[3, 4], [5, 6]]} == json.loads(instances.body)
    assert contract.NPY.encode() == npy.content_type
    assert [[1, 2], [3, 4]] == np.load(io.BytesIO(npy.body)).tolist()


@pytest.mark.parametrize("reply", [ITEM, INSTANCES, ROWS, NPY])
def test_a_row_of_nan_fails_its_own_request_only(reply: Reply) -> None:
    """One diverged row is no reason to fail its neighbours, nor to answer null."""
    results = results_of(np.array([[1, 2], [np.nan, 4], [5, 6]], "<f4"))

    failed = reply.answer(results, 1, 2, None)

    assert failed.status == 500
    assert json.loads(failed.body)["error"]["code"] == PredictorError.code
    assert (
        reply.answer(results, 0, 1, None).status == reply.answer(results, 2, 3, None).status == 200
    )


def test_the_failed_row_is_counted_within_the_request() -> None:
    """Row numbers of the batch would be others' business."""
    results = results_of(np.array([[1, 2], [3, 4], [np.inf, 4]], "<f4"))

    assert b"for row 1" in INSTANCES.answer(results, 1, 3, None).body


def test_parts_of_an_oversize_request_are_put_together_in_order() -> None:
    """Across batches, with the rows that are not finite at their new places."""
    first = results_of(np.array([[9, 9], [1, 2]], "<f4"))
    second = results_of(np.array([[3, 4], [9, 9]], "<f4"))
    third = results_of(np.array([[np.nan, 0]], "<f4"))

    whole = first.joined(1, 2, [(second, 0, 1)])
    broken = first.joined(1, 2, [(second, 0, 1), (third, 0, 1)])

    assert {"predictions": [[1, 2], [3, 4]]} == json.loads(INSTANCES.answer(whole, 0, 2, None).body)
    assert b"for row 2" in INSTANCES.answer(broken, 0, 3, None).body


def test_parts_of_different_shapes_do_not_fit() -> None:
    """A predictor whose output depends on the batch is wrong, and is told so."""
    first, second = results_of(np.ones((1, 2), "<f4")), results_of(np.ones((1, 3), "<f4"))

    with pytest.raises(PredictorError, match=r"\[2\], \[3\]"):
        first.joined(0, 1, [(second, 0, 1)])
    with pytest.raises(PredictorError, match="different ways"):
        first.joined(0, 1, [(ItemResults(()), 0, 0)])


def test_a_part_is_a_range_of_rows() -> None:
    """An oversize request is cut by rows, not by bytes."""
    payload = np.arange(6, dtype="<f4").tobytes()

    assert [2, 3] == np.frombuffer(CODEC.part(payload, 1, 2), "<f4").tolist()
    assert ({}, [payload]) == CODEC.collate([payload])


@pytest.mark.parametrize(
    ("method", "codec"),
    [
        (single(Tensor("FP32", [2])), "TensorCodec"),
        (single(Tensor("FP32", ["n"])), "NamedCodec"),
        (named({"a": Tensor("FP32", [2])}, {}), "NamedCodec"),
        (MethodSpec("predict", batched=True), "ItemCodec"),
        (MethodSpec("predict", batched=False), "CallCodec"),
    ],
)
def test_a_method_has_the_codec_of_what_it_declares(method: MethodSpec, codec: str) -> None:
    """A tensor, named or variable ones, JSON items, or whole requests."""
    settings = MethodSettings("predict", None, None, BatchingSettings())

    found = codec_for(method, settings, "api", Receipts.ALL)

    assert codec == type(found).__name__
    assert (method, "api", Receipts.ALL) == (found.method, found.api_name, found.receipts)


def test_rows_of_another_language_are_packed_alike() -> None:
    """Their NaN is refused, which JSON cannot send (S10)."""
    assert CODEC.from_rows([[1, 2], [3, 4]], "rows").payload == (
        np.array([1, 2, 3, 4], "<f4").tobytes()
    )
    assert CODEC.from_row([1, 2], "item").payload == np.array([1, 2], "<f4").tobytes()
    with pytest.raises(InvalidInputError, match=r"rows\[1\]\[1\]: expected finite FP32 values"):
        CODEC.from_rows([[1, 2], [3, float("nan")]], "rows")
    with pytest.raises(InvalidInputError, match=r"item\[1\]: expected finite FP32 values"):
        CODEC.from_row([1, float("inf")], "item")
    with pytest.raises(InvalidInputError, match=r"rows\[0\]\[1\]: expected FP32, got True"):
        CODEC.from_rows([[1, True]], "rows")


def test_an_array_of_another_language_is_checked_alike() -> None:
    """S11: names, shape, type and values."""
    assert CODEC.from_arrays({"input": np.array([[1, 2]])}, "inputs").payload == (
        np.array([1, 2], "<f4").tobytes()
    )
    for arrays, message in [
        ({"x": np.zeros((1, 2))}, r"inputs: expected the inputs input, got 'x'"),
        ({}, r"inputs: expected the inputs input, got none"),
        ({"input": np.zeros((1, 3))}, r"inputs\['input'\]: expected shape \(rows, 2\)"),
        ({"input": np.array([["a", "b"]])}, r"inputs\['input'\]: expected FP32 or narrower"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            CODEC.from_arrays(arrays, "inputs")


def test_rows_of_one_shape_all_cost_the_same() -> None:
    """Bytes of the packed row, or the length of a dimension."""
    spec = single(Tensor("FP32", [2]))
    for size_of, cost in [(SizeOf.bytes(per=3), 3), (SizeOf.length(of="input"), 2)]:
        method = dataclasses.replace(spec, size_of=size_of)
        codec = TensorCodec(method, "api", Receipts.OFF)

        decoded = codec.decode(Wire.PLAIN, JSON_HEAD, b'{"instances": [[1, 2], [3, 4]]}')
        one = codec.decode(Wire.PLAIN, JSON_HEAD, b"[1, 2]")

        assert ([cost, cost], [cost]) == (decoded.sizes, one.sizes)


def test_results_cross_processes_as_a_frame() -> None:
    """N13: with the rows that are not finite at their new places."""
    results = results_of(np.array([[9, 9], [1, 2], [np.nan, 0]], "<f4"))

    meta, buffers = results.to_frame(1, 3)
    received = CODEC.results(json.loads(json.dumps(meta)), b"".join(buffers))

    assert b"[1.0,2.0]" == ITEM.answer(received, 0, 1, None).body
    assert b"for row 1" in INSTANCES.answer(received, 0, 2, None).body


def test_a_problem_is_an_error_object_with_the_request_id() -> None:
    """On every route but those of the Open Inference Protocol."""
    problem = ITEM.problem(InvalidInputError("item: wrong"), "r-1")

    assert 422 == problem.status
    assert {"code": "invalid_input", "message": "item: wrong", "request_id": "r-1"} == json.loads(
        problem.body
    )["error"]


def test_the_answer_of_a_batch_is_read_where_it_arrived() -> None:
    """It may be megabytes."""
    meta = {"kind": "tensors", "outputs": [["output", "<f4", [2, 2]]], "not_finite": []}
    payload = np.array([[1, 2], [3, 4]], "<f4").tobytes()

    (array,) = CODEC.results(meta, payload).arrays(0, 2).values()

    assert [[1.0, 2.0], [3.0, 4.0]] == array.tolist()
    assert np.shares_memory(array, np.frombuffer(payload, "u1"))
