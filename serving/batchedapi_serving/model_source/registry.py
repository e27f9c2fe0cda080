"""Models in registries of container images: artifacts, whose layers are files, and images.

oras knows names, credentials and tokens; manifest and layers are fetched here, as any file.
"""

import gzip
import hashlib
import json
import os
import platform
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from batchedapi_serving.model_source.download import (
    TIMEOUT_SECONDS,
    Digest,
    DownloadError,
    RemoteFile,
    Snapshot,
    TransientError,
    is_in,
    placed,
    safe_path,
)
from batchedapi_serving.model_source.https import AUTHORITY_REMEDY, TRY_AGAIN, read_range

if TYPE_CHECKING:
    from oras.container import Container
    from requests import Response

_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json,"
    " application/vnd.docker.distribution.manifest.v2+json,"
    " application/vnd.docker.distribution.manifest.list.v2+json"
)
_TITLE: Final = "org.opencontainers.image.title"
"""Annotation of an artifact's layer: the name of the file that it is."""
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYERS: Final = ".layers"
_ROOT: Final = ".root"
"""Folders beside the model while it is made of layers."""
_GONE: Final = ".wh."
"""Begins the name of an entry that takes a file of the layers below away."""
_UNAUTHORIZED: Final = 401
_TOKEN_EXPIRED: Final = TRY_AGAIN | {_UNAUTHORIZED}
"""Of a layer, whose manifest was allowed: each try asks for a token."""
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class RegistryModel:
    """An image or an artifact."""

    reference: str
    """REGISTRY/NAME@sha256:..."""
    path: str
    """A file or a folder of it, without a slash at either end; empty: all."""

    @property
    def pinned(self) -> str:
        """The digest of the manifest: its content never changes."""
        return self.reference.rpartition("@")[2]

    def snapshot(self) -> Snapshot:
        """The files of an artifact, or the layers of an image, to be unpacked one over another.

        Credentials are docker's: DOCKER_CONFIG names the folder of its config.json.

        Raises:
            DownloadError: nothing there, not allowed, no client, or content that is no model.
            TransientError: the registry does not answer, or is unwell.
        """
        try:
            from oras.container import Container  # noqa: PLC0415 - most models lie elsewhere
        except ImportError as error:
            raise DownloadError.without_client("oci", "oras") from error
        container = Container(self.reference)
        with _told():
            manifest, headers = _manifest(container, self.pinned)
        url = f"{_scheme(container)}://{container.registry}/v2/{container.api_prefix}/blobs"
        titles: list[str] = [
            (layer.get("annotations") or {}).get(_TITLE, "") for layer in manifest["layers"]
        ]
        artifact, name = all(titles), container.repository
        files = [
            RemoteFile(
                placed(title, self.path, name) if artifact else f"{_LAYERS}/{number:04d}",
                layer["size"],
                partial(read_range, f"{url}/{layer['digest']}", headers, try_again=_TOKEN_EXPIRED),
                digest=Digest(*layer["digest"].split(":")),
            )
            for number, (layer, title) in enumerate(zip(manifest["layers"], titles, strict=True))
            if not artifact or is_in(title, self.path)
        ]
        if not files:
            raise DownloadError(f"the artifact has no file {self.path}")
        unpack = partial(_unpack, path=self.path, name=placed(self.path, self.path, name))
        return Snapshot(self.pinned, tuple(files), None if artifact else unpack)


def _scheme(container: "Container") -> str:
    """Plain http to this machine alone, as docker and containerd do it."""
    host = container.registry.rpartition(":")[0] or container.registry
    return "http" if host == "localhost" or host.startswith("127.") else "https"


