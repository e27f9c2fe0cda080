"""Methods with one tensor of a fixed shape: the shortest way from JSON numbers to a batch.

In a batch frame, the payload is the packed rows one after another.

`struct` packs and checks in one call (it refuses text, null and nested lists, and says so of floats
out of range), so a row costs about as much as copying it. `true` and `false` are numbers to it:
they are looked for only if the body contains such a word at all. Where NaN and Infinity are
allowed, JSON says them as json_values.NON_FINITE has it.
"""

import functools
import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import numpy as np

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.arrays import (
    REFUSED,
    STRUCT_CODES,
    check_finite,
    checked_arrays,
    packed_numbers,
    wrong_number,
)
from batchedapi_serving.codecs.interface import Array, Collated, DecodedRequest, Encoded, Head, Wire
from batchedapi_serving.codecs.json_values import (
    check_nesting,
    is_json,
    parse_shallow,
    read_non_finite,
)
from batchedapi_serving.codecs.replies import ITEM, JSON_TYPE, plain_rows
from batchedapi_serving.codecs.results import read_results
from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor import Measure, MethodSpec, SizeOf, Tensor

_NO_META: Final[Mapping[str, Any]] = {}
_PLAIN: Final = Wire.PLAIN
_U, _L = b"ul"
"""Letters of true and false; no number has these. To search for a byte takes half of the time that
a piece of text takes."""


class TensorCodec:
    """Payloads are packed bytes of whole rows."""

    def __init__(self, method: MethodSpec, api_name: str, receipts: Receipts) -> None:
        self.method = method
        self.pads_to = 0
        self.results = functools.partial(read_results, method)
        """See Codec.results."""
        self.api_name = api_name
        self.receipts = receipts
        (self._tensor,) = method.inputs.values()
        self._rank = method.row_rank
        self._dtype, self._shape = self._tensor.numpy_dtype, self._tensor.fixed_shape
        self._row_bytes = self._tensor.row_bytes
        packer = RowPacker(self._tensor)
        self._pack, self._pack_numbers = packer.pack, packer.pack_numbers
        self._cost = None
        if method.size_of is not None:
            self._cost = tensor_cost(method.size_of, method, {}, self._row_bytes)
        self._size = same_costs(self._cost, 1)

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """See Codec.decode."""
        if wire is not _PLAIN:
            return wires.decode(self, wire, head, body)
        content_type = head.content_type
        if content_type != JSON_TYPE and not is_json(content_type):
            return wires.decode_other(self, head, body)
        value = parse_shallow(body)
        may_hold_bool = _U in body or _L in body
        if self._pack_numbers is not None and type(value) is list and not may_hold_bool:
            # One row, as most requests have: numbers alone are nowhere nested. What else it is, or
            # is wrong with it, is seen below.
            packed: bytes | None
            try:
                packed = self._pack_numbers(*value)
            except REFUSED:
                packed = None
            if packed is not None:  # DecodedRequest(...) takes half as long again
                return tuple.__new__(DecodedRequest, (1, packed, ITEM, self._size, None))
        check_nesting(body, value)
        many = plain_rows(self._rank, value)
        if many is None:
            packed = self._pack(value, "item", may_hold_bool=may_hold_bool)
            return DecodedRequest(1, packed, ITEM, self._size)
        pack, (rows, reply) = self._pack, many
        parts = [
            pack(row, f"{reply.place}[{i}]", may_hold_bool=may_hold_bool)
            for i, row in enumerate(rows)
        ]
        return DecodedRequest(len(rows), b"".join(parts), reply, same_costs(self._cost, len(rows)))

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_row."""
        del head
        packed = self._pack(row, place, may_hold_bool=True)
        check_finite(np.ndarray(self._shape, self._dtype, packed), self._tensor, place)
        return Encoded(1, packed, self._size)

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_rows."""
        del head
        pack = self._pack
        parts = [pack(row, f"{place}[{i}]", may_hold_bool=True) for i, row in enumerate(rows)]
        packed = b"".join(parts)
        array = np.ndarray((len(rows), *self._shape), self._dtype, packed)
        check_finite(array, self._tensor, place)
        return Encoded(len(rows), packed, same_costs(self._cost, len(rows)))

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """See Codec.from_arrays."""
        (array,), _ = checked_arrays(self.method, arrays, place)
        return Encoded(len(array), array.tobytes(), same_costs(self._cost, len(array)))

    def part(self, payload: bytes, start: int, stop: int) -> bytes:
        """See Codec.part."""
        return payload[start * self._row_bytes : stop * self._row_bytes]

    def fits(self, rows: int, payload: Any) -> bool:
        """See Codec.fits."""
        return type(payload) is bytes and len(payload) == rows * self._row_bytes

    def collate(self, payloads: Sequence[bytes]) -> Collated:
        """See Codec.collate."""
        return Collated(_NO_META, payloads)


