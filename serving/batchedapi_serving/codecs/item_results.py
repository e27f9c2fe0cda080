"""What a batch of a method with JSON items, or one whole request, answered.

The frame: meta {"kind": "items", "items": [[status, kind, length], ...]} and the bodies one after
another. A method with tensors answers this only for a row that failed with a status of its own.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchedapi_serving.codecs.interface import Results
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import PredictorError

OK: Final = 200


class Item(NamedTuple):
    """Answer of one row."""

    status: int
    kind: str
    """json, text or bytes."""
    body: bytes
    """Of a failed row the error object as JSON."""


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
        return joined_items([(self, start, stop), *others])

    def to_frame(self, start: int, stop: int) -> tuple[Meta, Sequence[bytes]]:
        """See Results.to_frame."""
        return item_frame(self._items[start:stop])


def joined_items(parts: Sequence[tuple[Results, int, int]]) -> ItemResults:
    """Rows [start, stop) of each part; tensors among them only beside a row that failed.

    Raises:
        PredictorError: the parts do not fit together.
    """
    whole = [Item(*item) for part, start, stop in parts for item in part.items(start, stop)]
    alike = all(isinstance(part, ItemResults) for part, _, _ in parts)
    if not alike and all(item.status == OK for item in whole):
        raise PredictorError("the predictor answered the parts of one request in different ways")
    return ItemResults(whole)


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
