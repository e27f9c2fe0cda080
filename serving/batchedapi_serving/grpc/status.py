"""HTTP statuses as gRPC says them: answers have the former, calls end with the latter."""

from collections.abc import Sequence
from typing import Final

from grpc import StatusCode

from batchedapi_serving.codecs.base import Answer

_OK: Final = 200
_SERVER_ERROR: Final = 500
_LONGEST_MESSAGE: Final = 2000
"""Characters. It travels in a header, of which clients take 8 KiB together."""
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.ABORTED,
    410: StatusCode.NOT_FOUND,
    # gRPC's own code for a message above the limit
    413: StatusCode.RESOURCE_EXHAUSTED,
    415: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    431: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}


def status_code(status: int) -> StatusCode:
    """The code of a call whose answer has the HTTP status `status`.

    A predictor may fail an item with any status from 400 to 599: those without a twin are the
    client's fault below 500, and ours from there on.
    """
    if status == _OK:
        return StatusCode.OK
    fallback = StatusCode.INTERNAL if status >= _SERVER_ERROR else StatusCode.INVALID_ARGUMENT
    return _CODES.get(status, fallback)


def message(answer: Answer) -> str:
    """The details of a call that failed."""
    return answer.body.decode("utf-8", "replace")[:_LONGEST_MESSAGE]


def trailing_metadata(answer: Answer, request_id: str | None) -> Sequence[tuple[str, str]]:
    """What HTTP says in response headers: receipt, Retry-After in seconds, the request's id."""
    # gRPC refuses what is not ASCII, and the call with it.
    pairs = [
        (name.decode(), value.decode("latin-1").encode("ascii", "replace").decode())
        for name, value in answer.headers
    ]
    if answer.retry_after:
        pairs.append(("retry-after", str(answer.retry_after)))
    if request_id is not None:
        pairs.append(("x-request-id", request_id))
    return pairs
