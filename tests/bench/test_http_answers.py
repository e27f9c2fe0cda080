"""Taking answers out of a stream of bytes."""

import pytest
from harness.http_answers import HttpAnswer, read_answer, request

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n42"


def test_an_answer_is_read_only_when_it_is_whole() -> None:
    """TCP may cut anywhere, in the head as in the body."""
    assert [None] * len(ANSWER) == [read_answer(ANSWER[:n]) for n in range(len(ANSWER))]
    assert HttpAnswer(200, b"42", closes=False, rest=b"") == read_answer(ANSWER)


def test_what_comes_after_an_answer_is_kept() -> None:
    """A second answer to one request is a finding, not something to skip."""
    answer = read_answer(ANSWER + b"HTTP/1.1 200")

    assert answer is not None
    assert b"HTTP/1.1 200" == answer.rest


def test_an_answer_that_closes_says_so() -> None:
    """A client that went on sending would count its own mistake as a lost request."""
    closing = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    answer = read_answer(closing)

    assert answer is not None
    assert answer.closes


def test_an_answer_without_a_length_is_an_error() -> None:
    """Its end cannot be known, so nothing after it could be trusted."""
    with pytest.raises(ValueError, match="content-length"):
        read_answer(b"HTTP/1.1 200 OK\r\n\r\n42")


def test_a_request_says_how_long_its_body_is() -> None:
    """The server waits for exactly so many bytes."""
    assert request("/p", "application/json", b"[1]").endswith(b"Content-Length: 3\r\n\r\n[1]")
