"""API keys, CORS and the access log. All of it is off by default.

The same holds on every path: on that of predictions beside FastAPI, in FastAPI, and over gRPC.
"""

import hashlib
import hmac
import logging
import math
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.utils import get_remote_addr

from batchedapi_serving.codecs import Answer
from batchedapi_serving.errors import LoadError, UnauthenticatedError
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.keys import read_keys

Headers = Iterable[tuple[bytes, bytes]]

ORIGIN: Final = b"origin"
RENEWED_SECONDS: Final = 10.0
"""Between two looks at the keys; a mounted Secret changes without a restart."""
_TOLD_AT_ONCE: Final = 20
"""Refusals a second, each of which is told at once."""
_TOLD_LATER: Final = 1000
"""Further ones a second, each of which is told after a pause: those who wait take memory."""
_PAUSE_SECONDS: Final = 1.0
_BEARER: Final = b"bearer "
_ASKS_FOR_KEY: Final = ((b"www-authenticate", b"Bearer"),)
_BODY: Final = frozenset((b"content-length", b"transfer-encoding"))
_ASKED_METHOD: Final = b"access-control-request-method"
OPEN: Final = frozenset(
    (method, path)
    for method in (b"GET", b"HEAD")
    for path in (
        b"/v2/health/live",
        b"/v2/health/ready",
        b"/docs",
        b"/docs/swagger-ui-bundle.js",
        b"/docs/swagger-ui.css",
        b"/openapi.json",
    )
)
"""All that needs no key, written exactly so: what load balancers and browsers ask, neither of which
sends one. Whatever is not in this list needs a key, also what is served one day."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""In front of an address of IPv4 on a socket of IPv6."""

log = logging.getLogger(__name__)


class KeyRing:
    """The keys of which each request has to bring one."""

    def __init__(self, folder: Path) -> None:
        """`folder` has a file for each; as long as none can be read, nobody is let in."""
        self._folder = folder
        self._digests: dict[str, bytes] = {}
        self._told = ""
        self._looked_empty = False
        self._renewed_at = 0.0
        self._refused = 0  # within a second
        self._refused_since = -math.inf
        self.renew(math.inf)
        self._renewed_at = 0.0

    def renew(self, now: float) -> None:
        """Read them again, if it is time.

        A key whose file is gone is withdrawn, also the last one. One whose file cannot be read, or
        is no key any more, stays as it was; so do all while the folder cannot be read.
        """
        if now - self._renewed_at < RENEWED_SECONDS:
            return
        try:
            found = read_keys(self._folder)
        except OSError as error:
            self._renewed_at = now
            self._tell("keys cannot be read, those before stay", str(error))
            return
        if not found and self._digests and not self._looked_empty:
            # A kubelet that renews all of them removes the old names before it makes the new ones.
            self._looked_empty = True
            return
        self._renewed_at, self._looked_empty = now, False
        self._replace(found)

    def _replace(self, found: Mapping[str, bytes | LoadError]) -> None:
        digests, wrong = {}, ""
        for name, digest in found.items():
            if not isinstance(digest, LoadError):
                digests[name] = digest
                continue
            wrong = str(digest)
            if name in self._digests:
                digests[name] = self._digests[name]
        if digests != self._digests:
            self._digests = digests
            log.info("keys changed", extra={"keys": len(digests)})
        if not digests:
            wrong = f"{self._folder} has no key; put one into a file"
            self._tell("no key is left, and every request is refused", wrong)
        else:
            self._tell("a key cannot be read, the one before stays", wrong)

    def _tell(self, what: str, error: str) -> None:
        """Once."""
        if error and error != self._told:
            log.error(what, extra={"error": error})
        self._told = error

    def check(self, headers: Headers) -> str:
        """The owner of the key in these headers, `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        All keys are compared, and all of their bytes, so that the time tells nothing of them.

        Raises:
            UnauthenticatedError: they bring none, or another.
        """
        given: dict[bytes, bytes] = {}
        for name, value in headers:
            if name == b"x-api-key":
                given[name] = value.strip()
            elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
                given[name] = value[len(_BEARER) :].strip()
        owner = ""
        for key in given.values():
            digest = hashlib.sha256(key).digest()
            for one in self._digests.values():
                if hmac.compare_digest(digest, one):
                    owner = digest.hex()
        if not owner:
            came = "one that is not known" if given else "none"
            raise UnauthenticatedError(
                "expected a key in the header Authorization (Bearer KEY) or X-API-Key, got"
                f" {came}; ask whoever runs this API for one"
            )
        return owner

    def pause(self, now: float) -> float:
        """Seconds to name when a request without a key is refused; longer for a crowd of them."""
        if now - self._refused_since >= 1.0:
            self._refused_since, self._refused = now, 0
        self._refused += 1
        later = _TOLD_AT_ONCE < self._refused <= _TOLD_AT_ONCE + _TOLD_LATER
        return _PAUSE_SECONDS if later else 0.0


