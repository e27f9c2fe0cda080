"""Keeps the model processes: environment, the order in which they load, replacement."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from batchedapi_serving.metrics import slots
from batchedapi_serving.oom import read_oom_kills
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.children import Backoff, Child, came
from batchedapi_serving.supervisor.crashes import STARTS, CrashLoop
from batchedapi_serving.supervisor.environment import LOADED_DESCRIPTOR
from batchedapi_serving.supervisor.outcome import CrashLoopError, Life

log = logging.getLogger(__name__)

Turn = contextlib.AbstractAsyncContextManager[None]


class ModelProcesses:
    """Model processes 0 to n-1 of one replica.

    The first loads alone: a model that cannot be loaded fails once, and the others find its files
    in memory. Then as many load at once as there are CPUs.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        memory: slots.Memory,
        environments: Sequence[Mapping[str, str]],
        loaders: int,
        life: Life,
        *,
        oom_kills: Callable[[], int] = read_oom_kills,
    ) -> None:
        """`environments` has one for each; `loaders` of them may load at once, >= 1.

        `oom_kills` is how many processes here the kernel has killed for memory.
        """
        self._settings = settings
        self._memory = memory
        self._environments = environments
        self._life = life
        self._oom_kills = oom_kills
        self._children = [
            Child(f"model-{i}", "batchedapi_serving.model") for i in range(settings.processes)
        ]
        self._first_loaded = asyncio.Event()
        self._loading = asyncio.Semaphore(loaders)

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [child.pid for child in self._children if child.pid is not None]

    def kill(self, pid: int) -> None:
        """End the model process `pid`, if it still is one."""
        for child in self._children:
            if child.pid == pid:
                log.warning("killing model process that hangs", extra={"pid": pid})
                child.signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """At once: nothing runs there any more, and user code may not listen to signals."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def keep(self) -> None:
        """Start them and replace those that end, until the replica stops."""
        await asyncio.gather(*(self._keep(i) for i in range(len(self._children))))

    async def _keep(self, index: int) -> None:
        if index > 0 and not await self._turn_came():
            return
        child, backoff, crashes = self._children[index], Backoff(), CrashLoop()
        turn: Turn = self._loading
        while True:
            answered, kills = self._memory[slots.ANSWERED + index], self._oom_kills()
            loaded, code = await self._run(index, child, turn)
            turn = contextlib.nullcontext()  # one that hangs while it loads must not hold up others
            if self._life.stopping.is_set():
                return
            failure = child.failure(self._settings.failure_path(index), code)
            if not self._first_loaded.is_set():
                self._life.fail(failure)
                return
            log.error("model process ended", extra={"index": index, "error": str(failure)})
            self._memory[slots.MODEL_RESTARTS] += 1
            if loaded:
                crashes.succeeded()
            elif code == -signal.SIGKILL and self._oom_kills() == kills:
                pass  # somebody else's doing, not the model's: it says nothing about the next start
            elif crashes.failed(time.monotonic()):
                text = f"model process {index} failed to start {STARTS} times in a row"
                self._life.fail(CrashLoopError(f"{text}: {failure.reason}: {failure}"))
                return
            if self._memory[slots.ANSWERED + index] > answered:
                backoff.reset()
            if await came(self._life.stopping, within=backoff.take()):
                return

    async def _turn_came(self) -> bool:
        """Wait for the first to be loaded; False: the replica stops instead."""
        waits = [
            asyncio.create_task(event.wait()) for event in (self._first_loaded, self._life.stopping)
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return not self._life.stopping.is_set()

    async def _run(self, index: int, child: Child, turn: Turn) -> tuple[bool, int]:
        """One process from start to end: whether it got its model loaded, and its exit code.

        `turn` is held while it loads.
        """
        read, write = os.pipe()
        try:
            async with turn:
                if self._life.stopping.is_set():
                    return False, 0
                environment = {**self._environments[index], LOADED_DESCRIPTOR: str(write)}
                arguments = [self._settings.runtime, str(index)]
                await child.start(arguments, environment, descriptors=(write,))
                if self._life.stopping.is_set():  # asked to stop while it was being started
                    child.signal(signal.SIGKILL)
                ended = asyncio.create_task(child.ended())
                loaded = await _byte_before(read, ended)
            if loaded:
                self._first_loaded.set()
            return loaded, await ended
        finally:
            os.close(read)
            os.close(write)


async def _byte_before(read: int, ended: "asyncio.Task[int]") -> bool:
    """Whether a byte comes through the pipe before the task ends."""
    loop = asyncio.get_running_loop()
    came_through = asyncio.Event()
    loop.add_reader(read, came_through.set)
    byte = asyncio.create_task(came_through.wait())
    try:
        await asyncio.wait((byte, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        byte.cancel()
        loop.remove_reader(read)
    return came_through.is_set()
