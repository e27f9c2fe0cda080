"""JSON that comes in: parsed once, nesting bounded; how NaN and Infinity are said in it."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.charsets import UTF_8, charset_of
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    TooLargeError,
    UnsupportedTypeError,
    brief,
)

NON_FINITE: Final = {
    None: math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf,
}  # fmt: skip
"""Meaning of a JSON value where a tensor allows NaN and Infinity: JSON has no such numbers."""
_INSTANCES: Final = "instances"
_POINT: Final = ord(".")
_DIGITS: Final = bytes(
    ord("0") if chr(byte) in "0123456789" else byte if byte == _POINT else ord(" ")
    for byte in range(256)
)
"""A table that makes all digits one, and all but the point spaces."""
_LONG: Final = 19
"""Digits of 2^63."""
_LONG_DIGITS: Final = b"0" * _LONG
_SAMPLED: Final = 6
"""One of so many digits is looked at first: of a long number at least three."""
_SHORT: Final = 2048
"""Bytes up to which that costs more than it saves."""
_TEXT: Final = re.compile(rb'"[^"]*+"')
_LONG_INTEGER: Final = re.compile(rb"(?<![-+.0-9eE])-?[0-9]{19,}+(?![.eE])")
_PIECE: Final = 1 << 20
"""Bytes that are looked at together: numpy needs several times as many."""


def parse_json(body: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        MalformedError: not JSON, not UTF-8, or nested deeper than the limit.
        TooLargeError: more values than there may be; nothing was built for them.
    """
    value = parse_shallow(body)
    check_nesting(body, value)
    return value


def parse_items(body: bytes) -> Any:
    """The same of a body whose numbers nobody has declared.

    Raises:
        InvalidInputError: an integer of more than 64 bits, of which orjson makes a float.
    """
    value = parse_json(body)
    check_integers(body)
    return value


def check_integers(body: bytes) -> None:
    """Check that the integers in a JSON text have 64 bits.

    Raises:
        InvalidInputError: one has more.
    """
    if len(body) > _SHORT and b"000" not in body[::_SAMPLED].translate(_DIGITS):
        return
    digits = body.translate(_DIGITS)
    start = digits.find(_LONG_DIGITS)
    while start > 0 and digits[start - 1] == _POINT:  # a fraction
        start = digits.find(_LONG_DIGITS, start + _LONG)
    if start < 0:
        return
    for number in _LONG_INTEGER.findall(_TEXT.sub(b"", _without_escaped_quotes(body))):
        if len(number) > _LONG + 1 or not -(2**63) <= int(number) < 2**64:
            raise InvalidInputError(
                f"body: expected integers of 64 bits, got {number.decode():.40}; send it as text"
            )


def parse_shallow(body: bytes) -> Any:
    """The same, of which the caller is to bound the depth: by check_nesting, or by what it is."""
    if len(body) > contract.MAX_CONTAINERS:  # fewer bytes hold no more than that of anything
        # Separators and brackets bound values from above, before anything is built; only where that
        # bound is too high those inside of texts are told from the others.
        separators = body.count(b",") + body.count(b":")
        containers = body.count(b"[") + body.count(b"{")
        if separators + containers > contract.MAX_VALUES or containers > contract.MAX_CONTAINERS:
            counts = _outside_texts(body)
            containers = int(counts[ord("[")] + counts[ord("{")])
            separators = int(counts[ord(",")] + counts[ord(":")])
        check_container_count(containers)
        check_value_count(separators + containers, "body")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise MalformedError("body: expected a JSON value, got nothing") from error
        remedy = ""
        if b"NaN" in body or b"Infinity" in body:
            remedy = "; JSON has no NaN and no Infinity: a tensor that allows them takes null"
        raise MalformedError(f"body: expected JSON, got an error at {error}{remedy}") from error
    return value


def check_nesting(body: bytes, value: Any) -> None:
    """Bound the depth of the value of a body.

    Raises:
        MalformedError: nested deeper than the limit.
    """
    # Brackets bound it from above; only a suspicious body is walked.
    if body.count(b"[") + body.count(b"{") > contract.MAX_NESTING:
        check_depth(value)


