"""JSON that comes in: parsed once, nesting bounded, NaN and Infinity refused."""

import math
from typing import Any, Final

import orjson

from batchedapi_core import contract
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    TooLargeError,
    UnsupportedTypeError,
)

_INSTANCES: Final = "instances"


def parse_json(body: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        MalformedError: not JSON, not UTF-8, or nested deeper than the limit.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise MalformedError("body: expected a JSON value, got nothing") from error
        raise MalformedError(f"body: expected JSON, got an error at {error}") from error
    # Brackets bound the depth from above; only a suspicious body is walked. A flat list, which has
    # one bracket, is known without counting: to search costs a third of that.
    nested = body.find(b"[", 1) >= 0 or b"{" in body
    if nested and body.count(b"[") + body.count(b"{") > contract.MAX_NESTING:
        check_depth(value)
    return value


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


def is_json(content_type: bytes) -> bool:
    """Whether a content type (empty: none was sent) says JSON."""
    if content_type == b"application/json" or not content_type:
        return True
    kind = media_type(content_type)
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def unsupported(content_type: bytes, expected: str) -> UnsupportedTypeError:
    """The error for a content type that a method does not take."""
    got = content_type.decode("latin-1")
    return UnsupportedTypeError(
        f"content-type: expected {expected}, got {got!r};"
        " with curl, add -H 'content-type: application/json'"
    )


def media_type(content_type: bytes) -> bytes:
    """A content type in lower case, without its parameters."""
    return content_type.split(b";", 1)[0].strip().lower()
