"""How many CPUs a replica may use, and how its processes share them."""

import math
from collections.abc import Iterable
from typing import Final

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What numpy, scikit-learn, torch and ONNX Runtime read when they are imported; without a limit
each process would start as many threads as the machine has CPUs."""


def quota_cpus(cpu_max: str) -> float:
    """CPUs that one cgroup may use; infinite without a limit.

    Args:
        cpu_max: `cpu.max` of a cgroup: quota and period in microseconds, `200000 100000`; a quota
            of `max`, or -1 as in version 1, is no limit. Anything else is taken as none.
    """
    parts = cpu_max.split()
    try:
        quota, period = float(parts[0]), float(parts[1])
    except (IndexError, ValueError):
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def cpu_count(cpu_max: Iterable[str], request: float | None, affinity: int) -> int:
    """CPUs for `processesPerReplica: cpu_count`, at least 1.

    A share of a CPU is left to the web process: 2.5 CPUs are 2 processes.

    Args:
        cpu_max: `cpu.max` of the cgroup and of those above it: the tightest counts.
        request: CPUs that the pod asked for; counts only where no cgroup has a limit.
        affinity: CPUs the scheduler of the machine lets this process run on, >= 1.
    """
    limit = min(map(quota_cpus, cpu_max), default=math.inf)
    if limit == math.inf and request is not None:
        limit = request
    return max(1, math.floor(min(limit, affinity)))


def cpu_threads(written: int | None, cpus: int, processes: int) -> int:
    """Threads of numerical libraries in one model process; `written` None divides the CPUs."""
    return max(1, cpus // processes) if written is None else written
