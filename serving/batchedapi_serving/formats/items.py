"""JSON items to columns and back, for models whose values are not all numbers.

An item is a row: an object of columns by name, a list of them in their order, or the value itself
of a single one. A list of rows in the place of one is answered by a list.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from batchedapi_serving.errors import brief
from batchedapi_serving.formats.tensors import Array, Run
from batchedapi_serving.predictor import ItemError, batched


class ItemColumn(NamedTuple):
    """One value of a row."""

    name: str
    dtype: np.dtype[Any] | None = None
    """Objects are texts; None: any JSON value."""
    shape: tuple[int | None, ...] = ()
    """None: a length that differs from row to row."""


_TAKEN: Final = {"b": "b", "i": "biu", "u": "biu", "f": "biufO", "O": "UO"}
"""Kinds of values that numpy sees, by those of columns; null among numbers is NaN."""
Row: TypeAlias = Mapping[str, Array]


def items_class(answers: Callable[[list[Any]], list[Any]], example: Any) -> type:
    """A predictor of JSON items."""

    class ItemsModel:
        @batched(example=example)
        def predict(self, items: list[Any]) -> list[Any]:
            return answers(items)

    return ItemsModel


def example_of(columns: Sequence[ItemColumn]) -> Any:
    """A row of zeros and empty texts; None where nobody knows one."""
    row = {}
    for column in columns:
        if column.dtype is None or None in column.shape:
            return None
        shape = [n for n in column.shape if n is not None]
        row[column.name] = np.zeros(shape, column.dtype).tolist()
        if column.dtype.kind == "O":
            row[column.name] = np.full(shape, "", object).tolist()
    return row if len(row) > 1 else next(iter(row.values()))


def answers_of(columns: Sequence[ItemColumn], items: Sequence[Any], run: Run) -> list[Any]:
    """Answers to items, rows of one shape in one call of `run`; an ItemError for a wrong item."""
    many = [_is_many(columns, item) for item in items]
    given = [item if several else [item] for item, several in zip(items, many, strict=True)]
    found = iter(_answered(columns, [row for rows in given for row in rows], run))
    answers: list[Any] = []
    for rows, several in zip(given, many, strict=True):
        own = [next(found) for _ in rows]
        wrong = next((one for one in own if isinstance(one, ItemError)), None)
        answers.append(wrong or (own if several else own[0]))
    return answers


def _is_many(columns: Sequence[ItemColumn], item: Any) -> bool:
    if not (isinstance(item, list) and item):
        return False
    rank = len(columns[0].shape)
    if len(columns) > 1:  # a value of shape [1] is mostly written without its list
        rank = 1 + max(sum(n != 1 for n in column.shape) for column in columns)
    return isinstance(item[0], dict) or _depth(item) > rank


def _depth(value: Any) -> int:
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def _answered(columns: Sequence[ItemColumn], rows: Sequence[Any], run: Run) -> list[Any]:
    answers: list[Any] = [None] * len(rows)
    alike: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
    for i, given in enumerate(rows):
        try:
            row = _row(columns, given)
        except ItemError as error:
            answers[i] = error
        else:
            shapes = tuple(array.shape for array in row.values())
            alike.setdefault(shapes, []).append((i, row))
    for group in alike.values():
        together = {
            column.name: np.stack([row[column.name] for _, row in group]) for column in columns
        }
        outputs = {name: _listed(found) for name, found in run(together).items()}
        for at, (i, _) in enumerate(group):
            answer = {name: found[at] for name, found in outputs.items()}
            answers[i] = answer if len(answer) > 1 else next(iter(answer.values()))
    return answers


def _listed(found: Any) -> Sequence[Any]:
    """Values that JSON has; maps of ONNX have labels for keys, which may be numbers."""
    if isinstance(found, np.ndarray):
        return list(found.tolist())
    return [{str(k): v for k, v in one.items()} if isinstance(one, dict) else one for one in found]


def _row(columns: Sequence[ItemColumn], item: Any) -> Row:
    """The values of one row by column.

    Raises:
        ItemError: 422; it is no row.
    """
    names = [column.name for column in columns]
    if isinstance(item, dict):
        if item.keys() != set(names):
            raise _wrong(f"an object of {', '.join(names)}", list(item))
        values = [item[name] for name in names]
    elif len(columns) == 1:
        values = [item]
    elif isinstance(item, list) and len(item) == len(columns):
        values = item
    else:
        raise _wrong(f"an object of {', '.join(names)}, or a list of {len(names)}", item)
    return {
        column.name: _value(column, value) for column, value in zip(columns, values, strict=True)
    }


def _value(column: ItemColumn, value: Any) -> Array:
    if column.dtype is None:
        found = np.empty((), object)
        found[()] = value
        return found
    kind = column.dtype.kind
    shape = [-1 if n is None else n for n in column.shape]
    try:
        plain = np.asarray(value)
        right = plain.dtype.kind in _TAKEN[kind] and (
            kind != "O" or all(isinstance(one, str) for one in plain.flat)
        )
        array = np.array(value, column.dtype)
        if -1 not in shape:
            array = array.reshape(shape)
    except (TypeError, ValueError, OverflowError):
        right = False
    if not right or array.ndim != len(shape):
        words = "texts" if kind == "O" else str(column.dtype)
        raise _wrong(f"{column.name}: {words} of shape {shape}", value)
    return array


def _wrong(expected: str, got: Any) -> ItemError:
    return ItemError(422, f"expected {expected}, got {brief(got)}")
