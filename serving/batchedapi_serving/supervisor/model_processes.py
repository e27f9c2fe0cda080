"""Keeps the model processes: environment, the order in which they load, replacement."""

import asyncio
import contextlib
import enum
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from batchedapi_core.placement import (
    THREAD_VARIABLES,
    GpuAssignment,
    PlacementError,
    assign_devices,
    cpu_threads,
)
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import VISIBLE, memory_of_each
from batchedapi_serving.metrics import slots
from batchedapi_serving.oom import read_oom_kills
from batchedapi_serving.orphans import WORKER_INDEX
from batchedapi_serving.predictor.files import forget_gauges
from batchedapi_serving.processes import (
    CONTROL_DESCRIPTOR,
    EXIT_UNFIT,
    FORKS,
    Backoff,
    Child,
    came,
    first_of,
    watch_once,
)
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.fork_server import ForkServer
from batchedapi_serving.supervisor.lifecycle import STARTS, CrashLoop, CrashLoopError, Life

log = logging.getLogger(__name__)

TELEMETRY_OFF: Final = "ORT_DISABLE_TELEMETRY"
"""Unset, onnxruntime's wheels start a thread as they are imported, which reports their use."""
Turn = contextlib.AbstractAsyncContextManager[None]


class _End(enum.Enum):
    """How far a model process came."""

    REFUSED = "refused"
    """The machine had no process, memory or descriptor for it."""
    FAILED = "failed"
    """It ended before its model was loaded."""
    KILLED = "killed"
    """The same, by somebody else: that says nothing about the next start."""
    LATE = "late"
    """Its model was not loaded in time."""
    UNFIT = "unfit"
    """It had its model loaded, and no batch could succeed in it; none had."""
    DIED = "died"
    """It had its model loaded, and ended before a batch succeeded."""
    SERVED = "served"
    """It had its model loaded, and ended after a batch succeeded."""


