"""The environment of a model process, as a function of everything it depends on."""

from collections.abc import Mapping
from typing import Final

from batchedapi_core.placement import THREAD_VARIABLES, GpuAssignment, cpu_threads
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.supervisor.devices import VISIBLE, cuda_visible_devices

WORKER_INDEX: Final = "BATCHEDAPI_WORKER_INDEX"
"""0-based; the same number as `context.worker_index`."""
LOADED_DESCRIPTOR: Final = "BATCHEDAPI_LOADED_FD"
"""A pipe into which a model process writes one byte once its model is loaded and warmed up."""


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
