"""Servers to download from: one that speaks https, one that speaks S3, on loopback."""

import http.server
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """What was asked of it, and what it answers: by path, one after another, the last for ever."""

    port: int = 0
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> Answer:
        """The next for this path."""
        self.asked.append(path)
        answers = self.answers.get(path, [(404, {}, b"")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def handler(answer: Callable[[str], Answer]) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers GET and HEAD; a content-length that is given is sent as it is."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate of `localhost` in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-days", "2",
            "-keyout", "key.pem", "-out", "cert.pem",
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@pytest.fixture
def https(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    server = Server()
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(server.answer))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield server
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The objects of the bucket `models`, in a store where AWS_ENDPOINT_URL points to."""
    objects: dict[str, bytes] = {}

    def answer(path: str) -> Answer:
        url = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(url.query))
        key = urllib.parse.unquote(url.path).removeprefix("/models").lstrip("/")
        date = {"last-modified": "Wed, 21 Oct 2026 07:28:00 GMT", "etag": '"x"'}
        if "list-type" in query:
            return 200, {"content-type": "application/xml"}, listing(query.get("prefix", ""))
        if not url.path.startswith("/models/") or key not in objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return 200, date, objects[key]

    def listing(prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(body)}</Size><ETag>x</ETag>"
            "<LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>"
            for key, body in sorted(objects.items())
            if key.startswith(prefix)
        )
        return (
            '<?xml version="1.0"?><ListBucketResult><Name>models</Name>'
            f"<IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        ).encode()

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(answer))
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "eu-central-1",
        "no_proxy": "localhost,127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield objects
    listener.shutdown()
    thread.join()
    listener.server_close()
