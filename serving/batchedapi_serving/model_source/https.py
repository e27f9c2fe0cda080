"""Files over https: one that a URL names, and those that hubs and registries send readers to."""

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Final, cast
from urllib.parse import unquote, urlsplit

from batchedapi_serving.model_source.download import (
    CHUNK,
    TIMEOUT_SECONDS,
    DownloadError,
    RemoteFile,
    Snapshot,
    TransientError,
    safe_name,
)

TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_PARTIAL: Final = 206
AUTHORITY_REMEDY: Final = "for a private authority set SSL_CERT_FILE in spec.predictor.env"


@dataclass(frozen=True, slots=True)
class HttpsFile:
    """One file behind https."""

    url: str
    pinned = None

    @property
    def file_name(self) -> str:
        """Last part of the path."""
        return safe_name(unquote(urlsplit(self.url).path).rpartition("/")[2])

    def snapshot(self) -> Snapshot:
        """The file as it is now.

        Read in pieces where the server takes ranges and names the content by a strong ETag. Else
        the answer that says so is the download.

        Raises:
            DownloadError, TransientError: see read_range.
        """
        with _told():
            answer = _ask(self.url, {})
        headers = answer.headers
        length, tag = headers.get("content-length"), headers.get("etag", "")
        size = None if length is None else int(length)
        version = tag if tag.startswith('"') else None
        ranged = version is not None and size is not None and headers["accept-ranges"] == "bytes"
        if ranged:
            answer.close()
            read = partial(read_range, self.url, {"if-range": tag})
        else:
            read = partial(_rest, answer)
        return Snapshot(version, (RemoteFile(self.file_name, size, read, ranged),))


def read_range(
    url: str,
    headers: Mapping[str, str],
    start: int,
    end: int | None,
    try_again: Collection[int] = TRY_AGAIN,
) -> Iterator[bytes]:
    """Bytes of a file from `start` to before `end`; None: to its end.

    Certificates are checked (SSL_CERT_FILE adds a CA).

    Raises:
        DownloadError: refused, not found, a certificate that does not verify.
        TransientError: timeout, broken connection, or a status of `try_again`.
    """
    last = "" if end is None else end - 1
    with _told(try_again), _ask(url, {**headers, "range": f"bytes={start}-{last}"}) as answer:
        if answer.status != _PARTIAL and (start or "if-range" in headers):
            raise TransientError(f"expected 206 for a part, got {answer.status}: the file changed")
        yield from _chunks(answer)


def _rest(answer: HTTPResponse, _start: int, _end: int | None) -> Iterator[bytes]:
    with _told(), answer:
        yield from _chunks(answer)


def _chunks(answer: HTTPResponse) -> Iterator[bytes]:
    return iter(lambda: answer.read1(CHUNK), b"")  # read would lose what came before a cut


@lru_cache
def _opener(_authority: str | None) -> urllib.request.OpenerDirector:
    """One for all requests, as it takes 30 ms to read the authorities that a machine trusts."""
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=ssl.create_default_context()), _Redirects()
    )


def _ask(url: str, headers: Mapping[str, str]) -> HTTPResponse:
    opener = _opener(os.environ.get("SSL_CERT_FILE"))
    request = urllib.request.Request(  # noqa: S310 - http only where a variable names it so
        url, headers={"user-agent": "batchedapi", **headers}
    )
    return cast("HTTPResponse", opener.open(request, timeout=TIMEOUT_SECONDS))


@contextmanager
def _told(try_again: Collection[int] = TRY_AGAIN) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        text = f"{error.code} {error.reason}"
        if error.code in try_again:
            raise TransientError(text) from error
        raise DownloadError(f"expected 200, got {text}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DownloadError(
                f"the server's certificate does not verify ({error.reason.verify_message});"
                f" {AUTHORITY_REMEDY}"
            ) from error
        raise TransientError(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise TransientError(f"{type(error).__name__}: {error}") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """See urllib; a redirect to http would undo what https is for.

        Another host gets no credentials: storage behind a hub is sent to by a signed address.
        """
        if req.type == "https" and not newurl.startswith("https://"):
            raise DownloadError(f"expected https, was sent on to {newurl}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and request.host != req.host:
            request.remove_header("Authorization")
        return request
