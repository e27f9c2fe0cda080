"""Processes that outlive their starter: recorded by id and start time, killed by the record.

The start time tells a process from a later one that was given the same id.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from . import paths
from .steps import ClusterError, tail

RECORDS: Final = paths.RUN / "processes"
GONE_SECONDS: Final = 5.0
"""A killed process is gone within milliseconds, unless the kernel holds it in I/O."""


def stat(pid: int) -> list[str]:
    """Give the fields of /proc/PID/stat from the third (state) on; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def start_time(pid: int) -> str:
    """Give when a process started, in clock ticks since boot; empty when it does not run."""
    fields = stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def gone(pid: int) -> bool:
    """Say whether a process holds nothing any more; one with dying threads still does."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return True
    return threads <= 1 and not start_time(pid)


def start(name: str, command: Sequence[str]) -> None:
    """Start a program in a session of its own, with a log, and record it."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    paths.LOGS.mkdir(parents=True, exist_ok=True)
    with (paths.LOGS / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (RECORDS / name).write_text(f"{process.pid} {start_time(process.pid)}")


def recorded() -> dict[str, int]:
    """Map the names of the recorded processes that still run to their ids."""
    running = {}
    for record in sorted(RECORDS.glob("*")):
        pid, _, started = record.read_text().partition(" ")
        if started and start_time(int(pid)) == started:
            running[record.name] = int(pid)
    return running


def check(names: Sequence[str]) -> None:
    """Check that programs run.

    Raises:
        ClusterError: One does not; with the end of its log.
    """
    running = recorded()
    for name in names:
        if name not in running:
            log = paths.LOGS / f"{name}.log"
            output = tail(log.read_text(errors="replace")) if log.exists() else "    (no log)"
            raise ClusterError(f"{name}: ended, or was never started; {log} says:\n{output}")


def all_processes() -> Iterator[int]:
    """Give the ids of all processes of this machine."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def shims(socket: Path) -> set[int]:
    """Find the processes that keep the containers of the containerd at exactly this socket."""
    found = set()
    for pid in all_processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if words[0].endswith("containerd-shim-runc-v2") and str(socket) in words:
                found.add(pid)
    return found


def children(parents: set[int]) -> set[int]:
    """Find the direct children of processes: under a shim, the first process of each container."""
    return {pid for pid in all_processes() if (fields := stat(pid)) and int(fields[1]) in parents}


def kill(pids: set[int]) -> None:
    """Kill processes and wait until they are gone.

    Not asked to end first: the state they would put in order is thrown away with them.

    Raises:
        ClusterError: Some are still there after ``GONE_SECONDS``.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_SECONDS
    while left := [pid for pid in pids if not gone(pid)]:
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {left}: killed, still there after {GONE_SECONDS:.0f} s")
        time.sleep(0.02)