def _manifest(container: "Container", digest: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The manifest of that digest, or what an index has for this machine; what else to send."""
    answer, headers = _authorized(container, digest)
    if f"sha256:{hashlib.sha256(answer.content).hexdigest()}" != digest:
        raise DownloadError(f"the registry's manifest {digest} has another digest")
    manifest: dict[str, Any] = json.loads(answer.content)
    if "manifests" in manifest:
        machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
        for one in manifest["manifests"]:
            if (one.get("platform") or {}).get("architecture") == machine:
                return _manifest(container, one["digest"])
        raise DownloadError(f"the image has nothing for the architecture {machine}")
    if not manifest.get("layers"):
        raise DownloadError("expected an image or an artifact with layers")
    return manifest, headers


def _authorized(container: "Container", digest: str) -> "tuple[Response, dict[str, str]]":
    import requests  # noqa: PLC0415
    from oras.auth import get_auth_backend  # noqa: PLC0415

    session, scheme = requests.Session(), _scheme(container)
    session.verify = os.environ.get("SSL_CERT_FILE") or True
    url = f"{scheme}://{container.manifest_url(digest)}"
    headers = {"Accept": _MANIFESTS}
    answer = session.get(url, headers=headers, timeout=TIMEOUT_SECONDS)
    if answer.status_code == _UNAUTHORIZED:
        basic = answer.headers.get("www-authenticate", "").lower().startswith("basic")
        auth = get_auth_backend(
            "basic" if basic else "token", session, scheme == "http", tls_verify=session.verify
        )
        folder = os.environ.get("DOCKER_CONFIG")
        auth.load_configs(container, [str(Path(folder) / "config.json")] if folder else None)
        if not basic or hasattr(auth, "_basic_auth"):
            headers, _ = auth.authenticate_request(answer, headers)
            answer = session.get(url, headers=headers, timeout=TIMEOUT_SECONDS)
    if answer.status_code != _OK:
        _fail(answer)
    return answer, {name: headers[name] for name in ("Authorization",) if name in headers}


def _fail(answer: "Response") -> None:
    text = f"expected 200, got {answer.status_code} {answer.reason}"
    if answer.status_code in TRY_AGAIN:
        raise TransientError(text)
    raise DownloadError(
        f"{text}; for a private registry mount its config.json and set DOCKER_CONFIG to the folder"
    )


@contextmanager
def _told() -> Iterator[None]:
    import requests  # noqa: PLC0415

    try:
        yield
    except requests.exceptions.SSLError as error:
        raise DownloadError(
            f"the server's certificate does not verify ({error}); {AUTHORITY_REMEDY}"
        ) from error
    except requests.exceptions.RequestException as error:
        raise TransientError(f"{type(error).__name__}: {error}") from error


def _unpack(content: Path, path: str, name: str) -> None:
    """Unpack layers in order, each over the ones before; then the model has its place.

    Raises:
        DownloadError: a layer is no tar that Python reads, or leads out of the folder; or nothing
            is at the path.
    """
    root = content / _ROOT
    shutil.rmtree(root, ignore_errors=True)  # of a try that was cut
    root.mkdir()
    for layer in sorted((content / _LAYERS).iterdir()):
        try:
            with tarfile.open(layer) as archive:
                for member in archive:
                    _extract(archive, member, root)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DownloadError(
                f"expected layers that are tar, or tar packed by gzip, got {error}"
            ) from error
    model = (root / safe_path(path) if path else root).resolve()
    if not model.exists():
        raise DownloadError(f"the image has no file {path}")
    model.rename(content / name)
    shutil.rmtree(content / _LAYERS)
    shutil.rmtree(root, ignore_errors=True)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    path = Path(os.path.normpath(member.name))
    if path.name.startswith(_GONE):
        safe_path(path.as_posix())
        gone = root / path.with_name(path.name.removeprefix(_GONE))
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink(missing_ok=True)
        return
    try:
        archive.extract(member, root, filter="data")
    except tarfile.OutsideDestinationError as error:
        raise DownloadError(f"expected paths of files without '..', got {member.name!r}") from error
    except tarfile.FilterError:
        return  # a device, or a link that means another file outside of the image
