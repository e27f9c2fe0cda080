"""Methods that take one whole request at a time.

In a batch frame, the payload is one call: a uint32 (little endian) with the length of a JSON
object {"json", "text", "query", "headers"}, that object, and the body. model/collate.py reads it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.arrays import Array
from batchedapi_serving.codecs.interface import (
    Collated,
    Decoded,
    Encoded,
    Head,
    RequestHead,
    Results,
    Wire,
)
from batchedapi_serving.codecs.item_codec import item_json, rows_of_arrays
from batchedapi_serving.codecs.item_results import item_results
from batchedapi_serving.codecs.json_values import is_json, parse_json
from batchedapi_serving.codecs.plain_replies import ITEM
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.predictor.api import MethodSpec

Call = tuple[bytes, bytes]
_NO_HEAD = RequestHead(b"", b"", ())


class CallCodec:
    """Payloads are lists of (what is said of the request, body); a batch is one call."""

    def __init__(self, method: MethodSpec, api_name: str, receipts: Receipts) -> None:
        self.method = method
        self.api_name = api_name
        self.receipts = receipts

    def decode(self, wire: Wire, head: Head, body: bytes) -> Decoded:
        """See Codec.decode; a plain body is the method's own, whatever its type."""
        if wire is not Wire.PLAIN:
            return wires.decode(self, wire, head, body)
        json_body = is_json(head.content_type)
        if json_body:
            parse_json(body)
        return Decoded(1, [(_about(head, json_body=json_body), body)], ITEM)

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_row; the row is the payload of one call."""
        return Encoded(1, [(_about(head or _NO_HEAD, json_body=True), item_json(row, place))])

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_rows; each row is a call."""
        about = _about(head or _NO_HEAD, json_body=True)
        calls = [(about, item_json(row, f"{place}[{i}]")) for i, row in enumerate(rows)]
        return Encoded(len(calls), calls)

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """See Codec.from_arrays; each row is a call."""
        return self.from_rows(rows_of_arrays(arrays, place), place)

    def part(self, payload: list[Call], start: int, stop: int) -> list[Call]:
        """See Codec.part."""
        return payload[start:stop]

    def collate(self, payloads: Sequence[list[Call]]) -> Collated:
        """See Codec.collate."""
        ((call,),) = payloads
        return Collated({}, call)

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        return item_results(meta, payload)


def _about(head: Head, *, json_body: bool) -> bytes:
    about = {
        "json": json_body,
        "text": head.content_type.lower().startswith(b"text/"),
        "query": head.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in head.headers],
    }
    text = orjson.dumps(about)
    return len(text).to_bytes(4, "little") + text
