"""The model process's connections to the dispatcher: lanes, and the channel.

A lane is a thread that runs one batch of a sync method at a time; the only one is the main thread.
The channel is one event loop, in a thread of its own, on which async methods run side by side. All
calls share the loop's thread, as in every asyncio program: what computes belongs into a sync
method, which lanes run, and is awaited here by `context.submit`.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.ipc import (
    MEMORIES,
    BrokenFrameError,
    FrameProtocol,
    Meta,
    Payload,
    SharedMemory,
    encode_frame,
    read_frames,
)
from batchedapi_serving.logs import name_of, traceback_of
from batchedapi_serving.model.streams import Outlet
from batchedapi_serving.predictor.api import TRACE_HEADERS
from batchedapi_serving.processes import EXIT_UNFIT, kept_from_forks
from batchedapi_serving.standard_descriptors import open_standard_descriptors

log = logging.getLogger(__name__)
RECONNECT_SECONDS: Final = 0.05
_BUFFER_BYTES: Final = 1 << 20
T = TypeVar("T")
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_RESTARTED: Final = "the web process was restarted"
CURRENT_CALL: Final = contextvars.ContextVar[int | None]("current_call", default=None)
"""Id of the call in whose task, or a task of its making, the code runs."""


class FrameRunner(Protocol):
    """Answers frames of batches; see BatchRunner."""

    def run(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[Payload]]:
        """Answer one, in the thread of a lane."""

    async def run_async(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[Payload]]:
        """Answer one of an async method."""

    def streams(self, method: str) -> bool:
        """Whether that method is answered item by item."""

    async def run_stream(
        self, meta: Meta, payload: Payload, outlet: Outlet
    ) -> tuple[Meta, Sequence[Payload]]:
        """Answer one call with a stream."""


class UnfitError(Exception):
    """No batch can succeed in this process any more: it ends, and is replaced."""


class LaneThreads:
    """The threads in which sync methods run, from their warm-up to their last batch.

    If there is one it is the main thread, in which the predictor was made: what belongs to a thread
    holds, and signals have handlers. Several are threads of their own, each with a copy of what the
    constructor has set as context, such as decimal's precision.

    A lane never ends by itself; if user code ends its thread, the process goes with it: the
    supervisor replaces a process, and nobody would replace a thread.
    """

    def __init__(self, count: int) -> None:
        self._threads = [
            (ThreadPoolExecutor(1, f"lane-{i}"), contextvars.copy_context())
            for i in range(count if count > 1 else 0)
        ]
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def call(self, function: Callable[[], T]) -> T:
        """Call it in the first lane; from the main thread."""
        return self._submit(0, function).result() if self._threads else function()

    def each(self, function: Callable[[], T]) -> T:
        """Call it in every lane, one after the other; what it answered in the first."""
        first = self.call(function)
        for i in range(1, len(self._threads)):
            self._submit(i, function).result()
        return first

    def _submit(self, lane: int, function: Callable[[], T]) -> "concurrent.futures.Future[T]":
        pool, context = self._threads[lane]
        return pool.submit(context.run, function)

    def wait(self, future: "concurrent.futures.Future[T]") -> T:
        """The result from an event loop, which may `want` a lane meanwhile."""
        future.add_done_callback(lambda _: self._asked.put(None))
        while (asked := self._asked.get()) is not None:
            asked()
        return future.result()

    async def want(self, function: Callable[[], T]) -> T:
        """Call it in the first lane, from an event loop for which the main thread waits."""
        if self._threads:
            return await asyncio.wrap_future(self._submit(0, function))
        answered: concurrent.futures.Future[T] = concurrent.futures.Future()

        def answer() -> None:
            if answered.set_running_or_notify_cancel():
                answered.set_result(function())

        self._asked.put(answer)
        return await asyncio.wrap_future(answered)

    def serve(self, path: Path, runner: FrameRunner, hello: Mapping[str, Any]) -> None:
        """Run batches until the process ends."""
        serve = functools.partial(_run_lane, path, runner, hello)
        if not self._threads:
            serve()
        for future in [self._submit(i, serve) for i in range(len(self._threads))]:
            future.result()


def _run_lane(path: Path, runner: FrameRunner, hello: Mapping[str, Any]) -> None:
    try:
        serve_lane(path, runner, hello)
    except UnfitError:
        log.exception("lane ended; the process ends with it")
        os._exit(EXIT_UNFIT)
    except BaseException:
        log.exception("lane ended; the process ends with it")
        raise
    finally:
        os._exit(1)


def serve_lane(path: Path, runner: FrameRunner, hello: Mapping[str, Any]) -> None:
    """Run what the dispatcher sends, one batch after another; never returns.

    Raises:
        UnfitError: the process has to end; the batch is not answered, and run again elsewhere.
    """
    supervisor = os.getppid()
    memories = [SharedMemory.create() for _ in range(MEMORIES)]
    announced = [memory.hello() for memory in memories]
    shared = [descriptor for one in announced for descriptor in one]
    while True:
        try:
            with (
                _connected(path, supervisor) as connection,
                kept_from_forks(connection.fileno(), *shared),
            ):
                connection.sendall(encode_frame({"hello": {**hello, "memories": announced}}))
                _serve_batches(connection, runner, memories)
        except ConnectionError as error:
            log.debug("lane reconnects", extra={"error": repr(error)})
            time.sleep(RECONNECT_SECONDS)


def _serve_batches(
    connection: socket.socket, runner: FrameRunner, memories: Sequence[SharedMemory]
) -> None:
    try:
        for meta, payload in read_frames(connection):
            memory = memories[meta.get("memory", 0)]
            TRACE_HEADERS.set(meta.get("trace"))
            result, buffers = runner.run(meta, memory.view(meta, payload))
            if "unfit" in result:
                raise UnfitError(result["error"])  # noqa: TRY301 - past what follows
            connection.sendall(memory.encode(result, buffers))
    except (OSError, UnfitError):
        raise
    except BaseException as error:
        # No memory for the answer, or a handler of signals of user code, which may raise anywhere
        # in the main thread. What was sent is not known: another connection begins anew.
        log.exception("lane was interrupted")
        raise ConnectionAbortedError from error


def end_without(supervisor: int) -> None:
    """End this process if its parent is no longer `supervisor`."""
    if os.getppid() != supervisor:
        os._exit(1)


class OwnSocket(socket.socket):
    """As we need it, whatever user code has made of time-outs, SIGPIPE and standard streams."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        open_standard_descriptors()
        super().__init__(*arguments, **named)
        self.settimeout(None)

    def send(self, data: Any, flags: int = 0) -> int:
        """See socket.socket."""
        return super().send(data, flags | _NO_SIGNAL)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See socket.socket."""
        super().sendall(data, flags | _NO_SIGNAL)

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, *address: Any) -> int:
        """See socket.socket."""
        return super().sendmsg(buffers, ancdata, flags | _NO_SIGNAL, *address)


def _connected(path: Path, supervisor: int) -> socket.socket:
    """A connection to the dispatcher, waiting for it as long as there is a supervisor."""
    while True:
        end_without(supervisor)
        connection = OwnSocket(socket.AF_UNIX)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            connection.close()
            time.sleep(RECONNECT_SECONDS)
        else:
            return connection


class ConnectionLostError(ConnectionError):
    """The dispatcher is gone, and with it whoever asked."""


class ChannelLoop:
    """An event loop in a thread of its own, and the connection that it serves once told to."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._connection: _WorkerConnection | None = None

    def start(self) -> None:
        """Start the thread, which knows what the constructor has set as context.

        If it ends, which user code can bring about, so does the process.
        """
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run,), name="channel", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self.loop.is_closed():
                with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task of user code
                    self.loop.run_forever()
        except BaseException:
            log.exception("channel ended; the process ends with it")
            raise
        finally:
            os._exit(1)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run it there; see LaneThreads.wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def serve(self, path: Path, runner: FrameRunner, hello: Mapping[str, Any]) -> None:
        """Connect to the dispatcher from now on, again and again."""
        serving = asyncio.run_coroutine_threadsafe(self._serve(path, runner, hello), self.loop)
        serving.add_done_callback(_serving_ended)

    async def submit(self, meta: Meta, payload: Sequence[bytes]) -> tuple[Meta, bytes]:
        """Submit rows, see dispatch.channel; on the loop's thread only.

        Raises:
            ConnectionLostError: there is no dispatcher, or it went away.
        """
        if self._connection is None:
            raise ConnectionLostError("there is no web process just now")
        return await self._connection.submit(meta, payload)

    async def _serve(self, path: Path, runner: FrameRunner, hello: Mapping[str, Any]) -> None:
        supervisor = os.getppid()
        while True:
            end_without(supervisor)  # nor does a process that was forked from a call serve any
            # User code may cancel every task there is.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                self._connection = await self._connected(path, runner, hello)
            while self._connection is not None and not self._connection.closed.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self._connection.closed.wait()
            self._connection = None
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _connected(
        self, path: Path, runner: FrameRunner, hello: Mapping[str, Any]
    ) -> "_WorkerConnection":
        connecting = OwnSocket(socket.AF_UNIX)
        try:
            connecting.setblocking(False)
            await self.loop.sock_connect(connecting, str(path))
            _, connection = await self.loop.create_unix_connection(
                lambda: _WorkerConnection(runner, {**hello, "channel": True}), sock=connecting
            )
        except BaseException:
            connecting.close()
            raise
        return connection