class ModelProcesses:
    """Model processes 0 to n-1 of one replica.

    The first loads alone: a model that cannot be loaded fails once, and the others find its files
    in memory. Then as many load at once as there are CPUs. If the model can be shared, the first
    becomes the fork server, and all are forked from it.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        memory: slots.Memory,
        environments: Sequence[Mapping[str, str]],
        loaders: int,
        life: Life,
        *,
        end_orphans: Callable[[int, int, bool], Awaitable[None]],
        oom_kills: Callable[[], int] = read_oom_kills,
    ) -> None:
        """`environments` has one for each; `loaders` of them may load at once, >= 1.

        `end_orphans` is Adopted.end_of, `oom_kills` is how many processes here the kernel has
        killed for memory.
        """
        self._settings = settings
        self._memory = memory
        self._environments = environments
        self._life = life
        self._end_orphans = end_orphans
        self._began = time.monotonic()
        self._oom_kills = oom_kills
        self.children = [
            Child(f"model-{i}", "batchedapi_serving.model") for i in range(settings.processes)
        ]
        self._server = ForkServer()
        self._loaded: set[int] = set()
        """Indexes of those that have their model."""
        self._first_loaded = asyncio.Event()
        self._loading = asyncio.Semaphore(loaders)

    @property
    def pids(self) -> list[int]:
        """The pids of those that run."""
        return [child.pid for child in self.children if child.pid is not None]

    @property
    def fork_server(self) -> Child:
        """The process that the others are forked from, if there is one."""
        return self._server.process

    def memory(self) -> float | None:
        """As `memory_of_each`; None while it is shared, and less for each with each more."""
        shared = self._server.process.pid
        if shared is not None and len(self._loaded) < len(self.children):
            return None
        return memory_of_each(self.pids, shared)

    def kill(self, pid: int) -> None:
        """End the model process `pid`, if it still is one."""
        for child in self.children:
            if child.pid == pid:
                log.warning("killing model process that hangs", extra={"pid": pid})
                child.signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """At once: nothing runs there any more, and user code may not listen to signals."""
        self._server.end()
        for child in self.children:
            child.signal(signal.SIGKILL)

    async def keep(self) -> None:
        """Start them and replace those that end, until the replica stops."""
        async with asyncio.TaskGroup() as group:
            for index in range(len(self.children)):
                group.create_task(self._keep(index))

    async def _keep(self, index: int) -> None:
        if index > 0:  # the first loads alone
            await first_of(self._first_loaded.wait(), self._life.stopping.wait())
        child, backoff, crashes = self.children[index], Backoff(), CrashLoop()
        turn: Turn = self._loading
        while not self._life.stopping.is_set():
            end, failure = await self._run(index, child, turn)
            turn = contextlib.nullcontext()  # one that hangs while it loads must not hold up others
            if self._life.stopping.is_set() or self._is_last(index, end, failure, crashes):
                return
            log.error("model process ended", extra={"index": index, "error": str(failure)})
            self._memory[slots.MODEL_RESTARTS] += 1
            if end is _End.SERVED:
                backoff.reset()
                if self._server.process.pid is not None:
                    continue  # a fork costs little, and loads nothing
            await came(self._life.stopping, within=backoff.take())

    def _is_last(self, index: int, end: _End, failure: LoadError, crashes: CrashLoop) -> bool:
        """Whether that end of process `index` is the replica's; see decisions 12 and 17."""
        if end in (_End.DIED, _End.SERVED):
            crashes.succeeded()
            return False
        if not self._first_loaded.is_set() and end is not _End.REFUSED:
            self._life.fail(failure)
            return True
        if end is _End.LATE and not self._loaded:
            self._life.fail(CrashLoopError(f"nobody answers: {failure.reason}: {failure}"))
            return True
        if end is not _End.KILLED and crashes.failed(time.monotonic()):
            text = f"model process {index} failed to start {STARTS} times in a row"
            self._life.fail(CrashLoopError(f"{text}: {failure.reason}: {failure}"))
            return True
        return False

    async def _run(self, index: int, child: Child, turn: Turn) -> tuple[_End, LoadError]:
        """One process from start to end; `turn` is held while it loads."""
        kills, late = self._oom_kills(), False
        limit, answered = self._settings.startup_limit, self._memory[slots.ANSWERED + index]
        try:
            async with turn:
                if self._life.stopping.is_set():
                    return _End.KILLED, LoadError("CrashLooping", "asked to stop")
                # What was fetched and tried before is part of the first start.
                spent = 0.0 if self._first_loaded.is_set() else time.monotonic() - self._began
                loaded = await self._load(index, child, max(0.0, limit - spent))
        except TimeoutError:
            loaded, late = False, True
            child.signal(signal.SIGKILL)
        except OSError as error:
            child.signal(signal.SIGKILL)
            if child.pid is not None:
                await self._ended(index, child)
            reason = f"{child.role.replace('-', ' process ')} could not be started: {error!r}"
            return _End.REFUSED, LoadError("CrashLooping", reason)
        if loaded:
            self._loaded.add(index)
            self._first_loaded.set()
        code = await self._ended(index, child)
        if not loaded or code == EXIT_UNFIT:
            self._server.end()  # what it forks may all be so: the next start loads anew
        forget_gauges(self._settings.predictor_metrics_path, index)
        failure = child.failure(self._settings.failure_path(index), code)
        if late:
            return _End.LATE, LoadError(
                "StartupTimeout",
                f"model process {index} had not loaded its model after {limit:g} s; raise"
                " spec.predictor.startupTimeout, or load less",
            )
        if loaded and self._memory[slots.ANSWERED + index] > answered:
            return _End.SERVED, failure
        if loaded:
            return _end_of_loaded(index, code, failure)
        killed = code == -signal.SIGKILL and self._oom_kills() == kills
        return _End.KILLED if killed else _End.FAILED, failure

    async def _ended(self, index: int, child: Child) -> int:
        """Wait for its end, and for that of all that it left behind; its exit code.

        The next one may need their ports and their memory.
        """
        code = await child.ended()
        self._loaded.discard(index)
        await self._end_orphans(index, child.session, not self.pids)
        return code

    async def _load(self, index: int, child: Child, limit: float) -> bool:
        """Start the process and wait until it has its model; False: it ended before.

        Raises:
            OSError: it could not be started.
            TimeoutError: it took longer than `limit` seconds.
        """
        end = time.monotonic() + limit
        while True:
            with contextlib.ExitStack() as stack:
                ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
                if not self._server.fork(child, index, theirs):
                    number = theirs.fileno()
                    environment = {**self._environments[index], CONTROL_DESCRIPTOR: str(number)}
                    child.start([self._settings.runtime, str(index)], environment, (number,))
                told = asyncio.Event()
                watch_once(ours.fileno(), told, stack)
                within = end - time.monotonic()
                if not await first_of(told.wait(), child.ended(), within=within):
                    raise TimeoutError
                if not told.is_set() or ours.recv(1) != FORKS:
                    return told.is_set()
                self._server.take(child, ours)


