"""One batch through the user's method: collate -> predict -> split, with every answer checked."""

import inspect
import json
import logging
import math
import traceback
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from batchedapi_serving.codecs.problems import error_object
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.predictor.api import ItemError, MethodSpec, Tensor

log = logging.getLogger(__name__)

Result = tuple[Meta, Sequence[bytes]]
_WRITE: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class BatchRunner:
    """Runs batches of one method on one predictor; several threads may call `run` at once."""

    def __init__(self, predictor: Any, method: MethodSpec) -> None:
        self._call = getattr(predictor, method.name)
        self._method = method

    def run(self, rows: int, payload: bytes) -> Result:
        """Answer one batch frame; whatever the user's code does, an answer comes back."""
        try:
            return self._answer(rows, payload)
        except ItemError as error:
            return self._item_error(rows, error)
        except PredictorError as error:
            log.error("wrong answer", extra={"rows": rows, "error": str(error)})  # noqa: TRY400 - the stack is ours
            return {"kind": "error", "error": f"failed: {error}"}, ()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: anything may be raised
            log.error("predict raised", extra={"rows": rows, "traceback": traceback.format_exc()})  # noqa: TRY400 - one event with facts
            return {"kind": "error", "error": f"raised {type(error).__name__}"}, ()

    def _answer(self, rows: int, payload: bytes) -> Result:
        method = self._method
        if not method.batched:
            return _split_call(self._called(payload))
        if method.inputs is not None:
            # A copy, because models may write into their input, and frombuffer's is read-only.
            array = np.frombuffer(payload, dtype=method.inputs.numpy_dtype).copy()
            answer = self._call(array.reshape((rows, *method.inputs.shape)))
            return split_tensor(answer, rows, method.outputs)
        return split_items(self._call(orjson.loads(payload)), rows)

    def _called(self, payload: bytes) -> Any:
        length = int.from_bytes(payload[:4], "little")
        about = orjson.loads(payload[4 : 4 + length])
        body = payload[4 + length :]
        value: Any = body
        if about["json"]:
            value = orjson.loads(body)
        elif about["text"]:
            value = body.decode("utf-8", "replace")
        query = dict(urllib.parse.parse_qsl(about["query"], keep_blank_values=True))
        answer = self._call(value, query, dict(about["headers"]))
        if inspect.isawaitable(answer):
            raise PredictorError(f"{self._method.name} is async, which is not served yet; use def")
        return answer

    def _item_error(self, rows: int, error: ItemError) -> Result:
        """Raised, not returned: for one row it is that row's answer; else find whose it is."""
        if rows == 1 and self._method.inputs is None:
            return _framed([_error_item(error)])
        if rows == 1:
            return {"kind": "error", "error": f"failed: {error.message}"}, ()
        return {"kind": "error", "error": "raised ItemError"}, ()


def split_tensor(answer: Any, rows: int, outputs: Tensor | None) -> Result:
    """Check the array that a method answered.

    Raises:
        PredictorError: wrong number of rows, shape or type.
    """
    dtype = None if outputs is None else outputs.numpy_dtype
    try:
        array = np.ascontiguousarray(answer, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise PredictorError(f"expected an array, got {type(answer).__name__} ({error})") from error
    if np.ndim(answer) == 0 or array.shape[0] != rows:
        raise PredictorError(
            f"expected {rows} rows, got an answer of shape {list(np.shape(answer))};"
            " the first dimension must be that of the input"
        )
    if outputs is not None and array.shape[1:] != outputs.shape:
        raise PredictorError(
            f"expected rows of shape {list(outputs.shape)} (outputs={outputs}),"
            f" got {list(array.shape[1:])}"
        )
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:  # noqa: PLR2004 - longdouble
        raise PredictorError(f"expected numbers, got an array of {array.dtype}")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)  # as the wire says
    not_finite: list[int] = []
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        finite = np.isfinite(array).reshape(rows, -1).all(axis=1)
        not_finite = np.flatnonzero(~finite).tolist()
    meta = {
        "kind": "tensor",
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "not_finite": not_finite,
    }
    return meta, (array.tobytes(),)


def split_items(answer: Any, rows: int) -> Result:
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
    return _framed([_item(value) for value in answer])


Item = tuple[int, str, bytes]
"""Status, kind of content and bytes of one answer."""


def _framed(items: Sequence[Item]) -> Result:
    meta = {"kind": "items", "items": [[status, kind, len(body)] for status, kind, body in items]}
    return meta, [body for _, _, body in items]


def _split_call(value: Any) -> Result:
    if isinstance(value, bytes | bytearray):
        return _framed([(200, "bytes", bytes(value))])
    if isinstance(value, str):
        return _framed([(200, "text", value.encode())])
    return _framed([_item(value)])


def _item(value: Any) -> Item:
    if isinstance(value, ItemError):
        return _error_item(value)
    try:
        text = orjson.dumps(value, default=_strided, option=_WRITE)
    except (TypeError, ValueError) as error:
        return _failed(f"the predictor answered something that is not JSON: {error}")
    # NaN and Infinity are written as null: only then is the answer looked through.
    if b"null" in text and not _is_finite(value):
        return _failed("the predictor answered NaN or Infinity")
    return 200, "json", text


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


def _error_item(error: ItemError) -> Item:
    return error.status, "json", _error_json("item_failed", error.message)


def _failed(message: str) -> Item:
    return PredictorError.status, "json", _error_json(PredictorError.code, message)


def _error_json(code: str, message: str) -> bytes:
    return json.dumps(error_object(code, message), ensure_ascii=False).encode("utf-8", "replace")
