"""The life of a replica: start everything, replace what dies, drain and stop on SIGTERM."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.admin import AdminApp, AdminServer
from batchedapi_serving.supervisor.children import Child
from batchedapi_serving.supervisor.environment import model_environments
from batchedapi_serving.supervisor.machine import usable_cpus
from batchedapi_serving.supervisor.memory_watch import advise_on, watch_memory
from batchedapi_serving.supervisor.model_processes import ModelProcesses
from batchedapi_serving.supervisor.outcome import Life
from batchedapi_serving.supervisor.web_processes import WebProcesses

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
        """Give out the devices.

        Args:
            settings: Written to their file already.
            listener: Of predictions.
            admin_listener: Of health and metrics.
            environment: `spec.predictor.env`, for the processes that run user code.
            announce: Gets an example of the default method when the replica is ready.

        Raises:
            LoadError: the GPUs cannot be shared out as asked.
        """
        self._settings = settings
        self._listener = listener
        self._admin_listener = admin_listener
        self._announce = announce
        self._methods: tuple[tuple[str, int], ...] = ()
        slots.create_memory(settings.metrics_path)
        self._memory = slots.map_memory(settings.metrics_path)
        self._memory[slots.START_TIME] = time.time()
        self._cpus = usable_cpus()
        self._life = Life()
        self._fetcher = Child("model-source", "batchedapi_serving.model_source")
        self._user_environment = environment
        self._web = WebProcesses(settings, self._memory, listener, self._life, self._heard)
        self._models = ModelProcesses(
            settings,
            self._memory,
            model_environments(settings, os.environ, environment, self._cpus),
            max(1, int(self._cpus)),
            self._life,
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT and the drain are over.

        Raises:
            LoadError: the predictor could not be started at all, or not be kept alive.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        advise_on(self._settings.processes, self._cpus, None)
        web = asyncio.create_task(self._web.keep())
        models = asyncio.create_task(self._load_and_keep_models())
        admin = self._admin_server()
        answering = asyncio.create_task(admin.answer(self._admin_listener))
        watching = asyncio.create_task(
            watch_memory(
                self._settings.processes, self._cpus, lambda: self._models.pids, self._memory
            )
        )
        await self._life.draining.wait()
        await self._drain(web)
        self._life.stopping.set()
        self._models.kill_all()
        self._fetcher.signal(signal.SIGKILL)
        watching.cancel()
        await models
        admin.should_exit = True
        await answering
        if self._life.failure is not None:
            raise self._life.failure

    def _admin_server(self) -> AdminServer:
        memory = self._memory

        def started() -> bool:
            return memory[slots.READY] > 0

        def ready() -> bool:
            return started() and not self._life.draining.is_set() and self._web.alive

        return AdminServer(
            AdminApp(
                memory,
                started=started,
                ready=ready,
                methods=lambda: self._methods,
            )
        )

    def _asked_to_stop(self) -> None:
        if self._life.draining.is_set():  # asked twice: at once
            self._web.signal(signal.SIGKILL)
        self._life.draining.set()

    async def _drain(self, web: "asyncio.Task[None]") -> None:
        """Have the web processes answer what they have; replaced models still help them."""
        self._listener.close()  # they go on accepting for drain_delay through their own descriptors
        if not self._memory[slots.READY]:
            self._web.signal(signal.SIGKILL)  # nothing was ever served: nothing to drain
        self._web.signal(signal.SIGTERM)
        timeout = self._settings.timeout
        limit = None if timeout is None else self._settings.drain_delay + timeout + _STOP_MARGIN
        _, late = await asyncio.wait((web,), timeout=limit)
        if late:
            log.error("web processes did not stop in time", extra={"seconds": limit})
            self._web.signal(signal.SIGKILL)
            await web

    def _heard(self, message: dict[str, Any]) -> None:
        """A message of a web process: {"ready": example, "methods": ...} or {"replace": pid}."""
        if "ready" in message:
            known = bool(self._methods)
            self._methods = tuple((name, size) for name, size in message["methods"])
            if not known:
                self._announce(message["ready"])
        elif "replace" in message:
            self._models.kill(message["replace"])

    async def _load_and_keep_models(self) -> None:
        if self._settings.model_uri is not None and not await self._fetched():
            return
        await self._models.keep()

    async def _fetched(self) -> bool:
        """Whether the model is here; its path is then in the settings' file."""
        await self._fetcher.start([self._settings.runtime], self._user_environment)
        if self._life.draining.is_set():  # asked to stop while it was being started
            self._fetcher.signal(signal.SIGKILL)
        code = await self._fetcher.ended()
        if self._life.draining.is_set():
            return False
        if code != 0:
            path = self._settings.failure_path(FETCH)
            self._life.fail(self._fetcher.failure(path, code))
        return code == 0
