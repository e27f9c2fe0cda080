"""Methods with several named tensors, or with variable dimensions.

In a batch frame, the payload is the declared inputs one after another, each for the whole batch:
(rows, *shape), C order, little endian. If there are variable dimensions, meta has
"lengths": {name: [length in row 0, ...]}; each such dimension is as long as the longest of its
list, and shorter rows are filled up with the `pad` of their input. model/marshalling.py reads it.

Padding multiplies memory: one long row makes each of its batch as long, and one tall and one wide
image make both tall and wide. So rows share a batch whatever their lengths only while that cannot
cost more than FREE_BYTES; longer rows share it with rows of about their own lengths, so that a
batch takes less than 2 ** (variable dimensions) times the bytes that clients have sent.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.arrays import check_finite, checked_arrays
from batchedapi_serving.codecs.interface import Array, Collated, DecodedRequest, Encoded, Head, Wire
from batchedapi_serving.codecs.json_values import is_deeper, is_json, parse_json
from batchedapi_serving.codecs.replies import ITEM, plain_rows
from batchedapi_serving.codecs.results import read_results
from batchedapi_serving.codecs.tensor_codec import RowPacker, tensor_cost, wrong_shape
from batchedapi_serving.codecs.wires import decode_other
from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor import MethodSpec, Tensor

FREE_BYTES: Final = 128 * 1024 * 1024
"""For all inputs of a batch, every row padded to the length up to which all may share it."""


class Row(NamedTuple):
    """One row, checked and packed."""

    lengths: tuple[int, ...]
    """One for each variable dimension, in the order of MethodSpec.variable."""
    parts: tuple[bytes, ...]
    """One for each input, in the order of MethodSpec.inputs; little endian, C order."""


class NamedCodec:
    """Payloads are lists of Row."""

    def __init__(
        self, method: MethodSpec, api_name: str, receipts: Receipts, most_rows: int = 1
    ) -> None:
        """`most_rows` is what a batch can hold at most."""
        self.method = method
        self.results = functools.partial(read_results, method)
        """See Codec.results."""
        self.api_name = api_name
        self.receipts = receipts
        self._variable = method.variable
        self.pads_to = freely_padded(method, most_rows) if method.pads else 0

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """See Codec.decode."""
        if wire is not Wire.PLAIN:
            return wires.decode(self, wire, head, body)
        if not is_json(head.content_type):
            return decode_other(self, head, body)
        value = parse_json(body)
        may_hold_bool = b"u" in body or b"l" in body  # of true and false
        many = plain_rows(self.method.row_rank, value)
        if many is None:
            row = pack_row(self.method, value, "item", may_hold_bool=may_hold_bool)
            return self._encoded([row]).decoded(ITEM)
        rows, reply = many
        packed = [
            pack_row(self.method, row, f"{reply.place}[{i}]", may_hold_bool=may_hold_bool)
            for i, row in enumerate(rows)
        ]
        return self._encoded(packed).decoded(reply)

    def _encoded(self, rows: list[Row]) -> Encoded:
        sizes = None
        size_of = self.method.size_of
        if size_of is not None:
            sizes = [
                tensor_cost(
                    size_of,
                    self.method,
                    dict(zip(self._variable, row.lengths, strict=True)),
                    sum(map(len, row.parts)),
                )
                for row in rows
            ]
        shapes = [row.lengths for row in rows] if self._variable else None
        return Encoded(len(rows), rows, sizes, shapes)

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_row."""
        del head
        return self._encoded([self._finite_row(row, place)])

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_rows."""
        del head
        return self._encoded([self._finite_row(row, f"{place}[{i}]") for i, row in enumerate(rows)])

    def _finite_row(self, row: Any, place: str) -> Row:
        packed = pack_row(self.method, row, place, may_hold_bool=True)
        check_row_finite(self.method, packed, place)
        return packed

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """See Codec.from_arrays."""
        checked, lengths = checked_arrays(self.method, arrays, place)
        of_row = tuple(lengths[name] for name in self._variable)
        return self._encoded(
            [
                Row(of_row, tuple(part.tobytes() for part in parts))
                for parts in zip(*checked, strict=True)
            ]
        )

    def part(self, payload: list[Row], start: int, stop: int) -> list[Row]:
        """See Codec.part."""
        return payload[start:stop]

    def fits(self, rows: int, payload: Any) -> bool:
        """See Codec.fits."""
        return (
            type(payload) is list
            and len(payload) == rows
            and all(type(row) is Row and row_fits(self.method, row) for row in payload)
        )

    def collate(self, payloads: Sequence[list[Row]]) -> Collated:
        """See Codec.collate."""
        rows = list(itertools.chain.from_iterable(payloads))
        columns = list(zip(*(row.parts for row in rows), strict=True))
        if not self._variable:
            return Collated({}, list(itertools.chain.from_iterable(columns)))
        each = [dict(zip(self._variable, row.lengths, strict=True)) for row in rows]
        lengths = {name: [of_row[name] for of_row in each] for name in self._variable}
        if any(of_row != each[0] for of_row in each):
            return Collated({"lengths": lengths}, self._padded(columns, each))
        return Collated({"lengths": lengths}, list(itertools.chain.from_iterable(columns)))

    def _padded(
        self, columns: Sequence[Sequence[bytes]], each: Sequence[Mapping[str, int]]
    ) -> list[bytes]:
        buffers: list[bytes] = []
        for tensor, column in zip(self.method.inputs.values(), columns, strict=True):
            if tensor.variable:
                shapes = [shape_of(tensor, lengths) for lengths in each]
                buffers.append(padded(tensor, column, shapes))
            else:
                buffers += column
        return buffers


def pack_row(method: MethodSpec, row: Any, place: str, *, may_hold_bool: bool) -> Row:
    """Pack a parsed row: an object with one member for each input, or the only input itself.

    Args:
        may_hold_bool: False if the row cannot contain `true` or `false`.

    Raises:
        InvalidInputError: names, shapes, types or ranges are not those declared.
    """
    lengths: dict[str, int] = {}
    members = list(zip(_members(method, row, place), method.inputs.values(), strict=True))
    parts = []
    try:
        for (value, path), tensor in members:
            shape = _shape(value, tensor, path, lengths) if tensor.variable else tensor.fixed_shape
            packer = _packer(tensor.dtype, shape, tensor.allow_non_finite)
            parts.append(packer.pack(value, path, may_hold_bool=may_hold_bool))
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


def check_row_finite(method: MethodSpec, row: Row, place: str) -> None:
    """Refuse NaN and Infinity where they are not allowed; JSON cannot hold them, msgpack can.

    Raises:
        InvalidInputError: there is one.
    """
    lengths = dict(zip(method.variable, row.lengths, strict=True))
    for (name, tensor), part in zip(method.inputs.items(), row.parts, strict=True):
        array = np.ndarray(shape_of(tensor, lengths), tensor.numpy_dtype, part)
        check_finite(array, tensor, place if method.single_input else f"{place}.{name}")


def shape_of(tensor: Tensor, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a row whose variable dimensions have these lengths."""
    return tuple(lengths[n] if isinstance(n, str) else n for n in tensor.shape)


