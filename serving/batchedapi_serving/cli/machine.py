"""What the command line asks of this machine or container."""

import os
from collections.abc import Mapping
from pathlib import Path

from batchedapi_core import contract
from batchedapi_core.manifest import UnitError, parse_quantity
from batchedapi_core.placement import cpu_count
from batchedapi_serving.hardware import CGROUP


def usable_cpu_count(environment: Mapping[str, str], cgroup: Path = CGROUP) -> int:
    """Whole CPUs: of the cgroup's limit, else of the pod's request, else of the machine.

    Args:
        environment: In which the operator says the request.
        cgroup: Where the kernel's control groups are mounted.
    """
    quota, period = (_text(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    try:
        request = parse_quantity(environment[contract.ENV_CPU_REQUEST])
    except (KeyError, UnitError):
        request = None
    limits = (_text(cgroup / "cpu.max"), f"{quota} {period}")
    return cpu_count(limits, request, len(os.sched_getaffinity(0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