def tensor_cost(
    size_of: SizeOf, method: MethodSpec, lengths: Mapping[str, int], row_bytes: int
) -> int:
    """Cost of a row of tensors, >= 1.

    Args:
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


class RowPacker:
    """Packs JSON rows of one tensor without variable dimensions."""

    __slots__ = ("_flat", "_is_bool", "_pack", "_shape", "_tensor", "pack_numbers")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._shape = tensor.fixed_shape
        self._pack = struct.Struct(f"<{tensor.items_per_row}{STRUCT_CODES[tensor.dtype]}").pack
        self._flat = len(tensor.shape) == 1
        self._is_bool = tensor.dtype == "BOOL"
        self.pack_numbers = self._pack if self._flat and not self._is_bool else None
        """Packs the numbers of a row, none of them a bool, or raises one of REFUSED; None: a row
        is not just a list of numbers."""

    def pack(self, row: Any, place: str, *, may_hold_bool: bool) -> bytes:
        """Bytes of one row, little endian, in C order.

        Args:
            may_hold_bool: False if the body cannot contain `true` or `false`.

        Raises:
            InvalidInputError: shape, type or range is not the tensor's.
        """
        numbers = row
        if not self._flat:
            numbers = [row]
            for length in self._shape:
                if not all(type(part) is list and len(part) == length for part in numbers):
                    raise self._wrong_shape(row, place)
                numbers = list(itertools.chain.from_iterable(numbers))
        if type(numbers) is not list:
            raise self._wrong_shape(row, place)
        is_bool = self._is_bool
        if (may_hold_bool or is_bool) and any((type(n) is bool) != is_bool for n in numbers):
            raise self._culprit(numbers, place)
        try:
            return self._pack(*numbers)
        except REFUSED as error:
            if self._flat and len(numbers) != self._shape[0]:
                raise self._wrong_shape(row, place) from error
            packed: bytes | None = None
            if self._tensor.allow_non_finite:
                packed = packed_numbers(self._tensor.dtype, read_non_finite(numbers))
            if packed is None:
                raise self._culprit(numbers, place) from error
            return packed

    def _wrong_shape(self, row: Any, place: str) -> InvalidInputError:
        return wrong_shape(row, self._tensor, place)

    def _culprit(self, numbers: Sequence[Any], place: str) -> InvalidInputError:
        told = read_non_finite(numbers) if self._tensor.allow_non_finite else numbers
        found = wrong_number(self._tensor.dtype, told)
        path, index = "", found
        for length in reversed(self._shape):
            index, rest = divmod(index, length)
            path = f"[{rest}]{path}"
        return InvalidInputError(
            f"{place}{path}: expected {self._tensor.dtype}, got {brief(told[found])}"
        )


def wrong_shape(row: Any, tensor: Tensor, place: str) -> InvalidInputError:
    """The error for a row whose shape is not the tensor's; names it as far as it is regular."""
    shape: list[int] = []
    value, ragged = row, False
    while type(value) is list and not ragged:
        shape.append(len(value))
        lengths = {len(part) if type(part) is list else None for part in value}
        ragged = len(lengths) > 1
        value = value[0] if value else None
    got = f"shape {shape}" if shape else brief(row)
    return InvalidInputError(
        f"{place}: expected {tensor.dtype} of shape {list(tensor.shape)}, got {got}"
        + (" with parts of different lengths" if ragged else "")
    )
