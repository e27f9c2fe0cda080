"""Response heads written by hand, for the answers that do not go through ASGI."""

import http
from typing import Final

from batchedapi_serving.codecs import Answer

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSES: Final = b"connection: close\r\n"
STAYS: Final = b"connection: keep-alive\r\n"
"""For clients that speak HTTP/1.0; to others it goes without saying."""


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
