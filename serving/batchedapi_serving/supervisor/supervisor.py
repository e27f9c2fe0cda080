"""The life of a replica: start everything, replace what dies, drain and stop on SIGTERM."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.placement import AdviceReason, Situation, advise
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import memory_limit, process_memory, usable_cpus
from batchedapi_serving.metrics import slots
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.predictor.files import MeasuredFiles
from batchedapi_serving.processes import Backoff, Child, came, first_of
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.admin import AdminApp, AdminServer
from batchedapi_serving.supervisor.environment import model_environments
from batchedapi_serving.supervisor.health import READINESS_CHECK_SECONDS, Readiness
from batchedapi_serving.supervisor.lifecycle import STARTS, CrashLoop, CrashLoopError, Life
from batchedapi_serving.supervisor.model_processes import ModelProcesses
from batchedapi_serving.supervisor.web_processes import WebProcesses

log = logging.getLogger(__name__)

_STOP_MARGIN: Final = contract.TERMINATION_MARGIN_SECONDS / 2
"""Seconds a drained web process gets to end, within the pod's own termination margin."""
MEASURE_SECONDS: Final = 30.0
"""Between measurements: to read a proportional share the kernel walks the process's pages."""
_SETTLE_SECONDS: Final = 1.0
"""Between looks whether the first model process is ready."""


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
        self._readiness = Readiness()
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
        loop, life, settings = asyncio.get_running_loop(), self._life, self._settings
        loop.set_exception_handler(life.callback_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            # not the loop's: those end with it, and who asks once more would change the exit code
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._asked_to_stop))
        advise_on(self._settings.processes, self._cpus, None)
        tasks = [
            life.kept("keeper of web processes", self._web.keep()),
            models := life.kept("keeper of model processes", self._load_and_keep_models()),
            life.kept("admin port", self._admin_server().serve()),
            life.kept("watch of readiness", self._watch_readiness()),
            life.kept(
                "watch of memory",
                watch_memory(
                    settings.processes, self._cpus, lambda: self._models.pids, self._memory
                ),
            ),
        ]
        try:
            await life.draining.wait()
            await self._drain()
            life.stopping.set()
            self._models.kill_all()
            self._fetcher.signal(signal.SIGKILL)
            await asyncio.wait((models,))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)
        if life.failure is not None:
            raise life.failure

    def _admin_server(self) -> AdminServer:
        def started() -> bool:
            return self._memory[slots.READY] > 0

        def ready() -> bool:
            able = self._readiness.able and self._web.alive
            return started() and able and not self._life.draining.is_set()

        measured = MeasuredFiles(self._settings.predictor_metrics_path).read
        app = AdminApp(
            self._memory,
            started=started, ready=ready, methods=lambda: self._methods, measured=measured,
        )  # fmt: skip
        return AdminServer(app, self._admin_listener)

    async def _watch_readiness(self) -> None:
        while True:
            await asyncio.sleep(READINESS_CHECK_SECONDS)
            if not self._memory[slots.READY]:
                continue
            blocks = (slots.method_block(self._memory, i) for i in range(len(self._methods)))
            able = self._readiness.able
            lanes = min((block[slots.LANES] for block in blocks), default=0.0)
            self._readiness.look(self._memory[slots.BEAT], lanes)
            if able != self._readiness.able:
                log.warning("readiness", extra={"able": not able, "lanes": lanes})

    def _asked_to_stop(self) -> None:
        if self._life.draining.is_set():  # asked twice: at once
            self._web.signal(signal.SIGKILL)
        self._life.draining.set()

    async def _drain(self) -> None:
        """Have the web processes answer what they have; replaced models still help them."""
        self._memory[slots.STOPPING] = 1.0
        self._listener.close()  # they go on accepting for drain_delay through their own descriptors
        if not self._memory[slots.READY]:
            self._web.signal(signal.SIGKILL)  # nothing was ever served: nothing to drain
        self._web.signal(signal.SIGTERM)
        timeout = self._settings.timeout
        limit = None if timeout is None else self._settings.drain_delay + timeout + _STOP_MARGIN
        if not await first_of(self._web.ended(), within=limit):
            log.error("web processes did not stop in time", extra={"seconds": limit})
            self._web.signal(signal.SIGKILL)
            await self._web.ended()

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
        if self._settings.model_uri is None or await self._fetched():
            await self._models.keep()

    async def _fetched(self) -> bool:
        """Whether the model is here; its path is then in the settings' file."""
        backoff, crashes, limit = Backoff(), CrashLoop(), self._settings.startup_limit
        while True:
            try:
                self._fetcher.start([self._settings.runtime], self._user_environment)
                break
            except OSError as error:
                log.error("model source could not be started", extra={"error": repr(error)})  # noqa: TRY400 - the machine's doing, not a bug's
                if crashes.failed(time.monotonic()):
                    text = f"model source failed to start {STARTS} times in a row: {error!r}"
                    self._life.fail(CrashLoopError(text))
            if await came(self._life.draining, within=backoff.take()):
                return False
        if not await first_of(self._fetcher.ended(), within=limit):
            self._fetcher.signal(signal.SIGKILL)
            text = f"the model was not here after {limit:g} s; raise spec.predictor.startupTimeout"
            self._life.fail(LoadError("StartupTimeout", text))
            return False
        code = await self._fetcher.ended()
        if self._life.draining.is_set():
            return False
        if code != 0:
            path = self._settings.failure_path(FETCH)
            self._life.fail(self._fetcher.failure(path, code))
        return code == 0


def advise_on(processes: int, cpus: float, process_memory: float | None) -> None:
    """Log what should be said about a replica of so many model processes.

    Args:
        processes: Asked for.
        cpus: Usable.
        process_memory: Bytes of the largest one; None: not known yet.
    """
    situation = Situation(
        processes=processes,
        cpus=cpus,
        memory=memory_limit(),
        process_memory=process_memory,
        max_batch_size=1,
        full_batch_seconds=None,
        latency_target=None,
    )
    wanted = AdviceReason.PROCESSES if process_memory is None else AdviceReason.MEMORY
    for advice in advise(situation):
        if advice.reason is wanted:
            log.warning("advice", extra={"reason": advice.reason.value, "text": advice.text})


async def watch_memory(
    processes: int, cpus: float, pids: Callable[[], Sequence[int]], memory: slots.Memory
) -> None:
    """Keep the gauge of the largest model process, and warn once; until cancelled."""
    warned = False
    while True:
        await asyncio.sleep(MEASURE_SECONDS if warned else _SETTLE_SECONDS)
        if not memory[slots.READY]:
            continue
        try:
            measured = await asyncio.to_thread(lambda: [process_memory(pid) for pid in pids()])
        except (OSError, RuntimeError) as error:  # no thread, or no descriptor left: the next time
            log.warning("memory is not measured", extra={"error": str(error)})
            continue
        largest = max((size for size in measured if size is not None), default=None)
        if largest is None:
            continue
        memory[slots.MODEL_MEMORY] = largest
        if not warned:
            advise_on(processes, cpus, largest)
            warned = True
