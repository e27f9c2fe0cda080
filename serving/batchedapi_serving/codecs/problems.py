"""The error body, the same on every route: code, message and request id, never a traceback."""

from typing import Any

import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.base import Answer
from batchedapi_serving.errors import OverloadedError, ServingError

JSON_TYPE = contract.JSON.encode()


def error_object(code: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """The value of `error` in an error body."""
    return {"code": code, "message": message, "request_id": request_id}


def problem_answer(error: ServingError, request_id: str | None = None) -> Answer:
    """The response that `error` is answered with."""
    body = orjson.dumps({"error": error_object(error.code, str(error), request_id)})
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, JSON_TYPE, body, retry_after)
