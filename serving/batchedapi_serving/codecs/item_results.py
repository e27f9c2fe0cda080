"""What a batch of a method with JSON items, or one whole request, answered.

The frame: meta {"kind": "items", "items": [[status, kind, length], ...]} and the bodies one after
another. Kinds are json, text and bytes; of a failed row, the body is the error object as JSON.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchedapi_serving.codecs.base import Results
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import PredictorError

OK: Final = 200


class Item(NamedTuple):
    """Answer of one row."""

    status: int
    kind: str
    body: bytes


class ItemResults:
    """Answers of one batch, each with its own status."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def items(self, start: int, stop: int) -> Sequence[Item]:
        """Answers of rows [start, stop)."""
        return self._items[start:stop]

    def joined(self, start: int, stop: int, others: Sequence[tuple[Results, int, int]]) -> Results:
        """See Results.joined."""
        whole = list(self._items[start:stop])
        for results, first, last in others:
            if not isinstance(results, ItemResults):
                raise PredictorError(
                    "the predictor answered the parts of one request in different ways"
                )
            whole += results.items(first, last)
        return ItemResults(whole)

    def to_frame(self, start: int, stop: int) -> tuple[Meta, Sequence[bytes]]:
        """See Results.to_frame."""
        return item_frame(self._items[start:stop])


def item_frame(items: Sequence[Item]) -> tuple[Meta, Sequence[bytes]]:
    """See the module's docstring."""
    meta = {"kind": "items", "items": [[status, kind, len(body)] for status, kind, body in items]}
    return meta, [body for _, _, body in items]


def item_results(meta: Meta, payload: bytes) -> ItemResults:
    """Read a frame."""
    items = []
    offset = 0
    for status, kind, length in meta["items"]:
        end = offset + length
        items.append(Item(status, kind, payload[offset:end]))
        offset = end
    return ItemResults(items)
