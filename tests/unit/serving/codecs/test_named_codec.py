"""Several named tensors and variable dimensions: rows checked, put together and cut back."""

import json
from typing import Any

import numpy as np
import pytest

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import DecodedRequest, RequestHead, Wire
from batchedapi_serving.codecs.named_codec import NamedCodec
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, NPY, ROWS
from batchedapi_serving.errors import InvalidInputError, PredictorError, UnsupportedTypeError
from batchedapi_serving.model.marshalling import input_arrays
from batchedapi_serving.predictor import MethodSpec, SizeOf, Tensor
from protocols import named, padded, single

TOKENS = named(
    {"ids": Tensor("INT64", ["tokens"]), "mask": Tensor("BOOL", ["tokens"])},
    {"scores": Tensor("FP32", ["tokens", 2]), "length": Tensor("INT32", [])},
)
JSON_HEAD = RequestHead(b"", b"", ())


def codec_of(method: MethodSpec) -> NamedCodec:
    """Codec of a method of the API `api`, without receipts."""
    return NamedCodec(method, "api", Receipts.OFF)


def decode(codec: NamedCodec, value: Any) -> DecodedRequest:
    """A JSON request on the plain route."""
    return codec.decode(Wire.PLAIN, JSON_HEAD, json.dumps(value).encode())


def row(*ids: int) -> dict[str, list[Any]]:
    """A row with these tokens."""
    return {"ids": list(ids), "mask": [True] * len(ids)}


def arrays_of(codec: NamedCodec, *requests: DecodedRequest) -> dict[str, Any]:
    """Arrays that the model's method gets for a batch of these requests."""
    collated = codec.collate([request.payload for request in requests])
    meta = {"rows": sum(request.rows for request in requests), **collated.meta}
    return input_arrays(codec.method, meta, b"".join(collated.buffers))


def refusal(method: MethodSpec, value: Any) -> str:
    """The message with which a request is refused."""
    with pytest.raises(InvalidInputError) as caught:
        decode(codec_of(method), value)
    return str(caught.value)


def test_an_item_is_an_object_with_one_member_for_each_input() -> None:
    """In any order."""
    codec = codec_of(TOKENS)

    decoded = decode(codec, {"mask": [True, False], "ids": [7, 8]})

    arrays = arrays_of(codec, decoded)
    assert (1, ITEM) == (decoded.rows, decoded.reply)
    assert [[7, 8]] == arrays["ids"].tolist()
    assert [[True, False]] == arrays["mask"].tolist()


def test_a_list_of_objects_is_many_rows() -> None:
    """A row of named inputs is an object, never a list; `to_json(orient="records")` writes it."""
    decoded = decode(codec_of(TOKENS), [row(1), row(2, 3)])

    assert (2, ROWS) == (decoded.rows, decoded.reply)
    assert [(1,), (2,)] == decoded.shapes


def test_of_a_variable_dimension_the_rank_is_known_and_lengths_may_differ() -> None:
    """Rows of a list need not be as long as each other."""
    codec = codec_of(single(Tensor("INT64", ["tokens"])))

    one, many = decode(codec, [1, 2]), decode(codec, [[1, 2], [3]])

    assert [(1, ITEM, [(2,)]), (2, ROWS, [(2,), (1,)])] == [
        (decoded.rows, decoded.reply, decoded.shapes) for decoded in (one, many)
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([row(1), {"ids": [1]}], "rows[1].mask: expected an input of that name"),
        ([[1, 2]], "rows[0]: expected an object with ids, mask, got [1, 2]"),
        ([], "rows: expected at least one row"),
        (
            {"ids": [[1], [2]], "mask": [[True], [True]]},
            "item.ids[0]: expected INT64, got [1]; many rows are a list of objects",
        ),
    ],
)
def test_named_inputs_are_not_sent_as_columns(value: Any, message: str) -> None:
    """An object is one row: of columns nobody could say which dimension they are of."""
    assert refusal(TOKENS, value).startswith(message)


def test_in_buckets_each_row_has_the_shape_of_its_variable_lengths() -> None:
    """Firsts 3.5: each shape is batched with its like."""
    decoded = decode(codec_of(TOKENS), {"instances": [row(1), row(2, 3), row(4, 5)]})

    assert (3, INSTANCES) == (decoded.rows, decoded.reply)
    assert [(1,), (2,), (2,)] == decoded.shapes


