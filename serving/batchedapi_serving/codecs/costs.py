"""What rows cost, by a method's `size_of`, before they are queued."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor.api import Measure, MethodSpec, SizeOf


def item_cost(size_of: SizeOf, value: Any, text: bytes, place: str) -> int:
    """Cost of a JSON item, >= 1.

    Raises:
        InvalidInputError: it has no part whose length could be taken.
    """
    match size_of.measure:
        case Measure.BYTES:
            return size_of.cost(len(text))
        case Measure.LENGTH:
            return size_of.cost(_length(value, size_of.of, place))
        case unknown:
            assert_never(unknown)


def _length(value: Any, of: str | None, place: str) -> int:
    if of is not None:
        if not isinstance(value, dict) or of not in value:
            raise InvalidInputError(
                f"{place}: expected an object with {of!r}, whose length is what the row costs,"
                f" got {brief(value)}"
            )
        value, place = value[of], f"{place}.{of}"
    if not isinstance(value, str | list | dict):
        raise InvalidInputError(
            f"{place}: expected a text, list or object, whose length is what the row costs,"
            f" got {brief(value)}"
        )
    return len(value)


def tensor_cost(
    size_of: SizeOf, method: MethodSpec, lengths: Mapping[str, int], row_bytes: int
) -> int:
    """Cost of a row of tensors, >= 1.

    Args:
        size_of: The method's.
        method: Declares the inputs.
        lengths: Of the variable dimensions in this row.
        row_bytes: Of all inputs together.
    """
    match size_of.measure:
        case Measure.BYTES:
            return size_of.cost(row_bytes)
        case Measure.LENGTH:
            name = size_of.of or ""
            first = name if name in lengths else method.inputs[name].shape[0]
            return size_of.cost(lengths[first] if isinstance(first, str) else first)
        case unknown:
            assert_never(unknown)


def same_costs(cost: int | None, rows: int) -> Sequence[int] | None:
    """Sizes of rows that all cost the same."""
    return None if cost is None else [cost] * rows
