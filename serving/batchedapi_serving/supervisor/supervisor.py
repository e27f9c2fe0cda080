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
from batchedapi_core.placement import AdviceReason, Situation, advise
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import cpu_seconds, memory_limit, usable_cpus
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import Part
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.predictor.files import MeasuredFiles
from batchedapi_serving.processes import Backoff, Child, came, first_of
from batchedapi_serving.settings import ReplicaSettings, Role
from batchedapi_serving.signals import signals_heard
from batchedapi_serving.supervisor.admin import AdminApp, AdminServer, RecentRows
from batchedapi_serving.supervisor.adopted import Adopted
from batchedapi_serving.supervisor.lifecycle import (
    READINESS_CHECK_SECONDS,
    STARTS,
    CrashLoop,
    CrashLoopError,
    Life,
    Readiness,
)
from batchedapi_serving.supervisor.model_processes import ModelProcesses, model_environments
from batchedapi_serving.supervisor.web_processes import (
    ServingProcesses,
    web_processes,
    worker_process,
)

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
        listener: socket.socket | None,
        admin_listener: socket.socket,
        environment: Mapping[str, str],
        announce: Callable[[Any], None],
    ) -> None:
        """Give out the devices.

        Args:
            settings: Written to their file already.
            listener: Of predictions; None: of a worker, which has none.
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
        self._adopted = Adopted()
        # A model that is loaded has lanes; a worker has something to run once it reaches its queue.
        takes = settings.queue is not None and settings.role is not Role.WEB
        self._readiness = Readiness(waits=takes)
        self._fetcher = Child("model-source", "batchedapi_serving.model_source")
        self._user_environment = environment
        self._closing: set[int] = set()
        """Pids of web processes that let nobody in any more."""
        self._web: ServingProcesses | None = None
        self._worker: ServingProcesses | None = None
        self._models: ModelProcesses | None = None
        self._adopted.beside([self._fetcher])
        if listener is not None:
            self._web = web_processes(settings, self._memory, listener, self._life, self._heard)
            self._adopted.beside(self._web.children)
        if settings.role is Role.WEB:
            return
        if settings.queue is not None:
            self._worker = worker_process(settings, self._memory, self._life, self._heard)
            self._adopted.beside(self._worker.children)
        self._models = ModelProcesses(
            settings,
            self._memory,
            model_environments(settings, os.environ, environment, self._cpus),
            max(1, int(self._cpus)),
            self._life,
            end_orphans=self._adopted.end_of,
        )
        self._adopted.beside([*self._models.children, self._models.fork_server])

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
        signals_heard()
        loop.add_signal_handler(signal.SIGCHLD, self._adopted.reap)
        self._adopted.reap()
        tasks = [
            life.kept("admin port", self._admin_server().serve()),
            life.kept("watch of readiness", self._watch_readiness()),
        ]
        if self._web is not None:
            tasks.append(life.kept("keeper of web processes", self._web.keep()))
        if self._worker is not None:
            tasks.append(life.kept("keeper of the worker", self._worker.keep()))
        models, keeping = self._models, None
        if models is not None:
            advise_on(settings.processes, self._cpus, None)
            keeping = life.kept("keeper of model processes", self._load_and_keep(models))
            watch = watch_memory(settings.processes, self._cpus, models.memory, self._memory)
            tasks += [keeping, life.kept("watch of memory", watch)]
        try:
            await life.draining.wait()
            await self._drain()
            life.stopping.set()
            if models is not None and keeping is not None:
                models.kill_all()
                self._fetcher.signal(signal.SIGKILL)
                await asyncio.wait((keeping,))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)
        await self._adopted.end_all()
        if life.failure is not None:
            raise life.failure

    @property
    def _takers(self) -> "list[ServingProcesses]":
        """Processes that take requests: from clients, and out of the queue of all replicas."""
        return [one for one in (self._web, self._worker) if one is not None]

    @property
    def _pids(self) -> list[int]:
        models = () if self._models is None else (*self._models.pids, self._models.fork_server.pid)
        takers = (pid for one in self._takers for pid in one.pids)
        return [pid for pid in (*models, *takers) if pid is not None]

    def _admin_server(self) -> AdminServer:
        def started() -> bool:
            return self._memory[slots.READY] > 0

        def ready() -> bool:
            able = self._readiness.able and all(one.alive for one in self._takers)
            return started() and able and not (self._life.draining.is_set() and self._leaves())

        measured = MeasuredFiles(self._settings.predictor_metrics_path).read
        app = AdminApp(
            self._memory,
            started=started, ready=ready, methods=lambda: self._methods, measured=measured,
            cpu=lambda: cpu_seconds(self._pids),
            part=Part(self._settings.role.value, shared_queue=self._settings.queue is not None),
        )  # fmt: skip
        return AdminServer(app, RecentRows(self._settings), self._admin_listener)

    def _leaves(self) -> bool:
        """Whether a replica that stops says so: outside of a pod nobody else does."""
        if self._web is None or self._life.failure is not None or not self._settings.in_pod:
            return True
        return self._closing.issuperset(self._web.pids)

    async def _watch_readiness(self) -> None:
        while True:
            await asyncio.sleep(READINESS_CHECK_SECONDS)
            if not self._memory[slots.READY] or not self._methods:
                continue
            blocks = (slots.method_block(self._memory, i) for i in range(len(self._methods)))
            able = self._readiness.able
            lanes = min((block[slots.LANES] for block in blocks), default=0.0)
            if self._settings.role is Role.WEB:
                lanes = 1.0  # they are elsewhere
            elif self._settings.queue is not None:  # without it, nothing comes to them
                lanes *= self._memory[slots.CONNECTED]
            beat = slots.WORKER_BEAT if self._web is None else slots.BEAT
            self._readiness.look(self._memory[beat], lanes)
            if able != self._readiness.able:
                level = logging.WARNING if able else logging.INFO
                log.log(level, "readiness", extra={"able": not able, "lanes": lanes})

    def _asked_to_stop(self) -> None:
        if self._life.draining.is_set():  # asked twice: at once
            for one in self._takers:
                one.signal(signal.SIGKILL)
        self._life.draining.set()

    async def _drain(self) -> None:
        """Have everybody answer what they have; replaced models still help them."""
        self._memory[slots.STOPPING] = 1.0
        if self._listener is not None:
            self._listener.close()  # they go on accepting for drain_delay through their own
        for one in self._takers:  # a worker has work as long as the web processes beside it
            if not self._memory[slots.READY]:
                one.signal(signal.SIGKILL)  # nothing was ever served: nothing to drain
            one.signal(signal.SIGTERM)
            timeout = self._settings.timeout
            limit = None if timeout is None else self._settings.drain_delay + timeout + _STOP_MARGIN
            if not await first_of(one.ended(), within=limit):
                log.error("processes did not stop in time", extra={"seconds": limit})
                one.signal(signal.SIGKILL)
                await one.ended()

    def _heard(self, message: dict[str, Any]) -> None:
        """A message of a web process: {"ready": example, "methods": ...}, {"replace": pid}.

        {"closing": pid}, its own, when it stops. A worker says {"loaded": methods}.
        """
        if "ready" in message:
            known = bool(self._methods)
            self._methods = tuple((name, size) for name, size in message["methods"])
            if not known:
                self._announce(message["ready"])
        elif "loaded" in message:
            if self._web is None:  # else its web process says the same, once it knows
                self._methods = tuple((name, size) for name, size in message["loaded"])
        elif "closing" in message:
            self._closing.add(message["closing"])
        elif "replace" in message and self._models is not None:
            self._models.kill(message["replace"])

    async def _load_and_keep(self, models: ModelProcesses) -> None:
        if self._settings.model is None or await self._fetched():
            await models.keep()

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
    processes: int, cpus: float, measure: Callable[[], float | None], memory: slots.Memory
) -> None:
    """Keep the gauge of the largest model process, and warn once; until cancelled."""
    warned = False
    while True:
        await asyncio.sleep(MEASURE_SECONDS if warned else _SETTLE_SECONDS)
        if not memory[slots.READY]:
            continue
        try:
            largest = await asyncio.to_thread(measure)
        except (OSError, RuntimeError) as error:  # no thread, or no descriptor left: the next time
            log.warning("memory is not measured", extra={"error": str(error)})
            continue
        if largest is None:
            continue
        memory[slots.MODEL_MEMORY] = largest
        if not warned:
            advise_on(processes, cpus, largest)
            warned = True
