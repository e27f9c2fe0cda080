"""Downloads of models: one file over https, or what an S3 bucket has below a key.

Written to disk as long as there is room.
"""

import os
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from batchedapi_serving.errors import LoadError

FIELD = "spec.predictor.model.uri"
CHUNK: Final = 1 << 20
"""Bytes read at once."""
SPARE: Final = 64 << 20
"""Bytes that are left free on the disk: sockets, logs and temporary files need some."""
TIMEOUT_SECONDS: Final = 30.0
"""Without a byte; a whole download may take as long as it likes."""
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables that name a store other than Amazon's, such as MinIO."""
PAIRS: Final = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
)
"""Credentials of a Secret, and the identity that is projected into a pod (IRSA)."""
SOURCES: Final = frozenset(
    {
        *(name for pair in PAIRS for name in pair),
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",  # EKS Pod Identity
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",  # ECS
        "AWS_SKIP_SIGNATURE",
    }
)
"""Without any of them obstore asks the instance, which a pod is seldom let reach."""
RETRIES: Final = 3
"""Tries of obstore in each of ours: with its ten a reason would be told after a minute."""
FAILURE_CHARACTERS: Final = 500
"""A store's whole answer would not fit into a condition."""
AUTHORITY_REMEDY: Final = "for a private authority set SSL_CERT_FILE in spec.predictor.env"


class DownloadFailedError(LoadError):
    """The model is not here, for a reason that trying again does not change."""

    def __init__(self, uri: str, what: str) -> None:
        super().__init__("DownloadFailed", f"{FIELD} {uri!r}: {what}")


class TransientError(Exception):
    """Trying again may help."""


