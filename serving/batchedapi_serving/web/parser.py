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
"""Bytes of a Host header: a name or an address, and a port."""
_GZIP: Final = (b"gzip", b"x-gzip")
"""Two names of one coding: RFC 9110, 8.4.1.3."""
_SPACE: Final = 0x20
_HEADER_BYTES: Final = 128
"""Memory that a header takes beside its bytes: two objects, and the pair of them."""
_OLD: Final = "1.0"
_SELDOM: Final = OPTIONS | {b"transfer-encoding", b"expect", b"connection"}
"""Headers that mean something here and that few requests have."""
_SELDOM_TRACED: Final = _SELDOM | {TRACEPARENT}
"""The same where requests are traced; elsewhere one that has a trace is read no slower."""
_READ: Final = OPTIONS | {TRACEPARENT, TRACESTATE}
_ABSENT: Final = [b""]
_AS_IT_IS: Final = (b"", b"identity")
_LENGTH: Final = b"content-length"
_LONGEST_LENGTH: Final = 10
"""Digits of a body's length."""
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_MOST_FORMS: Final = 16
_UNKNOWABLE: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer"))
"""Headers that have a request parsed each time."""
_MEANT: Final = frozenset(
    (
        b"host", b"connection", b"proxy-connection", b"keep-alive", b"te", b"content-type",
        TIMEOUT, ENCODING,
    )
)  # fmt: skip
"""Headers whose values decide how a request is read; each value makes a form of its own."""
HEADERS: Final = "headers"
BODY: Final = "body"


class RequestOptions(NamedTuple):
    """Headers that few requests have, read."""

    request_id: str | None = None
    """The client's name of the request: printable ASCII, at most 200 characters."""
    timeout: float | None = None
    """Seconds that the client waits at most."""
    refusal: ClientError | None = None
    """An error in these headers; told as the answer of a prediction."""
    gzip: bool = False
    """The body has to be inflated."""
    traceparent: bytes = b""
    """As sent; two of them are none that can be read."""
    tracestate: bytes = b""


def options_of(headers: Iterable[tuple[bytes, bytes]]) -> RequestOptions:
    """Read OPTIONS and the trace among these headers; the last one of a name counts."""
    said: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in _READ:
            said.setdefault(name, []).append(value)
    timeout, refusal = _timeout_of(said[TIMEOUT][-1]) if TIMEOUT in said else (None, None)
    text = said.get(REQUEST_ID, _ABSENT)[-1].translate(None, _UNPRINTABLE)[:_LONGEST_ID].strip()
    codings: list[bytes] = []
    if ENCODING in said:
        codings = [value for value in said[ENCODING] if value.lower() not in _AS_IT_IS]
    if codings and (len(codings) > 1 or codings[0].lower() not in _GZIP):
        refusal = UnsupportedTypeError(
            "header Content-Encoding: expected gzip, once, got"
            f" {codings[-1][:20].decode('latin-1')!r}; send the body so, or as it is"
        )
    parent = b",".join(filter(None, said[TRACEPARENT])).strip() if TRACEPARENT in said else b""
    state = b",".join(filter(None, said[TRACESTATE])).strip() if TRACESTATE in said else b""
    return RequestOptions(
        text.decode("ascii") or None, timeout, refusal, bool(codings), parent, state
    )


def _timeout_of(value: bytes) -> tuple[float | None, ClientError | None]:
    if value.isdigit() and len(value) <= _LONGEST_TIMEOUT and int(value) > 0:
        return int(value) / 1000, None
    return None, MalformedError(
        "header X-Request-Timeout-Ms: expected whole milliseconds, 1 or more and at"
        f" most {_LONGEST_TIMEOUT} digits, got {value[:20].decode('latin-1')!r}"
    )


NO_OPTIONS: Final = RequestOptions()
Headers = list[tuple[bytes, bytes]]


class HttpRequest(NamedTuple):
    """A complete request."""

    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    content_type: bytes
    body: bytes
    keep_alive: bool
    options: RequestOptions
    old: bool = False
    """HTTP/1.0, where whoever keeps a connection says so."""


