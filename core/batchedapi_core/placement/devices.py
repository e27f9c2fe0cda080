"""Which GPUs each model process of a replica sees."""

import enum
from collections.abc import Sequence
from typing import assert_never


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
