"""Which GPUs this machine or container has, and what a model process is told of them."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from batchedapi_core.placement import (
    GpuAssignment,
    PlacementError,
    assign_devices,
    visible_devices,
)
from batchedapi_serving.errors import LoadError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_NODE: Final = re.compile(r"nvidia[0-9]+")
_DEVICES: Final = Path("/dev")


def visible_gpus(
    environment: Mapping[str, str] = os.environ, nodes: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The replica's GPUs, as CUDA_VISIBLE_DEVICES names them.

    Args:
        environment: Of the supervisor; its CUDA_VISIBLE_DEVICES, if set, is the answer.
        nodes: Names of device files; None: those in /dev.
    """
    names = _device_files() if nodes is None else nodes
    count = sum(_NODE.fullmatch(name) is not None for name in names)
    return visible_devices(
        environment.get(VISIBLE), environment.get("NVIDIA_VISIBLE_DEVICES"), count
    )


def _device_files() -> list[str]:
    return [path.name for path in _DEVICES.iterdir()] if _DEVICES.is_dir() else []


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