def row_fits(method: MethodSpec, row: Row) -> bool:
    """Whether a row that comes from another process has the parts and lengths of the inputs."""
    names = method.variable
    if len(row.lengths) != len(names) or not all(type(n) is int and n >= 1 for n in row.lengths):
        return False
    lengths = dict(zip(names, row.lengths, strict=True))
    expected = [
        tensor.item_bytes * math.prod(shape_of(tensor, lengths))
        for tensor in method.inputs.values()
    ]
    return expected == list(map(len, row.parts))


def freely_padded(method: MethodSpec, most_rows: int) -> int:
    """Up to which length of each variable dimension rows share a batch; a power of two."""

    def row_bytes(length: int) -> int:
        lengths = dict.fromkeys(method.variable, length)
        return sum(
            tensor.item_bytes * math.prod(shape_of(tensor, lengths))
            for tensor in method.inputs.values()
        )

    lengths = itertools.takewhile(
        lambda length: row_bytes(length) * most_rows <= FREE_BYTES,
        (1 << exponent for exponent in range(FREE_BYTES.bit_length())),
    )
    return max(lengths, default=1)


def padded(tensor: Tensor, parts: Sequence[bytes], shapes: Sequence[tuple[int, ...]]) -> bytes:
    """Rows of different shapes, each filled up with the pad at its ends to the longest of all."""
    longest = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
    whole = np.full((len(parts), *longest), tensor.pad or 0, dtype=tensor.numpy_dtype)
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        row, packed = whole[i], np.frombuffer(part, tensor.numpy_dtype)
        row[tuple([slice(length) for length in shape])] = packed.reshape(shape)
    return whole.tobytes()
