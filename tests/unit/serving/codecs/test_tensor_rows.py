"""Rows of a declared tensor: JSON numbers to bytes, arrays to JSON text."""

import math
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from batchedapi_serving.codecs.results import json_rows
from batchedapi_serving.codecs.tensor_codec import RowPacker
from batchedapi_serving.errors import InvalidInputError
from batchedapi_serving.predictor import DTYPES, Tensor

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)
INTEGERS = [name for name in DTYPES if "INT" in name]
RANGES = {
    name: (int(np.iinfo(DTYPES[name]).min), int(np.iinfo(DTYPES[name]).max)) for name in INTEGERS
}


def pack(tensor: Tensor, row: Any, *, may_hold_bool: bool = True) -> bytes:
    """A row as it stands at `instances[3]`."""
    return RowPacker(tensor).pack(row, "instances[3]", may_hold_bool=may_hold_bool)


def refusal(tensor: Tensor, row: Any) -> str:
    """The message with which a row is refused."""
    with pytest.raises(InvalidInputError) as caught:
        pack(tensor, row)
    return str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [3], [2, 3], [1, 2, 2]], ids=str)
def test_a_packed_row_is_what_numpy_would_store(dtype: str, shape: list[int]) -> None:
    """The model process reads the bytes with numpy.frombuffer: layout and order must agree."""
    array = (np.arange(math.prod(shape)) % 2).reshape(shape).astype(DTYPES[dtype])

    packed = pack(Tensor(dtype, shape), array.tolist())

    assert array.tobytes() == packed


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_fit_at_both_ends_of_their_range_and_not_beyond(dtype: str) -> None:
    """Wrapping around silently would be a wrong answer with status 200."""
    low, high = RANGES[dtype]
    tensor = Tensor(dtype, [2])

    assert np.array([low, high], dtype=DTYPES[dtype]).tobytes() == pack(tensor, [low, high])
    assert refusal(tensor, [0, high + 1]) == f"instances[3][1]: expected {dtype}, got {high + 1}"
    assert refusal(tensor, [low - 1, 0]) == f"instances[3][0]: expected {dtype}, got {low - 1}"


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_fraction_is_no_integer(dtype: str) -> None:
    """1.0 neither: what is cut off depends on the reader."""
    assert f"instances[3][0]: expected {dtype}, got 1.0" == refusal(Tensor(dtype, [1]), [1.0])


def test_a_float_beyond_float32_is_refused() -> None:
    """It would become Infinity inside the model."""
    assert refusal(Tensor("FP32", [2]), [1, 1e39]).startswith("instances[3][1]: expected FP32")


def test_a_float_beyond_float16_is_refused() -> None:
    """65504 is its largest; numpy would make Infinity of 65520."""
    assert np.array([65504], "<f2").tobytes() == pack(Tensor("FP16", [1]), [65504])
    assert refusal(Tensor("FP16", [1]), [65520]).startswith("instances[3][0]: expected FP16")


def test_an_integer_is_a_fine_float() -> None:
    """JSON knows numbers only; 1 and 1.0 are the same."""
    assert struct.pack("<2f", 1.0, 2.0) == pack(Tensor("FP32", [2]), [1, 2])


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "BOOL"])
def test_true_is_not_a_number(dtype: str) -> None:
    """To struct and numpy it is 1; a client that sends it made a mistake."""
    assert f"instances[3][1]: expected {dtype}, got True" == refusal(Tensor(dtype, [2]), [0, True])


@pytest.mark.parametrize("value", [0, 1, 1.5, "true", None])
def test_a_number_is_not_a_bool(value: object) -> None:
    """Struct would take anything for its truth."""
    assert refusal(Tensor("BOOL", [2]), [True, value]).startswith("instances[3][1]: expected BOOL")


@pytest.mark.parametrize("value", ["1", None, {}, [1]])
def test_what_is_no_number_is_named_with_its_path(value: object) -> None:
    """The client must find the one wrong cell among thousands."""
    message = refusal(Tensor("FP32", [2, 2]), [[0, 1], [2, value]])

    assert "instances[3][1][1]: expected FP32" in message or "lengths" in message


@pytest.mark.parametrize(
    ("row", "got"),
    [
        (5, "5"),
        ({"a": 1}, "{'a': 1}"),
        ([1], "shape [1]"),
        ([1, 2, 3], "shape [3]"),
        ([], "shape [0]"),
        ([[1, 2]], "shape [1, 2]"),
    ],
    ids=str,
)
def test_a_wrong_shape_says_what_was_expected_and_what_came(row: object, got: str) -> None:
    """Both shapes in one line are what makes the mistake obvious."""
    expected = f"instances[3]: expected FP32 of shape [2], got {got}"

    assert expected == refusal(Tensor("FP32", [2]), row)


@pytest.mark.parametrize("row", [[[1, 2], [3]], [[1], [2, 3]], [[1, 2], 3], [[1, 2], []]], ids=str)
def test_ragged_rows_are_refused(row: object) -> None:
    """Flattening alone would accept some of them, with numbers in the wrong places."""
    assert "instances[3]: expected FP32 of shape [2, 2]" in refusal(Tensor("FP32", [2, 2]), row)


def test_a_scalar_row_takes_no_list() -> None:
    """Shape [] is one number a row."""
    assert struct.pack("<q", 7) == pack(Tensor("INT64", []), 7)
    assert refusal(Tensor("INT64", []), [7]).startswith("instances[3]")


def test_bools_are_looked_for_only_where_the_body_can_hold_them() -> None:
    """The promise of `may_hold_bool=False` is the caller's, and saves a pass over every number."""
    tensor = Tensor("FP32", [2])

    assert pack(tensor, [1.0, 2.0], may_hold_bool=False) == pack(tensor, [1.0, 2.0])


@SETTINGS
@given(
    npst.arrays(
        st.sampled_from([np.dtype(d) for d in DTYPES.values()]),
        npst.array_shapes(min_dims=1, max_dims=4, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_the_text_of_each_row_is_the_text_it_has_alone(array: np.ndarray[Any, Any]) -> None:
    """Cut apart from one text of the whole batch; a wrong cut gives clients others' rows."""
    alone = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in array]

    assert alone == json_rows(array)


@pytest.mark.parametrize("shape", [(2, 0), (3, 0, 2), (2, 3, 0)])
def test_rows_without_numbers_keep_their_count(shape: tuple[int, ...]) -> None:
    """A predictor may answer nothing for each row, but it answers for each."""
    rows = json_rows(np.zeros(shape, "<f4"))

    assert [np.zeros(shape[1:]).tolist()] * shape[0] == [orjson.loads(row) for row in rows]


def test_float32_has_its_own_shortest_text() -> None:
    """0.1 in, 0.1 out: through float64 it would read 0.10000000149011612."""
    assert [b"[0.1,16777216.0]"] == json_rows(np.array([[0.1, 2**24]], dtype="<f4"))
