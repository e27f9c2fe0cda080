"""Servers to download from: one that speaks https, one that speaks S3, on loopback."""

import contextlib
import hashlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from certificates import Certificates, make_certificates
from object_store import KEY, REGION, SECRET, running_store

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """A server with a list of answers for each path, the last repeated, that notes requests."""

    port: int = 0
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)
    """In place of answers: what a path has, in turn; given by ETag and range."""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """The next for this path."""
        self.asked.append(path)
        if path in self.files:
            bodies = self.files[path]
            return part_of(bodies.pop(0) if len(bodies) > 1 else bodies[0], headers)
        answers = self.answers.get(path, [(404, {}, b"")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def part_of(body: bytes, headers: Mapping[str, str]) -> Answer:
    """The range that was asked for, unless the file is another one by now."""
    tag = f'"{hashlib.sha256(body).hexdigest()}"'
    about = {"etag": tag, "accept-ranges": "bytes"}
    wanted = headers.get("range")
    if wanted is None or headers.get("if-range") != tag:
        return 200, about, body
    start, last = map(int, wanted.removeprefix("bytes=").split("-"))
    return 206, about, body[start : last + 1]


def handler(
    answer: Callable[[str, Mapping[str, str]], Answer],
) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers GET and HEAD; a content-length that is given is sent as it is."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            status, headers, body = answer(self.path, given)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                with contextlib.suppress(OSError):  # who wants a part leaves the rest
                    self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of `localhost`."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def https(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    server = Server()
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(server.answer))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    yield server
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The objects of the bucket `models`, in a store where AWS_ENDPOINT_URL points to."""
    with running_store() as store:
        for name, value in {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "no_proxy": "localhost,127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        yield store.objects
