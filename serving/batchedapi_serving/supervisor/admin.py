"""The admin port: health, metrics and a page to look at, answered by the supervisor itself.

Whoever asks last is served first: connections that do nothing, or do it slowly, are closed to make
room, and some descriptors are set aside for times when the machine has no other left.
"""

import asyncio
import contextlib
import email.utils
import functools
import hmac
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

import h11
from prometheus_client import CONTENT_TYPE_LATEST

from batchedapi_core import contract, ui
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import Part, scaling_page, whole_page
from batchedapi_serving.predictor.files import PredictorMetrics
from batchedapi_serving.processes import close, may_open
from batchedapi_serving.settings import ReplicaSettings, Role
from batchedapi_serving.web.limits import Limits

log = logging.getLogger(__name__)

Methods = Sequence[tuple[str, int]]
"""Name and configured batch size of each method, in the order of their blocks in the memory."""
Answer = tuple[int, str, bytes]
"""Status, content type and body."""

MAX_CONNECTIONS: Final = 256
"""Open at once; one more closes the one that has been quiet for longest."""
_DESCRIPTORS: Final = 1024
"""Wanted by the supervisor, whose other half is for its processes and their pipes."""
_RESERVED: Final = 8
"""Descriptors set aside to accept with."""
_LIMITS: Final = Limits(body=0, idle=75.0)
"""No load balancer stands in front of this port, so that idle connections need not stay."""
_RETRY_SECONDS: Final = 0.1
_READ_BYTES: Final = 65536
_LONGEST_POLL: Final = 60.0
_POLL_SECONDS: Final = 0.02
"""Between looks of who waits for the first row: nothing beside the start of a pod."""
_RECENT_SECONDS: Final = 5.0
"""For one pod to take the recent rows; others that ask wait for it in the model process."""
_WHOLE: Final = Part()
_TEXT: Final = "text/plain; charset=utf-8"
_NOT_FOUND: Final = (404, _TEXT, b"served here: / /metrics /livez /readyz /startupz\n")


