"""msgpack on the plain routes: the same structure as JSON, in fewer bytes.

Only what JSON can say is taken: no binary, no extension types (timestamps are one), text as keys.
So a request means the same in both, and rides in the same batch. NaN and Infinity, which are
numbers here, are the codec's to allow.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgpack
import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    DecodedRequest,
    Head,
    Receipt,
    Reply,
    Results,
)
from batchedapi_serving.codecs.json_values import (
    check_container_count,
    check_depth,
    check_value_count,
    media_type,
)
from batchedapi_serving.codecs.replies import ITEM, JSON_TYPE, plain_rows
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    ServingError,
    TooLargeError,
    brief,
)

_SCALARS: Final = frozenset((str, int, float, bool, type(None)))


def read_msgpack(body: bytes) -> Any:
    """The one value of a body, made of what JSON has.

    Raises:
        MalformedError: not msgpack, more than one value, or nested deeper than the limit.
        TooLargeError: more values than there may be.
        InvalidInputError: a value that JSON does not have; the message names its path.
    """
    try:
        # Reading allocates what a length claims; skipping only finds out whether it is true, which
        # a list of a million in a list of a million in ... is not.
        skimmer = msgpack.Unpacker(max_buffer_size=max(1, len(body)))
        skimmer.feed(body)
        skimmer.skip()
        value = _unpacked(body)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedError(f"body: expected one msgpack value, got an error: {error}") from error
    check_depth(value)
    if not _fits(value):
        raise _culprit(value, "")
    return value


def _unpacked(body: bytes) -> Any:
    if len(body) <= contract.MAX_CONTAINERS:  # so few bytes hold no more than that of anything
        return msgpack.unpackb(body, raw=False, strict_map_key=True, timestamp=0)
    # The length of each is true: what is not finished yet is no more than the body is long.
    count = _Count()
    try:
        value = msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            timestamp=0,
            list_hook=count.list,
            object_hook=count.map,
            max_array_len=contract.MAX_VALUES,
            max_map_len=contract.MAX_VALUES // 2,
        )
    except ValueError as error:
        if "exceeds max_" not in str(error):  # msgpack has no class of its own for it
            raise
        raise TooLargeError(
            f"body: expected at most {contract.MAX_VALUES} values, got a list or map of more"
            f" ({error}); send numbers as .npy, or fewer rows at a time"
        ) from error
    check_value_count(count.values, "body")
    return value


class _Count:
    """Ends reading when there is more than there may be, container by container."""

    __slots__ = ("containers", "values")

    def __init__(self) -> None:
        self.containers = self.values = 0

    def list(self, members: list[Any]) -> list[Any]:
        self._add(len(members))
        return members

    def map(self, members: dict[Any, Any]) -> dict[Any, Any]:
        self._add(2 * len(members))
        return members

    def _add(self, values: int) -> None:
        self.containers += 1
        self.values += values
        if self.values > contract.MAX_VALUES or self.containers > contract.MAX_CONTAINERS:
            check_container_count(self.containers)
            check_value_count(self.values, "body")


def _fits(value: Any) -> bool:
    """Whether a value, of bounded depth, is made of what JSON has."""
    kind = type(value)
    if kind is dict:
        if not all(type(name) is str for name in value):
            return False
        value, kind = list(value.values()), list
    if kind is list:
        kinds = set(map(type, value))
        return kinds <= _SCALARS or all(map(_fits, value))
    return kind in _SCALARS


def _culprit(value: Any, place: str) -> InvalidInputError:
    """The error of a value that does not fit; `place` is its path."""
    if type(value) is dict:
        odd = [name for name in value if type(name) is not str]
        if odd:
            got = brief(odd[0], 40)
            return InvalidInputError(f"{place or 'body'}: expected text as keys, got {got}")
        name, member = next(pair for pair in value.items() if not _fits(pair[1]))
        return _culprit(member, f"{place}.{name:.80}" if place else f"{name:.80}")
    if type(value) is list:
        i, member = next(pair for pair in enumerate(value) if not _fits(pair[1]))
        return _culprit(member, f"{place}[{i}]")
    return InvalidInputError(
        f"{place or 'body'}: expected what JSON has, got msgpack {type(value).__name__}"
    )


def decode_msgpack(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """A request of Wire.PLAIN in msgpack; see Codec.decode."""
    value = read_msgpack(body)
    content_type = media_type(head.content_type)
    many = plain_rows(codec.method.row_rank, value)
    if many is None:
        return codec.from_row(value, "item", head).decoded(MsgpackReply(ITEM, content_type))
    rows, reply = many
    return codec.from_rows(rows, reply.place, head).decoded(MsgpackReply(reply, content_type))


@dataclass(frozen=True, slots=True)
class MsgpackReply:
    """Writes what the JSON reply says, in msgpack: there is one place that decides what that is."""

    json: Reply
    content_type: bytes

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer."""
        return self._packed(self.json.answer(results, start, stop, receipt))

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """See Reply.problem."""
        return self._packed(self.json.problem(error, request_id))

    def _packed(self, answer: Answer) -> Answer:
        if answer.content_type != JSON_TYPE:  # a predictor's own text or bytes
            return answer
        body: bytes = msgpack.packb(orjson.loads(answer.body))
        return answer._replace(content_type=self.content_type, body=body)
