"""Who may ask, from which pages of browsers, and the log of who did. All of it is off by default.

The same holds on every path: on that of predictions beside FastAPI, in FastAPI, and over gRPC.
"""

import hashlib
import hmac
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.utils import get_remote_addr

from batchedapi_serving.codecs import Answer
from batchedapi_serving.errors import LoadError, UnauthenticatedError

Headers = Iterable[tuple[bytes, bytes]]

ORIGIN: Final = b"origin"
RENEWED_SECONDS: Final = 10.0
"""Between two looks at the keys; a mounted Secret changes without a restart."""
_BEARER: Final = b"bearer "
_ASKS_FOR_KEY: Final = ((b"www-authenticate", b"Bearer"),)
_OPEN: Final = ("/v2/health/", "/docs", "/openapi.json")
"""What load balancers and browsers ask, neither of which sends a key."""
_READS: Final = (b"GET", b"HEAD")
_UNPRINTABLE: Final = bytes(byte for byte in range(256) if not 0x21 <= byte <= 0x7E)  # noqa: PLR2004 - ! to tilde

log = logging.getLogger(__name__)


def read_keys(folder: Path) -> tuple[bytes, ...]:
    """The digest of each key: one file each, as a mounted Secret has them.

    Raises:
        LoadError: there is none, or one is no key; says which file, and nothing of what is in it.
    """
    place = f"--api-keys {folder}"
    try:
        files = sorted(
            file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")
        )
        keys = {file.name: file.read_bytes().strip() for file in files}
    except OSError as error:
        raise LoadError(
            "InitFailed", f"{place}: expected a folder with a file for each key, got {error}"
        ) from error
    for name, key in keys.items():
        if not key or key.translate(None, _UNPRINTABLE) != key:
            raise LoadError(
                "InitFailed",
                f"{place}: file {name}: expected one key of printable ASCII without spaces;"
                " write it anew, or remove the file",
            )
    if not keys:
        raise LoadError(
            "InitFailed", f"{place}: expected at least one key, got none; put one into a file"
        )
    return tuple(hashlib.sha256(key).digest() for key in keys.values())


class ApiKeys:
    """The keys of which each request has to bring one."""

    def __init__(self, folder: Path) -> None:
        """See read_keys."""
        self._folder = folder
        self._digests = read_keys(folder)
        self._renewed_at = 0.0
        self._failed = False

    def renew(self, now: float) -> None:
        """Read them again, if it is time; those that were known stay if they cannot be read.

        Args:
            now: Seconds on the loop's clock.
        """
        if now - self._renewed_at < RENEWED_SECONDS:
            return
        self._renewed_at = now
        try:
            digests = read_keys(self._folder)
        except LoadError as error:
            if not self._failed:
                log.error("keys cannot be read, those before stay", extra={"error": str(error)})  # noqa: TRY400 - the user's, no bug
            self._failed = True
            return
        self._failed = False
        if digests != self._digests:
            self._digests = digests
            log.info("keys changed", extra={"keys": len(digests)})

    def check(self, headers: Headers) -> None:
        """See that these headers bring a key, `Authorization: Bearer KEY` or `X-API-Key: KEY`.

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
        known = 0
        for key in given.values():
            digest = hashlib.sha256(key).digest()
            for one in self._digests:
                known |= hmac.compare_digest(digest, one)
        if not known:
            came = "one that is not known" if given else "none"
            raise UnauthenticatedError(
                "expected a key in the header Authorization (Bearer KEY) or X-API-Key, got"
                f" {came}; ask whoever runs this API for one"
            )

    def check_request(self, method: bytes, path: bytes, headers: Headers) -> None:
        """The same of a request over HTTP; health and the documentation are open."""
        if method in _READS and path.decode("latin-1").startswith(_OPEN):
            return
        self.check(headers)


def asks_for_key(answer: Answer) -> Answer:
    """The answer to a request without a key, as RFC 9110, 11.6.1 wants it."""
    return answer._replace(headers=(*answer.headers, *_ASKS_FOR_KEY))


class Cors:
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
        """What is added to an answer; nothing where no browser asks."""
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


def address_of(transport: Any) -> str:
    """Of the other end."""
    address = get_remote_addr(transport)
    return "" if address is None else address[0]


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
        """Of one request that ended.

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