def needs_no_key(method: bytes, path: bytes, headers: Headers) -> bool:
    """Whether a request is one of OPEN, as it is written there, and nothing more than its head."""
    return (method, path) in OPEN and not _has_body(headers)


def is_preflight(method: bytes, headers: Headers) -> bool:
    """Whether a browser asks what a page may ask, which brings neither a key nor a body."""
    asked = method == b"OPTIONS" and {ORIGIN, _ASKED_METHOD} <= {name for name, _ in headers}
    return asked and not _has_body(headers)


def _has_body(headers: Headers) -> bool:
    return any(name in _BODY and value != b"0" for name, value in headers)


def asks_for_key(answer: Answer) -> Answer:
    """The answer to a request without a key, as RFC 9110, 11.6.1 wants it."""
    return answer._replace(headers=(*answer.headers, *_ASKS_FOR_KEY))


class CorsRules:
    """From which origins browsers may read answers: starlette's rules, here and in FastAPI.

    Keys travel in headers that a page sets itself, so cookies are never asked for.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._options: dict[str, Any] = {
            "allow_origins": tuple(origins),
            "allow_methods": ("GET", "POST"),
            "allow_headers": ("*",),
            "expose_headers": ("*",),
        }
        self._rules = self.around(_nothing)

    def around(self, app: ASGIApp) -> CORSMiddleware:
        """`app`, with preflights answered and headers added."""
        return CORSMiddleware(app, **self._options)

    def headers(self, request: Headers) -> tuple[tuple[bytes, bytes], ...]:
        """Headers to add to an answer; none where no browser asks."""
        origin = next((value for name, value in request if name == ORIGIN), None)
        if origin is None:
            return ()
        added = MutableHeaders(self._rules.simple_headers)
        text = origin.decode("latin-1")
        if not self._rules.allow_all_origins and self._rules.is_allowed_origin(text):
            CORSMiddleware.allow_explicit_origin(added, text)
        return tuple(added.raw)


async def _nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application, for rules without one."""


def client_of(transport: Any) -> tuple[str, int] | None:
    """Address and port of the other end; of IPv4 as it is written, whatever listens."""
    client = get_remote_addr(transport)
    if client is None or "." not in client[0]:
        return client
    return client[0].removeprefix("::ffff:"), client[1]


def address_of(transport: Any) -> str:
    """The address of the other end."""
    client = client_of(transport)
    return "" if client is None else client[0]


def owner_of(address: str) -> str:
    """The owner of the budget that the client at an address takes from.

    Of IPv6 everybody is given a whole /64, and could come from another address each time.
    """
    if ":" not in address:
        return address
    try:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return address
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return packed[:8].hex()


class AccessLog:
    """One line for each request, whatever `logLevel` is."""

    def __init__(self) -> None:
        self._log = logging.getLogger("batchedapi.access")
        self._log.setLevel(logging.INFO)

    def write(
        self,
        *,
        method: str,
        path: str,
        status: int | str,
        seconds: float,
        client: str,
        request_id: str | None,
    ) -> None:
        """Write one line for a request that ended.

        Args:
            method: Of HTTP; GRPC for a call.
            path: Without the query, which may have what is nobody's business.
            status: HTTP's, 499 for a client that left; for a call the name of gRPC's code.
            seconds: From the whole request to its answer.
            client: The address of the other end, which may be a proxy's.
            request_id: The client's own, or that of an error.
        """
        facts = {
            "method": method, "path": path, "status": status, "seconds": round(seconds, 6),
            "client": client, "request_id": request_id,
        }  # fmt: skip
        self._log.info("request", extra=facts)


class Guard:
    """Keys, CORS and the access log of one web process; None: nobody asked for it.

    Attributes:
        keys: Asked for in each request.
        cors: Rules for browsers.
        log: Of requests.
        sees_requests: Whether there is any of them, so that nobody asks each where there is none.
    """

    def __init__(self, settings: ReplicaSettings) -> None:
        self.keys = None if settings.api_keys is None else KeyRing(Path(settings.api_keys))
        self.cors = CorsRules(settings.cors_origins) if settings.cors_origins else None
        self.log = AccessLog() if settings.access_log else None
        self.sees_requests = bool(self.keys or self.cors or self.log)

    def pause(self, status: int, now: float) -> float:
        """Seconds until an error is told, by its status; see KeyRing.pause."""
        if self.keys is None or status != UnauthenticatedError.status:
            return 0.0
        return self.keys.pause(now)
