"""Downloads an object, or all objects below a prefix, from a store that speaks S3."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batchedapi_serving.model_source.location import Bucket, DownloadFailedError, safe_name
from batchedapi_serving.model_source.storing import CHUNK, NoRoomError, check_room, store
from batchedapi_serving.model_source.web import TransientError

if TYPE_CHECKING:
    from obstore.store import S3Store

ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables that name a store other than Amazon's, such as MinIO."""


def download(bucket: Bucket, uri: str, folder: Path) -> Path:
    """Fetch into `folder`; the path of the one file, or of the folder that has them all.

    Credentials, region and endpoint come from where AWS's own tools look: AWS_* variables, the
    pod's service account, the instance. AWS_SKIP_SIGNATURE=true reads public buckets.

    Raises:
        DownloadFailedError: nothing there, not allowed, no room, or obstore is not installed.
        TransientError: what obstore's own retries did not get over.
    """
    try:
        import obstore  # noqa: PLC0415 - optional
        from obstore import exceptions  # noqa: PLC0415
    except ImportError as error:
        raise DownloadFailedError(
            uri, "reading s3:// needs obstore; pip install 'batchedapi[s3]', or use https"
        ) from error
    connection = _store(bucket.name)
    try:
        objects = _objects(connection, bucket.key)
        if not objects:
            raise DownloadFailedError(uri, "there is no such object, and none below it")
        check_room(folder, sum(size for _, size in objects))
        for path, size in objects:
            target = folder / _relative(path, bucket.key, uri)
            target.parent.mkdir(parents=True, exist_ok=True)
            result = obstore.get(connection, path)
            store(_bytes(result.stream(min_chunk_size=CHUNK)), target, size)
    except (exceptions.NotFoundError, exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError) as error:  # fmt: skip
        raise DownloadFailedError(uri, _first_line(error)) from error
    except NoRoomError as error:
        raise DownloadFailedError(uri, str(error)) from error
    except (exceptions.BaseError, OSError) as error:
        raise TransientError(_first_line(error)) from error
    single = len(objects) == 1 and objects[0][0] == bucket.key
    return folder / _relative(bucket.key, bucket.key, uri) if single else folder


def _store(name: str) -> "S3Store":
    from obstore.store import S3Store  # noqa: PLC0415 - optional

    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        return S3Store(name)
    return S3Store(
        name, endpoint=endpoint, client_options={"allow_http": endpoint.startswith("http://")}
    )


def _objects(connection: "S3Store", key: str) -> list[tuple[str, int]]:
    """Key and size: of the object `key` itself, else of every one below it."""
    import obstore  # noqa: PLC0415 - optional
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


def _bytes(chunks: Iterator[object]) -> Iterator[bytes]:
    for chunk in chunks:
        yield bytes(chunk)  # type: ignore[call-overload]  # obstore's Bytes is a buffer


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
