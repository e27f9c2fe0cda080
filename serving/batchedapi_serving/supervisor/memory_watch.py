"""Tells how much memory the copies of the model take, before the kernel does."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from batchedapi_core.placement import AdviceReason, Situation, advise
from batchedapi_serving.metrics import slots
from batchedapi_serving.supervisor.machine import memory_limit, process_memory

log = logging.getLogger(__name__)

MEASURE_SECONDS: Final = 30.0
"""Between measurements: to read a proportional share the kernel walks the process's pages."""
_SETTLE_SECONDS: Final = 1.0
"""Between looks whether the first model process is ready."""


def advise_on(processes: int, cpus: float, process_memory: float | None) -> None:
    """Log what should be said about a replica of so many model processes.

    Args:
        processes: Asked for.
        cpus: Usable.
        process_memory: Bytes of the largest one; None: not known yet.
    """
    situation = Situation(
        processes=processes,
        cpus=cpus,
        memory=memory_limit(),
        process_memory=process_memory,
        max_batch_size=1,
        full_batch_seconds=None,
        latency_target=None,
    )
    wanted = AdviceReason.PROCESSES if process_memory is None else AdviceReason.MEMORY
    for advice in advise(situation):
        if advice.reason is wanted:
            log.warning("advice", extra={"reason": advice.reason.value, "text": advice.text})


async def watch_memory(
    processes: int, cpus: float, pids: Callable[[], Sequence[int]], memory: slots.Memory
) -> None:
    """Keep the gauge of the largest model process, and warn once; until cancelled."""
    warned = False
    while True:
        await asyncio.sleep(MEASURE_SECONDS if warned else _SETTLE_SECONDS)
        if not memory[slots.READY]:
            continue
        try:
            measured = await asyncio.to_thread(lambda: [process_memory(pid) for pid in pids()])
        except (OSError, RuntimeError) as error:  # no thread, or no descriptor left: the next time
            log.warning("memory is not measured", extra={"error": str(error)})
            continue
        largest = max((size for size in measured if size is not None), default=None)
        if largest is None:
            continue
        memory[slots.MODEL_MEMORY] = largest
        if not warned:
            advise_on(processes, cpus, largest)
            warned = True
