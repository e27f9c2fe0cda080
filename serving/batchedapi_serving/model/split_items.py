"""JSON items, or the one value, that a method answered, each written on its own."""

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_serving.codecs.results import OK, Item, error_object, item_frame
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.predictor.api import ItemError

_WRITE: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def split_items(answer: Any, rows: int) -> tuple[Meta, Sequence[bytes]]:
    """Check the list that a method answered and write each item as JSON.

    Raises:
        PredictorError: not a list of as many items as came in.
    """
    if isinstance(answer, np.ndarray):
        answer = list(answer)
    if not isinstance(answer, list | tuple):
        raise PredictorError(f"expected a list of {rows} answers, got {type(answer).__name__}")
    if len(answer) != rows:
        raise PredictorError(f"expected {rows} answers, got {len(answer)}")
    return item_frame([_item(value) for value in answer])


def split_call(value: Any) -> tuple[Meta, Sequence[bytes]]:
    """Write what a method answered to one request: bytes, text, or a value as JSON."""
    if isinstance(value, bytes | bytearray):
        return item_frame([Item(OK, "bytes", bytes(value))])
    if isinstance(value, str):
        return item_frame([Item(OK, "text", value.encode("utf-8", "replace"))])
    return item_frame([_item(value)])


def error_item(error: ItemError) -> Item:
    """The answer of an item that failed on its own."""
    return Item(error.status, "json", _error_json("item_failed", error.message))


def _item(value: Any) -> Item:
    if isinstance(value, ItemError):
        return error_item(value)
    try:
        text = orjson.dumps(value, default=_strided, option=_WRITE)
    except (TypeError, ValueError) as error:
        return _failed(f"the predictor answered something that is not JSON: {error}")
    # NaN and Infinity are written as null: only then is the answer looked through.
    if b"null" in text and not _is_finite(value):
        return _failed("the predictor answered NaN or Infinity")
    return Item(OK, "json", text)


def _strided(value: Any) -> Any:
    """A transposed or sliced array, which orjson does not read."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    raise TypeError(type(value).__name__)


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(member) for member in value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(member) for member in value)
    if isinstance(value, np.ndarray | np.floating):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    return not isinstance(value, float) or math.isfinite(value)


def _failed(message: str) -> Item:
    return Item(PredictorError.status, "json", _error_json(PredictorError.code, message))


def _error_json(code: str, message: str) -> bytes:
    # orjson refuses half a surrogate, which a predictor's message may hold.
    text = json.dumps(error_object(code, message), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
