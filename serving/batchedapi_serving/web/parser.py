"""Bytes of one connection -> complete requests, within the limits of size; no I/O and no clock."""

import io
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

import httptools

from batchedapi_serving.errors import (
    ClientError,
    HeadersTooLargeError,
    MalformedError,
    ServingError,
    TooLargeError,
    UnsupportedCodingError,
    UnsupportedTypeError,
)
from batchedapi_serving.web.limits import Limits

REQUEST_ID: Final = b"x-request-id"
TIMEOUT: Final = b"x-request-timeout-ms"
ENCODING: Final = b"content-encoding"
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
OPTIONS: Final = frozenset((REQUEST_ID, TIMEOUT, ENCODING))

_LONGEST_ID: Final = 200  # characters
_LONGEST_TIMEOUT: Final = 12  # digits: 31 years
_UNPRINTABLE: Final = bytes(byte for byte in range(256) if not 0x20 <= byte <= 0x7E)  # noqa: PLR2004 - space to tilde
_HOST_BYTES: Final = b"!$%&'()*+,-.:;=[]_~" + bytes(
    byte for byte in range(128) if chr(byte).isalnum()
)
"""Of a Host header: a name or an address, and a port."""
_GZIP: Final = (b"gzip", b"x-gzip")
"""Two names of one coding: RFC 9110, 8.4.1.3."""
_SPACE: Final = 0x20
_HEADER_BYTES: Final = 128
"""Of a header beside its bytes: two objects, and the pair of them."""
_OLD: Final = "1.0"
_SELDOM: Final = OPTIONS | {b"transfer-encoding", b"expect", b"connection"}
"""Headers that mean something here and that few requests have."""
_SELDOM_TRACED: Final = _SELDOM | {TRACEPARENT}
"""The same where requests are traced; elsewhere one that has a trace is read no slower."""
HEADERS: Final = "headers"
BODY: Final = "body"


class Options(NamedTuple):
    """What few requests say in their headers."""

    request_id: str | None = None
    """What the client calls the request: printable ASCII, at most 200 characters."""
    timeout: float | None = None
    """Seconds that the client waits at most."""
    refusal: ClientError | None = None
    """What is wrong with these headers; told as the answer of a prediction."""
    gzip: bool = False
    """The body has to be inflated."""
    traceparent: bytes = b""
    """As sent; two of them are none that can be read."""
    tracestate: bytes = b""


def options_of(headers: Iterable[tuple[bytes, bytes]]) -> Options:
    """What the headers OPTIONS among these say, of each the last one; and those of a trace."""
    traceparent = tracestate = b""
    request_id: str | None = None
    timeout: float | None = None
    refusal: ClientError | None = None
    gzip = False
    for name, value in headers:
        if name == REQUEST_ID:
            text = value.translate(None, _UNPRINTABLE)[:_LONGEST_ID].strip()
            request_id = text.decode("ascii") or None
        elif name == TIMEOUT:
            if value.isdigit() and len(value) <= _LONGEST_TIMEOUT and int(value) > 0:
                timeout = int(value) / 1000
            else:
                refusal = MalformedError(
                    "header X-Request-Timeout-Ms: expected whole milliseconds, 1 or more and at"
                    f" most {_LONGEST_TIMEOUT} digits, got {value[:20].decode('latin-1')!r}"
                )
        elif name == ENCODING and value.lower() not in (b"", b"identity"):
            if gzip or value.lower() not in _GZIP:
                refusal = UnsupportedTypeError(
                    "header Content-Encoding: expected gzip, once, got"
                    f" {value[:20].decode('latin-1')!r}; send the body so, or as it is"
                )
            gzip = True
        elif name == TRACEPARENT:
            traceparent = b"%b,%b" % (traceparent, value) if traceparent else value.strip()
        elif name == TRACESTATE:
            tracestate = b"%b,%b" % (tracestate, value) if tracestate else value.strip()
    return Options(request_id, timeout, refusal, gzip, traceparent, tracestate)


NO_OPTIONS: Final = Options()


