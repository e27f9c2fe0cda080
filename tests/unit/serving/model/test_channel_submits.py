"""The frames that `context.submit` sends, and its reading of the answer."""

from typing import Any

import numpy as np
import orjson
import pytest

from batchedapi_serving.codecs import codec_for
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import (
    TensorResults,
    item_frame,
)
from batchedapi_serving.codecs.submits import answered_rows, rows_frame, submitted_rows
from batchedapi_serving.predictor import ItemError, MethodSpec, SubmitError, Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings

PAIR = Tensor("FP32", [2])
WORDS = Tensor("INT64", ["tokens"])
ITEMS = MethodSpec("items", batched=True, max_batch_size=8)
PAIRS = MethodSpec("pairs", batched=True, inputs={"input": PAIR}, single_input=True)
NAMED = MethodSpec(
    "named", batched=True, inputs={"a": PAIR, "b": PAIR}, outputs={"c": PAIR}, single_output=False
)
TEXTS = MethodSpec("texts", batched=True, inputs={"input": WORDS}, single_input=True)


def received(spec: MethodSpec, rows: Any) -> Any:
    """The codec's payload and shapes of rows that were submitted."""
    codec = codec_for(spec, MethodSettings(spec.name, None, None, BatchingSettings()), "api")
    meta, buffers = rows_frame(spec, rows)
    encoded = submitted_rows(codec, meta, b"".join(buffers))
    return encoded.payload, encoded.shapes


ONE_TO_FOUR = np.array([[1, 2], [3, 4]], "<f4").tobytes()


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]]),
        np.array([[1.0, 2.0], [3.0, 4.0]], "float64"),
        np.array([[1, 3], [2, 4]], ">i2").T,
        [np.array([1, 2]), np.array([3, 4])],
    ],
    ids=["lists", "tuples", "int64", "float64", "big endian, transposed", "list of arrays"],
)
def test_whatever_holds_the_numbers_is_taken(rows: Any) -> None:
    """A predictor has what its model gave it; the declared type decides what is sent."""
    assert (ONE_TO_FOUR, None) == received(PAIRS, rows)


def test_a_row_of_tensors_that_failed_is_raised() -> None:
    """An array has no place for it; a list of items has."""
    meta, buffers = item_frame([Item(200, "json", b"1"), Item(409, "json", b'{"message":"no"}')])

    with pytest.raises(SubmitError, match=r"^no$") as caught:
        answered_rows(PAIRS, meta, b"".join(buffers))

    assert caught.value.status == 409
    assert isinstance(answered_rows(ITEMS, meta, b"".join(buffers))[1], ItemError)


def test_an_array_is_rows_of_items_too() -> None:
    """A method without declared tensors takes any: each row is an item."""
    assert ([b"[1,2]", b"[3,4]"], None) == received(ITEMS, np.array([[1, 2], [3, 4]]))


def test_items_may_hold_arrays() -> None:
    """An embedding inside an object, as NumPy made it, strided or not."""
    strided = np.array([[1, 3], [2, 4]]).T[:, 0]

    assert ([b'{"v":[1,3]}'], None) == received(ITEMS, [{"v": strided}])


def test_rows_of_different_lengths_stay_apart() -> None:
    """C20: ragged rows are lists of arrays; each has its shape, and no padding."""
    _, shapes = received(TEXTS, [np.array([1, 2, 3]), np.array([4])])

    assert [(3,), (1,)] == shapes


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        (PAIRS, "text"),
        (PAIRS, [[1, 2], [3]]),
        (PAIRS, [[1, "x"]]),
        (PAIRS, None),
        (ITEMS, 5),
        (ITEMS, [object()]),
        (ITEMS, np.array(["text"])),
        (MethodSpec("ints", batched=True, inputs={"input": WORDS}), {"input": [[1.5]]}),
    ],
    ids=["text", "ragged", "mixed", "none", "number", "object", "array of text", "would be cut"],
)
def test_what_is_no_rows_is_refused_here(spec: MethodSpec, rows: Any) -> None:
    """In the caller's own task, with the caller's stack, before anything is sent."""
    with pytest.raises(SubmitError, match=f"expected what '{spec.name}' takes") as caught:
        rows_frame(spec, rows)

    assert 422 == caught.value.status


def test_items_come_back_as_items_and_errors_in_their_place() -> None:
    """JSON, text and bytes as the method answered them."""
    error = orjson.dumps({"code": "item_failed", "message": "negative"})
    meta, buffers = item_frame(
        [
            Item(200, "json", b'{"a":1}'), Item(422, "json", error),
            Item(200, "text", "ä".encode()), Item(200, "bytes", b"\xff"),
        ]
    )  # fmt: skip

    first, second, third, fourth = answered_rows(ITEMS, meta, b"".join(buffers))

    assert ({"a": 1}, "ä", b"\xff") == (first, third, fourth)
    assert isinstance(second, ItemError)
    assert (422, "negative") == (second.status, second.message)


def test_arrays_come_back_as_the_method_answers_them() -> None:
    """One array, or a dict of them; the caller's own to write into."""
    array = np.array([[1, 2], [3, 4]], "<f4")
    single = TensorResults(PAIRS, {"output": array}, []).to_frame(0, 2)
    named = TensorResults(NAMED, {"c": array}, []).to_frame(1, 2)

    one = answered_rows(PAIRS, single[0], b"".join(single[1]))
    several = answered_rows(NAMED, named[0], b"".join(named[1]))

    assert array.tolist() == one.tolist()
    assert {"c": [[3, 4]]} == {name: value.tolist() for name, value in several.items()}
    one += 1


def test_an_answer_that_is_not_finite_is_an_error() -> None:
    """NaN is refused both ways, between methods too."""
    frame = TensorResults(PAIRS, {"output": np.array([[1, np.nan]], "<f4")}, [0]).to_frame(0, 1)

    with pytest.raises(SubmitError, match="pairs: the predictor answered NaN") as caught:
        answered_rows(PAIRS, frame[0], b"".join(frame[1]))

    assert 500 == caught.value.status


def test_an_error_frame_is_raised_with_its_status() -> None:
    """503 of a full queue, 504 of a deadline: the caller may tell them apart."""
    with pytest.raises(SubmitError, match="full") as caught:
        answered_rows(ITEMS, {"kind": "error", "status": 503, "error": "full"}, b"")

    assert 503 == caught.value.status
