"""Whether two answers to the same row are the same, as far as arithmetic allows.

A library sums in another order when rows come together, so floats may differ a little:
|a - b| <= rtol * (|b| + the largest |b| of the row), with rtol by type. The second term is for
numbers near zero beside large ones. Everything else must be equal; NaN is equal to NaN.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

RTOL: Final[Mapping[str, float]] = {"<f2": 1e-2, "<f4": 1e-4, "<f8": 1e-9}
"""By numpy type. About ten times what a matrix product over 1,000 terms loses."""
JSON_RTOL: Final = RTOL["<f4"]
"""JSON does not tell the type, and most models compute in FP32."""
Array = np.ndarray[Any, Any]


def array_difference(name: str, expected: Array, got: Array) -> str | None:
    """What differs between two rows of one output; None: nothing does."""
    if expected.shape != got.shape:
        return f"{name}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    rtol = RTOL.get(expected.dtype.str)
    if rtol is None:
        wrong = expected != got
    else:
        a, b = got.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        with np.errstate(invalid="ignore"):  # Infinity - Infinity, which is not looked at
            near = np.abs(a - b) <= rtol * (np.abs(b) + scale)
        wrong = ~np.where(finite, near, (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"{name}[{', '.join(map(str, place))}]" if place else name
    return f"{where}: expected {expected[place]:g}, got {got[place]:g}"


def json_difference(path: str, expected: Any, got: Any) -> str | None:
    """The same of two JSON values."""
    scale = _largest(expected)
    return _difference(path, expected, got, scale)


def _difference(path: str, expected: Any, got: Any, scale: float) -> str | None:
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
    return next((d for p, e, g in pairs if (d := _difference(p, e, g, scale))), None)


def _largest(value: Any) -> float:
    """Largest magnitude of a float in a JSON value."""
    if isinstance(value, float):
        return abs(value) if math.isfinite(value) else 0.0
    members = value.values() if isinstance(value, dict) else value
    return max(map(_largest, members), default=0.0) if isinstance(value, dict | list) else 0.0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits a line
