"""Every language of one method ends in the same rows, so they ride in the same batches.

KServe's batcher knows v1 only, and merges requests of different paths; here a payload does not tell
in which language it came, and a method has its own codec, queue and batches.
"""

from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_serving.errors import InvalidInputError
from batchedapi_serving.predictor import DTYPES, MethodSpec, Tensor
from protocols import (
    IRIS,
    ITEMS,
    PAIRS,
    array,
    codec_of,
    grpc,
    message,
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

ROWS = [[5.1, 3.5, 1.4, 0.2], [0.1, -2.0, 3, 1e-7]]
FLAT = [number for row in ROWS for number in row]
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


def collated(codec: Any, *payloads: Any) -> bytes:
    """A batch of these payloads as it goes to a model process."""
    return b"".join(bytes(buffer) for buffer in codec.collate(payloads).buffers)


def test_nine_ways_of_sending_the_same_rows_give_equal_payloads() -> None:
    """Byte for byte, so nothing after the codec can treat them differently."""
    codec = codec_of(IRIS)
    rows = array("FP32", ROWS)
    tensor = ("input", "FP32", (2, 4))

    decoded = [
        plain(codec, ROWS),
        packed(codec, ROWS),
        v1(codec, ROWS),
        npy(codec, rows),
        v2(codec, tensor_json(*tensor, FLAT)),
        v2(codec, tensor_json(*tensor, ROWS)),
        v2_binary(codec, (*tensor, rows)),
        grpc(codec, with_raw(message(), (*tensor, rows))),
        grpc(codec, with_contents(message(), (*tensor, "fp32_contents", FLAT))),
    ]

    assert {2} == {one.rows for one in decoded}
    assert {rows.tobytes()} == {collated(codec, one.payload) for one in decoded}
    assert rows.tobytes() * 9 == collated(codec, *(one.payload for one in decoded))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_datatype_is_the_same_in_every_language(dtype: str) -> None:
    """C15: extremes survive where a type has them; FP16 has no typed list in gRPC."""
    codec = codec_of(single(Tensor(dtype, [2])))
    kind = np.dtype(DTYPES[dtype])
    if kind.kind in "iu":
        values: list[Any] = [np.iinfo(kind).min, np.iinfo(kind).max]
    else:
        values = [True, False] if dtype == "BOOL" else [0.5, -2.25]
    rows = array(dtype, [values])
    tensor = ("input", dtype, (1, 2))

    decoded = [
        plain(codec, [values]),
        packed(codec, [values]),
        v1(codec, [values]),
        v2(codec, tensor_json(*tensor, values)),
        v2_binary(codec, (*tensor, rows)),
        grpc(codec, with_raw(message(), (*tensor, rows))),
    ]
    if dtype in CONTENTS:
        request = with_contents(message(), (*tensor, CONTENTS[dtype], values))
        decoded.append(grpc(codec, request))

    assert {rows.tobytes()} == {collated(codec, one.payload) for one in decoded}


def test_named_inputs_are_the_same_in_every_language() -> None:
    """N25: columns in v2, objects in JSON rows; the method sees columns."""
    codec = codec_of(PAIRS)
    rows = [{"ids": [1, 2], "weights": 0.1}, {"ids": [3, 4], "weights": 2}]
    ids, weights = array("INT64", [[1, 2], [3, 4]]), array("FP32", [0.1, 2])

    decoded = [
        plain(codec, rows),
        packed(codec, rows),
        v1(codec, rows),
        v2(
            codec,
            tensor_json("weights", "FP32", [2], [0.1, 2]),
            tensor_json("ids", "INT64", [2, 2], [[1, 2], [3, 4]]),
        ),
        v2_binary(codec, ("ids", "INT64", (2, 2), ids), ("weights", "FP32", (2,), weights)),
        grpc(
            codec,
            with_raw(message(), ("ids", "INT64", (2, 2), ids), ("weights", "FP32", (2,), weights)),
        ),
    ]

    assert {2} == {one.rows for one in decoded}
    assert 1 == len({collated(codec, one.payload) for one in decoded})


def test_rows_of_different_lengths_are_sorted_into_the_same_shapes() -> None:
    """C18: the bucket of a row does not depend on its language."""
    codec = codec_of(single(Tensor("INT64", ["tokens"])))
    tensor = ("input", "INT64", (1, 3))

    decoded = [
        plain(codec, [[1, 2, 3]]),
        v1(codec, [[1, 2, 3]]),
        v2(codec, tensor_json(*tensor, [1, 2, 3])),
        grpc(codec, with_raw(message(), (*tensor, array("INT64", [[1, 2, 3]])))),
    ]

    assert decoded[0].shapes is not None
    assert 1 == len({tuple(one.shapes or ()) for one in decoded})
    assert 1 == len({collated(codec, one.payload) for one in decoded})


def test_json_items_are_the_same_in_every_language() -> None:
    """D10: strings are BYTES in v2, objects are BYTES of JSON text."""
    codec = codec_of(ITEMS)
    rows = [{"text": "größer", "k": [1, 2.5, None]}, "plain"]
    texts = [orjson.dumps(row) for row in rows]
    tensor = ("x", "BYTES", (2,))
    as_json = {"content_type": "json"}

    decoded = [
        plain(codec, rows),
        packed(codec, rows),
        v1(codec, rows),
        v2(codec, tensor_json(*tensor, [text.decode() for text in texts]), parameters=as_json),
        v2_binary(codec, (*tensor, texts), parameters=as_json),
        grpc(codec, with_raw(message(parameters={"content_type": {"string_param": "json"}}),
                             (*tensor, texts))),
    ]  # fmt: skip

    assert 1 == len({collated(codec, one.payload) for one in decoded})
    assert rows == orjson.loads(collated(codec, decoded[0].payload))


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=["flat", "column"])
def test_each_string_is_an_item(shape: tuple[int, ...]) -> None:
    """Triton's clients send a column where others send a list; nobody means a list of one."""
    codec = codec_of(ITEMS)
    data = ["a", "b"] if len(shape) == 1 else [["a"], ["b"]]

    in_json = v2(codec, tensor_json("x", "BYTES", shape, data))
    raw = v2_binary(codec, ("x", "BYTES", shape, [b"a", b"b"]))

    assert ["a", "b"] == orjson.loads(collated(codec, in_json.payload))
    assert in_json.payload == raw.payload == plain(codec, ["a", "b"]).payload


