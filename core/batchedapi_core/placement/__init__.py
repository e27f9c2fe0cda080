"""Which CPUs and devices the processes of a replica get, and advice about what was asked for."""

from batchedapi_core.placement.advice import Advice, AdviceReason, Situation, advise
from batchedapi_core.placement.devices import (
    THREAD_VARIABLES,
    GpuAssignment,
    PlacementError,
    assign_devices,
    cpu_count,
    cpu_threads,
    quota_cpus,
    visible_devices,
)

__all__ = [
    "THREAD_VARIABLES",
    "Advice",
    "AdviceReason",
    "GpuAssignment",
    "PlacementError",
    "Situation",
    "advise",
    "assign_devices",
    "cpu_count",
    "cpu_threads",
    "quota_cpus",
    "visible_devices",
]