@dataclass(frozen=True, slots=True)
class HttpsFile:
    """One file behind https."""

    url: str

    @property
    def file_name(self) -> str:
        """Last part of the path."""
        return safe_name(unquote(urlsplit(self.url).path).rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Bucket:
    """An object, or all objects below a prefix, in a bucket that speaks S3."""

    name: str
    key: str
    """Without a slash at either end; empty: the whole bucket."""


def safe_name(name: str) -> str:
    """A file name of a stranger that stays inside the folder it is put into."""
    return "model" if name in {"", ".", ".."} or "\0" in name else name


def download_file(url: str, target: Path) -> None:
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
            chunks = iter(lambda: response.read(CHUNK), b"")
            store(chunks, target, None if length is None else int(length))
    except urllib.error.HTTPError as error:
        text = f"{error.code} {error.reason}"
        if error.code in _TRY_AGAIN:
            raise TransientError(text) from error
        raise DownloadFailedError(url, f"expected 200, got {text}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DownloadFailedError(
                url,
                f"the server's certificate does not verify ({error.reason.verify_message});"
                f" {AUTHORITY_REMEDY}",
            ) from error
        raise TransientError(str(error.reason)) from error
    except DiskFullError as error:
        raise DownloadFailedError(url, str(error)) from error
    except (OSError, HTTPException) as error:
        raise TransientError(f"{type(error).__name__}: {error}") from error


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


if TYPE_CHECKING:
    from obstore.store import S3Store


def download_objects(bucket: Bucket, uri: str, folder: Path) -> Path:
    """Fetch into `folder`; the path of the one file, or of the folder that has them all.

    Credentials, region and endpoint come from AWS_* variables, which a Secret, or whoever projects
    an identity into the pod, sets; without any the instance is asked for its role.
    AWS_SKIP_SIGNATURE=true reads public buckets.

    Raises:
        DownloadFailedError: nothing there, not allowed, no room, or half a credential.
        TransientError: what obstore's own retries did not get over.
    """
    # Loaded here: most models do not lie in a bucket.
    import obstore  # noqa: PLC0415
    from obstore import exceptions  # noqa: PLC0415

    check_credentials(os.environ, uri)
    try:
        connection = _store_named(bucket.name)
        objects = _objects(connection, bucket.key)
        if not objects:
            raise DownloadFailedError(uri, "there is no such object, and none below it")
        check_room(folder, sum(size for _, size in objects))
        for path, size in objects:
            target = folder / _relative(path, bucket.key, uri)
            target.parent.mkdir(parents=True, exist_ok=True)
            result = obstore.get(connection, path)
            chunks = (bytes(chunk) for chunk in result.stream(min_chunk_size=CHUNK))
            store(chunks, target, size)
    except (exceptions.NotFoundError, exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError) as error:  # fmt: skip
        raise DownloadFailedError(uri, failure_of(error, os.environ)) from error
    except DiskFullError as error:
        raise DownloadFailedError(uri, str(error)) from error
    except (exceptions.BaseError, OSError) as error:
        text = failure_of(error, os.environ)
        if AUTHORITY_REMEDY in text:
            raise DownloadFailedError(uri, text) from error
        raise TransientError(text) from error
    single = len(objects) == 1 and objects[0][0] == bucket.key
    return folder / _relative(bucket.key, bucket.key, uri) if single else folder


def check_credentials(environment: Mapping[str, str], uri: str) -> None:
    """Whether each variable of a pair has the other; obstore would go on without, or stop dead.

    Raises:
        DownloadFailedError: one is missing.
    """
    for pair in PAIRS:
        missing = [name for name in pair if not environment.get(name)]
        if len(missing) == 1:
            (there,) = set(pair) - set(missing)
            raise DownloadFailedError(
                uri, f"expected {missing[0]} beside {there} in the environment, it is not set"
            )


def failure_of(error: BaseException, environment: Mapping[str, str]) -> str:
    """An error of obstore or the disk on one line, with the remedy where we know one."""
    said, _, debug = str(error).partition("\n\nDebug source:")
    text = " ".join(said.split())[:FAILURE_CHARACTERS]
    if "UnknownIssuer" in debug:
        return f"{text}; the server's certificate does not verify: {AUTHORITY_REMEDY}"
    if not any(environment.get(name) for name in SOURCES):
        return (
            f"{text}; no credentials are in the environment: set {' and '.join(PAIRS[0])} from a"
            " Secret, give the pod a service account with a role, or set AWS_SKIP_SIGNATURE=true"
            " for a public bucket"
        )
    return text


def _store_named(name: str) -> "S3Store":
    from obstore.store import S3Store  # noqa: PLC0415

    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        return S3Store(name, retry_config={"max_retries": RETRIES})
    return S3Store(
        name,
        endpoint=endpoint,
        client_options={"allow_http": endpoint.startswith("http://")},
        retry_config={"max_retries": RETRIES},
    )


def _objects(connection: "S3Store", key: str) -> list[tuple[str, int]]:
    """Key and size: of the object `key` itself, else of every one below it."""
    import obstore  # noqa: PLC0415
    from obstore import exceptions  # noqa: PLC0415

    if key:
        try:
            return [(key, obstore.head(connection, key)["size"])]
        except (exceptions.NotFoundError, FileNotFoundError):
            pass  # it is a prefix
    return [
        (meta["path"], meta["size"])
        for page in obstore.list(connection, prefix=key or None)
        for meta in page
    ]


def _relative(path: str, key: str, uri: str) -> str:
    if path == key:
        return safe_name(key.rpartition("/")[2])
    inside = path[len(key) :].lstrip("/") if path.startswith(key) else path
    if ".." in inside.split("/") or not inside:
        raise DownloadFailedError(uri, f"expected keys that are paths, got {path!r}")
    return inside


class DiskFullError(OSError):
    """The disk cannot take the model."""


class TornError(OSError):
    """The connection ended before all was here."""


def check_room(folder: Path, size: int) -> None:
    """Whether so many bytes fit.

    Raises:
        NoRoomError: they do not.
    """
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise DiskFullError(
            f"expected room for {size} bytes in {folder}, got {max(0, free - SPARE)}; set TMPDIR to"
            " a larger disk, or raise the pod's ephemeral storage"
        )


def store(chunks: Iterable[bytes], target: Path, size: int | None) -> None:
    """Write a download to the file `target`.

    Args:
        chunks: As they arrive.
        target: Its folder exists; what is there is overwritten.
        size: Bytes that were announced; None: unknown.

    Raises:
        NoRoomError: the disk is too small, seen from the announcement or on the way.
        TornError: fewer or more bytes came than were announced.
    """
    if size is not None:
        check_room(target.parent, size)
    written = 0
    with target.open("wb") as file:
        for chunk in chunks:
            if size is None:
                check_room(target.parent, len(chunk))
            file.write(chunk)
            written += len(chunk)
    if size is not None and written != size:
        raise TornError(f"expected {size} bytes, got {written}")