def _serving_ended(serving: "concurrent.futures.Future[None]") -> None:
    """It goes on for as long as the process; without it no async method would be answered."""
    log.error("channel ended; the process ends with it", exc_info=serving.exception())
    os._exit(1)


class _WorkerConnection(FrameProtocol):
    """One connection: its calls and submits end with it, for nobody could be told of them."""

    PEER = "the dispatcher"

    def __init__(self, runner: FrameRunner, hello: Meta) -> None:
        super().__init__()
        self._runner = runner
        self._hello = hello
        self._calls: dict[int, asyncio.Task[tuple[Meta, Sequence[Payload]]]] = {}
        self._outlets: dict[int, Outlet] = {}
        """By call: of those that are streams."""
        self._submits: dict[int, asyncio.Future[tuple[Meta, bytes]]] = {}
        self._next = 0
        self._kept = contextlib.ExitStack()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("socket").fileno()
        self._kept.enter_context(kept_from_forks(own))
        self.say({"hello": self._hello})

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.close()
        for future in self._submits.values():
            if not future.done():
                future.set_exception(ConnectionLostError(_RESTARTED))
        for task in self._calls.values():
            task.cancel()
        super().connection_lost(exc)

    def take(self, meta: Meta, payload: bytes) -> None:
        match meta:
            case {"call": int(call)}:
                context = contextvars.copy_context()
                context.run(CURRENT_CALL.set, call)
                if "trace" in meta:
                    context.run(TRACE_HEADERS.set, meta["trace"])
                coroutine = self._coroutine(call, meta, payload)
                # Not by the loop, to whose tasks user code may have done something.
                task = asyncio.Task(coroutine, loop=self._loop, context=context)
                self._calls[call] = task
                task.add_done_callback(functools.partial(self._finished, call))
            case {"cancel": int(call)}:
                if call in self._calls:
                    self._calls[call].cancel()
            case {"taken": int(call), "items": int(items)}:
                if call in self._outlets:
                    self._outlets[call].taken(items)
            case {"submitted": int(number)}:
                future = self._submits.pop(number, None)
                if future is not None and not future.done():
                    future.set_result((meta, payload))
            case _:
                raise BrokenFrameError(f"frame with {', '.join(meta)}")

    def _coroutine(
        self, call: int, meta: Meta, payload: bytes
    ) -> Coroutine[Any, Any, tuple[Meta, Sequence[Payload]]]:
        if not self._runner.streams(meta["method"]):
            return self._runner.run_async(meta, payload)

        def send(item: Item) -> None:
            if call in self._calls:  # else it ended, and a thread was a moment late
                self.say({"item": call, "kind": item.kind}, (item.body,))

        outlet = self._outlets[call] = Outlet(send)
        return self._runner.run_stream(meta, payload, outlet)

    def _finished(self, call: int, task: asyncio.Task[tuple[Meta, Sequence[Payload]]]) -> None:
        """Send the result; cancelled or not, the dispatcher waits for one."""
        del self._calls[call]
        self._outlets.pop(call, None)
        if task.cancelled():
            result: Meta = {"kind": "error", "error": "was cancelled"}
            buffers: Sequence[Payload] = ()
        elif (error := task.exception()) is not None:
            # Not answered, the call would count as running for ever.
            log.error("no answer of a call", extra={"traceback": traceback_of(error)})
            result, buffers = {"kind": "error", "error": f"raised {name_of(error)}"}, ()
        else:
            result, buffers = task.result()
            if "unfit" in result:
                log.error("call ended the process", extra={"error": result["error"]})
                os._exit(EXIT_UNFIT)
        self.say({**result, "result": call}, buffers)

    async def submit(self, meta: Meta, payload: Sequence[bytes]) -> tuple[Meta, bytes]:
        """See ChannelLoop.submit."""
        if self.closed.is_set():  # nobody would end what is awaited from now on
            raise ConnectionLostError(_RESTARTED)
        self._next += 1
        number = self._next
        answered: asyncio.Future[tuple[Meta, bytes]] = asyncio.get_running_loop().create_future()
        self._submits[number] = answered
        self.say({**meta, "submit": number, "call": CURRENT_CALL.get()}, payload)
        try:
            return await answered
        except asyncio.CancelledError:
            self.say({"forget": number})
            raise
        finally:
            self._submits.pop(number, None)
