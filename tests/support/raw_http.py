"""HTTP/1.1 by hand over asyncio sockets: exact bytes out, every response in, nothing retried."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from ports import HOST

PATIENCE: Final = 20.0
"""Seconds for one response; longer than any that a test waits for on purpose."""


class Response(NamedTuple):
    """One response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object of the body."""
        error: dict[str, Any] = self.json()["error"]
        return error


class Connection:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Exactly these bytes."""
        self.writer.write(data)
        await self.writer.drain()

    def has_received(self) -> bool:
        """Whether bytes are here that nobody has taken."""
        return bool(self._reader._buffer)  # type: ignore[attr-defined]  # asyncio has no other way

    async def receive(self, *, has_body: bool = True, patience: float = PATIENCE) -> Response:
        """The next final response (100 Continue is skipped), within `patience` seconds.

        Raises:
            ConnectionError: the server closed the connection instead.
        """
        while True:
            async with asyncio.timeout(patience):
                response = await self._receive(has_body=has_body)
            if response.status != 100:
                return response

    async def _receive(self, *, has_body: bool) -> Response:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"closed after {error.partial!r}") from error
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        length = int(headers.get("content-length", 0)) if has_body else 0
        try:
            body = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("closed within a body") from error
        return Response(int(first.split()[1]), headers, body)

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> Response:
        """POST and wait for the answer."""
        await self.send(request_bytes(path, body, headers))
        return await self.receive()

    async def post_json(self, path: str, value: Any) -> Response:
        """POST a JSON value and wait for the answer."""
        return await self.post(path, json.dumps(value).encode())

    async def is_closed_by_server(self, seconds: float = 10.0) -> bool:
        """Whether the end of the connection comes, and no further byte."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Leave at once."""
        self.writer.transport.abort()


def request_bytes(
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    """A request with content-length and, unless given, a JSON content type."""
    lines = {"host": "test", "content-type": "application/json", **(headers or {})}
    if body or method == "POST":
        lines["content-length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/{version}\r\n{head}\r\n".encode("latin-1") + body


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """A connection to a server on this machine."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 24)
    connection = Connection(reader, writer)
    try:
        yield connection
    finally:
        connection.close()


async def ask(
    port: int, value: Any, path: str = "/predict", *, patience: float = PATIENCE
) -> Response:
    """POST one JSON value over a connection of its own."""
    async with connected(port) as connection:
        await connection.send(request_bytes(path, json.dumps(value).encode()))
        return await connection.receive(patience=patience)
