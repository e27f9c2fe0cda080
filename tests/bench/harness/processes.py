"""The processes of a replica as the kernel sees them."""

import contextlib
import os
from pathlib import Path
from typing import Final

_PAGE_KIB: Final = 4
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def children(pid: int, module: str) -> list[int]:
    """Pids of the children of `pid` that run `module`, ascending."""
    found = []
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, listed):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found.append(child)
    return sorted(found)


def resident_kib(pid: int) -> int:
    """Memory of a process that is its own or shared."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB


def tree_of(root: int) -> list[int]:
    """Pids of a process and all that descend from it."""
    listed = Path(f"/proc/{root}/task").glob("*/children")
    return [
        root,
        *(
            pid
            for one in listed
            for child in one.read_text().split()
            for pid in tree_of(int(child))
        ),
    ]


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that processes have taken so far, all their threads, in steps of 10 ms."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def descriptors(pid: int) -> int:
    """Open files, sockets included."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def slope_per_hour(samples: list[tuple[float, float]]) -> float:
    """Least squares through (seconds, value): how much the value grows an hour."""
    n = len(samples)
    mean_t = sum(t for t, _ in samples) / n
    mean_v = sum(v for _, v in samples) / n
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    if not spread:
        return 0.0
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in samples) / spread
