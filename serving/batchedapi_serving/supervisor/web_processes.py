"""Keeps the web processes, and a worker: control lines, beats, replacement."""

import asyncio
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from batchedapi_serving.metrics import slots
from batchedapi_serving.processes import Backoff, Child, came
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.lifecycle import (
    BEAT_CHECK_SECONDS,
    STARTS,
    CrashLoop,
    CrashLoopError,
    Life,
    Pulse,
)

log = logging.getLogger(__name__)

_LINE_BYTES: Final = 1 << 20
_LAST_WORDS_SECONDS: Final = 5.0
"""A process that has closed its control line gets to end by itself."""


class ServingProcesses:
    """Processes with control lines and beats, replaced when they end or hang."""

    def __init__(  # noqa: PLR0917 - as those that are kept
        self,
        kind: str,
        settings: ReplicaSettings,
        memory: slots.Memory,
        life: Life,
        heard: Callable[[dict[str, Any]], None],
        children: Sequence[tuple[Child, Sequence[str]]],
        first_beat: int,
        listener: socket.socket | None = None,
    ) -> None:
        """Prepare the processes of a kind; `keep` starts them.

        Args:
            heard: Gets every message of their control lines.
            children: Each with what it is told beside the runtime folder and its descriptors.
        """
        self._kind = kind
        self._settings = settings
        self._memory = memory
        self._life = life
        self._heard = heard
        self.children = [child for child, _ in children]
        self._told = [words for _, words in children]
        self._first_beat = first_beat
        self._listener = listener

    @property
    def alive(self) -> bool:
        """Whether the one with the queue runs."""
        return self.children[0].pid is not None

    @property
    def pids(self) -> list[int]:
        """The pids of those that run."""
        return [child.pid for child in self.children if child.pid is not None]

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for child in self.children:
            child.signal(number)

    async def ended(self) -> None:
        """Wait until none of them runs; who keeps them may have ended before."""
        for child in self.children:
            if child.pid is not None:
                await child.ended()

    async def keep(self) -> None:
        """Start them and replace those that end, until the replica stops."""
        async with asyncio.TaskGroup() as group:
            for index in range(len(self.children)):
                group.create_task(self._keep(index))

    async def _keep(self, index: int) -> None:
        child, backoff, crashes = self.children[index], Backoff(), CrashLoop()
        while not self._life.draining.is_set():
            self._memory[self._first_beat + index] = 0.0
            try:
                how = f"exit code {await self._run(index, child)}"
            except OSError as error:
                how = repr(error)
            if self._life.draining.is_set():
                return
            log.error("%s process ended", self._kind, extra={"index": index, "how": how})
            self._memory[slots.WEB_RESTARTS] += 1
            if self._memory[self._first_beat + index] > 0.0:
                crashes.succeeded()
                backoff.reset()
            elif crashes.failed(time.monotonic()):
                text = (
                    f"{self._kind} process {index} ended {STARTS} times before it served, last with"
                )
                self._life.fail(CrashLoopError(f"{text} {how}; see the log lines above"))
                return
            await came(self._life.draining, within=backoff.take())

    async def _run(self, index: int, child: Child) -> int:
        """One process from start to end; its exit code.

        Raises:
            OSError: it could not be started.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:  # the child has its own copy, and its end is to be seen here
                shared = (theirs,) if self._listener is None else (self._listener, theirs)
                descriptors = [one.fileno() for one in shared]
                words = (self._settings.runtime, *self._told[index], *map(str, descriptors))
                child.start(words, descriptors=descriptors)
            async with asyncio.TaskGroup() as group:
                helpers = (
                    group.create_task(self._listen(child, ours)),
                    group.create_task(self._watch(index, child)),
                )
                code = await child.ended()
                for helper in helpers:
                    helper.cancel()
            return code

    async def _watch(self, index: int, child: Child) -> None:
        """Kill it when its event loop does not run any more; a drain has a limit of its own."""
        pulse = Pulse()
        while not await came(self._life.draining, within=BEAT_CHECK_SECONDS):
            if pulse.blocked(self._memory[self._first_beat + index]):
                log.error("killing %s process that hangs", self._kind, extra={"index": index})
                child.signal(signal.SIGKILL)
                return

    async def _listen(self, child: Child, control: socket.socket) -> None:
        """Hear what it has to say; without a control line it is of no use, and is replaced."""
        try:
            reader, writer = await asyncio.open_connection(sock=control, limit=_LINE_BYTES)
            try:
                while line := await reader.readline():
                    self._heard(json.loads(line))
            finally:
                writer.close()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.exception(
                "killing %s process that cannot be heard", self._kind, extra={"error": repr(error)}
            )
        else:
            await came(self._life.draining, within=_LAST_WORDS_SECONDS)
        if not self._life.draining.is_set():
            child.signal(signal.SIGKILL)


def web_processes(
    settings: ReplicaSettings,
    memory: slots.Memory,
    listener: socket.socket,
    life: Life,
    heard: Callable[[dict[str, Any]], None],
) -> ServingProcesses:
    """Web processes 0 to n-1; the queue, or the line to it, is in process 0."""
    children = [
        (Child(f"web-{i}", "batchedapi_serving.web_process"), [str(i)])
        for i in range(settings.web_processes)
    ]
    return ServingProcesses("web", settings, memory, life, heard, children, slots.BEAT, listener)


def worker_process(
    settings: ReplicaSettings,
    memory: slots.Memory,
    life: Life,
    heard: Callable[[dict[str, Any]], None],
) -> ServingProcesses:
    """The process that takes from the queue of all replicas for this one's model processes."""
    children = [(Child("worker", "batchedapi_serving.worker_process"), ())]
    return ServingProcesses("worker", settings, memory, life, heard, children, slots.WORKER_BEAT)
