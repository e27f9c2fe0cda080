"""Methods with one tensor of a fixed shape: the shortest way from JSON numbers to a batch.

In a batch frame, the payload is the packed rows one after another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.arrays import Array, check_finite
from batchedapi_serving.codecs.costs import same_costs, tensor_cost
from batchedapi_serving.codecs.interface import Collated, Decoded, Encoded, Head, Results, Wire
from batchedapi_serving.codecs.json_values import is_json, parse_json
from batchedapi_serving.codecs.named_rows import checked_arrays
from batchedapi_serving.codecs.plain_arrays import decode_other
from batchedapi_serving.codecs.plain_replies import ITEM, plain_rows
from batchedapi_serving.codecs.tensor_results import results_of, tensor_results
from batchedapi_serving.codecs.tensor_rows import RowPacker, array_of
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.predictor.api import MethodSpec

_NO_META: Final[Mapping[str, Any]] = {}
_PLAIN: Final = Wire.PLAIN
_U, _L = b"ul"
"""Letters of true and false; no number has these. To search for a byte takes half of the time that
a piece of text takes."""


class TensorCodec:
    """Payloads are packed bytes of whole rows."""

    def __init__(self, method: MethodSpec, api_name: str, receipts: Receipts) -> None:
        self.method = method
        self.api_name = api_name
        self.receipts = receipts
        (self._tensor,) = method.inputs.values()
        self._rank = method.row_rank
        self._dtype, self._shape = self._tensor.numpy_dtype, self._tensor.fixed_shape
        self._row_bytes = self._tensor.row_bytes
        self._pack = RowPacker(self._tensor).pack
        self._cost = None
        if method.size_of is not None:
            self._cost = tensor_cost(method.size_of, method, {}, self._row_bytes)
        self._size = same_costs(self._cost, 1)

    def decode(self, wire: Wire, head: Head, body: bytes) -> Decoded:
        """See Codec.decode."""
        if wire is not _PLAIN:
            return wires.decode(self, wire, head, body)
        if not is_json(head.content_type):
            return decode_other(self, head, body)
        value = parse_json(body)
        may_hold_bool = _U in body or _L in body
        many = plain_rows(self._rank, value)
        if many is None:
            packed = self._pack(value, "item", may_hold_bool=may_hold_bool)
            return Decoded(1, packed, ITEM, self._size)
        pack, (rows, reply) = self._pack, many
        parts = [
            pack(row, f"{reply.place}[{i}]", may_hold_bool=may_hold_bool)
            for i, row in enumerate(rows)
        ]
        return Decoded(len(rows), b"".join(parts), reply, same_costs(self._cost, len(rows)))

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_row."""
        del head
        packed = self._pack(row, place, may_hold_bool=True)
        check_finite(array_of(packed, self._dtype, self._shape), self._tensor, place)
        return Encoded(1, packed, self._size)

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_rows."""
        del head
        pack = self._pack
        parts = [pack(row, f"{place}[{i}]", may_hold_bool=True) for i, row in enumerate(rows)]
        packed = b"".join(parts)
        array = array_of(packed, self._dtype, (len(rows), *self._shape))
        check_finite(array, self._tensor, place)
        return Encoded(len(rows), packed, same_costs(self._cost, len(rows)))

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """See Codec.from_arrays."""
        (array,), _ = checked_arrays(self.method, arrays, place)
        return Encoded(len(array), array.tobytes(), same_costs(self._cost, len(array)))

    def part(self, payload: bytes, start: int, stop: int) -> bytes:
        """See Codec.part."""
        return payload[start * self._row_bytes : stop * self._row_bytes]

    def collate(self, payloads: Sequence[bytes]) -> Collated:
        """See Codec.collate."""
        return Collated(_NO_META, payloads)

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        of_kind = tensor_results if meta["kind"] == "tensors" else results_of
        return of_kind(self.method, meta, payload)
