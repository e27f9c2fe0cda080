"""Methods that take JSON items, and those that take one whole request at a time.

An item's JSON text goes to the model process as it came, after it was parsed here once so that a
bad one never reaches a batch; the answer's text comes back ready to be sent. In a batch frame, the
payload is one JSON list of the items.

Of a method that takes requests it is one call: a uint32 (little endian) with the length of a JSON
object {"json", "text", "query", "headers"}, that object, and the body. "form" is the content type
of one. Several calls are one behind
the other, and meta "calls" has their lengths.

model/marshalling.py reads both.
"""

import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import orjson

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.charsets import UTF_8, charset_of, decoded
from batchedapi_serving.codecs.forms import is_form, parse_form
from batchedapi_serving.codecs.interface import (
    Array,
    Collated,
    DecodedRequest,
    Encoded,
    Head,
    RequestHead,
    Wire,
)
from batchedapi_serving.codecs.json_values import (
    check_row_count,
    check_value_count,
    instances_of,
    is_finite,
    is_json,
    is_json_type,
    non_finite_path,
    parse_items,
    unsupported,
)
from batchedapi_serving.codecs.replies import INSTANCES, ITEM
from batchedapi_serving.codecs.results import item_results
from batchedapi_serving.codecs.wires import is_msgpack
from batchedapi_serving.errors import InvalidInputError, StreamsOnlyError, brief
from batchedapi_serving.predictor import Measure, MethodSpec, SizeOf

Call = tuple[bytes, bytes]
_NO_HEAD = RequestHead(b"", b"", ())
_LENGTH: Final = 4
"""Bytes of the length of what is said of a call."""


class ItemCodec:
    """Payloads are lists of JSON texts, one a row."""

    def __init__(self, method: MethodSpec, api_name: str, receipts: Receipts) -> None:
        self.pads_to = 0 if method.size_of is None else sys.maxsize  # the method pads by itself
        self.method = method
        self.api_name = api_name
        self.receipts = receipts

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """See Codec.decode."""
        if wire is not Wire.PLAIN:
            return wires.decode(self, wire, head, body)
        if is_msgpack(head.content_type):
            return wires.decode_msgpack(self, head, body)
        if not is_json(head.content_type):
            raise unsupported(head.content_type, contract.JSON)
        value = parse_items(body)
        rows = instances_of(value)
        if rows is None:
            return DecodedRequest(1, [body], ITEM, self._sizes([value], [body], "item", ""))
        # Copied: orjson keeps 4 KiB for each of its results.
        texts = [b"%b" % orjson.dumps(row) for row in rows]
        sizes = self._sizes(rows, texts, "instances[", "]")
        return DecodedRequest(len(rows), texts, INSTANCES, sizes)

    def _sizes(
        self, rows: Sequence[Any], texts: Sequence[bytes], before: str, after: str
    ) -> list[int] | None:
        """Costs of rows that are called before + index + after, or just `before`."""
        size_of = self.method.size_of
        if size_of is None:
            return None
        return [
            item_cost(size_of, row, text, f"{before}{i}{after}" if after else before)
            for i, (row, text) in enumerate(zip(rows, texts, strict=True))
        ]

    def from_row(self, row: Any, place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_row."""
        del head
        text = item_json(row, place)
        return Encoded(1, [text], self._sizes([row], [text], place, ""))

    def from_rows(self, rows: Sequence[Any], place: str, head: Head | None = None) -> Encoded:
        """See Codec.from_rows."""
        del head
        texts = [item_json(row, f"{place}[{i}]") for i, row in enumerate(rows)]
        return Encoded(len(rows), texts, self._sizes(rows, texts, f"{place}[", "]"))

    def from_arrays(self, arrays: Mapping[str, Array], place: str) -> Encoded:
        """See Codec.from_arrays."""
        return self.from_rows(rows_of_arrays(arrays, place), place)

    def part(self, payload: list[bytes], start: int, stop: int) -> list[bytes]:
        """See Codec.part."""
        return payload[start:stop]

    def fits(self, rows: int, payload: Any) -> bool:
        """See Codec.fits; whether it is JSON is seen where it is parsed."""
        return (
            type(payload) is list
            and len(payload) == rows
            and all(type(text) is bytes for text in payload)
        )

    def collate(self, payloads: Sequence[list[bytes]]) -> Collated:
        """See Codec.collate."""
        items = payloads[0] if len(payloads) == 1 else [item for part in payloads for item in part]
        return Collated({}, (b"[%b]" % b",".join(items),))

    results = staticmethod(item_results)
    """See Codec.results."""


class CallCodec:
    """Payloads are lists of (what is said of the request, body); each is a call."""

    def __init__(self, method: MethodSpec, api_name: str, receipts: Receipts) -> None:
        self.pads_to = 0
        self.method = method
        self.api_name = api_name
        self.receipts = receipts

    def decode(self, wire: Wire, head: Head, body: bytes) -> DecodedRequest:
        """See Codec.decode; a plain body is the method's own, whatever its type."""
        if wire is not Wire.PLAIN:
            if self.method.streams:
                raise StreamsOnlyError(
                    f"{self.method.name} streams its answer, which this protocol cannot say; POST"
                    " to its plain path, see /docs"
                )
            return wires.decode(self, wire, head, body)
        content_type = head.content_type
        json_body = is_json(content_type)
        form = False
        if json_body:
            parse_items(body)
        elif is_json_type(content_type):
            raise unsupported(content_type, contract.JSON)
        elif is_text(content_type):
            body = decoded(body, charset_of(content_type), "body").encode()
        elif is_form(content_type):
            form = True
            parse_form(content_type, body)
        return DecodedRequest(1, [(_about(head, json_body=json_body, form=form), body)], ITEM)

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

    def fits(self, rows: int, payload: Any) -> bool:
        """See Codec.fits."""
        if type(payload) is not list or len(payload) != rows:
            return False
        for call in payload:
            if type(call) is not tuple or len(call) != 2:  # noqa: PLR2004 - see Call
                return False
            about, body = call
            if type(about) is not bytes or type(body) is not bytes:
                return False
            if int.from_bytes(about[:_LENGTH], "little") != len(about) - _LENGTH:
                return False
        return True

    def collate(self, payloads: Sequence[list[Call]]) -> Collated:
        """See Codec.collate."""
        calls = [call for payload in payloads for call in payload]
        if len(calls) == 1:
            return Collated({}, calls[0])
        lengths = [len(about) + len(body) for about, body in calls]
        return Collated({"calls": lengths}, tuple(part for call in calls for part in call))

    results = staticmethod(item_results)
    """See Codec.results."""


def _about(head: Head, *, json_body: bool, form: bool = False) -> bytes:
    about: dict[str, Any] = {
        "json": json_body,
        "text": is_text(head.content_type),
        "query": query_text(head.query),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in head.headers],
    }
    if form:
        about["form"] = head.content_type.decode("latin-1")
    text = orjson.dumps(about)
    return len(text).to_bytes(_LENGTH, "little") + text


