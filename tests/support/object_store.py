"""A store that speaks S3 and checks who asks: signatures (SigV4), and tokens that become keys.

It lends keys as STS (AssumeRoleWithWebIdentity) and as the agent of EKS Pod Identity do.
"""

import functools
import hashlib
import hmac
import http.server
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex as random_word
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

BUCKET: Final = "models"
REGION: Final = "eu-central-1"
KEY: Final = "AKIDEXAMPLE"
SECRET: Final = "an/example+secret"  # noqa: S105 - of a store that lives as long as its test
ROLE: Final = "arn:aws:iam::123456789012:role/reads-models"
LOOPBACK: Final = "127.0.0.1"
_EXPIRES: Final = "2096-01-01T00:00:00Z"
_DATE: Final = {"last-modified": "Wed, 21 Oct 2026 07:28:00 GMT"}

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class ObjectStore:
    """One bucket, and who may read it."""

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    """By key."""
    secrets: dict[str, str] = field(default_factory=lambda: {KEY: SECRET})
    """By access key."""
    session_tokens: dict[str, str] = field(default_factory=dict)
    """By access key; only a role's keys have one."""
    trusts: Callable[[str], bool] = lambda _: False
    """Whether ROLE is lent to the bearer of a web identity token."""
    public: bool = False
    """Nobody need sign."""

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Headers' names are in lower case."""
        if method == "POST":
            return self._lend(dict(parse_qsl(urlsplit(target).query + "&" + body.decode())))
        if target == "/v1/credentials":
            return self._credentials(headers.get("authorization", ""))
        refused = None if self.public else self._refused(method, target, headers)
        return self._read(target, headers) if refused is None else (403, {}, _error(refused))

    def _read(self, target: str, headers: dict[str, str]) -> Answer:
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            return 404, {}, _error("NoSuchBucket")
        if "list-type" in query:
            return 200, {"content-type": "application/xml"}, self._listing(query.get("prefix", ""))
        if key not in self.objects:
            return 404, {}, _error("NoSuchKey")
        return _of(self.objects[key], headers)

    def _listing(self, prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(body)}</Size><ETag>{_tag(body)}</ETag>"
            "<LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>"
            for key, body in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return (
            f'<?xml version="1.0"?><ListBucketResult><Name>{BUCKET}</Name>'
            f"<IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        ).encode()

    def _lend(self, form: dict[str, str]) -> Answer:
        """AssumeRoleWithWebIdentity of STS."""
        role = ("AssumeRoleWithWebIdentity", ROLE) == (form.get("Action"), form.get("RoleArn"))
        if not role or not self.trusts(form.get("WebIdentityToken", "")):
            return 400, {}, _error("InvalidIdentityToken")  # fmt: skip
        key, secret, token = self._lent()
        answer = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            f"<SessionToken>{token}</SessionToken><Expiration>{_EXPIRES}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        return 200, {"content-type": "text/xml"}, answer.encode()

    def _credentials(self, token: str) -> Answer:
        """The answer of the agent that EKS runs on each node."""
        if not self.trusts(token):
            return 400, {}, b'{"message": "invalid token"}'
        names = ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")
        return (
            200,
            {},
            json.dumps(dict(zip(names, (*self._lent(), _EXPIRES), strict=True))).encode(),
        )

    def _lent(self) -> tuple[str, str, str]:
        key, secret, token = (random_word(8) for _ in range(3))
        self.secrets[key], self.session_tokens[key] = secret, token
        return key, secret, token

    def _refused(self, method: str, target: str, headers: dict[str, str]) -> str | None:
        """S3's code for what is wrong with the signature.

        Source: AWS, IAM user guide, "Create a signed AWS API request".
        """
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            return "AccessDenied"
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        key, *scope = parts["Credential"].split("/")
        if key not in self.secrets:
            return "InvalidAccessKeyId"
        if headers.get("x-amz-security-token") != self.session_tokens.get(key):
            return "InvalidToken"
        url, signed = urlsplit(target), parts["SignedHeaders"].split(";")
        canonical = "\n".join(
            [
                method,
                url.path,
                "&".join(sorted(url.query.split("&"))),
                *(f"{name}:{headers[name].strip()}" for name in signed),
                "",
                parts["SignedHeaders"],
                headers["x-amz-content-sha256"],
            ]
        )
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = "\n".join([scheme, headers["x-amz-date"], "/".join(scope), digest])
        signature = f"AWS4{self.secrets[key]}".encode()
        for word in (*scope, to_sign):
            signature = hmac.digest(signature, word.encode(), "sha256")
        same = hmac.compare_digest(signature.hex(), parts["Signature"])
        return None if same and scope[1] == REGION else "SignatureDoesNotMatch"


@functools.lru_cache(8)
def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _of(body: bytes, headers: dict[str, str]) -> Answer:
    """An object, or the range of it that was asked for, if it is still the one that was meant."""
    about = {**_DATE, "etag": _tag(body), "accept-ranges": "bytes"}
    if headers.get("if-match", about["etag"]) != about["etag"]:
        return 412, {}, _error("PreconditionFailed")
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
    if wanted is None:
        return 200, about, body
    start, last = map(int, wanted.groups())
    last = min(last, len(body) - 1)
    about["content-range"] = f"bytes {start}-{last}/{len(body)}"
    return 206, about, body[start : last + 1]


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


@contextmanager
def running_store(certificate: Path | None = None, host: str = LOOPBACK) -> Iterator[ObjectStore]:
    """A store on a free port of `host`; https with a key and certificate, in one file."""
    store = ObjectStore()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = self.rfile.read(int(headers.get("content-length", 0)))
            status, fields, body = store.answer(self.command, self.path, headers, asked)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with suppress(OSError):  # the connection was cut
                    self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer((host, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    name = "localhost" if scheme == "https" and host == LOOPBACK else host
    store.url = f"{scheme}://{name}:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield store
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
