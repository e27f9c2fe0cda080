r"""Program that fetches the model: from a URI to a path, with retries, and the digest checked.

Started by the supervisor, not by hand. Argument: the runtime folder. The path of the model is
written into its settings.

A folder's digest is that of the text `<sha256>  <path>\n` of every file in it, paths relative with
forward slashes, sorted by path as bytes; links to files count as files, links to folders not at
all. The same by hand, in the folder:

    find . -xtype f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum
"""

import dataclasses
import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never
from urllib.parse import unquote, urlsplit

from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.model_source.download import (
    Bucket,
    DownloadFailedError,
    HttpsFile,
    TransientError,
    download_file,
    download_objects,
)
from batchedapi_serving.processes import kill_with_parent
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__package__)
_FOLDER: Final = "model"
WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before the second, third, ... try."""


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """A file or folder that this container sees; used where it is."""

    path: Path


Location = Here | HttpsFile | Bucket


def main(runtime: str) -> int:
    """Fetch; the exit code is 1 when there is a failure file to read."""
    kill_with_parent()
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, "model-source")
    if settings.model_uri is None:
        return 0
    here = Path(settings.search[0]) if settings.search else Path.cwd()
    try:
        path = fetch_model(
            settings.model_uri, settings.model_sha256, here=here, folder=Path(runtime) / _FOLDER
        )
    except LoadError as error:
        failure = {"reason": error.reason, "message": str(error)}
        settings.failure_path(FETCH).write_text(json.dumps(failure))
        return 1
    dataclasses.replace(settings, model_path=str(path)).write()
    return 0


def fetch_model(
    uri: str,
    sha256: str | None,
    *,
    here: Path,
    folder: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The model's file or folder.

    Args:
        uri: See parse_location.
        sha256: Digest it must have, see digest_of; None: any.
        here: What a relative path is relative to.
        folder: Does not exist yet; downloads go there.
        sleep: Waits before another try.

    Raises:
        LoadError: DownloadFailed or DigestMismatch.
    """
    began = time.monotonic()
    location = parse_location(uri, here)
    for wait in (*WAITS, None):
        try:
            path = _once(location, uri, folder)
            break
        except TransientError as error:
            if wait is None:
                raise DownloadFailedError(uri, f"{error}, {len(WAITS) + 1} times") from error
            log.warning("download failed", extra={"error": str(error), "again_in": wait})
            sleep(wait)
    check_digest(path, sha256)
    seconds = round(time.monotonic() - began, 3)
    log.info("model is here", extra={"uri": uri, "path": str(path), "seconds": seconds})
    return path


def _once(location: Location, uri: str, folder: Path) -> Path:
    if isinstance(location, Here):
        if not location.path.exists():
            raise DownloadFailedError(uri, f"there is no file or folder {location.path}")
        return location.path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    match location:
        case HttpsFile():
            target = folder / location.file_name
            download_file(location.url, target)
            return target
        case Bucket():
            return download_objects(location, uri, folder)
        case _:
            assert_never(location)


def parse_location(uri: str, folder: Path) -> Location:
    """Where the model lies.

    Args:
        uri: A path, or file://, https:// or s3://.
        folder: What a relative path is relative to.

    Raises:
        DownloadFailedError: another scheme, or a part is missing.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Here(folder / uri)
    match scheme:
        case "file":
            host, slash, path = rest.partition("/")
            if host not in {"", "localhost"} or not slash:
                raise DownloadFailedError(uri, "expected file:///absolute/path")
            return Here(Path("/" + unquote(path)))
        case "https":
            if not urlsplit(uri).hostname:
                raise DownloadFailedError(uri, "expected a host after https://")
            return HttpsFile(uri)
        case "s3":
            name, _, key = rest.partition("/")
            if not name:
                raise DownloadFailedError(uri, "expected s3://bucket/key")
            return Bucket(name, key.strip("/"))
        case "http":
            raise DownloadFailedError(uri, "http is not read, because anybody on the way may"
                                      " change the model; use https")  # fmt: skip
        case _:
            raise DownloadFailedError(
                uri, f"expected file, https, s3 or a path, got the scheme {scheme!r}"
            )


def digest_of(path: Path) -> str:
    """64 hexadecimal digits.

    Raises:
        OSError: something cannot be read.
    """
    if not path.is_dir():
        return _of_file(path)
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    names = sorted(files, key=lambda name: name.encode("utf-8", "surrogateescape"))
    listing = "".join(f"{_of_file(files[name])}  {name}\n" for name in names)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, expected: str | None) -> None:
    """Compare with `predictor.model.sha256`; None: nothing to compare with.

    Raises:
        LoadError: DigestMismatch.
    """
    if expected is None:
        return
    found = digest_of(path)
    if found != expected.lower():
        raise LoadError(
            "DigestMismatch",
            f"spec.predictor.model.sha256: expected {expected.lower()}, but {path.name} has"
            f" {found}; correct the digest, or the file is not the one that was meant",
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