class AdminApp:
    """The admin port."""

    def __init__(
        self,
        memory: slots.Memory,
        *,
        started: Callable[[], bool],
        ready: Callable[[], bool],
        methods: Callable[[], Methods],
        measured: Callable[[], PredictorMetrics] = PredictorMetrics,
        part: Part = _WHOLE,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """`measured` is what the predictor counts itself; `cpu`: seconds of all processes."""
        self._cpu = cpu
        self._part = part
        self._memory = memory
        self._measured = measured
        self._methods = methods
        self._started = started
        self._ready = ready

    def answer(self, method: str, path: str, query: str = "") -> Answer:
        """To one request; one that fails costs that request alone."""
        try:
            return self._answer(method, path, query)
        except Exception:
            log.exception("admin page failed", extra={"path": path[:100]})
            return 500, _TEXT, b"a bug of the server; its log has the details\n"

    def _answer(self, method: str, path: str, query: str) -> Answer:  # noqa: PLR0911 - one for each path
        if method not in {"GET", "HEAD"}:
            return 405, _TEXT, b"only GET is served here\n"
        match path:
            case contract.PATH_METRICS:
                memory, methods = self._memory, self._methods()
                memory[slots.PROCESS_CPU] = self._cpu()
                text = (
                    scaling_page(memory, methods, self._part)
                    if query == contract.QUERY_SCALING
                    else whole_page(memory, methods, *self._measured(), self._part)
                )
                return 200, CONTENT_TYPE_LATEST, text
            case contract.PATH_QUEUE if self._part.shared_queue and self._part.role != Role.WORKER:
                return 200, contract.JSON, json.dumps(self._queued()).encode()
            case contract.PATH_LIVE:
                return 200, _TEXT, b"alive\n"
            case contract.PATH_STARTUP:
                return _health(good=self._started(), yes=b"started\n", no=b"loading the model\n")
            case contract.PATH_READY:
                no = b"not able to answer, or draining\n"
                return _health(good=self._ready(), yes=b"ready\n", no=no)
            case _:
                page = ui.read(path, ui.Mode.REPLICA)
                return _NOT_FOUND if page is None else (200, *page)

    async def wait(self, path: str, query: str) -> None:
        """Before `answer`: of a long poll, until a row is in the queue or its time is over."""
        if path != contract.PATH_QUEUE:
            return
        with contextlib.suppress(ValueError):
            seconds = float(parse_qs(query).get("wait", ["0"])[0])
            until = time.monotonic() + min(seconds, _LONGEST_POLL)
            while time.monotonic() < until and not self._queued()["requests"]:  # noqa: ASYNC110 - it is shared memory: nobody sets an event
                await asyncio.sleep(_POLL_SECONDS)

    def _queued(self) -> dict[str, float]:
        """The length of the queue of all replicas, as far as is known here."""
        blocks = [slots.method_block(self._memory, i) for i in range(len(self._methods()))]
        return {
            "rows": sum(int(block[slots.QUEUE_ROWS]) for block in blocks),
            "requests": sum(int(block[slots.QUEUE_REQUESTS]) for block in blocks),
            "oldest_seconds": max((block[slots.QUEUE_OLDEST] for block in blocks), default=0.0),
        }


def _health(*, good: bool, yes: bytes, no: bytes) -> Answer:
    return (200, _TEXT, yes) if good else (503, _TEXT, no)


class RecentRows:
    """Hands the recent rows of the model process on, to pods of the same API alone."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._compare = settings.compare
        self._path = settings.recent_path

    async def answer(
        self,
        http: h11.Connection,
        connection: socket.socket,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        """Answer one request with those headers; where nothing is kept there is no such page.

        Rows pass in pieces, as fast as they are taken: whoever asks costs the memory of one piece.

        Raises:
            TimeoutError: they were not taken in time.
            OSError: the connection broke.
            h11.LocalProtocolError: there is nobody to answer.
        """
        refusal = self._refusal(headers)
        if refusal is None:
            try:
                rows, writer = await asyncio.open_unix_connection(self._path, limit=_READ_BYTES)
            except OSError:
                refusal = (503, _TEXT, b"the model process is not there; try again\n")
        if refusal is not None:
            await _send(http, connection, refusal, has_body=True)
            return
        with contextlib.closing(writer):
            async with asyncio.timeout(_RECENT_SECONDS):
                head = _head("application/octet-stream")
                await _send_event(http, connection, h11.Response(status_code=200, headers=head))
                while data := await rows.read(_READ_BYTES):
                    await _send_event(http, connection, h11.Data(data=data))
                await _send_event(http, connection, h11.EndOfMessage())

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> Answer | None:
        if self._compare is None:
            return _NOT_FOUND
        given = dict(headers).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._compare.token}".encode()):
            return 401, _TEXT, b"expected the token of the pods of this API\n"
        return None


class AdminServer:
    """Owner of the admin port's connections."""

    def __init__(self, app: AdminApp, recent: RecentRows, listener: socket.socket) -> None:
        self._app = app
        self._recent = recent
        self._listener = listener
        self._most = min(MAX_CONNECTIONS, may_open(_DESCRIPTORS) // 2)
        self._spare: list[int] = []
        self._open: dict[asyncio.Task[None], None] = {}
        """Connections; the one that has been quiet for longest comes first."""

    async def serve(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            async with asyncio.TaskGroup() as group:
                self._set_aside()
                while True:
                    try:
                        connection, _ = await loop.sock_accept(self._listener)
                    except OSError as error:
                        # A descriptor is given for whoever waits, or somebody else's connection.
                        log.warning("admin port cannot accept", extra={"error": str(error)})
                        if self._spare:
                            close(self._spare.pop())
                        else:
                            self._close_quietest()
                            await asyncio.sleep(_RETRY_SECONDS)
                        continue
                    task = group.create_task(self._converse(connection))
                    self._open[task] = None
                    task.add_done_callback(functools.partial(self._over, connection))
                    if len(self._open) > self._most:
                        self._close_quietest()
                    self._set_aside()  # after it was accepted: it may be what was given for it
                    await asyncio.sleep(0)  # whoever is here already is answered before the next
        finally:
            while self._spare:
                close(self._spare.pop())

    def _over(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._open.pop(task, None)
        with contextlib.suppress(OSError):
            connection.close()

    def _set_aside(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < _RESERVED:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def _close_quietest(self) -> None:
        for task in self._open:
            if not task.cancelling():
                task.cancel()
                return

    async def _converse(self, connection: socket.socket) -> None:
        """Answer what is asked on one connection, until it ends or its time is over."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LIMITS.headers)
        with contextlib.suppress(
            OSError, h11.LocalProtocolError
        ):  # TimeoutError is one of the first
            try:
                within = _LIMITS.header_arrival
                while (request := await _request(http, connection, within)) is not None:
                    method, target = request.method.decode(), request.target.decode()
                    try:
                        asked = urlsplit(target)
                    except ValueError:  # an address that is none
                        asked = urlsplit("")
                    if method == "GET" and asked.path == contract.PATH_RECENT:
                        await self._recent.answer(http, connection, request.headers)
                    else:
                        await self._app.wait(asked.path, asked.query)
                        answer = self._app.answer(method, asked.path, asked.query)
                        await _send(http, connection, answer, has_body=method != "HEAD")
                    if http.our_state is h11.MUST_CLOSE or http.their_state is h11.MUST_CLOSE:
                        return  # it was asked to close
                    http.start_next_cycle()
                    task = asyncio.current_task()
                    if task in self._open:
                        self._open[task] = self._open.pop(task)  # it is the least quiet now
                    within = _LIMITS.idle
            except h11.RemoteProtocolError as error:
                told = (error.error_status_hint, _TEXT, f"{error}\n".encode())
                await _send(http, connection, told, has_body=True)


async def _request(
    http: h11.Connection, connection: socket.socket, within: float
) -> h11.Request | None:
    """The next request, its body dropped; None: the client has left.

    Args:
        within: Seconds until its first byte; from there on it has the limit of headers.

    Raises:
        TimeoutError: it did not come in time.
        OSError: the connection broke.
        h11.RemoteProtocolError: it is not HTTP/1.
    """
    loop = asyncio.get_running_loop()
    request: h11.Request | None = None
    begun = within <= _LIMITS.header_arrival
    async with asyncio.timeout(within) as limit:
        while True:
            match http.next_event():
                case h11.Request() as head:
                    request = head
                case h11.EndOfMessage():
                    return request
                case h11.NEED_DATA:
                    data = await loop.sock_recv(connection, _READ_BYTES)
                    if not begun:
                        begun = True
                        limit.reschedule(loop.time() + _LIMITS.header_arrival)
                    http.receive_data(data)
                case h11.ConnectionClosed() | h11.PAUSED:
                    return None


async def _send(
    http: h11.Connection, connection: socket.socket, answer: Answer, *, has_body: bool
) -> None:
    """Write one response; who takes less than the least rate is given up.

    Raises:
        TimeoutError: it was not taken in time.
        OSError: the connection broke.
        h11.LocalProtocolError: there is nobody to answer.
    """
    status, content_type, body = answer
    headers = [*_head(content_type), ("content-length", str(len(body)))]
    parts = [http.send(h11.Response(status_code=status, headers=headers))]
    if has_body:
        parts.append(http.send(h11.Data(data=body)))
    parts.append(http.send(h11.EndOfMessage()))
    data = b"".join(part for part in parts if part is not None)
    async with asyncio.timeout(_LIMITS.grace_period + len(data) / _LIMITS.least_rate):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def _send_event(http: h11.Connection, connection: socket.socket, event: h11.Event) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, http.send(event) or b"")


def _head(content_type: str) -> list[tuple[str, str]]:
    return [("date", email.utils.formatdate(usegmt=True)), ("content-type", content_type)]