def is_text(content_type: bytes) -> bool:
    """Whether a body is handed over as a text."""
    return content_type[:5].lower() == b"text/"


def query_text(query: bytes) -> str:
    """A query as it was sent.

    Raises:
        MalformedError: what it says, escaped or not, is no UTF-8.
    """
    if b"%" in query:
        decoded(urllib.parse.unquote_to_bytes(query), UTF_8, "query")
    return decoded(query, UTF_8, "query")


def item_json(row: Any, place: str) -> bytes:
    """JSON text of a parsed row.

    Raises:
        InvalidInputError: it holds something that JSON cannot say, NaN and Infinity included.
    """
    try:
        text = b"%b" % orjson.dumps(row)  # copied: orjson keeps 4 KiB for each of its results
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{place}: expected a JSON value, got {error}") from error
    # NaN and Infinity are written as null: only then is the row looked through.
    if b"null" in text and not is_finite(row):
        path = f"{place}{non_finite_path(row)}"
        raise InvalidInputError(f"{path}: expected a finite number, got NaN or Infinity")
    return text


def rows_of_arrays(arrays: Mapping[str, Array], place: str) -> list[Any]:
    """Items out of arrays, rows first: of one array its rows, of several objects of theirs.

    Raises:
        InvalidInputError: no array, no row, or not as many in each.
        TooLargeError: more rows than there may be.
    """
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        raise InvalidInputError(
            f"{place}: expected as many rows, at least one, in each array,"
            f" got {brief(counts) if counts else 'none'}"
        )
    check_row_count(next(iter(counts.values())))
    check_value_count(sum(array.size for array in arrays.values()), place)
    columns = [array.tolist() for array in arrays.values()]
    if len(columns) == 1:
        return list(columns[0])
    return [dict(zip(arrays, row, strict=True)) for row in zip(*columns, strict=True)]


def item_cost(size_of: SizeOf, value: Any, text: bytes, place: str) -> int:
    """Cost of a JSON item, >= 1.

    Raises:
        InvalidInputError: it has no part whose length could be taken.
    """
    match size_of.measure:
        case Measure.BYTES:
            return size_of.cost(len(text))
        case Measure.LENGTH:
            of = size_of.of
            if of is not None:
                if not isinstance(value, dict) or of not in value:
                    raise InvalidInputError(
                        f"{place}: expected an object with {of!r}, whose length is what the row"
                        f" costs, got {brief(value)}"
                    )
                value, place = value[of], f"{place}.{of}"
            if not isinstance(value, str | list | dict):
                raise InvalidInputError(
                    f"{place}: expected a text, list or object, whose length is what the row"
                    f" costs, got {brief(value)}"
                )
            return size_of.cost(len(value))
        case unknown:
            assert_never(unknown)