def test_numbers_of_json_items_keep_their_digits() -> None:
    """0.1 in JSON is 0.1 to a method that takes JSON, whatever datatype the client wrote."""
    codec = codec_of(ITEMS)

    decoded = v2(codec, tensor_json("x", "FP32", [2, 2], [0.1, 1, 2, 3]))

    assert [[0.1, 1], [2, 3]] == orjson.loads(collated(codec, decoded.payload))


def test_several_tensors_are_objects_to_a_method_that_takes_items() -> None:
    """One member for each tensor."""
    codec = codec_of(ITEMS)

    decoded = v2(
        codec,
        tensor_json("text", "BYTES", [2], ["a", "b"]),
        tensor_json("k", "INT64", [2], [1, 2]),
    )

    expected = [{"text": "a", "k": 1}, {"text": "b", "k": 2}]
    assert expected == orjson.loads(collated(codec, decoded.payload))


@pytest.mark.parametrize(
    ("method", "name", "problem"),
    [
        (IRIS, "input-0", "expected 'input' (a single Tensor is called so), got 'input-0'"),
        (PAIRS, "id", "expected 'ids' or 'weights', got 'id'"),
    ],
)
def test_an_unknown_input_is_refused_by_its_name(
    method: MethodSpec, name: str, problem: str
) -> None:
    """It would be taken for one that it is not, or be left out, and nobody would say so."""
    with pytest.raises(InvalidInputError) as caught:
        v2(codec_of(method), tensor_json(name, "FP32", [2, 4], FLAT))

    assert f"inputs[0].name: {problem}" == str(caught.value)
