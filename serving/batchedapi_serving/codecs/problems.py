"""The error body, the same on every route: code, message and request id, never a traceback."""

from typing import Any, Final

import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.interface import Answer
from batchedapi_serving.errors import OverloadedError, ServingError

JSON_TYPE = contract.JSON.encode()
_UNNAMED_JSON: Final = b'"request_id":null'
_UNNAMED_MSGPACK: Final = b"\xaarequest_id\xc0"


def error_object(code: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """The value of `error` in an error body."""
    return {"code": code, "message": message, "request_id": request_id}


def named(answer: Answer, request_id: str) -> Answer:
    """An error answer with the id in its body, where one belongs there and is not known yet.

    Predictors' own errors are written in the model process, which knows rows and no requests. Only
    the first place is the answer's: what follows in `predictions` is of single rows. Neither text
    can be part of a string, in JSON for the quotes and in msgpack because it is no UTF-8.
    """
    if answer.content_type == JSON_TYPE:
        body = answer.body.replace(_UNNAMED_JSON, _UNNAMED_JSON[:-4] + orjson.dumps(request_id), 1)
    elif _UNNAMED_MSGPACK in answer.body and b"msgpack" in answer.content_type:
        import msgpack  # noqa: PLC0415 - where it was needed before

        packed = _UNNAMED_MSGPACK[:-1] + msgpack.packb(request_id)
        body = answer.body.replace(_UNNAMED_MSGPACK, packed, 1)
    else:
        return answer
    return answer._replace(body=body)


def problem_answer(error: ServingError, request_id: str | None = None) -> Answer:
    """The response that `error` is answered with."""
    body = orjson.dumps({"error": error_object(error.code, str(error), request_id)})
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, JSON_TYPE, body, retry_after)
