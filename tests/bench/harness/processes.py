"""The processes of a replica as the kernel sees them."""

import contextlib
from pathlib import Path
from typing import Final

_PAGE_KIB: Final = 4


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
