"""Methods that take JSON items, and methods that take one whole request.

An item's JSON text goes to the model process as it came, after it was parsed here once so that a
bad one never reaches a batch; the answer's text comes back ready to be sent.
"""

from collections.abc import Sequence
from typing import Final

import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.base import Answer, Decoded, Form, Head, Results
from batchedapi_serving.codecs.json_values import instances_of, is_json, parse_json, unsupported
from batchedapi_serving.codecs.problems import JSON_TYPE, error_object
from batchedapi_serving.dispatch.frames import Meta

_OK: Final = 200
CONTENT_TYPES: Final = {
    "json": JSON_TYPE,
    "text": b"text/plain; charset=utf-8",
    "bytes": b"application/octet-stream",
}


class ItemCodec:
    """Payloads are lists of JSON texts, one a row."""

    def decode(self, head: Head, body: bytes) -> Decoded:
        """See Codec.decode."""
        if not is_json(head.content_type):
            raise unsupported(head.content_type, contract.JSON)
        rows = instances_of(parse_json(body))
        if rows is None:
            return Decoded(Form.ITEM, 1, [body])
        # Copied: orjson keeps 4 KiB for each of its results.
        return Decoded(Form.INSTANCES, len(rows), [b"%b" % orjson.dumps(row) for row in rows])

    def part(self, payload: list[bytes], start: int, stop: int) -> list[bytes]:
        """See Codec.part."""
        return payload[start:stop]

    def collate(self, payloads: Sequence[list[bytes]]) -> Sequence[bytes]:
        """See Codec.collate."""
        items = payloads[0] if len(payloads) == 1 else [item for part in payloads for item in part]
        return (b"[%b]" % b",".join(items),)

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        return ItemResults(meta["items"], payload)


class CallCodec:
    """Payloads are (head as JSON, body) of one request; a batch is one call."""

    def decode(self, head: Head, body: bytes) -> Decoded:
        """See Codec.decode."""
        json_body = is_json(head.content_type)
        if json_body:
            parse_json(body)
        about = {
            "json": json_body,
            "text": head.content_type.lower().startswith(b"text/"),
            "query": head.query.decode("latin-1"),
            "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in head.headers],
        }
        text = orjson.dumps(about)
        return Decoded(Form.CALL, 1, [len(text).to_bytes(4, "little") + text, body])

    def part(self, payload: list[bytes], start: int, stop: int) -> list[bytes]:
        """See Codec.part; one call is one row and cannot be split."""
        if (start, stop) != (0, 1):
            raise ValueError(f"a call is one row, asked for [{start}, {stop})")
        return payload

    def collate(self, payloads: Sequence[list[bytes]]) -> Sequence[bytes]:
        """See Codec.collate."""
        (call,) = payloads
        return call

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        return ItemResults(meta["items"], payload)


class ItemResults:
    """Answers of one batch, each with its own status."""

    __slots__ = ("_bodies", "_kinds", "_statuses")

    def __init__(self, items: Sequence[Sequence[object]], payload: bytes) -> None:
        """Args: items: (status, kind, length) of each answer in `payload`."""
        self._statuses, self._kinds, self._bodies = [], [], []
        offset = 0
        for status, kind, length in items:
            end = offset + int(str(length))
            self._statuses.append(int(str(status)))
            self._kinds.append(str(kind))
            self._bodies.append(payload[offset:end])
            offset = end

    def answer(self, form: Form, start: int, stop: int) -> Answer:
        """See Results.answer.

        Of many rows, the status is the first failed row's, and every other answer is still in
        `predictions`: who looks only at the status knows, and who reads on loses nothing.
        """
        if form is not Form.INSTANCES:
            status, body = self._statuses[start], self._bodies[start]
            if status == _OK:
                return Answer(status, CONTENT_TYPES[self._kinds[start]], body)
            return Answer(status, JSON_TYPE, b'{"error":%b}' % body)
        failed = next((i for i in range(start, stop) if self._statuses[i] != _OK), None)
        if failed is None:
            joined = b",".join(self._bodies[start:stop])
            return Answer(_OK, JSON_TYPE, b'{"predictions":[%b]}' % joined)
        rows = b",".join(
            self._bodies[i] if self._statuses[i] == _OK else b'{"error":%b}' % self._bodies[i]
            for i in range(start, stop)
        )
        error = error_object("item_failed", f"instances[{failed - start}] failed; see predictions")
        body = b'{"error":%b,"predictions":[%b]}' % (orjson.dumps(error), rows)
        return Answer(self._statuses[failed], JSON_TYPE, body)

    def joined(self, start: int, stop: int, others: Sequence[tuple[Results, int, int]]) -> Results:
        """See Results.joined."""
        whole = ItemResults((), b"")
        for results, first, last in [(self, start, stop), *others]:
            if not isinstance(results, ItemResults):
                raise TypeError(f"expected ItemResults to join, got {type(results).__name__}")
            whole._statuses += results._statuses[first:last]  # noqa: SLF001 - the same class
            whole._kinds += results._kinds[first:last]  # noqa: SLF001 - the same class
            whole._bodies += results._bodies[first:last]  # noqa: SLF001 - the same class
        return whole
