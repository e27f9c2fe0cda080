"""Reading HTTP/1.1 answers out of bytes, as little of it as a load generator needs."""

from typing import NamedTuple

_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_CLOSE = b"connection: close"


class HttpAnswer(NamedTuple):
    """One answer and the bytes that came after it."""

    status: int
    body: bytes
    closes: bool
    rest: bytes


def read_answer(data: bytes) -> HttpAnswer | None:
    """The answer at the start of `data`; None: it is not complete yet.

    Raises:
        ValueError: a head without a content length.
    """
    end = data.find(_END)
    if end < 0:
        return None
    head = data[:end].lower()
    at = head.find(_LENGTH)
    if at < 0:
        raise ValueError(f"answer: expected a content-length, got {head!r}")
    line_end = head.find(b"\r\n", at)
    length = int(head[at + len(_LENGTH) : line_end if line_end >= 0 else end])
    start = end + len(_END)
    if len(data) < start + length:
        return None
    body, rest = data[start : start + length], data[start + length :]
    return HttpAnswer(int(head[9:12]), body, _CLOSE in head, rest)


def request(path: str, content_type: str, body: bytes, host: str = "bench") -> bytes:
    """One POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body)
