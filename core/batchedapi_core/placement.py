"""CPUs and devices of the processes of a replica, and advice about what was asked for."""

import enum
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that numpy, scikit-learn, torch and ONNX Runtime read at import; without a limit
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
        devices: Of the replica, as CUDA_VISIBLE_DEVICES names them.

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


PROCESSES_PER_CPU: Final = 3
"""More compete for the CPU without serving more."""
CALM: Final = 0.9
"""Advice stands until its figure is below this share of the limit: a figure that wanders
around the limit must not be news every time."""


class AdviceReason(enum.StrEnum):
    """Reasons of the condition SpecAdvice, the most urgent first."""

    MEMORY = "MemoryMayNotHoldCopies"
    INTERVAL = "IntervalExceedsLatency"
    PROCESSES = "TooManyProcesses"
    ONE_BY_ONE = "BatchedOneByOne"
    REMOVED = "RemovedFields"


@dataclass(frozen=True, slots=True)
class SpecAdvice:
    """One piece; the text names fields, figures and the remedy."""

    reason: AdviceReason
    text: str


@dataclass(frozen=True, slots=True)
class Situation:
    """One replica as it was asked for, and what is known of it."""

    processes: int
    cpus: float  # requested
    memory: float | None  # bytes; None: no limit
    process_memory: float | None  # bytes of the largest model process; None: not seen yet
    max_batch_size: int  # rows
    full_batch_seconds: float | None  # learned t(max); None: not known yet
    latency_target: float | None  # seconds; None: no target
    one_by_one: bool = False  # batches of some method are run request by request


def advise(s: Situation, standing: Collection[AdviceReason] = ()) -> tuple[SpecAdvice, ...]:
    """Advice about `s`; `standing` is the last advice about it."""
    found: dict[AdviceReason, str] = {}
    if s.memory is not None and s.process_memory is not None:
        copies = s.processes * s.process_memory
        if copies > s.memory * (CALM if AdviceReason.MEMORY in standing else 1.0):
            found[AdviceReason.MEMORY] = (
                f"spec.compute.mem is {_size(s.memory)}, and {s.processes} processes of"
                f" {_size(s.process_memory)} need {_size(copies)}: raise it, or lower"
                " spec.predictor.processesPerReplica"
            )
    if s.latency_target is not None and s.full_batch_seconds is not None:
        share = CALM if AdviceReason.INTERVAL in standing else 1.0
        if s.full_batch_seconds > share * s.latency_target:
            found[AdviceReason.INTERVAL] = (
                f"a batch of {s.max_batch_size} rows takes {1e3 * s.full_batch_seconds:.0f}ms, and"
                f" spec.serverSideBatching.maxLatency is {1e3 * s.latency_target:.0f}ms: lower"
                " spec.serverSideBatching.maxBatchSize, or raise maxLatency"
            )
    if s.processes > max(1.0, PROCESSES_PER_CPU * s.cpus):
        found[AdviceReason.PROCESSES] = (
            f"spec.predictor.processesPerReplica is {s.processes} on {s.cpus:g} CPUs: more than"
            f" {PROCESSES_PER_CPU} for each CPU compete without serving more; lower it, or raise"
            " spec.compute.cpu"
        )
    if s.one_by_one:
        found[AdviceReason.ONE_BY_ONE] = (
            "spec.serverSideBatching.maxBatchSize is above 1, and a method takes one request at a"
            " time: what waited together is run request by request, and nothing is gained; mark"
            " the method with @batched, or leave maxBatchSize out"
        )
    return tuple(SpecAdvice(reason, text) for reason, text in found.items())


def _size(number: float) -> str:
    return f"{number / 2**20:.0f}Mi"
