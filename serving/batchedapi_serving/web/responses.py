"""Response heads written by hand, and errors as responses, each in the language of its route."""

import http
import logging
import os
from typing import Final, assert_never

from batchedapi_serving.codecs import Answer, Reply, Wire
from batchedapi_serving.codecs.open_inference import open_inference_problem
from batchedapi_serving.codecs.replies import named, problem_answer
from batchedapi_serving.errors import ServingError

log = logging.getLogger(__name__)

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSES: Final = b"connection: close\r\n"
STAYS: Final = b"connection: keep-alive\r\n"
"""For clients that speak HTTP/1.0; to others it goes without saying."""


ERROR: Final = 400
"""Statuses from here on are errors."""
_SERVER_ERROR: Final = 500
_EXPECTED: Final = frozenset({503, 504})
"""An overload answers thousands a second of these, and the metrics count them."""
_SHOWN: Final = 500
"""Bytes of an error body that its log line shows."""


def render(answer: Answer, date: bytes, connection: bytes, request_id: str | None = None) -> bytes:
    """One whole HTTP/1.1 response.

    Args:
        answer: Status, type, body and headers of its own.
        date: A complete `date: ...` header line, or nothing.
        connection: What becomes of the connection, as a header line, or nothing.
        request_id: Sent back, so that a client can tell its answers apart; printable ASCII.
    """
    status, content_type, body, retry_after, headers = answer
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    extra = connection
    if retry_after:
        extra += b"retry-after: %d\r\n" % retry_after
    if headers:
        extra += b"".join([b"%b: %b\r\n" % header for header in headers])
    if request_id:
        extra += b"x-request-id: %b\r\n" % request_id.encode("ascii")
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        line, content_type, len(body), date, extra, body,
    )  # fmt: skip


def problem_on(
    wire: Wire, error: ServingError, request_id: str | None, reply: Reply | None = None
) -> Answer:
    """The response that `error` is answered with.

    Args:
        wire: Of the route.
        error: What happened.
        request_id: For the body, where the language has a place for it.
        reply: Of the request, if it could be decoded: it knows best.
    """
    if reply is not None:
        return reply.problem(error, request_id)
    match wire:
        case Wire.PLAIN | Wire.V1:
            return problem_answer(error, request_id)
        case Wire.V2 | Wire.GRPC:
            return open_inference_problem(error)
    assert_never(wire)


def new_request_id() -> str:
    """For a request that failed and whose client gave it none."""
    return os.urandom(16).hex()


def finished_error(answer: Answer, path: str, request_id: str) -> Answer:
    """An error as it goes out: with its id, which a line in the log has too if it is our fault."""
    answer = named(answer, request_id)
    if answer.status >= _SERVER_ERROR:
        level = logging.DEBUG if answer.status in _EXPECTED else logging.ERROR
        if log.isEnabledFor(level):
            facts = {
                "status": answer.status,
                "path": path,
                "request_id": request_id,
                "answer": answer.body[:_SHOWN].decode("utf-8", "replace"),
            }
            log.log(level, "request failed", extra=facts)
    return answer
