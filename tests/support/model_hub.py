"""A server that speaks the HTTP API of the Hugging Face Hub: one private repository.

Large files (LFS) lie at another address, to which it sends readers, as the Hub does.
Source: huggingface_hub's own requests, and https://huggingface.co/docs/hub/api.
"""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

REPOSITORY: Final = "acme/digits"
COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
BRANCH: Final = "main"
TOKEN: Final = "hf_reads"  # noqa: S105 - of a hub that lives as long as its test
SMALL: Final = 1 << 10
"""Bytes; larger files are LFS."""
_MODEL: Final = f"/api/models/{REPOSITORY}"

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Hub:
    """What is in the repository, and what was asked of it."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Of the commit, by path."""
    gated: bool = False
    unwell: int = 0
    """So many requests are answered 503."""
    damaged: bool = False
    """Files are not what the tree says."""
    asked: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    """Paths of the storage that were asked for with the token."""

    def answer(self, target: str, headers: dict[str, str]) -> Answer:
        """Headers' names are in lower case."""
        path = unquote(urlsplit(target).path)
        self.asked.append(path)
        if self.unwell:
            self.unwell -= 1
            return 503, {}, b""
        if path.startswith("/storage/"):
            if "authorization" in headers:
                self.leaked.append(path)
            return self._file(path.removeprefix("/storage/"), headers)
        refused = self._refused(path, headers.get("authorization"))
        if refused is not None:
            return refused
        if path.startswith(_MODEL):
            return self._api(path.removeprefix(_MODEL))
        return self._resolve(path, headers)

    def _refused(self, path: str, authorization: str | None) -> Answer | None:
        if not path.startswith((_MODEL, f"/{REPOSITORY}/")) or authorization != f"Bearer {TOKEN}":
            return 401, {"x-error-code": "RepoNotFound"}, b'{"error": "Repository not found"}'
        if self.gated:
            return 403, {"x-error-code": "GatedRepo"}, b'{"error": "Access is restricted"}'
        return None

    def _api(self, rest: str) -> Answer:
        revision = rest.rpartition("/")[2] if rest else BRANCH
        if revision not in {BRANCH, COMMIT}:
            return 404, {"x-error-code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}'
        if not rest.startswith("/tree/"):
            about = {"id": REPOSITORY, "sha": COMMIT, "siblings": [], "private": True}
            return 200, {}, json.dumps(about).encode()
        return 200, {}, json.dumps([_entry(*one) for one in self.files.items()]).encode()

    def _resolve(self, path: str, headers: dict[str, str]) -> Answer:
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
        if len(self.files.get(name, b"")) > SMALL:
            host = headers["host"].replace("127.0.0.1", "localhost")
            return 302, {"location": f"http://{host}/storage/{name}"}, b""
        return self._file(name, headers)

    def _file(self, name: str, headers: dict[str, str]) -> Answer:
        if name not in self.files:
            return 404, {"x-error-code": "EntryNotFound"}, b""
        body = self.files[name]
        if self.damaged:
            body = bytes(len(body))
        if "range" not in headers:
            return 200, {}, body
        start, _, last = headers["range"].removeprefix("bytes=").partition("-")
        part = body[int(start) : int(last or len(body)) + 1]
        span = f"bytes {start}-{int(start) + len(part) - 1}/{len(body)}"
        return 206, {"content-range": span}, part


@lru_cache(8)
def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _entry(path: str, body: bytes) -> dict[str, object]:
    """A line of the tree."""
    blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(body), "oid": blob}
    if len(body) > SMALL:
        entry["lfs"] = {"oid": _sha256(body), "size": len(body), "pointerSize": 134}
    return entry


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub on a free port of this machine; its storage is at another name of it."""
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, fields, body = hub.answer(self.path, headers)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # cut

        def log_message(self, *_: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
