"""What the model processes of a replica are given: GPUs, threads, the variables of the user."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchedapi_core.placement import (
    THREAD_VARIABLES,
    GpuAssignment,
    PlacementError,
    assign_devices,
    cpu_threads,
)
from batchedapi_serving.errors import LoadError
from batchedapi_serving.hardware import VISIBLE
from batchedapi_serving.settings import ReplicaSettings

WORKER_INDEX: Final = "BATCHEDAPI_WORKER_INDEX"
"""0-based; the same number as `context.worker_index`."""


def cuda_visible_devices(
    gpus: Sequence[str], processes: int, assignment: GpuAssignment
) -> tuple[str | None, ...]:
    """CUDA_VISIBLE_DEVICES of each model process; an empty value hides every GPU.

    None: left as it is, because there is neither a GPU to give nor a wish to hide one.

    Raises:
        LoadError: the GPUs cannot be shared out as asked.
    """
    if not gpus and assignment in {GpuAssignment.AUTO, GpuAssignment.ALL}:
        return (None,) * processes
    if not gpus and assignment is not GpuAssignment.NONE:
        raise LoadError(
            "InitFailed",
            f"spec.predictor.gpuAssignment {assignment.value}: expected GPUs, got none; set"
            " spec.compute.gpu, or leave gpuAssignment out",
        )
    try:
        shares = assign_devices(assignment, gpus, processes)
    except PlacementError as error:
        raise LoadError("InitFailed", str(error)) from error
    return tuple(",".join(share) for share in shares)


def model_environment(
    index: int,
    *,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    device: str | None,
    threads: int,
    threads_written: bool,
) -> dict[str, str]:
    """What is added to the supervisor's environment for the model process `index`.

    Args:
        index: 0-based.
        inherited: The supervisor's environment; its thread variables stay, unless the manifest
            says `cpuThreads`.
        user: `spec.predictor.env`; beats everything else, CUDA_VISIBLE_DEVICES included.
        device: Its CUDA_VISIBLE_DEVICES; None leaves the inherited one. NVIDIA_VISIBLE_DEVICES is
            the container runtime's and never touched.
        threads: Of numerical libraries in one process.
        threads_written: They are `spec.predictor.cpuThreads`, not a share of the CPUs.
    """
    added = {WORKER_INDEX: str(index)}
    if device is not None:
        added[VISIBLE] = device
    for name in THREAD_VARIABLES:
        if threads_written or name not in inherited:
            added[name] = str(threads)
    return {**added, **user}


def model_environments(
    settings: ReplicaSettings,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    cpus: float,
) -> list[dict[str, str]]:
    """What is added to the environment of each model process.

    Raises:
        LoadError: the GPUs cannot be shared out as asked.
    """
    assignment = GpuAssignment(settings.gpu_assignment)
    threads = cpu_threads(settings.cpu_threads, max(1, int(cpus)), settings.processes)
    return [
        model_environment(
            index,
            inherited=inherited,
            user=user,
            device=device,
            threads=threads,
            threads_written=settings.cpu_threads is not None,
        )
        for index, device in enumerate(
            cuda_visible_devices(settings.gpus, settings.processes, assignment)
        )
    ]
