"""Answers that count as the same, and answers that differ."""

from typing import Any

import numpy as np
import pytest

from batchedapi_serving.codecs.equality import array_difference, json_difference, without


@pytest.mark.parametrize(
    ("dtype", "expected", "got"),
    [
        ("<f4", [1.0, 1000.0], [1.00005, 1000.05]),
        ("<f4", [1e-9, 1.0], [-1e-9, 1.0]),
        ("<f2", [1.0], [1.005]),
        ("<f8", [1.0], [1.0 + 1e-10]),
        ("<i8", [1, 2], [1, 2]),
        ("|b1", [True], [True]),
        ("<f4", [float("nan"), float("-inf"), 1.0], [float("nan"), float("-inf"), 1.00001]),
    ],
)
def test_rounding_is_no_difference(dtype: str, expected: list[Any], got: list[Any]) -> None:
    """C28: a matrix product of 32 rows adds in another order than one of one row."""
    assert array_difference("y", np.array(expected, dtype), np.array(got, dtype)) is None


@pytest.mark.parametrize(
    ("dtype", "expected", "got", "place"),
    [
        ("<f4", [1.0, 2.0], [1.0, 2.01], r"y\[1\]: expected 2, got 2.01"),
        ("<f8", [1.0], [1.0 + 1e-6], r"y\[0\]: expected 1, got 1"),
        ("<i8", [1, 2], [1, 3], r"y\[1\]: expected 2, got 3"),
        ("<f4", [float("inf")], [1.0], r"y\[0\]: expected inf, got 1"),
        ("<f4", [1.0, float("nan")], [1.0, 2.0], r"y\[1\]: expected nan, got 2"),
        ("<f4", [float("inf")], [float("-inf")], r"y\[0\]: expected inf, got -inf"),
        ("|b1", [True], [False], r"y\[0\]: expected 1, got 0"),
        ("<f4", [1.0], [1.0, 2.0], r"y: expected shape \[1\], got \[2\]"),
    ],
)
def test_a_difference_names_its_place(
    dtype: str, expected: list[Any], got: list[Any], place: str
) -> None:
    """C28: what a reader looks for next."""
    text = array_difference("y", np.array(expected, dtype), np.array(got, dtype))

    assert text is not None
    with pytest.raises(LookupError, match=place):
        raise LookupError(text)


def test_a_single_number_has_no_index() -> None:
    """Rows of shape []."""
    assert array_difference("y", np.array(1), np.array(2)) == "y: expected 1, got 2"


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ({"a": [1.0, "x", None]}, {"a": [1.00001, "x", None]}),
        ([1e-12, 5.0], [0.0, 5.0]),
        (1.0, 1),
        ([], []),
    ],
)
def test_json_values_may_differ_by_rounding_alone(expected: Any, got: Any) -> None:
    """1.0 and 1 are the same number to a client."""
    assert json_difference("answer", expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}, "answer.a[1]: expected 2, got 2.5"),
        ({"a": 1}, {"b": 1}, "answer: expected the members ['a'], got ['b']"),
        ([1], [1, 2], "answer: expected 1 elements, got 2"),
        ("x", "y", "answer: expected 'x', got 'y'"),
        (1, True, "answer: expected 1, got True"),
        (1, 2, "answer: expected 1, got 2"),
        (None, 0.5, "answer: expected None, got 0.5"),
    ],
)
def test_other_json_values_differ(expected: Any, got: Any, text: str) -> None:
    """An integer, a text, a member, a length."""
    assert text == json_difference("answer", expected, got)


def test_what_is_ignored_is_left_out_at_any_depth() -> None:
    """An id that is new in each answer."""
    value = {"id": 1, "rows": [{"id": 2, "x": 3}, 4], "y": None}

    assert {"rows": [{"x": 3}, 4], "y": None} == without(value, {"id"})
    assert value == without(value, set())
