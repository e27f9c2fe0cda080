"""Rows of several named tensors, or of tensors with variable dimensions."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchedapi_serving.codecs.arrays import (
    Array,
    check_dtype,
    check_finite,
    check_shape,
    converted,
)
from batchedapi_serving.codecs.json_values import is_deeper
from batchedapi_serving.codecs.tensor_rows import RowPacker, array_of, wrong_shape
from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor.api import MethodSpec, Tensor


class Row(NamedTuple):
    """One row, checked and packed."""

    lengths: tuple[int, ...]
    """Of the method's variable dimensions, in the order of MethodSpec.variable."""
    parts: tuple[bytes, ...]
    """Of each input, in the order of MethodSpec.inputs; little endian, C order."""


def pack_row(method: MethodSpec, row: Any, place: str, *, may_hold_bool: bool) -> Row:
    """Pack a parsed row: an object with one member for each input, or the only input itself.

    Args:
        method: Declares the inputs.
        row: A parsed JSON value.
        place: Its path, for errors.
        may_hold_bool: False if the row cannot contain `true` or `false`.

    Raises:
        InvalidInputError: names, shapes, types or ranges are not those declared.
    """
    lengths: dict[str, int] = {}
    members = list(zip(_members(method, row, place), method.inputs.values(), strict=True))
    try:
        parts = [
            _pack(value, tensor, path, lengths, may_hold_bool=may_hold_bool)
            for (value, path), tensor in members
        ]
    except InvalidInputError as error:
        if method.single_input or not any(
            is_deeper(value, len(tensor.shape)) for (value, _), tensor in members
        ):
            raise
        raise InvalidInputError(f"{error}; many rows are a list of objects, one a row") from error
    return Row(tuple(lengths[name] for name in method.variable), tuple(parts))


def _members(method: MethodSpec, row: Any, place: str) -> list[tuple[Any, str]]:
    if method.single_input:
        return [(row, place)]
    names = ", ".join(method.inputs)
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place}: expected an object with {names}, got {brief(row)}")
    for name in method.inputs:
        if name not in row:
            raise InvalidInputError(f"{place}.{name}: expected an input of that name, got none")
    for name in row:
        if name not in method.inputs:
            raise InvalidInputError(
                f"{place}: expected {names} and nothing else, got {brief(name)}"
            )
    return [(row[name], f"{place}.{name}") for name in method.inputs]


def _pack(
    value: Any, tensor: Tensor, place: str, lengths: dict[str, int], *, may_hold_bool: bool
) -> bytes:
    shape = _shape(value, tensor, place, lengths) if tensor.variable else tensor.fixed_shape
    return _packer(tensor.dtype, shape, tensor.allow_non_finite).pack(
        value, place, may_hold_bool=may_hold_bool
    )


def _shape(value: Any, tensor: Tensor, place: str, lengths: dict[str, int]) -> tuple[int, ...]:
    """The shape of a value as its first members tell; the packer checks all of them."""
    shape = []
    part = value
    for dimension in tensor.shape:
        if type(part) is not list or not part:
            raise wrong_shape(value, tensor, place)
        if isinstance(dimension, str):
            expected = lengths.setdefault(dimension, len(part))
            if len(part) != expected:
                raise InvalidInputError(
                    f"{place}: expected length {expected} along {dimension!r}, as elsewhere in"
                    f" this row, got {len(part)}"
                )
            shape.append(expected)
        else:
            shape.append(dimension)
        part = part[0]
    return tuple(shape)


@functools.lru_cache(maxsize=1024)  # lengths are the clients' to choose: a bound, not all of them
def _packer(dtype: str, shape: tuple[int, ...], allow_non_finite: bool) -> RowPacker:  # noqa: FBT001 - a part of the key
    return RowPacker(Tensor(dtype, shape, allow_non_finite=allow_non_finite))


def checked_arrays(
    method: MethodSpec, arrays: Mapping[str, Array], place: str
) -> tuple[list[Array], dict[str, int]]:
    """Arrays of all inputs in declared order and type, and the lengths of named dimensions.

    Raises:
        InvalidInputError: names, shapes or types do not fit, values are not finite, no row.
        TooLargeError: more rows than there may be.
    """
    if set(arrays) != set(method.inputs):
        raise InvalidInputError(
            f"{place}: expected the inputs {', '.join(method.inputs)},"
            f" got {brief(list(arrays))[1:-1] or 'none'}"
        )
    lengths: dict[str, int] = {}
    for name, tensor in method.inputs.items():
        check_dtype(arrays[name].dtype, tensor, f"{place}[{name!r}]")
        check_shape(arrays[name].shape, tensor, f"{place}[{name!r}]", lengths)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name}: {count}" for name, count in rows.items())
        raise InvalidInputError(f"{place}: expected as many rows in each input, got {counts}")
    checked = [
        converted(arrays[name], tensor, f"{place}[{name!r}]")
        for name, tensor in method.inputs.items()
    ]
    return checked, lengths


def check_row_finite(method: MethodSpec, row: Row, place: str) -> None:
    """Refuse NaN and Infinity where they are not allowed; JSON cannot hold them, msgpack can.

    Raises:
        InvalidInputError: there is one.
    """
    lengths = dict(zip(method.variable, row.lengths, strict=True))
    for (name, tensor), part in zip(method.inputs.items(), row.parts, strict=True):
        shape = [lengths[n] if isinstance(n, str) else n for n in tensor.shape]
        array = array_of(part, tensor.numpy_dtype, shape)
        check_finite(array, tensor, place if method.single_input else f"{place}.{name}")
