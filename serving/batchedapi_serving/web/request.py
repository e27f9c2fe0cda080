"""A complete request, what its headers ask for, and the shortcut for one that is like the last."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchedapi_serving.errors import ClientError, MalformedError, UnsupportedTypeError

REQUEST_ID: Final = b"x-request-id"
TIMEOUT: Final = b"x-request-timeout-ms"
ENCODING: Final = b"content-encoding"
OPTIONS: Final = frozenset((REQUEST_ID, TIMEOUT, ENCODING))

_LONGEST_ID: Final = 200  # characters
_LONGEST_TIMEOUT: Final = 12  # digits: 31 years
_UNPRINTABLE: Final = bytes(byte for byte in range(256) if not 0x20 <= byte <= 0x7E)  # noqa: PLR2004 - space to tilde


class Options(NamedTuple):
    """What few requests say in their headers."""

    request_id: str | None = None
    """What the client calls the request: printable ASCII, at most 200 characters."""
    timeout: float | None = None
    """Seconds that the client waits at most."""
    refusal: ClientError | None = None
    """What is wrong with these headers; told as the answer of a prediction."""


def options_of(headers: Iterable[tuple[bytes, bytes]]) -> Options:
    """What the headers OPTIONS among these say; of each the last one counts."""
    request_id: str | None = None
    timeout: float | None = None
    refusal: ClientError | None = None
    for name, value in headers:
        if name == REQUEST_ID:
            text = value.translate(None, _UNPRINTABLE)[:_LONGEST_ID].strip()
            request_id = text.decode("ascii") or None
        elif name == TIMEOUT:
            if value.isdigit() and len(value) <= _LONGEST_TIMEOUT and int(value) > 0:
                timeout = int(value) / 1000
            else:
                refusal = _bad_timeout(value)
        elif name == ENCODING and value.lower() not in (b"", b"identity"):
            refusal = _encoded(value)
    return Options(request_id, timeout, refusal)


def _bad_timeout(value: bytes) -> MalformedError:
    return MalformedError(
        "header X-Request-Timeout-Ms: expected whole milliseconds, 1 or more and at most"
        f" {_LONGEST_TIMEOUT} digits, got {value[:20].decode('latin-1')!r}"
    )


def _encoded(value: bytes) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        "header Content-Encoding: nothing is decompressed here, got"
        f" {value[:20].decode('latin-1')!r}; send the body as it is"
    )


NO_OPTIONS: Final = Options()


class Request(NamedTuple):
    """A complete request."""

    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    content_type: bytes
    body: bytes
    keep_alive: bool
    options: Options
    old: bool = False
    """HTTP/1.0, where whoever keeps a connection says so."""


class Repeat:
    """The head of a prediction that came whole in one piece, for when it comes again.

    Clients that keep a connection send the same bytes up to the body again and again, and equal
    bytes need no second parsing: that is a quarter of what a small request costs here.
    """

    __slots__ = ("_after", "_before", "head", "size")

    def __init__(self, data: bytes, request: Request) -> None:
        """`data` is exactly the one `request`."""
        self.size = len(data)
        self.head = data[: self.size - len(request.body)]
        place = Request._fields.index("body")
        self._before = request[:place]
        self._after = request[place + 1 :]

    def matches(self, data: bytes) -> bool:
        """Whether `data` is exactly one request with the same head, and so of the same length."""
        return len(data) == self.size and data.startswith(self.head)

    def with_body_of(self, data: bytes) -> Request:
        """The request that `data` is."""
        # What Request(...) does, without the call that takes as long as the rest.
        return tuple.__new__(Request, (*self._before, data[len(self.head) :], *self._after))
