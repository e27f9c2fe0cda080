"""What the URI of a model means."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from batchedapi_serving.errors import LoadError

FIELD = "spec.predictor.model.uri"


class DownloadFailedError(LoadError):
    """The model is not here, for a reason that trying again does not change."""

    def __init__(self, uri: str, what: str) -> None:
        super().__init__("DownloadFailed", f"{FIELD} {uri!r}: {what}")


@dataclass(frozen=True, slots=True)
class Here:
    """A file or folder that this container sees; used where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class Web:
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


Location = Here | Web | Bucket


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
            return Web(uri)
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


def safe_name(name: str) -> str:
    """A file name of a stranger that stays inside the folder it is put into."""
    return "model" if name in {"", ".", ".."} or "\0" in name else name
