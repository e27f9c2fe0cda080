"""Downloads one file over https."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Final

from batchedapi_serving.model_source.location import DownloadFailedError
from batchedapi_serving.model_source.storing import CHUNK, NoRoomError, store

TIMEOUT_SECONDS: Final = 30.0
"""Without a byte; a whole download may take as long as it likes."""
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class TransientError(Exception):
    """Trying again may help."""


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """See urllib; a redirect to http would undo what https is for."""
        if not newurl.startswith("https://"):
            raise DownloadFailedError(req.full_url, f"expected https, was sent on to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, target: Path) -> None:
    """Fetch `url` into the file `target`; certificates are checked (SSL_CERT_FILE adds a CA).

    Raises:
        DownloadFailedError: refused, not found, a certificate that does not verify, no room.
        TransientError: timeout, broken connection, or a status that may pass.
    """
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=ssl.create_default_context()), _HttpsOnly()
    )
    request = urllib.request.Request(url, headers={"user-agent": "batchedapi"})  # noqa: S310 - https alone comes here
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            length = response.headers.get("content-length")
            store(_chunks(response), target, None if length is None else int(length))
    except urllib.error.HTTPError as error:
        text = f"{error.code} {error.reason}"
        if error.code in _TRY_AGAIN:
            raise TransientError(text) from error
        raise DownloadFailedError(url, f"expected 200, got {text}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DownloadFailedError(
                url,
                f"the server's certificate does not verify ({error.reason.verify_message}); for a"
                " private authority set SSL_CERT_FILE in spec.predictor.env",
            ) from error
        raise TransientError(str(error.reason)) from error
    except NoRoomError as error:
        raise DownloadFailedError(url, str(error)) from error
    except (OSError, HTTPException) as error:
        raise TransientError(f"{type(error).__name__}: {error}") from error


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while chunk := response.read(CHUNK):
        yield chunk
