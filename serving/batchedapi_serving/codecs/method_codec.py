"""What the codec of one method offers to the languages it is spoken to in.

    choose ── tensor_codec, named_codec, item_codec, call_codec      one for each kind of method
                 │  from_row, from_rows, from_arrays -> Encoded
              wires ── plain, msgpack_rows, v1, open_inference, grpc_messages    one for a language

A language takes its message apart into parsed rows or arrays, has the codec check and encode them,
and joins the Encoded with a Reply of its own to a Decoded. Results are of two kinds whatever the
method: TensorResults and ItemResults; every Reply can write both.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs.base import Codec, Decoded, Head, Reply
from batchedapi_serving.predictor.api import MethodSpec

Array = np.ndarray[Any, Any]


class Encoded(NamedTuple):
    """Checked rows, as Decoded wants them."""

    rows: int
    payload: Any
    sizes: Sequence[int] | None = None
    shapes: Sequence[Hashable] | None = None

    def decoded(self, reply: Reply) -> Decoded:
        """A request of these rows that is to be answered by `reply`."""
        return Decoded(self.rows, self.payload, reply, self.sizes, self.shapes)


class MethodCodec(Codec, Protocol):
    """A Codec as the languages see it.

    Each codec sets the three attributes itself: a base class for that would be no shorter.
    """

    method: MethodSpec
    api_name: str
    receipts: Receipts

    def decode_plain(self, head: Head, body: bytes) -> Decoded:
        """A request of Wire.PLAIN; see Codec.decode."""

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """One parsed row; `place` is its own path, as in "item". See from_rows."""

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """Parsed rows, each a JSON-like value: what JSON or msgpack reads.

        Args:
            rows: At least one, at most contract.MAX_BATCH_SIZE_LIMIT (check_row_count).
            place: Path of the list: row 3 is called `instances[3]`.
            head: Of the request; a method that takes whole requests is given its query and headers.

        Raises:
            InvalidInputError: a row is not what the method takes (NaN and Infinity included).
        """

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """Named arrays, rows first.

        Args:
            arrays: One for each input the method declares, by name; a method that declares none
                takes any: each row is an item, of several arrays an object.
            place: What messages call an array: `inputs` gives `inputs['ids']`.

        Raises:
            InvalidInputError: names, shapes or types do not fit, values are not finite, no row.
            TooLargeError: more rows than there may be.
        """