class HeadForm:
    """Heads that differ in the values of some headers only.

    Attributes:
        values: The value of each header in the first head that was seen.
        varying: Positions of the headers whose values differ from head to head.
        parts: The bytes before each varying value, and those after the last one.
    """

    __slots__ = (
        "has_options", "id_at", "length_at", "names", "parts", "prefixes", "request", "state_at",
        "trace_at", "values", "varying",
    )  # fmt: skip

    def __init__(
        self, prefixes: list[bytes], request: HttpRequest, seldom: Container[bytes]
    ) -> None:
        """`prefixes` are the request line, then the name of each header with its separator."""
        self.prefixes = prefixes
        self.request = request
        self.names = [name for name, _ in request.headers]
        self.values = [value for _, value in request.headers]
        self.length_at = self.names.index(_LENGTH)
        self.varying: list[int] = []
        self.parts: list[bytes] = []
        self.has_options = any(name in seldom for name in self.names)
        self.vary([self.length_at])

    def vary(self, more: list[int]) -> None:
        """The values at these positions vary, too."""
        self.varying = sorted({*self.varying, *more})
        self.parts, part = [], self.prefixes[0]
        for place, value in enumerate(self.values):
            part += b"\r\n" + self.prefixes[place + 1]
            if place in self.varying:
                self.parts.append(part)
                part = b""
            else:
                part += value
        self.parts.append(part + b"\r\n\r\n")
        places = {self.names[place]: place for place in self.varying if self.has_options}
        self.id_at = places.get(REQUEST_ID, -1)
        self.trace_at = places.get(TRACEPARENT, -1)
        self.state_at = places.get(TRACESTATE, -1)

    def takes(self, prefixes: list[bytes], request: HttpRequest) -> bool:
        """Whether it differs in values alone that mean nothing to HTTP; from now on they vary."""
        if prefixes != self.prefixes:
            return False
        pairs = enumerate(zip(self.values, request.headers, strict=True))
        more = [place for place, (value, header) in pairs if value != header[1]]
        if any(self.names[place] in _MEANT for place in more):
            return False
        self.vary(more)
        return True

    def read(self, data: bytes, limits: Limits) -> HttpRequest | None:
        """The one request that `data` is; None: it has another head, or has to be parsed."""
        parts, headers, checked = self.parts, self.request.headers.copy(), b""
        at = len(parts[0])
        for number, place in enumerate(self.varying):
            end = data.find(b"\r", at)
            if end <= at or data[at] == _SPACE or data[end - 1] == _SPACE:
                return None
            value, part = data[at:end], parts[number + 1]
            if not data.startswith(part, end):
                return None
            headers[place] = (self.names[place], value)
            checked += value
            at = end + len(part)
        length, size = headers[self.length_at][1], len(data) - at
        plain = not checked.translate(None, _PRINTABLE) and length.isdigit()
        if not plain or len(length) > _LONGEST_LENGTH or int(length) != size:
            return None
        if size > limits.body or at > limits.headers:
            return None
        method, path, query, _, content_type, _, keep_alive, options, old = self.request
        if self.has_options:
            request_id, timeout, refusal, gzip, traceparent, tracestate = options
            if self.id_at >= 0:
                request_id = headers[self.id_at][1][:_LONGEST_ID].decode("ascii").strip()
            if self.trace_at >= 0:
                traceparent = headers[self.trace_at][1]
            if self.state_at >= 0:
                tracestate = headers[self.state_at][1]
            said = (request_id, timeout, refusal, gzip, traceparent, tracestate)
            options = tuple.__new__(RequestOptions, said)
        body = data[at:]
        made = (method, path, query, headers, content_type, body, keep_alive, options, old)
        # HttpRequest(...) without its own call, which takes as long as the rest.
        return tuple.__new__(HttpRequest, made)


