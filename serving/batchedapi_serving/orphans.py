"""Processes that ours have started and left behind, and their end.

User code starts helpers: pools, a vector store, ffmpeg. Nobody but their parent knows of them, and
when that is gone the kernel gives them to the nearest adopter above. Whoever adopts reaps them, or
they stay in the table of processes for ever; and ends them, or they keep ports, memory and the
log's pipe. Only children of our own are ever sent a signal: their numbers are theirs until we reap
them, and what they have started is ours next.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

WORKER_INDEX: Final = "BATCHEDAPI_WORKER_INDEX"
"""0-based; the same number as `context.worker_index`. Helpers inherit it."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_GRACE_SECONDS: Final = 1.0
"""For whoever cleans up: Python's tracker of shared memory goes when its last user has gone."""
_MOST_SECONDS: Final = 2.0
"""Until one is given up that even SIGKILL does not end at once."""
_LOOK_SECONDS: Final = 0.02
_PROC: Final = Path("/proc")


class ProcessEntry(NamedTuple):
    """The kernel's facts about a process."""

    parent: int
    session: int


Table = Mapping[int, ProcessEntry]
"""By pid."""


def adopt() -> None:
    """Get what our descendants leave behind, instead of process 1; where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def process_table() -> dict[int, ProcessEntry]:
    """All processes that are seen here; none on another system.

    Raises:
        OSError: nobody can look just now, as no descriptor is left.
    """
    table: dict[int, ProcessEntry] = {}
    if not _PROC.exists():
        return table
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            fields = (entry / "stat").read_text("latin-1").rpartition(")")[2].split()
            table[int(entry.name)] = ProcessEntry(int(fields[1]), int(fields[3]))
    return table


def worker_index_of(pid: int) -> str | None:
    """Index of the model process that an orphan comes from, by its first environment."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == WORKER_INDEX.encode():
                return value.decode("latin-1")
    return None


def children_of(table: Table, parent: int) -> set[int]:
    """Its children, those that have ended too."""
    return {pid for pid, entry in table.items() if entry.parent == parent}


def with_descendants(table: Table, pids: Collection[int]) -> set[int]:
    """The processes, what they have started, and so on."""
    found, newest = set(pids), set(pids)
    while newest:
        newest = {pid for pid, entry in table.items() if entry.parent in newest} - found
        found |= newest
    return found


def reap(pid: int) -> bool:
    """Take a child that has ended out of the table; whether that is done."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:  # it is reaped already, or was never ours
        return True


async def end(chosen: Callable[[Table, int], bool]) -> None:
    """End children of ours and whatever they have started, with SIGTERM and then with SIGKILL.

    Args:
        chosen: Says of a child whether it is to end, from the table and its pid.
    """
    began, us = time.monotonic(), os.getpid()
    ours: set[int] = set()
    told: set[int] = set()
    while True:
        found: set[int] = set()
        waited, looked = time.monotonic() - began, False
        with contextlib.suppress(OSError):  # a descriptor to look with may be there in a moment
            table = process_table()
            looked = True
            found = {
                pid for pid in children_of(table, us)
                if (pid in ours or chosen(table, pid)) and not reap(pid)
            }  # fmt: skip
            ours |= with_descendants(table, found)
        if (looked and not found) or waited >= _MOST_SECONDS:
            break
        patient = waited < _GRACE_SECONDS
        for pid in found - told if patient else found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM if patient else signal.SIGKILL)
        told |= found
        await asyncio.sleep(_LOOK_SECONDS)
    if told:
        log.info("ended what was left behind", extra={"pids": sorted(told), "left": sorted(found)})


@contextlib.contextmanager
def ended_after() -> Iterator[None]:
    """Within, one process of ours runs user code; at the end nothing of what it started does."""
    adopt()
    before = children_of(process_table(), os.getpid())
    try:
        yield
    finally:
        asyncio.run(end(lambda _, pid: pid not in before))
