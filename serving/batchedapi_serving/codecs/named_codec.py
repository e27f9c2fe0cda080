"""Methods with several named tensors, or with variable dimensions.

In a batch frame, the payload is the declared inputs one after another, each for the whole batch:
(rows, *shape), C order, little endian. If there are variable dimensions, meta has
"lengths": {name: [length in row 0, ...]}; each such dimension is as long as the longest of its
list, and shorter rows are filled up with zeros. model/collate.py reads it.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from batchedapi_core.batching import Receipts, ShapePolicy
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.arrays import Array
from batchedapi_serving.codecs.costs import tensor_cost
from batchedapi_serving.codecs.interface import Collated, Decoded, Encoded, Head, Results, Wire
from batchedapi_serving.codecs.json_values import is_json, parse_json
from batchedapi_serving.codecs.named_rows import (
    Row,
    check_row_finite,
    checked_arrays,
    pack_row,
)
from batchedapi_serving.codecs.padding import freely_padded, padded, padding_class
from batchedapi_serving.codecs.plain_arrays import decode_other
from batchedapi_serving.codecs.plain_replies import ITEM, plain_rows
from batchedapi_serving.codecs.tensor_results import results_of
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.predictor.api import MethodSpec


class NamedCodec:
    """Payloads are lists of Row."""

    def __init__(
        self,
        method: MethodSpec,
        shape_policy: ShapePolicy,
        api_name: str,
        receipts: Receipts,
        most_rows: int = 1,
    ) -> None:
        """`most_rows` is what a batch can hold at most."""
        self.method = method
        self.api_name = api_name
        self.receipts = receipts
        self._variable = method.variable
        self._bucket = shape_policy is not ShapePolicy.PAD
        self._pads_to = 0 if self._bucket else freely_padded(method, most_rows)

    def decode(self, wire: Wire, head: Head, body: bytes) -> Decoded:
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
        shapes = self._shapes(rows)
        return Encoded(len(rows), rows, sizes, shapes)

    def _shapes(self, rows: Sequence[Row]) -> Sequence[Hashable] | None:
        if not self._variable:
            return None
        if self._bucket:
            return [row.lengths for row in rows]
        if all(max(row.lengths) <= self._pads_to for row in rows):
            return None
        return [padding_class(row.lengths, self._pads_to) for row in rows]

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

    def collate(self, payloads: Sequence[list[Row]]) -> Collated:
        """See Codec.collate."""
        rows = [row for payload in payloads for row in payload]
        columns = list(zip(*(row.parts for row in rows), strict=True))
        if not self._variable:
            return Collated({}, [part for column in columns for part in column])
        lengths = {name: [row.lengths[i] for row in rows] for i, name in enumerate(self._variable)}
        if len({row.lengths for row in rows}) == 1:
            return Collated({"lengths": lengths}, [part for column in columns for part in column])
        buffers: list[bytes] = []
        for tensor, column in zip(self.method.inputs.values(), columns, strict=True):
            if not tensor.variable:
                buffers += column
                continue
            shapes = [
                tuple(lengths[n][i] if isinstance(n, str) else n for n in tensor.shape)
                for i in range(len(rows))
            ]
            buffers.append(padded(tensor, column, shapes))
        return Collated({"lengths": lengths}, buffers)

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        return results_of(self.method, meta, payload)
