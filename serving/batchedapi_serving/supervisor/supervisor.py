"""The life of a replica: start everything, replace what dies, drain and stop on SIGTERM."""

import asyncio
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_serving.errors import LoadError
from batchedapi_serving.metrics import slots
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.admin import AdminApp, AdminServer
from batchedapi_serving.supervisor.children import Backoff, Child

log = logging.getLogger(__name__)

_STOP_MARGIN: Final = contract.TERMINATION_MARGIN_SECONDS / 2
"""Seconds a drained web process gets to end, within the pod's own termination margin."""


class Supervisor:
    """Owner of the replica's processes."""

    def __init__(
        self,
        settings: ReplicaSettings,
        listener: socket.socket,
        admin_listener: socket.socket,
        environment: Mapping[str, str],
        announce: Callable[[Any], None],
    ) -> None:
        """`environment` is the model processes'; `announce` gets an example when ready."""
        self._settings = settings
        self._listener = listener
        self._admin_listener = admin_listener
        self._environment = environment
        self._announce = announce
        self._web = Child("web", "batchedapi_serving.web")
        self._models = [
            Child(f"model-{i}", "batchedapi_serving.model") for i in range(settings.processes)
        ]
        slots.create_memory(settings.metrics_path)
        self._memory = slots.map_memory(settings.metrics_path)
        self._memory[slots.START_TIME] = time.time()
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failure: LoadError | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT and the drain are over.

        Raises:
            LoadError: the predictor could not be started at all.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        web = asyncio.create_task(self._keep_web())
        models = [asyncio.create_task(self._keep_model(i)) for i in range(len(self._models))]
        admin, admin_task = self._start_admin()
        await self._draining.wait()
        await self._drain(web)
        self._stopping.set()
        for child in self._models:
            child.signal(
                signal.SIGKILL
            )  # nothing runs there any more, and user code may not listen
        await asyncio.gather(*models)
        admin.should_exit = True
        await admin_task
        if self._failure is not None:
            raise self._failure

    def _start_admin(self) -> "tuple[AdminServer, asyncio.Task[None]]":
        memory = self._memory

        def started() -> bool:
            return memory[slots.READY] > 0

        def ready() -> bool:
            return started() and not self._draining.is_set() and self._web.pid is not None

        server = AdminServer(AdminApp(memory, started=started, ready=ready))
        return server, asyncio.create_task(server.answer(self._admin_listener))

    def _asked_to_stop(self) -> None:
        if self._draining.is_set():  # asked twice: at once
            self._web.signal(signal.SIGKILL)
        self._draining.set()

    async def _drain(self, web: "asyncio.Task[None]") -> None:
        """Have the web process answer what it has; replaced models still help it."""
        self._web.signal(signal.SIGTERM)
        self._listener.close()  # it goes on accepting for drain_delay through its own descriptor
        timeout = self._settings.timeout
        limit = None if timeout is None else self._settings.drain_delay + timeout + _STOP_MARGIN
        _, late = await asyncio.wait((web,), timeout=limit)
        if late:
            log.error("web process did not stop in time", extra={"seconds": limit})
            self._web.signal(signal.SIGKILL)
            await web

    # ------------------------------------------------------------ the web process

    async def _keep_web(self) -> None:
        backoff = Backoff()
        while True:
            ours, theirs = socket.socketpair()
            control = asyncio.create_task(self._listen(ours))
            arguments = [self._settings.runtime, str(self._listener.fileno()), str(theirs.fileno())]
            descriptors = (self._listener.fileno(), theirs.fileno())
            await self._web.start(arguments, descriptors=descriptors)
            if self._draining.is_set():  # asked to stop while it was being started
                self._web.signal(signal.SIGTERM)
            theirs.close()  # the child has its own copy, and its end is to be seen here
            code = await self._web.ended()
            control.cancel()
            if self._draining.is_set():
                return
            log.error("web process ended", extra={"code": code})
            self._memory[slots.WEB_RESTARTS] += 1
            if await _came(self._draining, within=backoff.take()):
                return

    async def _listen(self, control: socket.socket) -> None:
        """Messages of the web process: {"ready": example} and {"replace": pid}."""
        reader, writer = await asyncio.open_connection(sock=control)
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "ready" in message:
                    self._announce(message["ready"])
                elif "replace" in message:
                    self._kill_model(message["replace"])
        finally:
            writer.close()

    def _kill_model(self, pid: int) -> None:
        for child in self._models:
            if child.pid == pid:
                log.warning("killing model process that hangs", extra={"pid": pid})
                child.signal(signal.SIGKILL)

    # ------------------------------------------------------------ model processes

    async def _keep_model(self, index: int) -> None:
        child, backoff, memory = self._models[index], Backoff(), self._memory
        environment = {**self._environment, "BATCHEDAPI_WORKER_INDEX": str(index)}
        while True:
            answered = memory[slots.ANSWERED + index]
            await child.start([self._settings.runtime, str(index)], environment)
            code = await child.ended()
            if self._stopping.is_set():
                return
            failure = self._failure_of(index, code)
            if not memory[slots.READY]:
                self._failure = self._failure or failure
                self._draining.set()
                self._web.signal(signal.SIGKILL)  # nothing was ever served: nothing to drain
                return
            log.error("model process ended", extra={"index": index, "error": str(failure)})
            memory[slots.MODEL_RESTARTS] += 1
            if memory[slots.ANSWERED + index] > answered:
                backoff.reset()
            if await _came(self._stopping, within=backoff.take()):
                return

    def _failure_of(self, index: int, code: int) -> LoadError:
        path: Path = self._settings.failure_path(index)
        if path.exists():
            value = json.loads(path.read_text())
            path.unlink()
            return LoadError(value["reason"], value["message"])
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        reason = "OutOfMemory" if code == -signal.SIGKILL else "CrashLooping"
        return LoadError(reason, f"model process {index} was ended {how}")


async def _came(event: asyncio.Event, *, within: float) -> bool:
    """Whether `event` was set within so many seconds."""
    try:
        return await asyncio.wait_for(event.wait(), within)
    except TimeoutError:
        return False
