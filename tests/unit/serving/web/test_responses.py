"""Response heads written by hand."""

import http
import io
from http.client import HTTPResponse
from typing import Any

import pytest

from batchedapi_serving.codecs import Answer
from batchedapi_serving.web.responses import CLOSES, STAYS, render

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


class Socket(io.BytesIO):
    """A socket for http.client to read from."""

    def makefile(self, *_: Any, **__: Any) -> io.BytesIO:
        """The bytes themselves."""
        return self


def parsed(answer: Answer, connection: bytes = b"") -> HTTPResponse:
    """As another HTTP implementation reads it."""
    response = HTTPResponse(Socket(render(answer, DATE, connection)))  # type: ignore[arg-type]  # all it needs of a socket
    response.begin()
    return response


@pytest.mark.parametrize("status", [200, 400, 404, 408, 413, 422, 429, 431, 500, 503, 504, 599])
def test_another_implementation_reads_what_was_meant(status: int) -> None:
    """A status without a name of its own (an ItemError may have any) included."""
    response = parsed(Answer(status, b"application/json", b'{"a":1}'))

    assert status == response.status
    phrase = http.HTTPStatus(status).phrase if status != 599 else ""
    assert phrase == response.reason
    assert response.headers["content-type"] == "application/json"
    assert response.headers["date"] == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert response.read() == b'{"a":1}'


def test_what_becomes_of_the_connection_is_said_only_when_it_is_meant() -> None:
    """HTTP/1.1 keeps connections."""
    answer = Answer(200, b"text/plain", b"")

    assert "connection" not in parsed(answer).headers
    assert parsed(answer, CLOSES).headers["connection"] == "close"
    assert parsed(answer, STAYS).headers["connection"] == "keep-alive"


def test_retry_after_is_a_header_of_its_own() -> None:
    """In whole seconds."""
    assert parsed(Answer(503, b"text/plain", b"", 7)).headers["retry-after"] == "7"
    assert "retry-after" not in parsed(Answer(503, b"text/plain", b"")).headers
