"""How soon a model process is started again, and when its ends are the replica's."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.metrics import slots
from batchedapi_serving.processes import EXIT_UNFIT
from batchedapi_serving.supervisor import model_processes
from batchedapi_serving.supervisor.lifecycle import CrashLoopError, Life
from batchedapi_serving.supervisor.model_processes import ModelProcesses
from dispatching import replica_settings

pytestmark = pytest.mark.looptime

LifeOfAProcess = tuple[int, int]
"""Batches that it answers, and the exit code with which it ends then."""


class Scripted:
    """A process that loads at once and lives as it is told; the last ends with the replica."""

    pid = session = 1

    def __init__(self, memory: slots.Memory, lives: Iterator[LifeOfAProcess], life: Life) -> None:
        self._memory = memory
        self._lives = lives
        self._life = life
        self.starts: list[float] = []

    async def load(self, *_: Any) -> bool:
        """As ModelProcesses._load."""
        self.starts.append(asyncio.get_running_loop().time())
        return True

    async def ended(self) -> int:
        """As Child."""
        answered, code = next(self._lives, (0, -1))
        if code < 0:
            self._life.stopping.set()
        self._memory[slots.ANSWERED] += answered
        return code

    def failure(self, _: Path, code: int) -> LoadError:
        """As Child."""
        return LoadError("CrashLooping", f"model process 0 was ended with exit code {code}")


async def _nothing_left(*_: Any, **__: Any) -> None:
    """It has started nothing."""


async def kept(
    monkeypatch: pytest.MonkeyPatch, lives: Sequence[LifeOfAProcess]
) -> tuple[list[float], LoadError | None]:
    """Seconds between the starts of one process, and why the replica ended."""
    memory, life = memoryview(bytearray(slots.BYTES)).cast("d"), Life()
    process = Scripted(memory, iter(lives), life)
    monkeypatch.setattr(model_processes, "Child", lambda *_: process)
    processes = ModelProcesses(replica_settings(), memory, [{}], 1, life, end_orphans=_nothing_left)
    monkeypatch.setattr(processes, "_load", process.load)

    await processes.keep()

    starts = process.starts
    return [round(b - a, 3) for a, b in itertools.pairwise(starts)], life.failure


async def test_the_wait_doubles_until_a_process_has_answered_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S21: one that died before it answered dies as soon the next time."""
    lives = [(0, 1), (0, 1), (0, 1), (1, 1), (0, 1)]

    assert ([0.1, 0.2, 0.4, 0.1, 0.2], None) == await kept(monkeypatch, lives)


async def test_five_lives_without_an_answer_that_end_as_unfit_are_a_crash_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It loads and can do nothing: as long as it is started again nobody sees it."""
    waits, failure = await kept(monkeypatch, [(0, EXIT_UNFIT)] * 9)

    assert [0.1, 0.2, 0.4, 0.8] == waits
    assert isinstance(failure, CrashLoopError)
    assert str(failure) == (
        "model process 0 failed to start 5 times in a row: CrashLooping: model process 0 lost its"
        " device, or broke otherwise, before it answered a batch; the log has the traceback"
    )


@pytest.mark.parametrize("between", [(1, EXIT_UNFIT), (0, 3), (1, 3)])
async def test_deaths_of_a_process_that_answered_or_was_killed_by_a_row_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch, between: LifeOfAProcess
) -> None:
    """S2: a few requests must not be able to end the replica."""
    lives = [*[(0, EXIT_UNFIT)] * 4, between] * 5

    assert (await kept(monkeypatch, lives))[1] is None
