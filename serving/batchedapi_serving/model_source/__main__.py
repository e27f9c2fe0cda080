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
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.model_source.bucket import Bucket
from batchedapi_serving.model_source.download import (
    CONTENT,
    DownloadError,
    TransientError,
    disk_errors,
    fetch,
)
from batchedapi_serving.model_source.https import HttpsFile
from batchedapi_serving.model_source.hub import HubModel
from batchedapi_serving.model_source.registry import RegistryModel
from batchedapi_serving.model_source.shelf import entry_of, kept, model_in, taken
from batchedapi_serving.processes import kill_with_parent
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__package__)
FIELD: Final = "spec.predictor.model.uri"
_FOLDER: Final = "model"
WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before the second, third, ... try."""


class Form(NamedTuple):
    """What comes after a scheme."""

    pattern: str
    words: str


_BUCKET: Final = Form(r"(?P<name>[^/]+)/*(?P<key>.*?)/*", "bucket/key")
FORMS: Final = {
    "file": Form(r"(localhost)?(?P<path>/.*)", "/absolute/path"),
    "https": Form(r"[^/?#]+.*", "host/path"),
    "s3": _BUCKET,
    "gs": _BUCKET,
    "az": _BUCKET,
    "hf": Form(
        r"(?P<name>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/*(?P<path>.*?)/*",
        "ORG/NAME@REVISION",
    ),
    "oci": Form(
        r"(?P<name>[^/@]+/[^@]+@sha256:[0-9a-f]{64})(/+(?P<path>.*?)/*)?",
        "registry/name@sha256:DIGEST",
    ),
}
"""By scheme."""


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """A file or folder that this container sees; used where it is."""

    path: Path


Location = Here | HttpsFile | Bucket | HubModel | RegistryModel


def main(runtime: str) -> int:
    """Fetch; the exit code is 1 when there is a failure file to read."""
    kill_with_parent()
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, "model-source")
    model = settings.model
    if model is None:
        return 0
    here = Path(settings.search[0]) if settings.search else Path.cwd()
    cache = None if model.cache is None else Path(model.cache)
    folder = Path(runtime) / _FOLDER
    try:
        path = fetch_model(model.uri, model.sha256, here=here, folder=folder, cache=cache)
    except LoadError as error:
        failure = {"reason": error.reason, "message": str(error)}
        settings.failure_path(FETCH).write_text(json.dumps(failure))
        return 1
    fetched = dataclasses.replace(model, path=str(path))
    dataclasses.replace(settings, model=fetched).write()
    return 0


def fetch_model(
    uri: str,
    sha256: str | None,
    *,
    here: Path,
    folder: Path,
    cache: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The model's file or folder.

    Args:
        uri: See parse_location.
        sha256: Digest it must have, see digest_of; None: any.
        here: What a relative path is relative to.
        folder: Downloads go there.
        cache: ... or there, where the version of what is fetched is known; others may use it too.
        sleep: Waits before another try.

    Raises:
        LoadError: DownloadFailed or DigestMismatch.
    """
    began = time.monotonic()
    try:
        location = parse_location(uri, here)
        path = _tried(lambda: _once(location, uri, sha256, folder, cache), sleep)
    except DownloadError as error:
        raise LoadError("DownloadFailed", f"{FIELD} {uri!r}: {error}") from error
    seconds = round(time.monotonic() - began, 3)
    log.info("model is here", extra={"uri": uri, "path": str(path), "seconds": seconds})
    return path


def _tried(once: Callable[[], Path], sleep: Callable[[float], None]) -> Path:
    """Try until it is here, with waits that grow while no more of it comes."""
    waits = iter(WAITS)
    while True:
        try:
            return once()
        except TransientError as error:
            if error.progressed:
                waits = iter(WAITS)
            if (seconds := next(waits, None)) is None:
                raise DownloadError(f"{error}, {len(WAITS) + 1} times") from error
            log.warning("download failed", extra={"error": str(error), "again_in": seconds})
            sleep(seconds)


def _once(
    location: Location, uri: str, sha256: str | None, folder: Path, cache: Path | None
) -> Path:
    if isinstance(location, Here):
        return _here(location.path, sha256)
    pinned = sha256 or location.pinned
    if cache is not None and pinned and (entry := entry_of(cache, uri, pinned)).exists():
        with disk_errors(cache):
            path = taken(entry)
        check_digest(path, sha256)
        return path
    snapshot = location.snapshot()
    version = pinned or snapshot.version
    shelf = folder if cache is None or version is None else cache

    def fill(staging: Path) -> None:
        if version is None:
            shutil.rmtree(staging)
            staging.mkdir()
        try:
            with disk_errors(staging.parent):
                fetch(snapshot.files, staging)
                content = staging / CONTENT
                if snapshot.unpack is not None:
                    snapshot.unpack(content)
                check_digest(model_in(content), sha256)
        except (LoadError, DownloadError):
            shutil.rmtree(staging)
            raise

    with disk_errors(shelf):
        return kept(entry_of(shelf, uri, version or ""), fill)


def _here(path: Path, sha256: str | None) -> Path:
    if not path.exists():
        raise DownloadError(f"there is no file or folder {path}")
    check_digest(path, sha256)
    return path


def parse_location(uri: str, folder: Path) -> Location:
    """Where the model lies.

    Args:
        uri: A path, or file://, https://, s3://, gs://, az://, hf:// or oci://.
        folder: What a relative path is relative to.

    Raises:
        DownloadError: another scheme, or a part is missing.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Here(folder / uri)
    if scheme == "http":
        raise DownloadError(
            "http is not read, because anybody on the way may change the model; use https"
        )
    if scheme not in FORMS:
        raise DownloadError(f"expected {', '.join(FORMS)} or a path, got the scheme {scheme!r}")
    found = re.fullmatch(FORMS[scheme].pattern, rest)
    if found is None:
        raise DownloadError(f"expected {scheme}://{FORMS[scheme].words}")
    parts = found.groupdict("")
    match scheme:
        case "file":
            return Here(Path(unquote(parts["path"])))
        case "https":
            return HttpsFile(uri)
        case "hf":
            return HubModel(parts["name"], unquote(parts["revision"]) or None, parts["path"])
        case "oci":
            return RegistryModel(parts["name"], parts["path"])
    return Bucket(scheme, parts["name"], parts["key"])


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
