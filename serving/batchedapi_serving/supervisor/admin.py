"""The admin port: health and metrics, answered by the supervisor itself."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import page, scaling_page

Methods = Sequence[tuple[str, int]]
"""Name and configured batch size of each method, in the order of their blocks in the memory."""
_TEXT = "text/plain; charset=utf-8"


class AdminApp:
    """ASGI application of the admin port."""

    def __init__(
        self,
        memory: slots.Memory,
        *,
        started: Callable[[], bool],
        ready: Callable[[], bool],
        methods: Callable[[], Methods],
    ) -> None:
        self._memory = memory
        self._methods = methods
        self._started = started
        self._ready = ready

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002, D102 - ASGI
        status, content_type, body = self._answer(
            scope["method"], scope["path"], scope["query_string"].decode("latin-1")
        )
        headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, method: str, path: str, query: str) -> tuple[int, str, bytes]:
        if method not in {"GET", "HEAD"}:
            return 405, _TEXT, b"only GET is served here\n"
        match path:
            case contract.PATH_METRICS:
                write = scaling_page if query == contract.QUERY_SCALING else page
                return 200, CONTENT_TYPE_LATEST, write(self._memory, self._methods())
            case contract.PATH_LIVE:
                return 200, _TEXT, b"alive\n"
            case contract.PATH_STARTUP:
                return _health(good=self._started(), yes=b"started\n", no=b"loading the model\n")
            case contract.PATH_READY:
                return _health(good=self._ready(), yes=b"ready\n", no=b"not ready, or draining\n")
            case _:
                return 404, _TEXT, b"served here: /metrics /livez /readyz /startupz\n"


def _health(*, good: bool, yes: bytes, no: bytes) -> tuple[int, str, bytes]:
    return (200, _TEXT, yes) if good else (503, _TEXT, no)


class AdminServer(uvicorn.Server):
    """uvicorn without signal handlers: the supervisor has its own."""

    def __init__(self, app: AdminApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield

    async def answer(self, listener: socket.socket) -> None:
        """Serve until `should_exit`."""
        await self.serve(sockets=[listener])