class KnownHeads:
    """Reads requests whose heads were seen before, except for values that mean nothing to HTTP.

    A client sends the same head again and again. Its length changes, and a proxy adds ids. A head
    that httptools accepted stays a good one when such a value is replaced by other printable
    characters, so only these are looked at. That takes a fifth of the time of parsing it all. All
    connections of a process share one of these.

    Attributes:
        forms: The one that was used last comes first.
    """

    def __init__(self, paths: Container[bytes], *, traced: bool = False) -> None:
        """Only requests to these `paths` are learned; `traced`: see RequestParser."""
        self._paths = paths
        self._seldom = _SELDOM_TRACED if traced else _SELDOM
        self.forms: list[HeadForm] = []
        self._unknown = 0  # heads that none of many forms fits

    def used(self, form: HeadForm) -> None:
        """The next request is likely to have the same form."""
        self.forms.remove(form)
        self.forms.insert(0, form)

    def learn(self, data: bytes, request: HttpRequest) -> None:
        """`data` was all of `request`, and httptools accepted it."""
        worth_it = request.keep_alive and not request.query and request.path in self._paths
        if not worth_it or request.options.refusal is not None:
            return
        if len(self.forms) >= _MOST_FORMS:  # a client whose heads all differ costs others little
            self._unknown += 1
            if self._unknown % _MOST_FORMS:
                return
        prefixes = prefixes_of(data, request)
        if not prefixes:
            return
        if any(form.takes(prefixes, request) for form in self.forms):
            return
        del self.forms[_MOST_FORMS - 1 :]
        # Nothing of the request but its head is kept.
        form = HeadForm(prefixes, request._replace(body=b""), self._seldom)
        self.forms.insert(0, form)


def prefixes_of(data: bytes, request: HttpRequest) -> list[bytes]:
    """The request line, then the name of each header with its separator, as `data` has them.

    Empty: the head is written in another way than most, or has to be parsed each time.
    """
    names = [name for name, _ in request.headers]
    lines = data[: len(data) - len(request.body)].split(b"\r\n")
    plain = len(lines) == len(names) + 3 == len(set(names)) + 3 and lines[-2:] == [b"", b""]
    if not plain or not lines[0].endswith(b" HTTP/1.1") or _LENGTH not in names:
        return []
    prefixes = [lines[0]]
    for line, (name, value) in zip(lines[1:-2], request.headers, strict=True):
        size = len(line) - len(value)
        prefix = line[:size]
        if name in _UNKNOWABLE or prefix.lower() != name + b": " or line[size:] != value:
            return []
        prefixes.append(prefix)
    return prefixes