def test_padded_rows_share_a_batch_and_are_filled_up_with_zeros() -> None:
    """Firsts 3.5: to the longest of the batch, whatever request it is of."""
    codec = codec_of(padded(TOKENS))
    first = decode(codec, {"instances": [row(1), row(2, 3)]})
    second = decode(codec, row(4, 5, 6))

    arrays = arrays_of(codec, first, second)

    assert [(1,), (2,)] == first.shapes
    assert [[1, 0, 0], [2, 3, 0], [4, 5, 6]] == arrays["ids"].tolist()
    assert [1, 2, 3] == arrays["mask"].sum(axis=1).tolist()


def test_padding_fills_up_every_named_dimension() -> None:
    """Not the first alone."""
    codec = codec_of(padded(single(Tensor("FP32", ["a", 2, "b"]))))

    arrays = arrays_of(
        codec, decode(codec, [[[1], [2]], [[3], [4]]]), decode(codec, [[[5, 6]] * 2])
    )

    assert [
        [[[1, 0], [2, 0]], [[3, 0], [4, 0]]],
        [[[5, 6], [5, 6]], [[0, 0], [0, 0]]],
    ] == arrays["input"].tolist()


def test_fixed_inputs_by_name_need_no_shapes() -> None:
    """Rows of one shape are batched with all others."""
    codec = codec_of(named({"a": Tensor("FP32", [2]), "b": Tensor("INT8", [])}, {}))

    decoded = decode(codec, {"instances": [{"a": [1, 2], "b": 3}, {"a": [4, 5], "b": 6}]})

    assert decoded.shapes is None
    assert {} == codec.collate([decoded.payload]).meta
    assert [3, 6] == arrays_of(codec, decoded)["b"].tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"instances": [row(1), 5]}, "instances[1]: expected an object with ids, mask, got 5"),
        ({"ids": [1]}, "item.mask: expected an input of that name, got none"),
        ({**row(1), "x": 1}, "item: expected ids, mask and nothing else, got 'x'"),
        (
            {"instances": [row(1), {"ids": [1, "7"], "mask": [True, True]}]},
            "instances[1].ids[1]: expected INT64, got '7'",
        ),
        ({"ids": [1, 2], "mask": [True]}, "item.mask: expected length 2 along 'tokens'"),
        ({"ids": [], "mask": []}, "item.ids: expected INT64 of shape ['tokens'], got shape [0]"),
        ({"ids": 3, "mask": []}, "item.ids: expected INT64 of shape ['tokens'], got 3"),
        ({"ids": [[1]], "mask": [True]}, "item.ids[0]: expected INT64, got [1]"),
        ({"ids": [1], "mask": [1]}, "item.mask[0]: expected BOOL, got 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(value: Any, message: str) -> None:
    """S11: before the queue, 422, down to the number."""
    assert refusal(TOKENS, value).startswith(message)


def test_a_ragged_row_is_refused() -> None:
    """The first part says how long all are."""
    assert "item: expected FP32 of shape [2, 3]" in refusal(
        single(Tensor("FP32", ["a", "b"])), [[1, 2, 3], [4]]
    )


def test_nan_of_another_language_is_refused() -> None:
    """S10: msgpack can send it."""
    method = named({"a": Tensor("FP32", ["n"]), "b": Tensor("FP16", [])}, {})
    codec = codec_of(method)

    for bad, place in [
        ({"a": [1.0, float("nan")], "b": 1.0}, r"rows\[0\].a\[1\]"),
        ({"a": [1.0], "b": float("inf")}, r"rows\[0\].b"),
    ]:
        with pytest.raises(InvalidInputError, match=f"{place}: expected finite"):
            codec.from_rows([bad], "rows")
        with pytest.raises(InvalidInputError, match="finite"):
            codec.from_row(bad, "item")


def test_arrays_of_another_language_are_rows_too() -> None:
    """D10, firsts 3.7: batched below the protocol."""
    codec = codec_of(TOKENS)
    ids, mask = np.array([[1, 2], [3, 4]], "<i4"), np.ones((2, 2), bool)

    encoded = codec.from_arrays({"mask": mask, "ids": ids}, "inputs")

    assert (2, [(2,), (2,)]) == (encoded.rows, encoded.shapes)
    assert encoded.payload == decode(codec, {"instances": [row(1, 2), row(3, 4)]}).payload


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"ids": (2, 3)}, "inputs: expected the inputs ids, mask, got 'ids'"),
        ({"ids": (2, 3), "mask": (2, 4)}, "inputs['mask']: expected shape (rows, tokens=3)"),
        ({"ids": (2, 3), "mask": (1, 3)}, "inputs: expected as many rows in each input"),
        ({"ids": (2,), "mask": (2, 1)}, "inputs['ids']: expected shape (rows, tokens)"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_each_other_are_refused(
    shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    """S11: the same name is the same length."""
    with pytest.raises(InvalidInputError) as caught:
        codec_of(TOKENS).from_arrays(
            {name: np.zeros(shape, bool) for name, shape in shapes.items()}, "inputs"
        )

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("size_of", "costs"),
    [
        (SizeOf.length(of="tokens"), [1, 3]),
        (SizeOf.length(of="ids", per=2), [1, 2]),
        (SizeOf.bytes(per=9), [1, 3]),
    ],
    ids=str,
)
def test_a_rows_cost_follows_from_its_lengths(size_of: SizeOf, costs: list[int]) -> None:
    """Firsts 3.4: max_batch_size then bounds tokens, not rows."""
    method = MethodSpec("predict", batched=True, inputs=TOKENS.inputs, size_of=size_of)

    decoded = decode(codec_of(method), {"instances": [row(1), row(2, 3, 4)]})

    assert costs == decoded.sizes


def test_npy_holds_one_array_and_is_refused_for_several() -> None:
    """415 with what to send instead."""
    head = RequestHead(b"application/x-npy", b"", ())

    with pytest.raises(UnsupportedTypeError, match=r"named tensors \(ids, mask, scores, length\)"):
        codec_of(TOKENS).decode(Wire.PLAIN, head, b"")


def test_a_part_is_a_range_of_rows() -> None:
    """An oversize request is cut between rows."""
    codec = codec_of(TOKENS)
    decoded = decode(codec, {"instances": [row(1), row(2, 3), row(4)]})

    assert decoded.payload[1:2] == codec.part(decoded.payload, 1, 2)


META = {
    "kind": "tensors",
    "outputs": [["scores", "<f4", [2, 3, 2]], ["length", "<i4", [2]]],
    "not_finite": [],
    "lengths": {"tokens": [3, 1]},
}
PAYLOAD = np.arange(12, dtype="<f4").tobytes() + np.array([3, 1], "<i4").tobytes()


def test_answers_are_cut_back_to_the_length_of_their_row() -> None:
    """Values that a model computes for padding go to no client."""
    results = codec_of(TOKENS).results(META, PAYLOAD)

    assert {"predictions": [
        {"scores": [[0, 1], [2, 3], [4, 5]], "length": 3},
        {"scores": [[6, 7]], "length": 1},
    ]} == json.loads(INSTANCES.answer(results, 0, 2, None).body)  # fmt: skip
    assert b'{"scores":[[6.0,7.0]],"length":1}' == ITEM.answer(results, 1, 2, None).body


def test_rows_cut_back_cross_processes_and_are_joined() -> None:
    """N13: as a frame in which each row says its shape."""
    codec = codec_of(TOKENS)
    results = codec.results(META, PAYLOAD)

    meta, buffers = results.to_frame(1, 2)
    received = codec.results(json.loads(json.dumps(meta)), b"".join(buffers))
    joined = results.joined(0, 1, [(received, 0, 1)])

    assert INSTANCES.answer(results, 0, 2, None) == INSTANCES.answer(joined, 0, 2, None)
    meta, buffers = joined.to_frame(0, 2)
    again = codec.results(json.loads(json.dumps(meta)), b"".join(buffers))
    assert INSTANCES.answer(results, 0, 2, None) == INSTANCES.answer(again, 0, 2, None)


def test_rows_of_different_shapes_are_no_array() -> None:
    """One row is, and a client that asked for many is told what to do."""
    method = single(Tensor("FP32", ["n"]), Tensor("FP32", ["n"]))
    meta = {
        "kind": "tensors",
        "outputs": [["output", "<f4", [[2], [1]]]],
        "not_finite": [],
    }
    results = codec_of(method).results(meta, np.arange(3, dtype="<f4").tobytes())

    assert 200 == NPY.answer(results, 1, 2, None).status
    assert b"different shapes ([2], [1])" in NPY.answer(results, 0, 2, None).body


def test_parts_that_answer_other_outputs_are_not_joined() -> None:
    """S4: nothing is guessed."""
    codec = codec_of(TOKENS)
    other = codec.results(
        {"kind": "tensors", "outputs": [["x", "<i4", [1]]], "not_finite": []}, bytes(4)
    )

    with pytest.raises(PredictorError, match="different ways"):
        codec.results(META, PAYLOAD).joined(0, 1, [(other, 0, 1)])
