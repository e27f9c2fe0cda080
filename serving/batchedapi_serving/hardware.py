"""CPUs, memory and GPUs that this container may use, and use of them by a process."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from batchedapi_core.placement import quota_cpus, visible_devices

CGROUP: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60
"""Bytes. cgroup v1 says "no limit" with a number near 2^63."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_NODE: Final = re.compile(r"nvidia[0-9]+")
_DEVICES: Final = Path("/dev")


def usable_cpus(cgroup: Path = CGROUP) -> float:
    """CPUs that this process may use: of its affinity, or fewer by the cgroup's quota."""
    unified = quota_cpus(_text(cgroup / "cpu.max"))
    quota, period = (_text(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return min(float(len(os.sched_getaffinity(0))), unified, quota_cpus(f"{quota} {period}"))


def memory_limit(cgroup: Path = CGROUP) -> int | None:
    """Bytes that all processes of this container may have together; None: no limit."""
    unified = _text(cgroup / "memory.max")
    value = unified or _text(cgroup / "memory" / "memory.limit_in_bytes")
    if not value or value == "max" or int(value) >= _UNLIMITED:
        return None
    return int(value)


def process_memory(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Bytes of memory of one process, None once it has ended.

    The proportional share (a page that n processes share counts 1/n) where the kernel tells it,
    else the resident size, which counts shared pages in every process.
    """
    for line in _text(proc / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    resident = _text(proc / str(pid) / "statm").split()
    return int(resident[1]) * os.sysconf("SC_PAGE_SIZE") if resident else None


def memory_of_each(pids: Sequence[int], shared: int | None) -> float | None:
    """Bytes of the largest process, with its part of those of `shared`; None: none is there.

    Pages that processes share count once in all of them together.
    """
    sizes = [size for size in map(process_memory, pids) if size is not None]
    server = 0 if shared is None else process_memory(shared) or 0
    return max(sizes) + server / len(sizes) if sizes else None


def cpu_seconds(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """CPU seconds of this process and of those children, with all of theirs that have ended.

    What a child used is this process's own once it has been waited for, so that nothing is lost.
    """
    own = os.times()
    seconds = own.user + own.system + own.children_user + own.children_system
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in pids:
        fields = _text(proc / str(pid) / "stat").rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / ticks  # its own, and of its children that ended
    return seconds


def visible_gpus(
    environment: Mapping[str, str] = os.environ, nodes: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The replica's GPUs, as CUDA_VISIBLE_DEVICES names them.

    Args:
        environment: Of the supervisor; its CUDA_VISIBLE_DEVICES, if set, is the answer.
        nodes: Names of device files; None: those in /dev.
    """
    if nodes is None:
        nodes = [path.name for path in _DEVICES.iterdir()] if _DEVICES.is_dir() else []
    count = sum(_NODE.fullmatch(name) is not None for name in nodes)
    return visible_devices(
        environment.get(VISIBLE), environment.get("NVIDIA_VISIBLE_DEVICES"), count
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
