"""Fields of a ModelInferRequest, counted and found on the wire before any object is made of them.

A message of two bytes becomes an object of a hundred, so a body may hold only so many. Inside of a
tensor's contents there are numbers and texts alone, which take at most eight times their bytes.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from batchedapi_core import contract
from batchedapi_serving.errors import MalformedError, TooLargeError

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTH: Final = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT: Final = 10
_NAME, _VERSION, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 1, 2, 4, 5, 6, 7
_NESTED: Final = {_PARAMETERS: (), _INPUTS: (_PARAMETERS,), _OUTPUTS: (2,)}
"""Fields of a request that are messages, and which of theirs are."""
_TEXTS: Final = b"BYTES"
"""A datatype whose elements are taken apart, raw or not."""


class Field(NamedTuple):
    """Where a text or message lies in another; fields of other types have the number 0."""

    number: int
    start: int
    stop: int


class _Fields:
    """Reads the fields of one body, and ends when there are too many of them."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = contract.MAX_MESSAGE_FIELDS

    def of(self, start: int, stop: int) -> Iterator[Field]:
        """Fields of the message at [start, stop); groups, which no message has, field by field."""
        while start < stop:
            self._left -= 1
            if self._left < 0:
                raise TooLargeError(
                    f"message: expected at most {contract.MAX_MESSAGE_FIELDS} fields outside of"
                    " tensors' contents, got more; send fewer inputs and parameters at a time"
                )
            tag, start = self._varint(start, stop)
            number, kind = tag >> 3, tag & 7
            first = start
            if kind == _VARINT:
                _, start = self._varint(start, stop)
            elif kind == _BYTES:
                length, first = self._varint(start, stop)
                start = first + length
            elif kind in _WIDTH:
                start += _WIDTH[kind]
            elif kind not in {_GROUP, _GROUP_END}:
                raise _malformed()
            if start > stop:
                raise _malformed()
            yield Field(number if kind == _BYTES else 0, first, start)

    def _varint(self, start: int, stop: int) -> tuple[int, int]:
        value = 0
        for i, byte in enumerate(self._body[start : min(start + _LONGEST_VARINT, stop)]):
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:  # noqa: PLR2004 - the last byte has no high bit
                return value, start + i + 1
        raise _malformed()


def check_fields(body: bytes) -> None:
    """Bound the objects that reading a ModelInferRequest makes.

    Raises:
        MalformedError: the bytes are no message.
        TooLargeError: more fields than there may be.
    """
    fields = _Fields(body)
    for field in fields.of(0, len(body)):
        inner = _NESTED.get(field.number)
        if inner is None:
            continue
        for member in fields.of(field.start, field.stop):
            if member.number in inner:
                for _ in fields.of(member.start, member.stop):
                    pass


class Asked(NamedTuple):
    """What a ModelInferRequest says of itself on its first level."""

    model: str
    version: str
    raw: int
    """Bytes of its tensors that lie in it as they do in memory, and are not taken apart."""


def asked_of(body: bytes) -> Asked:
    """Which model a ModelInferRequest asks for, and with how much; nothing else is read.

    Raises:
        MalformedError: the bytes are no message.
        TooLargeError: more fields than there may be.
    """
    names, raw = {_NAME: b"", _VERSION: b""}, 0
    for field in _Fields(body).of(0, len(body)):
        if field.number in names:
            names[field.number] = body[field.start : field.stop]
        elif field.number == _RAW:
            raw += field.stop - field.start
    try:
        model, version = names[_NAME].decode(), names[_VERSION].decode()
    except UnicodeDecodeError as error:
        raise _malformed() from error
    return Asked(model, version, 0 if _TEXTS in body else raw)


def _malformed() -> MalformedError:
    return MalformedError("message: expected a ModelInferRequest, got other bytes")
