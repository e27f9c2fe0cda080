"""From a URI to a path on this machine: with retries, and the digest checked."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from batchedapi_serving.model_source import bucket, web
from batchedapi_serving.model_source.digest import check_digest
from batchedapi_serving.model_source.location import (
    Bucket,
    DownloadFailedError,
    Here,
    Location,
    Web,
    parse_location,
)
from batchedapi_serving.model_source.web import TransientError

log = logging.getLogger(__name__)

WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before the second, third, ... try."""


def fetch(
    uri: str,
    sha256: str | None,
    *,
    here: Path,
    folder: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The model's file or folder.

    Args:
        uri: See location.parse_location.
        sha256: Digest it must have, see digest.digest_of; None: any.
        here: What a relative path is relative to.
        folder: Does not exist yet; downloads go there.
        sleep: Waits before another try.

    Raises:
        LoadError: DownloadFailed or DigestMismatch.
    """
    began = time.monotonic()
    path = _at_last(parse_location(uri, here), uri, folder, sleep)
    check_digest(path, sha256)
    seconds = round(time.monotonic() - began, 3)
    log.info("model is here", extra={"uri": uri, "path": str(path), "seconds": seconds})
    return path


def _at_last(location: Location, uri: str, folder: Path, sleep: Callable[[float], None]) -> Path:
    for wait in WAITS:
        try:
            return _once(location, uri, folder)
        except TransientError as error:
            log.warning("download failed", extra={"error": str(error), "again_in": wait})
            sleep(wait)
    try:
        return _once(location, uri, folder)
    except TransientError as error:
        raise DownloadFailedError(uri, f"{error}, {len(WAITS) + 1} times") from error


def _once(location: Location, uri: str, folder: Path) -> Path:
    if isinstance(location, Here):
        if not location.path.exists():
            raise DownloadFailedError(uri, f"there is no file or folder {location.path}")
        return location.path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    match location:
        case Web():
            target = folder / location.file_name
            web.download(location.url, target)
            return target
        case Bucket():
            return bucket.download(location, uri, folder)
        case _:
            assert_never(location)