Headers = list[tuple[bytes, bytes]]


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
    """The head of a prediction that came whole, or before its body, for when it comes again.

    Clients that keep a connection send the same bytes up to the body again and again, and equal
    bytes need no second parsing: that is a quarter of what a small request costs here.
    """

    __slots__ = ("after", "before", "body_size", "head", "headers", "method", "size", "target")

    def __init__(self, head: bytes, target: bytes, request: Request) -> None:
        """`head` is all of the one `request` but its body."""
        self.head = head
        self.body_size = len(request.body)
        self.size = len(head) + self.body_size
        self.target = target
        self.headers = request.headers
        self.method = request.method
        place = Request._fields.index("body")
        self.before, self.after = request[:place], request[place + 1 :]
        """Of the request, what is not its body."""


class RequestParser:
    """httptools with our limits, one for each connection.

    Attributes:
        awaiting: What of a request that has begun is still to come: HEADERS, BODY or None.
        error: Why nothing more can be read, once it is so; requests before it are good.
        wants_continue: The client waits for `100 Continue` before it sends the body.
        options: What its headers ask for, of the request that has begun.
        target: Its path and query.
        body_bytes: How much of its body has come.
        owner: Whose key its head brings; of the last head that was admitted.
        method: Of the last head that `admit` was asked about.
    """

    __deletable__ = ("_parser",)  # mypyc asks which attributes may be deleted

    def __init__(
        self,
        limits: Limits,
        repeated: Container[bytes],
        *,
        traced: bool = False,
        admit: Callable[[bytes, bytes, Headers], str] | None = None,
    ) -> None:
        """What to look at.

        Args:
            limits: Of sizes.
            repeated: Paths whose requests are worth a shortcut when they come again.
            traced: The options have `traceparent` and `tracestate` too.
            admit: Whose key a method, target and headers bring. Asked with each head before its
                body is read; what it raises is the parser's error. None: no key is needed.
        """
        self._admit = admit
        self.owner = ""
        self.method = b""
        self._seldom = _SELDOM_TRACED if traced else _SELDOM
        self.awaiting: str | None = None
        self.error: ServingError | None = None
        self.wants_continue = False
        self.options: Options = NO_OPTIONS
        self.target = b""
        self.body_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._limits = limits
        self._repeated = repeated
        self._parser = httptools.HttpRequestParser(self)
        self._upgrades = False  # the head asks for another protocol
        self._old = False  # it says HTTP/1.0
        self._repeat: Repeat | None = None
        self._unparsed = False  # its head came again, and the parser in C has not seen it
        self._head = b""  # the last piece, if it was a head without its body
        self._complete: list[Request] = []
        self._ended = False  # by a request that says `connection: close`
        self._began_here = False  # the message began in the piece that is being parsed
        self._piece = 0  # bytes of it
        self._head_bytes = 0  # of the head in earlier pieces
        self._body = b""  # if it came in one piece
        self._pieces: io.BytesIO | None = None  # of a body in several
        self._trailer_bytes = 0
        self._content_type = b""
        self._length = -1  # as the content-length says; -1: there is none

    def close(self) -> None:
        """Nothing more will be fed.

        The parser in C and this one hold each other: let go, or every connection that was closed
        waits for the garbage collector, which comes here rarely.
        """
        del self._parser
        self.drop_body()

    def drop_body(self) -> None:
        """What has come of a body is of no use any more."""
        self._body, self._pieces = b"", None

    def feed(self, data: bytes) -> Sequence[Request]:
        """The requests that are complete now that `data` has come; look at `error` after them."""
        between = self.awaiting is None
        repeat = self._repeat if self._admit is None else self._admitted_again(data)
        if repeat is not None:
            body: bytes | None = None
            if between and len(data) == repeat.size and data.startswith(repeat.head):
                body = data[len(repeat.head) :]
            elif between and data == repeat.head:
                # It came once more, and is parsed only if its body comes in pieces.
                self._unparsed, self.awaiting = True, BODY
                self.target, self._headers = repeat.target, repeat.headers
                self.body_bytes, self.wants_continue = 0, False
                return ()
            elif self._unparsed:
                self._unparsed, self.awaiting, between = False, None, True
                if len(data) == repeat.body_size:
                    body = data
                else:
                    data = repeat.head + data
            if body is not None:
                # What Request(...) does, without the call that takes as long as the rest.
                return (tuple.__new__(Request, (*repeat.before, body, *repeat.after)),)
        if self._ended or self.error is not None:
            return ()
        self._complete = []
        self._began_here = False
        self._piece = len(data)
        all_is_well = self._parse(data)
        if all_is_well and self.awaiting == HEADERS:
            self._count_head()
        elif len(self._complete) == 1 and (between or self._head):
            self._remember(self._head + data, self._complete[0])
        head_alone = between and all_is_well and self.awaiting == BODY and not self.body_bytes
        self._head = data if head_alone and not self.wants_continue else b""
        complete, self._complete = self._complete, []  # what was answered is not held here
        return complete

    def _admitted_again(self, data: bytes) -> Repeat | None:
        """The head that may come again, unless it does and its key is none any more."""
        repeat = self._repeat
        if repeat is not None and self.awaiting is None and data.startswith(repeat.head):
            self.target, self._headers = repeat.target, repeat.headers
            try:
                self._ask(repeat.method)
            except ServingError as error:
                self.awaiting = BODY
                self._fail(error)
                return None
        return repeat

    def _fail(self, error: ServingError) -> None:
        # Its traceback knows the frames that know the bytes that were read, and this parser.
        self.error = error.with_traceback(None)

    def _ask(self, method: bytes) -> None:
        if self._admit is not None:
            self.method = method
            self.owner = self._admit(method, self.target, self._headers)

    def _parse(self, data: bytes) -> bool:
        """Whether all is well; if not, `error` says why."""
        try:
            rest = self._fed(data)
            while rest is not None:
                # The head once more, for a new parser, without the wish for another protocol: RFC
                # 9110 lets a server ignore it. The old parser cannot: it takes what follows for the
                # other protocol, and a body for a second request.
                method, version = self._parser.get_method(), self._parser.get_http_version()
                headers = (b"%b: %b\r\n" % pair for pair in self._headers if pair[0] != b"upgrade")
                target = (method, self.target, version.encode())
                head = b"%b %b HTTP/%b\r\n%b\r\n" % (*target, b"".join(headers))
                self._upgrades = False
                self._parser = httptools.HttpRequestParser(self)
                self._fed(head)
                rest = self._fed(rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, ServingError):
                raise
            self._fail(cause)
        except httptools.HttpParserError as error:
            if not self._ended:  # what follows a request that closes is nobody's
                self.error = MalformedError(f"expected an HTTP/1.1 request, got {error}")
        return self.error is None

    def _fed(self, data: bytes | memoryview) -> memoryview | None:
        """What comes after a head that asks for another protocol; None: there was none."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return memoryview(data)[upgrade.args[0] :]
        return None

    def request_id(self) -> str | None:
        """What the client calls the request that has begun, as far as it has come."""
        return None if self.awaiting is None else options_of(self._headers).request_id

    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Of the request that has begun, as far as they have come."""
        return () if self.awaiting is None else self._headers

    def held_bytes(self) -> int:
        """What the request that has begun takes of memory, about."""
        if self.awaiting == BODY and self._began_here:
            self._head_bytes = self._parsed_head_bytes()
        return self._head_bytes + _HEADER_BYTES * len(self._headers) + self.body_bytes

    def _count_head(self) -> None:
        """The head goes on in the next piece."""
        self._head_bytes = (
            self._parsed_head_bytes() if self._began_here else self._head_bytes + self._piece
        )
        if self._head_bytes > self._limits.headers:
            self.error = self._headers_too_large()

    def _parsed_head_bytes(self) -> int:
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _remember(self, data: bytes, request: Request) -> None:
        """`data` was one request; keep its head if it was nothing else, not even a line end."""
        plain = (
            self._length == len(request.body)
            and self.awaiting is None
            and not self.wants_continue
            and data.find(b"\r\n\r\n") + 4 == len(data) - self._length
        )
        worth_it = request.path in self._repeated and request.keep_alive
        head = data[: len(data) - len(request.body)]
        self._repeat = Repeat(head, self.target, request) if plain and worth_it else None

    # ------------------------------------------------------------ httptools' callbacks

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self.target, self._headers, self._body = b"", [], b""
        self._pieces = None
        self.body_bytes = self._trailer_bytes = self._head_bytes = 0
        self._content_type = b""
        self.options = NO_OPTIONS
        self._length = -1
        self.wants_continue = self._old = False
        self._began_here = True
        self.awaiting = HEADERS

    def on_url(self, url: bytes) -> None:
        """The target, maybe in pieces."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; a trailer is counted and dropped: it could fake what a proxy strips."""
        if self.awaiting == HEADERS:
            if value and value[-1] <= _SPACE:  # httptools takes away what is in front
                value = value.rstrip(b" \t")
            self._headers.append((name.lower(), value))
            return
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._limits.headers:
            raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        """Everything but the body: what can be refused is refused now."""
        self.awaiting = BODY
        limits = self._limits
        may_be_large = self._head_bytes > 0 or self._piece > limits.headers
        if may_be_large and self._parsed_head_bytes() > limits.headers:
            raise self._headers_too_large()
        if self._parser.should_upgrade():
            self._upgrades = True
            if self._parser.get_method() == b"CONNECT":
                raise MalformedError("CONNECT: this server is no proxy")
            return
        self._read_head()
        if not self.target.startswith(b"/"):
            # Path and query of a target that names the server too, as a request to a proxy does.
            scheme, separator, rest = self.target.partition(b"://")
            if separator and scheme.lower() in (b"http", b"https"):
                end = len(rest) if b"?" not in rest else rest.index(b"?")
                slash = rest.find(b"/", 0, end)
                self.target = rest[slash:] if slash >= 0 else b"/" + rest[end:]
        if self._admit is not None:
            self._ask(self._parser.get_method())

    def _read_head(self) -> None:
        limits = self._limits
        hosts, more = 0, False
        for name, value in self._headers:
            if name == b"content-type":
                self._content_type = value
            elif name == b"content-length":
                self._length = int(value)
                if self._length > limits.body:
                    raise self._too_large()
            elif name == b"host":
                hosts += 1
                if value.translate(None, _HOST_BYTES):
                    raise MalformedError("header Host: expected a name or an address, and a port")
            elif name in self._seldom:
                more = True
        if hosts != 1 or more:
            self._read_version()
            if hosts > 1 or (hosts == 0 and not self._old):
                raise MalformedError(f"header Host: expected one, got {hosts or 'none'}")
            self._read_more()

    def _read_version(self) -> None:
        """Only when it matters: asking costs as much as the rest of a head."""
        self._old = self._parser.get_http_version() == _OLD

    def _read_more(self) -> None:
        for name, value in self._headers:
            if name == b"transfer-encoding":
                coding = value.lower()
                if set(coding.replace(b" ", b"").split(b",")) != {b"chunked"}:
                    raise UnsupportedCodingError(
                        "header Transfer-Encoding: nothing is decompressed here, got"
                        f" {value[:20].decode('latin-1')!r}; send the body as it is, or chunked"
                    )
                if coding != b"chunked":
                    raise MalformedError("header Transfer-Encoding: expected chunked once")
                if self._old:
                    raise MalformedError("header Transfer-Encoding: expected none in HTTP/1.0")
            elif name == b"expect" and value.lower() == b"100-continue":
                self.wants_continue = not self._old
        self.options = options_of(self._headers)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self.body_bytes += len(body)
        if self.body_bytes > self._limits.body:
            raise self._too_large()
        if self.body_bytes == len(body):
            self._body = body
            return
        if self._pieces is None:  # one buffer that grows: an object for each piece is 40 bytes more
            self._pieces = io.BytesIO()
            self._pieces.write(self._body)
            self._body = b""
        self._pieces.write(body)

    def on_message_complete(self) -> None:
        """Last byte of a request."""
        if self._upgrades:  # it is read once more
            return
        self.awaiting = None
        body = self._body if self._pieces is None else self._pieces.getvalue()
        self.drop_body()
        path, _, query = self.target.partition(b"?")
        keep_alive = self._parser.should_keep_alive()
        if not keep_alive:
            self._read_version()
        self._ended = not keep_alive
        self._complete.append(
            Request(
                self._parser.get_method(),
                path,
                query,
                self._headers,
                self._content_type,
                body,
                keep_alive,
                self.options,
                self._old,
            )
        )

    def _headers_too_large(self) -> HeadersTooLargeError:
        return HeadersTooLargeError(
            f"headers: expected at most {self._limits.headers} bytes, got more"
        )

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"body: expected at most {self._limits.body} bytes (overload.maxBodySize), got more"
        )
