"""`kubectl batchedapi ui`: the page about all APIs on this machine's loopback.

Its files are served from here. What it shows is asked of the operator, through a port-forward with
the user's rights, each time the page asks.
"""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import click

from batchedapi_core import contract, ui
from batchedapi_operator.plugin.cluster import operators_answers

HOST: Final = "127.0.0.1"
Ask = Callable[[str], tuple[int, bytes]]
"""Status and body of a GET, or a ClickException that says why there is none."""


def operator_in(namespace: str) -> Ask:
    """Asks the operator there; one that was replaced is looked for again."""

    def ask(path: str) -> tuple[int, bytes]:
        _, status, body = next(operators_answers(namespace, path))
        return status, body

    return ask


def page_server(port: int, ask: Ask) -> ThreadingHTTPServer:
    """A server that is not started yet; port 0 is a free one.

    Raises:
        OSError: The port cannot be listened on.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            address: Any = self.server.server_address
            # a page of somebody else, whose name leads here, is not to read what the user may
            if self.headers.get("Host") not in {f"{n}:{address[1]}" for n in (HOST, "localhost")}:
                self._answer(403, "text/plain", b"ask at http://127.0.0.1\n")
            elif path == contract.PATH_FLEET:
                self._answer(200, contract.JSON, _fleet(ask, self.path))
            elif (file := ui.read(path, ui.Mode.FLEET)) is not None:
                self._answer(200, *file)
            else:
                self._answer(404, "text/plain", b"served here: /\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a line a second helps nobody."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server


def _fleet(ask: Ask, path: str) -> bytes:
    """The operator's answer, or why there is none, in a form that the page reads."""
    try:
        status, body = ask(path)
    except click.ClickException as error:
        return json.dumps({"error": error.message}).encode()
    if status != 200:  # noqa: PLR2004 - HTTP: OK
        text = f"the operator answers {status}: is it older than this command?"
        return json.dumps({"error": text}).encode()
    return body
