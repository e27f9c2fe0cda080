"""Objects in buckets, read by obstore: of S3, Google Cloud Storage and Azure Blob Storage."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from batchedapi_serving.model_source.download import (
    CHUNK,
    DownloadError,
    RemoteFile,
    Snapshot,
    TransientError,
    placed,
)
from batchedapi_serving.model_source.https import AUTHORITY_REMEDY

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore, RetryConfig

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


@dataclass(frozen=True, slots=True)
class Bucket:
    """An object, or all objects below a prefix."""

    scheme: str
    """s3, gs or az."""
    name: str
    key: str
    """Without a slash at either end; empty: the whole bucket."""
    pinned = None

    def snapshot(self) -> Snapshot:
        """The objects as they are now.

        Credentials, region and endpoint come from AWS_*, GOOGLE_* or AZURE_* variables, which a
        Secret, or whoever projects an identity into the pod, sets; without any the instance is
        asked for its role.

        Raises:
            DownloadError: nothing there, not allowed, or half a credential.
            TransientError: what obstore's own retries did not get over.
        """
        if self.scheme == "s3":
            check_credentials(os.environ)
        with _told(self.scheme):
            store = self._store()
            objects = _objects(store, self.key)
        if not objects:
            raise DownloadError("there is no such object, and none below it")
        tags = sorted(f"{one['path']} {one['e_tag']}" for one in objects)
        return Snapshot(
            hashlib.sha256("\n".join(tags).encode()).hexdigest(),
            tuple(self._file(store, one) for one in sorted(objects, key=lambda one: one["path"])),
        )

    def _file(self, store: "ObjectStore", found: "ObjectMeta") -> RemoteFile:
        path = placed(found["path"], self.key, self.name)
        return RemoteFile(path, found["size"], partial(_read, store, self.scheme, found))

    def _store(self) -> "ObjectStore":
        # Loaded here: most models do not lie in a bucket.
        from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

        retries: RetryConfig = {"max_retries": RETRIES}
        match self.scheme:
            case "gs":
                return GCSStore(self.name, retry_config=retries)
            case "az":
                return AzureStore(self.name, retry_config=retries)
        endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
        if endpoint is None:
            return S3Store(self.name, retry_config=retries)
        return S3Store(
            self.name,
            endpoint=endpoint,
            client_options={"allow_http": endpoint.startswith("http://")},
            retry_config=retries,
        )


def _read(
    store: "ObjectStore", scheme: str, found: "ObjectMeta", start: int, end: int | None
) -> Iterator[bytes]:
    import obstore  # noqa: PLC0415

    with _told(scheme):
        result = obstore.get(
            store,
            found["path"],
            options={"range": (start, end or found["size"]), "if_match": found["e_tag"]},
        )
        for chunk in result.stream(min_chunk_size=CHUNK):
            yield bytes(chunk)


@contextmanager
def _told(scheme: str) -> Iterator[None]:
    from obstore import exceptions  # noqa: PLC0415

    try:
        yield
    except (exceptions.NotFoundError, exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError) as error:  # fmt: skip
        raise DownloadError(failure_of(error, os.environ, scheme)) from error
    except (exceptions.BaseError, OSError) as error:
        text = failure_of(error, os.environ, scheme)
        if AUTHORITY_REMEDY in text:
            raise DownloadError(text) from error
        raise TransientError(text) from error


def check_credentials(environment: Mapping[str, str]) -> None:
    """Whether each variable of a pair has the other; obstore would go on without, or stop dead.

    Raises:
        DownloadError: one is missing.
    """
    for pair in PAIRS:
        missing = [name for name in pair if not environment.get(name)]
        if len(missing) == 1:
            (there,) = set(pair) - set(missing)
            raise DownloadError(
                f"expected {missing[0]} beside {there} in the environment, it is not set"
            )


def failure_of(error: BaseException, environment: Mapping[str, str], scheme: str = "s3") -> str:
    """An error of obstore or the disk on one line, with the remedy where we know one."""
    said, _, debug = str(error).partition("\n\nDebug source:")
    text = " ".join(said.split())[:FAILURE_CHARACTERS]
    if "UnknownIssuer" in debug:
        return f"{text}; the server's certificate does not verify: {AUTHORITY_REMEDY}"
    if scheme == "s3" and not any(environment.get(name) for name in SOURCES):
        return (
            f"{text}; no credentials are in the environment: set {' and '.join(PAIRS[0])} from a"
            " Secret, give the pod a service account with a role, or set AWS_SKIP_SIGNATURE=true"
            " for a public bucket"
        )
    return text


def _objects(store: "ObjectStore", key: str) -> "list[ObjectMeta]":
    """The object `key` itself, else every one below it."""
    import obstore  # noqa: PLC0415
    from obstore import exceptions  # noqa: PLC0415

    if key:
        try:
            return [obstore.head(store, key)]
        except (exceptions.NotFoundError, FileNotFoundError):
            pass  # it is a prefix
    found = [meta for page in obstore.list(store, prefix=key or None) for meta in page]
    folders = {str(folder) for meta in found for folder in PurePosixPath(meta["path"]).parents}
    return [meta for meta in found if meta["path"] not in folders]  # consoles mark folders so