def _end_of_loaded(index: int, code: int, failure: LoadError) -> tuple[_End, LoadError]:
    """The end of a process that had its model, and in which no batch succeeded."""
    if code != EXIT_UNFIT:
        return _End.DIED, failure
    return _End.UNFIT, LoadError(
        "CrashLooping",
        f"model process {index} lost its device, or broke otherwise, before it answered a batch;"
        " the log has the traceback",
    )


def cuda_visible_devices(
    gpus: Sequence[str], processes: int, assignment: GpuAssignment
) -> tuple[str | None, ...]:
    """CUDA_VISIBLE_DEVICES of each model process; an empty value hides every GPU.

    None: left as it is, because there is neither a GPU to give nor a wish to hide one.

    Raises:
        LoadError: the GPUs cannot be shared out as asked.
    """
    if not gpus and assignment in {GpuAssignment.AUTO, GpuAssignment.ALL}:
        return (None,) * processes
    if not gpus and assignment is not GpuAssignment.NONE:
        raise LoadError(
            "InitFailed",
            f"spec.predictor.gpuAssignment {assignment.value}: expected GPUs, got none; set"
            " spec.compute.gpu or spec.pod.resourceClaims, or leave gpuAssignment out",
        )
    try:
        shares = assign_devices(assignment, gpus, processes)
    except PlacementError as error:
        raise LoadError("InitFailed", str(error)) from error
    return tuple(",".join(share) for share in shares)


def model_environments(
    settings: ReplicaSettings, inherited: Mapping[str, str], user: Mapping[str, str], cpus: float
) -> list[dict[str, str]]:
    """Variables that each model process has beside the supervisor's.

    NVIDIA_VISIBLE_DEVICES is the container runtime's and never touched.

    Args:
        inherited: The supervisor's environment; its thread variables stay, unless the manifest
            says `cpuThreads`.
        user: `spec.predictor.env`; beats everything else, CUDA_VISIBLE_DEVICES included.
        cpus: Shared by the processes, for as many threads of numerical libraries.

    Raises:
        LoadError: the GPUs cannot be shared out as asked.
    """
    written = settings.cpu_threads
    threads = cpu_threads(written, max(1, int(cpus)), settings.processes)
    missing = [name for name in THREAD_VARIABLES if written is not None or name not in inherited]
    assignment = GpuAssignment(settings.gpu_assignment)
    devices = cuda_visible_devices(settings.gpus, settings.processes, assignment)
    return [
        {
            WORKER_INDEX: str(index),
            TELEMETRY_OFF: inherited.get(TELEMETRY_OFF, "1"),
            **({} if device is None else {VISIBLE: device}),
            **dict.fromkeys(missing, str(threads)),
            **user,
        }
        for index, device in enumerate(devices)
    ]
