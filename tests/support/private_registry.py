"""A registry that gives one image to those who know the password: the node's own, and a layer more.

Containerd fetches no layer that it has already, of an image of whatever name. So a registry of the
manifest, the configuration and the new layer is all that a pull needs.
"""

import base64
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

USER: Final = "puller"
PASSWORD: Final = "pull"  # noqa: S105 - of a registry that lives as long as its test
_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar"
_SMALL: Final = 1 << 16
"""Bytes; manifests and configurations are smaller, and no layer of ours is."""


@dataclass(frozen=True)
class Registry:
    """Where it listens, and what it was asked."""

    address: str
    """`host:port`; it speaks plain http."""
    digest: str
    """Of the image's manifest."""
    refused: list[str]
    """Paths asked for without the password."""
    given: list[str]
    """Paths answered."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `kubectl create secret docker-registry`."""
        return (
            f"--docker-server={self.address}",
            f"--docker-username={USER}",
            f"--docker-password={PASSWORD}",
        )


@contextmanager
def private_registry(content: Path, title: str, files: Mapping[str, str]) -> Iterator[Registry]:
    """A registry on this machine, where the node runs, until the end of the block.

    Args:
        content: Folder of containerd's content, blobs by their digests.
        title: Label `org.opencontainers.image.title` of the image to begin with.
        files: What the further layer has, by path.
    """
    blobs = _blobs(content, title, files)
    refused: list[str] = []
    given: list[str] = []
    word = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("authorization") != f"Basic {word}":
                refused.append(self.path)
                self._answer(401, b"", ("www-authenticate", 'Basic realm="models"'))
                return
            given.append(self.path)
            digest = self.path.rpartition("/")[2]
            body = b"{}" if self.path == "/v2/" else blobs.get(digest)
            kind = _MANIFEST if "/manifests/" in self.path else "application/octet-stream"
            if body is None:
                self._answer(404, b"")
            else:
                self._answer(
                    200, body, ("content-type", kind), ("docker-content-digest", _digest(body))
                )

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("content-length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        address = f"127.0.0.1:{listener.server_address[1]}"
        yield Registry(address, _digest(blobs["1"]), refused, given)
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def _blobs(content: Path, title: str, files: Mapping[str, str]) -> dict[str, bytes]:
    """Manifest (also as the tag `1`), configuration and layer, by digest."""
    manifest, config = _image(content, title)
    tar, layer = _layer(files)
    config["rootfs"]["diff_ids"].append(_digest(tar))
    config.pop("history", None)
    written = json.dumps(config).encode()
    manifest["config"] |= {"digest": _digest(written), "size": len(written)}
    manifest["mediaType"] = _MANIFEST
    manifest["layers"].append(
        {"mediaType": f"{_LAYER}.gzip", "digest": _digest(layer), "size": len(layer)}
    )
    body = json.dumps(manifest).encode()
    return {"1": body, _digest(body): body, _digest(written): written, _digest(layer): layer}


def _image(content: Path, title: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and configuration of the newest image of that title.

    Raises:
        LookupError: there is none.
    """
    folder = content / "blobs" / "sha256"
    files = (file for file in folder.iterdir() if file.stat().st_size < _SMALL)
    for file in sorted(files, key=lambda file: -file.stat().st_mtime):
        if not (text := file.read_bytes()).startswith(b"{"):
            continue
        manifest = json.loads(text)
        if "layers" not in manifest:
            continue
        digest = manifest["config"]["digest"].removeprefix("sha256:")
        config: dict[str, Any] = json.loads((folder / digest).read_text())
        labels = config.get("config", {}).get("Labels") or {}
        if labels.get("org.opencontainers.image.title") == title:
            return manifest, config
    raise LookupError(f"{folder}: expected an image with the title {title}, found none")


def _layer(files: Mapping[str, str]) -> tuple[bytes, bytes]:
    """As a tar, and packed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue(), gzip.compress(buffer.getvalue(), mtime=0)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
