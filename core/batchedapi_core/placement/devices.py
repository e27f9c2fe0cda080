"""Which CPUs and which GPUs each process of a replica gets."""

import enum
import math
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

# How many CPUs a replica may use, and how its processes share them.

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


# Which GPUs each model process of a replica sees.


class PlacementError(ValueError):
    """Devices that cannot be shared out as asked."""


class GpuAssignment(enum.StrEnum):
    """How the devices of a replica are shared out among its model processes."""

    AUTO = "Auto"
    """Exclusive where the devices are a multiple of the processes, else RoundRobin."""
    EXCLUSIVE = "Exclusive"
    """As many for each, and none for two."""
    ROUND_ROBIN = "RoundRobin"
    """One for each, shared when there are fewer than processes."""
    ALL = "All"
    """Every process sees all of them."""
    NONE = "None"
    """No process sees any."""


def assign_devices(
    assignment: GpuAssignment, devices: Sequence[str], processes: int
) -> tuple[tuple[str, ...], ...]:
    """The devices of each process, by worker index.

    Args:
        assignment: From `predictor.gpuAssignment`.
        devices: Of the replica, as CUDA_VISIBLE_DEVICES names them.
        processes: >= 1.

    Raises:
        PlacementError: Exclusive, and the devices are no multiple of the processes.
    """
    every = tuple(devices)
    match assignment:
        case GpuAssignment.NONE:
            return ((),) * processes
        case GpuAssignment.ALL:
            return (every,) * processes
        case GpuAssignment.ROUND_ROBIN:
            return _in_turn(every, processes)
        case GpuAssignment.EXCLUSIVE:
            if len(every) % processes:
                raise PlacementError(
                    f"spec.predictor.gpuAssignment Exclusive: expected a multiple of {processes}"
                    f" GPUs for {processes} processes, got {len(every)}; RoundRobin shares them"
                )
            return _apart(every, processes)
        case GpuAssignment.AUTO:
            return (_in_turn if len(every) % processes else _apart)(every, processes)
        case _:
            assert_never(assignment)


def _in_turn(devices: tuple[str, ...], processes: int) -> tuple[tuple[str, ...], ...]:
    if not devices:
        return ((),) * processes
    return tuple((devices[i % len(devices)],) for i in range(processes))


def _apart(devices: tuple[str, ...], processes: int) -> tuple[tuple[str, ...], ...]:
    each = len(devices) // processes
    return tuple(devices[i * each : (i + 1) * each] for i in range(processes))


def visible_devices(cuda: str | None, nvidia: str | None, device_files: int) -> tuple[str, ...]:
    """The GPUs of this machine or container, as CUDA_VISIBLE_DEVICES names them.

    Args:
        cuda: CUDA_VISIBLE_DEVICES; if set it decides, and CUDA ends the list at the first -1.
        nvidia: NVIDIA_VISIBLE_DEVICES, which container runtimes set; only unique names in it
            (`GPU-...`, `MIG-...`) mean the same to CUDA as to the runtime.
        device_files: How many /dev/nvidia0, /dev/nvidia1, ... there are; CUDA counts them from 0
            whatever their numbers.
    """
    if cuda is not None:
        names = [name.strip() for name in cuda.split(",")]
        end = next((i for i, name in enumerate(names) if name in {"", "-1"}), len(names))
        return tuple(names[:end])
    unique = [name.strip() for name in (nvidia or "").split(",")]
    if all(name.startswith(("GPU-", "MIG-")) for name in unique):
        return tuple(unique)
    return tuple(map(str, range(device_files)))
