"""Log lines about processes and memory, and how often they come."""

import asyncio
import logging
import os

import pytest

from batchedapi_serving.hardware import memory_of_each
from batchedapi_serving.metrics import slots
from batchedapi_serving.supervisor import supervisor
from batchedapi_serving.supervisor.supervisor import advise_on, watch_memory

NOBODY = 2**22 + 1
"""Above any pid."""


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Reasons of the warnings."""
    return [record.__dict__["reason"] for record in caplog.records]


@pytest.mark.parametrize(("processes", "reasons"), [(6, []), (7, ["TooManyProcesses"])])
def test_more_than_three_processes_a_cpu_are_warned_of(
    processes: int, reasons: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """C04: it is served all the same."""
    caplog.set_level(logging.WARNING)

    advise_on(processes, 2.0, None)

    assert reasons == said(caplog)


@pytest.mark.parametrize(("limit", "reasons"), [(None, []), (4096, ["MemoryMayNotHoldCopies"])])
def test_copies_that_will_not_fit_are_warned_of(
    limit: int | None,
    reasons: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W07: as soon as the first is loaded, for then the size of all is known; and once."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(supervisor, "memory_limit", lambda: limit)

    advise_on(100, 2.0, 2048.0)

    assert reasons == said(caplog)


async def test_the_gauge_is_of_the_largest_process_once_the_replica_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that ended meanwhile has no size."""
    monkeypatch.setattr(supervisor, "_SETTLE_SECONDS", 0.01)
    memory = memoryview(bytearray(slots.BYTES)).cast("d")
    watching = asyncio.create_task(
        watch_memory(1, 2.0, lambda: memory_of_each([os.getpid(), NOBODY], NOBODY), memory)
    )

    await asyncio.sleep(0.1)
    before = memory[slots.MODEL_MEMORY]
    memory[slots.READY] = 1.0
    for _ in range(3000):
        await asyncio.sleep(0.02)
        if memory[slots.MODEL_MEMORY]:
            break
    watching.cancel()

    assert before == 0.0
    assert memory[slots.MODEL_MEMORY] > 1 << 20
