"""What every child process of a replica does: end with its supervisor, spare the GC the heap."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation: requests leave no cycles behind."""

_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO: Final = 500
"""Added to the score of who may be killed for memory; 1000 is a whole machine's worth of it."""


def end_with_parent(control: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """End this process when the supervisor's end of `control` closes, however it ended."""

    def closed() -> None:
        if not control.recv(4096):
            os._exit(1)

    control.setblocking(False)
    loop.add_reader(control, closed)
    kill_with_parent()


def kill_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; where the kernel cannot, do nothing.

    Needed beside the socket: a process that hangs in user code never looks at a socket.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def essential(what: str, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Run what this process is of no use without.

    If it fails the process ends, and is replaced: nobody would replace a task.
    """

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "task ended, and the process", extra={"task": what}, exc_info=task.exception()
            )
            os._exit(1)

    task = asyncio.create_task(coroutine)
    task.add_done_callback(ended)
    return task


def give_way_for_memory() -> None:
    """If memory runs out, the kernel is to kill this process rather than one that serves others.

    Without it, it takes the largest one, which may be a web process with requests of all.
    """
    with contextlib.suppress(OSError):  # not Linux, or not permitted: then it is as it was
        score = int(_OOM_SCORE.read_text())
        _OOM_SCORE.write_text(str(min(1000, score + _FIRST_TO_GO)))


def give_memory_back() -> None:
    """Return what was freed to the system, of which glibc keeps holes between what is not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_heap() -> None:
    """Take everything loaded so far out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
