"""msgpack on the plain routes: the same structure as JSON, in fewer bytes.

Only what JSON can say is taken: no binary, no extension types (timestamps are one), text as keys,
numbers that are finite. So a request means the same in both, and rides in the same batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.base import Answer, Decoded, Head, Receipt, Reply, Results
from batchedapi_serving.codecs.json_values import instances_of, media_type
from batchedapi_serving.codecs.method_codec import MethodCodec
from batchedapi_serving.codecs.plain_replies import INSTANCES, ITEM
from batchedapi_serving.codecs.problems import JSON_TYPE
from batchedapi_serving.errors import InvalidInputError, MalformedError, ServingError

_SCALARS: Final = frozenset((str, int, float, bool, type(None)))


def read_msgpack(body: bytes) -> Any:
    """The one value of a body, made of what JSON has.

    Raises:
        MalformedError: not msgpack, more than one value, or nested deeper than the limit.
        InvalidInputError: a value that JSON does not have; the message names its path.
    """
    try:
        # Reading allocates what a length claims; skipping only finds out whether it is true, which
        # a list of a million in a list of a million in ... is not.
        skimmer = msgpack.Unpacker(max_buffer_size=max(1, len(body)))
        skimmer.feed(body)
        skimmer.skip()
        value = msgpack.unpackb(body, raw=False, strict_map_key=True, timestamp=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedError(f"body: expected one msgpack value, got an error: {error}") from error
    _check(value)
    return value


def _check(value: Any) -> None:
    """Walk a value level by level: a stack of its own, so nesting cannot exhaust Python's."""
    level: list[tuple[str, Any]] = [("", value)]
    for _ in range(contract.MAX_NESTING):
        level = [member for place, container in level for member in _members(place, container)]
        if not level:
            return
    if any(type(member) in (list, dict) for _, member in level):
        raise MalformedError(
            f"body: expected at most {contract.MAX_NESTING} levels of arrays and maps, got more"
        )
    for place, member in level:
        _members(place, member)


def _members(place: str, value: Any) -> Sequence[tuple[str, Any]]:
    """What is in `value` and not checked yet."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise InvalidInputError(
                    f"{place or 'body'}: expected text as keys, got {key!r:.40}"
                )
        return [(f"{place}.{key}" if place else key, member) for key, member in value.items()]
    if kind is list:
        kinds = set(map(type, value))
        if kinds <= _SCALARS and (float not in kinds or all(map(_finite, value))):
            return ()
        return [(f"{place}[{i}]", member) for i, member in enumerate(value)]
    if kind not in _SCALARS:
        raise InvalidInputError(
            f"{place or 'body'}: expected what JSON has, got msgpack {kind.__name__}"
        )
    if not _finite(value):
        raise InvalidInputError(f"{place or 'body'}: expected a finite number, got {value}")
    return ()


def _finite(value: Any) -> bool:
    return type(value) is not float or math.isfinite(value)


def decode_msgpack(codec: MethodCodec, head: Head, body: bytes) -> Decoded:
    """A request of Wire.PLAIN in msgpack; see Codec.decode."""
    value = read_msgpack(body)
    content_type = media_type(head.content_type)
    rows = instances_of(value)
    if rows is None:
        return codec.from_row(value, "item", head).decoded(MsgpackReply(ITEM, content_type))
    return codec.from_rows(rows, "instances", head).decoded(MsgpackReply(INSTANCES, content_type))


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
