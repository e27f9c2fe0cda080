"""What every child process of a replica does: end with its supervisor, spare the GC the heap."""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation: requests leave no cycles behind."""


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


def freeze_heap() -> None:
    """Take everything loaded so far out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
