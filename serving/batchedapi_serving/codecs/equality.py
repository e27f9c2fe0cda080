"""Whether two answers to the same row are equal.

A library sums in another order when rows come together, so floats may differ a little:
|a - b| <= rtol * (|b| + the largest |b| of the row), with rtol by type. The second term is for
numbers near zero beside large ones. Everything else must be equal; NaN is equal to NaN.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_serving.codecs.interface import Array, Item, Results
from batchedapi_serving.codecs.results import ItemResults, TensorResults
from batchedapi_serving.errors import PredictorError

RTOL: Final[Mapping[str, float]] = {"<f2": 1e-2, "<f4": 1e-4, "<f8": 1e-9}
"""By numpy type. About ten times what a matrix product over 1,000 terms loses."""
JSON_RTOL: Final = RTOL["<f4"]
"""JSON does not tell the type, and most models compute in FP32."""


def difference(
    expected: Results, got: Results, row: int, ignored: AbstractSet[str] = frozenset(), of: int = 0
) -> str | None:
    """The difference between row `of` of `expected` and row `row` of `got`."""
    if isinstance(expected, TensorResults) and isinstance(got, TensorResults):
        try:
            ours, theirs = expected.arrays(of, of + 1), got.arrays(row, row + 1)
        except PredictorError as error:
            return str(error)
        found = (
            array_difference(name, array[0], theirs[name][0])
            for name, array in ours.items()
            if name not in ignored
        )
        return next(filter(None, found), None)
    if isinstance(expected, ItemResults) and isinstance(got, ItemResults):
        (one,), (other,) = expected.items(of, of + 1), got.items(row, row + 1)
        return _item_difference(one, other, ignored)
    return "expected one kind of answer, got two"


def _item_difference(one: Item, other: Item, ignored: AbstractSet[str]) -> str | None:
    if (one.status, one.kind) != (other.status, other.kind):
        return f"expected status {one.status}, got {other.status}"
    if one.kind != "json":
        return None if one.body == other.body else "expected other bytes"
    left, right = (without(orjson.loads(item.body), ignored) for item in (one, other))
    return json_difference("answer", left, right)


def array_difference(name: str, expected: Array, got: Array) -> str | None:
    """The difference between two rows of one output; None: there is none."""
    if expected.shape != got.shape:
        return f"{name}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):  # Infinity - Infinity
        distance = np.abs(a - b)
    rtol = RTOL.get(expected.dtype.str)
    if rtol is None:
        wrong = expected != got
    else:
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        near = distance <= rtol * (np.abs(b) + scale)
        wrong = ~np.where(np.isfinite(distance), near, (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return None
    farthest = np.where(wrong, np.where(np.isnan(distance), np.inf, distance), -1.0)
    place = np.unravel_index(farthest.argmax(), wrong.shape)
    where = f"{name}[{', '.join(map(str, place))}]" if place else name
    return f"{where}: expected {expected[place]:g}, got {got[place]:g}"


def without(value: Any, ignored: AbstractSet[str]) -> Any:
    """A JSON value without the members of those names, at any depth."""
    if isinstance(value, dict):
        return {k: without(member, ignored) for k, member in value.items() if k not in ignored}
    return [without(member, ignored) for member in value] if isinstance(value, list) else value


def json_difference(path: str, expected: Any, got: Any) -> str | None:
    """The same of two JSON values."""
    return _scaled_difference(path, expected, got, _largest(expected))


def _scaled_difference(path: str, expected: Any, got: Any, scale: float) -> str | None:
    if isinstance(expected, float) and isinstance(got, int | float) and not isinstance(got, bool):
        near = abs(got - expected) <= JSON_RTOL * (abs(expected) + scale)
        return None if near else f"{path}: expected {expected:g}, got {got:g}"
    if type(expected) is not type(got):
        return f"{path}: expected {_short(expected)}, got {_short(got)}"
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            return f"{path}: expected the members {sorted(expected)}, got {sorted(got)}"
        pairs = ((f"{path}.{key}", expected[key], got[key]) for key in expected)
    elif isinstance(expected, list):
        if len(expected) != len(got):
            return f"{path}: expected {len(expected)} elements, got {len(got)}"
        pairs = ((f"{path}[{i}]", e, g) for i, (e, g) in enumerate(zip(expected, got, strict=True)))
    else:
        same = expected == got
        return None if same else f"{path}: expected {_short(expected)}, got {_short(got)}"
    return next((d for p, e, g in pairs if (d := _scaled_difference(p, e, g, scale))), None)


def _largest(value: Any) -> float:
    """Largest magnitude of a float in a JSON value."""
    if isinstance(value, float):
        return abs(value) if math.isfinite(value) else 0.0
    members = value.values() if isinstance(value, dict) else value
    return max(map(_largest, members), default=0.0) if isinstance(value, dict | list) else 0.0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits a line