def _outside_texts(body: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each byte is there outside of texts, as far as `body` is JSON."""
    body = _without_escaped_quotes(body)
    counts = np.zeros(256, np.int64)
    within = 0
    for start in range(0, len(body), _PIECE):
        piece = np.frombuffer(body, np.uint8, min(_PIECE, len(body) - start), start)
        # Sums wrap at 256, which leaves odd ones odd: after an odd number of quotes is a text.
        texts = (np.cumsum(piece == ord('"'), dtype=np.uint8) + np.uint8(within)) & 1
        counts += np.bincount(piece[texts == 0], minlength=256)
        within = int(texts[-1])
    return counts


def _without_escaped_quotes(body: bytes) -> bytes:
    """So that each quote begins or ends a text."""
    if b"\\" not in body:
        return body
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def check_container_count(containers: int) -> None:
    """Bound the arrays and objects of one body.

    Raises:
        TooLargeError: there are more.
    """
    if containers > contract.MAX_CONTAINERS:
        raise TooLargeError(
            f"body: expected at most {contract.MAX_CONTAINERS} arrays and objects, got"
            f" {containers}; send fewer rows at a time"
        )


def check_value_count(values: int, place: str) -> None:
    """Bound what one body is taken apart into.

    Raises:
        TooLargeError: there are more values.
    """
    if values > contract.MAX_VALUES:
        raise TooLargeError(
            f"{place}: expected at most {contract.MAX_VALUES} values, got {values}; send numbers as"
            " .npy or as raw tensors, or fewer rows at a time"
        )


def check_depth(value: Any) -> None:
    """Bound what walks a value recursively.

    Raises:
        MalformedError: nested deeper than the limit.
    """
    level = [value]
    for _ in range(contract.MAX_NESTING):
        level = [
            member
            for container in level
            if isinstance(container, list | dict)
            for member in (container.values() if isinstance(container, dict) else container)
            if isinstance(member, list | dict)
        ]
        if not level:
            return
    raise MalformedError(
        f"body: expected at most {contract.MAX_NESTING} levels of arrays and objects, got more"
    )


def instances_of(value: Any) -> list[Any] | None:
    """The rows of `{"instances": [...]}`; None if the value is a single item.

    Raises:
        InvalidInputError: `instances` is not a list, or empty.
    """
    if type(value) is not dict or len(value) != 1 or _INSTANCES not in value:
        return None
    rows = value[_INSTANCES]
    if type(rows) is not list:
        raise InvalidInputError(f"instances: expected a list of rows, got {type(rows).__name__}")
    if not rows:
        raise InvalidInputError("instances: expected at least one row, got an empty list")
    check_row_count(len(rows))
    return rows


def is_deeper(value: Any, rank: int) -> bool:
    """Whether lists are nested in more than `rank` levels, as first elements tell."""
    for _ in range(rank):
        if type(value) is not list or not value:
            return False
        value = value[0]
    return type(value) is list


def check_row_count(rows: int) -> None:
    """Bound what one request may queue.

    Raises:
        TooLargeError: more rows than the largest batch there may be.
    """
    if rows > contract.MAX_BATCH_SIZE_LIMIT:
        raise TooLargeError(
            f"expected at most {contract.MAX_BATCH_SIZE_LIMIT} rows in one request, got {rows}"
        )


def is_finite(value: Any) -> bool:
    """Whether no float in a parsed value, of bounded depth, is NaN or Infinity."""
    if isinstance(value, dict):
        return all(is_finite(member) for member in value.values())
    if isinstance(value, list | tuple):
        return all(is_finite(member) for member in value)
    return not isinstance(value, float) or math.isfinite(value)


def read_non_finite(numbers: Sequence[Any]) -> list[Any]:
    """The same elements, with numbers for those that say NaN or Infinity."""
    return [
        NON_FINITE.get(number, number) if number is None or type(number) is str else number
        for number in numbers
    ]


def non_finite_path(value: Any) -> str:
    """Where the first NaN or Infinity is in a value that is not finite, as in `.a[3]`."""
    if isinstance(value, dict):
        name, member = next(pair for pair in value.items() if not is_finite(pair[1]))
        return f".{name:.80}{non_finite_path(member)}"
    if isinstance(value, list | tuple):
        i, member = next(pair for pair in enumerate(value) if not is_finite(pair[1]))
        return f"[{i}]{non_finite_path(member)}"
    return ""


def is_json(content_type: bytes) -> bool:
    """Whether a content type (empty: none was sent) says JSON, in UTF-8 as all JSON is."""
    if content_type == b"application/json" or not content_type:
        return True
    return is_json_type(content_type) and charset_of(content_type) == UTF_8


def is_json_type(content_type: bytes) -> bool:
    """The same, in whatever charset."""
    kind = media_type(content_type)
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def unsupported(content_type: bytes, expected: str) -> UnsupportedTypeError:
    """The error for a content type that a method does not take."""
    got = content_type.decode("latin-1")
    if is_json_type(content_type):
        return UnsupportedTypeError(
            f"content-type: expected JSON in utf-8, got charset {brief(charset_of(content_type))}"
        )
    return UnsupportedTypeError(
        f"content-type: expected {expected}, got {got!r};"
        " with curl, add -H 'content-type: application/json'"
    )


def media_type(content_type: bytes) -> bytes:
    """A content type in lower case, without its parameters."""
    return content_type.split(b";", 1)[0].strip().lower()
