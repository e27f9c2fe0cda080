"""JSON items to columns and back."""

from typing import Any

import numpy as np
import pytest

from batchedapi_serving import ItemError
from batchedapi_serving.formats.items import ItemColumn, answers_of, example_of

NUMBER = ItemColumn("age", np.dtype("<f4"), (1,))
TEXT = ItemColumn("city", np.dtype(object), (1,))
WORDS = ItemColumn("words", np.dtype(object), (None,))


def told(columns: list[ItemColumn], items: list[Any]) -> list[Any]:
    """Answers of a model that answers its columns, and the rows of each of its calls."""
    calls = []

    def run(x: Any) -> Any:
        calls.append(len(next(iter(x.values()))))
        return x

    return [answers_of(columns, items, run), calls]


def test_a_row_is_an_object_or_a_list_in_order() -> None:
    """Both meet in one call."""
    found = told([NUMBER, TEXT], [{"city": "Ulm", "age": 3}, [4.5, "Bonn"]])

    assert [[{"age": [3.0], "city": ["Ulm"]}, {"age": [4.5], "city": ["Bonn"]}], [2]] == found


def test_a_single_column_is_the_value_itself() -> None:
    """Or an object with its name."""
    assert [[["a"], ["b"], ["c"]], [3]] == told([TEXT], ["a", {"city": "b"}, ["c"]])


@pytest.mark.parametrize(
    ("columns", "item", "answer"),
    [
        ([NUMBER, TEXT], [[1, "a"], [2, "b"]], [{"age": [1.0], "city": ["a"]}] * 2),
        ([NUMBER, TEXT], [{"age": 1, "city": "a"}], [{"age": [1.0], "city": ["a"]}]),
        ([TEXT], [["a"], ["b"]], [["a"], ["b"]]),
    ],
)
def test_a_list_of_rows_is_answered_by_a_list(
    columns: list[ItemColumn], item: Any, answer: list[Any]
) -> None:
    """As of tensors: one level deeper is many rows."""
    ((found,), _) = told(columns, [item])

    assert len(answer) == len(found)
    assert answer[0] == found[0]


def test_rows_of_one_shape_share_a_call() -> None:
    """Those of another have one of their own, and the answers their places."""
    found = told([WORDS], [["a"], ["b", "c"], ["d"]])

    assert [[["a"], ["b", "c"], ["d"]], [2, 1]] == found


@pytest.mark.parametrize(
    "item",
    [
        {"age": 1},
        {"age": 1, "city": "a", "more": 2},
        [1],
        7,
        {"age": "old", "city": "a"},
        {"age": [1, 2], "city": "a"},
        {"age": 1, "city": 2},
        {"age": [[1], [2, 3]], "city": "a"},
        [[1, "a"], [2]],
    ],
    ids=str,
)
def test_a_wrong_item_fails_alone(item: Any) -> None:
    """With what was expected; its neighbour is answered."""
    ((wrong, right), _) = told([NUMBER, TEXT], [item, [1, "a"]])

    assert isinstance(wrong, ItemError)
    assert 422 == wrong.status
    assert str(wrong).startswith("expected ")
    assert {"age": [1.0], "city": ["a"]} == right


@pytest.mark.parametrize(
    ("dtype", "value", "right"),
    [
        ("<i8", 3, True),
        ("<i8", 3.5, False),
        ("<i1", 300, False),
        ("<f4", None, True),
        ("|b1", True, True),
        ("|b1", 1, False),
    ],
)
def test_a_number_is_never_made_another(dtype: str, value: Any, *, right: bool) -> None:
    """Numpy would cut 3.5 to 3; null among numbers is a missing one."""
    ((found,), _) = told([ItemColumn("x", np.dtype(dtype))], [value])

    assert right is not isinstance(found, ItemError)


def test_any_value_of_a_column_without_a_type_goes_through() -> None:
    """What it is, the model judges."""
    ((found,), _) = told([ItemColumn("x")], [{"x": {"a": [1]}}])

    assert {"a": [1]} == found


def test_maps_have_texts_for_keys() -> None:
    """JSON has no others; classifiers answer labels, which may be numbers."""
    found = answers_of([TEXT], ["a"], lambda _: {"scores": [{0: 0.5, 1: 0.5}]})

    assert [{"0": 0.5, "1": 0.5}] == found


def test_an_example_has_a_value_for_each_column() -> None:
    """To warm up with, and for /docs."""
    assert {"age": [0.0], "city": [""]} == example_of([NUMBER, TEXT])
    assert [""] == example_of([TEXT])
    assert example_of([WORDS]) is None
    assert example_of([ItemColumn("x")]) is None
