"""The registry of Docker's own people (`distribution`, out of Debian), and what is pushed to it."""

import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ports import free_port
from programs import unpacked

USER: Final = "puller"
PASSWORD: Final = "pull"  # noqa: S105 - of a registry that lives as long as its test
_HASHED: Final = "puller:$2b$05$X1VBPQvbcxJYZiDWl4gfxu1H5dS4jJSKzFg12McPSpj2CLic0l1NG"
"""USER and PASSWORD as htpasswd writes them (bcrypt)."""
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
TAR: Final = "application/vnd.oci.image.layer.v1.tar"
_TITLE: Final = "org.opencontainers.image.title"
_SECONDS: Final = 20


def digest_of(content: bytes) -> str:
    """As registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class ImageRegistry:
    """Where it listens."""

    address: str
    """`host:port`; plain http."""
    folder: Path
    private: bool

    def push_files(self, name: str, files: Mapping[str, bytes]) -> str:
        """An artifact whose layers are files, as oras makes them; its reference."""
        layers = [
            {**self._blob(name, body, "application/octet-stream"), "annotations": {_TITLE: title}}
            for title, body in files.items()
        ]
        return self._push(name, layers)

    def push_image(self, name: str, layers: Sequence[bytes], kind: str = f"{TAR}+gzip") -> str:
        """An image of those layers; its reference."""
        return self._push(name, [self._blob(name, layer, kind) for layer in layers])

    def push_index(self, name: str, references: Mapping[str, str]) -> str:
        """An image of several architectures, of an image for each; its reference."""
        manifests = [
            {
                "mediaType": MANIFEST,
                "size": 1,
                "digest": reference.rpartition("@")[2],
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, reference in references.items()
        ]
        body = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self._put_manifest(name, body, INDEX)

    def blob_path(self, digest: str) -> Path:
        """Where the registry keeps it: what a test damages."""
        word = digest.partition(":")[2]
        blobs = self.folder / "docker" / "registry" / "v2" / "blobs" / "sha256"
        return blobs / word[:2] / word / "data"

    def layers_of(self, reference: str) -> list[str]:
        """Digests."""
        manifest = json.loads(self.blob_path(reference.rpartition("@")[2]).read_text())
        return [layer["digest"] for layer in manifest["layers"]]

    def _push(self, name: str, layers: list[dict[str, Any]]) -> str:
        config = self._blob(name, b"{}", "application/vnd.oci.empty.v1+json")
        body = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        return self._put_manifest(name, body, MANIFEST)

    def _put_manifest(self, name: str, body: dict[str, Any], kind: str) -> str:
        written = json.dumps(body).encode()
        self._ask("PUT", f"/v2/{name}/manifests/{digest_of(written)}", written, kind)
        return f"{self.address}/{name}@{digest_of(written)}"

    def _blob(self, name: str, body: bytes, kind: str) -> dict[str, Any]:
        place = self._ask("POST", f"/v2/{name}/blobs/uploads/", b"", "")
        mark = "&" if "?" in place else "?"
        self._ask("PUT", f"{place}{mark}digest={digest_of(body)}", body, "application/octet-stream")
        return {"mediaType": kind, "digest": digest_of(body), "size": len(body)}

    def _ask(self, method: str, path: str, body: bytes, kind: str) -> str:
        """The answer's Location."""
        url = path if path.startswith("http") else f"http://{self.address}{path}"
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 - our own
        request.add_header("content-type", kind)
        if self.private:
            request.add_header("authorization", f"Basic {credentials()}")
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return str(answer.headers.get("location"))


def credentials() -> str:
    """USER and PASSWORD as a config.json of docker has them."""
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def tar_of(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """A layer, packed by gzip."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, body in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(body), 0o644
            archive.addfile(member, io.BytesIO(body))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)


@contextmanager
def running_registry(folder: Path, *, private: bool = False) -> Iterator[ImageRegistry]:
    """A registry on this machine until the end of the block.

    Args:
        folder: Of its blobs.
        private: It asks for USER and PASSWORD.

    Raises:
        ProgramUnavailableError: with the remedy.
    """
    port = free_port()
    (folder / "htpasswd").write_text(f"{_HASHED}\n")
    asked = {"auth": {"htpasswd": {"realm": "models", "path": str(folder / "htpasswd")}}}
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of-one-registry"},
        **(asked if private else {}),
    }
    (folder / "config.json").write_text(json.dumps(config))  # JSON is YAML
    program = unpacked("docker-registry", "docker-registry")
    process = subprocess.Popen(
        [program, "serve", str(folder / "config.json")], stdout=subprocess.DEVNULL, stderr=None
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/v2/")
        yield ImageRegistry(f"127.0.0.1:{port}", folder, private)
    finally:
        process.terminate()
        process.wait(_SECONDS)


def _wait_for(url: str) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with suppress(urllib.error.URLError):
            with suppress(urllib.error.HTTPError):  # it asks who is there
                urllib.request.urlopen(url).close()  # noqa: S310 - our own
            return
        time.sleep(0.05)
    raise TimeoutError(url)