class Incoming:
    """The request that is being read, as far as it has come.

    Attributes:
        method: Known once a key was asked for.
        target: Path and query.
        headers: Those that are complete.
        options: Read from the headers once all of them are here.
        wants_continue: The client waits for `100 Continue` before it sends the body.
        body_bytes: Bytes of the body that have come.
        content_type: Of the body.
        head_bytes: Bytes of the head in earlier pieces; -1: it began in this one.
        trailer_bytes: Bytes of headers behind the body.
        old: It says HTTP/1.0.
        upgrades: Its head asks for another protocol.
    """

    __slots__ = (
        "_body", "_pieces", "body_bytes", "content_type", "head_bytes", "headers", "method", "old",
        "options", "target", "trailer_bytes", "upgrades", "wants_continue",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = b"-"
        self.target = self.content_type = b""
        self.headers: Headers = []
        self.options: RequestOptions = NO_OPTIONS
        self.wants_continue = self.old = self.upgrades = False
        self.body_bytes = self.trailer_bytes = 0
        self.head_bytes = -1
        self._body = b""  # if it came in one piece
        self._pieces: io.BytesIO | None = None  # of a body in several

    def parsed_bytes(self) -> int:
        """Bytes of target and headers."""
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def add(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self.body_bytes += len(piece)
        if self.body_bytes == len(piece):
            self._body = piece
            return
        if self._pieces is None:  # one buffer that grows: an object for each piece is 40 bytes more
            self._pieces = io.BytesIO()
            self._pieces.write(self._body)
            self._body = b""
        self._pieces.write(piece)

    def take_body(self) -> bytes:
        """The body, which is not kept any longer."""
        body = self._body if self._pieces is None else self._pieces.getvalue()
        self._body, self._pieces = b"", None
        return body

    def name_path_alone(self) -> None:
        """Cut a target that names the server too, as a request to a proxy does."""
        scheme, separator, rest = self.target.partition(b"://")
        if separator and scheme.lower() in (b"http", b"https"):
            end = len(rest) if b"?" not in rest else rest.index(b"?")
            slash = rest.find(b"/", 0, end)
            self.target = rest[slash:] if slash >= 0 else b"/" + rest[end:]


class RequestParser:
    """httptools with our limits, one for each connection.

    Attributes:
        awaiting: The part of a request that is still to come: HEADERS, BODY or None.
        incoming: The request that has begun, or that was parsed last.
        error: Why nothing more can be read, once it is so; requests before it are good.
        owner: Owner of the key that the last admitted head brings.
    """

    __deletable__ = ("_parser",)  # mypyc asks which attributes may be deleted

    def __init__(
        self,
        limits: Limits,
        known: KnownHeads | None = None,
        *,
        traced: bool = False,
        admit: Callable[[bytes, bytes, Headers], str] | None = None,
    ) -> None:
        """Read requests of one connection.

        Args:
            known: Heads that were parsed before. None: each is parsed.
            traced: The options have `traceparent` and `tracestate` too.
            admit: Whose key a method, target and headers bring. Asked with each head before its
                body is read; what it raises is the parser's error. None: no key is needed.
        """
        self._admit = admit
        self.owner = ""
        self._seldom = _SELDOM_TRACED if traced else _SELDOM
        self.awaiting: str | None = None
        self.incoming = Incoming()
        self.error: ServingError | None = None
        self._limits = limits
        self._known = known
        self._parser = httptools.HttpRequestParser(self)
        self._complete: list[HttpRequest] = []
        self._ended = False  # by a request that says `connection: close`
        self._piece = 0  # bytes of the piece that is being parsed

    def close(self) -> None:
        """Nothing more will be fed.

        The parser in C and this one hold each other: let go, or every connection that was closed
        waits for the garbage collector, which comes here rarely.
        """
        del self._parser
        self.incoming.take_body()

    def feed(self, data: bytes) -> Sequence[HttpRequest]:
        """The requests that are complete now that `data` has come; look at `error` after them."""
        if self._ended or self.error is not None:
            return ()
        between = self.awaiting is None
        if between and self._known is not None:
            for form in self._known.forms:
                request = form.read(data, self._limits) if data.startswith(form.parts[0]) else None
                if request is not None:
                    if form is not self._known.forms[0]:
                        self._known.used(form)
                    if self._admit is None or self._admitted(request):
                        return (request,)
                    break
        self._complete = []
        self._piece = len(data)
        all_is_well = self._parse(data)
        if all_is_well and self.awaiting == HEADERS:
            self._count_head()
        elif self._known is not None and between and len(self._complete) == 1:
            self._known.learn(data, self._complete[0])
        complete, self._complete = self._complete, []  # what was answered is not held here
        return complete

    def _admitted(self, request: HttpRequest) -> bool:
        """Whether a key lets a known head in; if not, it is parsed as others, and refused."""
        try:
            self._ask(request.method, request.path, request.headers)
        except ServingError:
            return False
        return True

    def _ask(self, method: bytes, target: bytes, headers: Headers) -> None:
        if self._admit is not None:
            self.owner = self._admit(method, target, headers)

    def _parse(self, data: bytes) -> bool:
        """Whether all is well; if not, `error` says why."""
        try:
            rest = self._fed(data)
            while rest is not None:
                # The head once more, for a new parser, without the wish for another protocol: RFC
                # 9110 lets a server ignore it. The old parser cannot: it takes what follows for the
                # other protocol, and a body for a second request.
                method, version = self._parser.get_method(), self._parser.get_http_version()
                asked = self.incoming
                headers = (b"%b: %b\r\n" % pair for pair in asked.headers if pair[0] != b"upgrade")
                target = (method, asked.target, version.encode())
                head = b"%b %b HTTP/%b\r\n%b\r\n" % (*target, b"".join(headers))
                self._parser = httptools.HttpRequestParser(self)
                self._fed(head)
                rest = self._fed(rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, ServingError):
                raise
            # Its traceback knows the frames that know the bytes that were read, and this parser.
            self.error = cause.with_traceback(None)
        except httptools.HttpParserError as error:
            if not self._ended:  # what follows a request that closes is nobody's
                self.error = MalformedError(f"expected an HTTP/1.1 request, got {error}")
        return self.error is None

    def _fed(self, data: bytes | memoryview) -> memoryview | None:
        """Parse; the bytes after a head that asks for another protocol, None: there was none."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return memoryview(data)[upgrade.args[0] :]
        return None

    def held_bytes(self) -> int:
        """Memory that the request that has begun takes, about."""
        asked = self.incoming
        head = asked.parsed_bytes() if self.awaiting == BODY else max(0, asked.head_bytes)
        return head + _HEADER_BYTES * len(asked.headers) + asked.body_bytes

    def _count_head(self) -> None:
        """The head goes on in the next piece."""
        asked, before = self.incoming, self.incoming.head_bytes
        asked.head_bytes = asked.parsed_bytes() if before < 0 else before + self._piece
        if asked.head_bytes > self._limits.headers:
            self.error = self._headers_too_large()

    # ------------------------------------------------------------ httptools' callbacks

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self.incoming = Incoming()
        self.awaiting = HEADERS

    def on_url(self, url: bytes) -> None:
        """The target, maybe in pieces."""
        self.incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; a trailer is counted and dropped: it could fake what a proxy strips."""
        asked = self.incoming
        if self.awaiting == HEADERS:
            if value and value[-1] <= _SPACE:  # httptools takes away what is in front
                value = value.rstrip(b" \t")
            asked.headers.append((name.lower(), value))
            return
        asked.trailer_bytes += len(name) + len(value) + 4
        if asked.trailer_bytes > self._limits.headers:
            raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        """Everything but the body: what can be refused is refused now."""
        self.awaiting = BODY
        asked, limits = self.incoming, self._limits
        may_be_large = asked.head_bytes >= 0 or self._piece > limits.headers
        if may_be_large and asked.parsed_bytes() > limits.headers:
            raise self._headers_too_large()
        if self._parser.should_upgrade():
            asked.upgrades = True
            if self._parser.get_method() == b"CONNECT":
                raise MalformedError("CONNECT: this server is no proxy")
            return
        self._read_head(asked)
        if not asked.target.startswith(b"/"):
            asked.name_path_alone()
        if self._admit is not None:
            asked.method = self._parser.get_method()
            self._ask(asked.method, asked.target, asked.headers)

    def _read_head(self, asked: Incoming) -> None:
        hosts, more = 0, False
        for name, value in asked.headers:
            if name == b"content-type":
                asked.content_type = value
            elif name == _LENGTH:
                if int(value) > self._limits.body:
                    raise self._too_large()
            elif name == b"host":
                hosts += 1
                if value.translate(None, _HOST_BYTES):
                    raise MalformedError("header Host: expected a name or an address, and a port")
            elif name in self._seldom:
                more = True
        if hosts != 1 or more:
            # Only when it matters: asking costs as much as the rest of a head.
            asked.old = self._parser.get_http_version() == _OLD
            if hosts > 1 or (hosts == 0 and not asked.old):
                raise MalformedError(f"header Host: expected one, got {hosts or 'none'}")
            _read_seldom(asked)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self.incoming.body_bytes + len(body) > self._limits.body:
            raise self._too_large()
        self.incoming.add(body)

    def on_message_complete(self) -> None:
        """Last byte of a request."""
        asked, parser = self.incoming, self._parser
        if asked.upgrades:  # it is read once more
            return
        self.awaiting = None
        path, _, query = asked.target.partition(b"?")
        keep_alive = parser.should_keep_alive()
        if not keep_alive:
            asked.old = parser.get_http_version() == _OLD
        self._ended = not keep_alive
        self._complete.append(
            HttpRequest(
                parser.get_method(), path, query, asked.headers, asked.content_type,
                asked.take_body(), keep_alive, asked.options, asked.old,
            )
        )  # fmt: skip

    def _headers_too_large(self) -> HeadersTooLargeError:
        return HeadersTooLargeError(
            f"headers: expected at most {self._limits.headers} bytes, got more"
        )

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"body: expected at most {self._limits.body} bytes (overload.maxBodySize), got more"
        )


def _read_seldom(asked: Incoming) -> None:
    for name, value in asked.headers:
        if name == b"transfer-encoding":
            coding = value.lower()
            if set(coding.replace(b" ", b"").split(b",")) != {b"chunked"}:
                raise UnsupportedCodingError(
                    "header Transfer-Encoding: nothing is decompressed here, got"
                    f" {value[:20].decode('latin-1')!r}; send the body as it is, or chunked"
                )
            if coding != b"chunked":
                raise MalformedError("header Transfer-Encoding: expected chunked once")
            if asked.old:
                raise MalformedError("header Transfer-Encoding: expected none in HTTP/1.0")
        elif name == b"expect" and value.lower() == b"100-continue":
            asked.wants_continue = not asked.old
    asked.options = options_of(asked.headers)
