"""An engine that records, in front of a dispatcher with its model process."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import RequestHead, Wire
from batchedapi_serving.dispatch.recording import (
    ArrivalLog,
    RecordFile,
    RecordingEngine,
    recording_engine,
)
from batchedapi_serving.errors import QueueFullError
from batchedapi_serving.settings import RecordingSettings
from dispatching import Asked, World

HEAD = RequestHead(b"application/json", b"", ())

pytestmark = pytest.mark.looptime


class Kept(ArrivalLog):
    """Keeps what it is told in a list."""

    def __init__(self, path: Path) -> None:
        super().__init__(RecordFile(path), 0.0)
        self.kept: list[tuple[float, int, str]] = []

    def arrived(
        self,
        time: float,
        rows: int,
        lengths: Sequence[int],  # noqa: ARG002 - there are none here
        method: str,
    ) -> None:
        """See ArrivalLog."""
        self.kept.append((time, rows, method))


def submit(world: World, engine: RecordingEngine, body: bytes) -> Asked:
    """Ask the recording engine."""
    served = engine.served(None)
    asked = Asked(world, None)
    decoded = served.codec.decode(Wire.PLAIN, HEAD, body)
    asked.handle = engine.submit(served, decoded, Client(), asked)
    return asked


async def test_requests_are_recorded_and_answered(tmp_path: Path) -> None:
    """It is the dispatcher's engine in everything else."""
    world = World()
    arrivals = Kept(tmp_path / "record.jsonl")
    engine = RecordingEngine(world.dispatcher, arrivals, world.loop.time)

    began = world.loop.time()
    submit(world, engine, b"1")
    await asyncio.sleep(0.5)
    submit(world, engine, b'{"instances": [1, 2, 3]}')
    await asyncio.sleep(1.0)

    assert [(0.0, 1, "predict"), (0.5, 3, "predict")] == [
        (round(time - began, 6), rows, method) for time, rows, method in arrivals.kept
    ]
    assert [[1], [1, 2, 3]] == world.batches
    assert world.dispatcher.methods == engine.methods
    assert "predict" == engine.default


async def test_a_request_that_is_refused_is_part_of_the_load(tmp_path: Path) -> None:
    """A simulation of more replicas would let it in."""
    world = World(max_concurrency=1)
    arrivals = Kept(tmp_path / "record.jsonl")
    engine = RecordingEngine(world.dispatcher, arrivals, world.loop.time)

    submit(world, engine, b"1")
    with pytest.raises(QueueFullError):
        submit(world, engine, b"2")

    assert 2 == len(arrivals.kept)


async def test_a_cancelled_request_is_cancelled_at_the_desk_behind(tmp_path: Path) -> None:
    """Nobody runs it."""
    world = World()
    engine = RecordingEngine(world.dispatcher, Kept(tmp_path / "record.jsonl"), world.loop.time)

    asked = submit(world, engine, b"1")
    assert asked.handle is not None
    engine.cancel(asked.handle)
    await asyncio.sleep(1.0)

    assert [] == world.batches


async def test_a_recording_goes_on_in_the_file_of_a_process_before(tmp_path: Path) -> None:
    """The times count from the same start."""
    path = tmp_path / "record.jsonl"
    path.write_text("{}\n")
    world = World()

    engine = recording_engine(world.dispatcher, RecordingSettings(str(path), 0.0))
    assert engine is not None
    submit(world, engine, b"1")
    engine.close()

    first, second = path.read_text().splitlines()
    assert "{}" == first
    assert second.endswith('"rows": 1, "lengths": null, "method": "predict"}')


async def test_a_file_that_cannot_be_opened_any_more_is_not_worth_a_replica(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder was removed; the replaced process serves on."""
    path = tmp_path / "removed" / "record.jsonl"
    world = World()

    with caplog.at_level(logging.WARNING):
        engine = recording_engine(world.dispatcher, RecordingSettings(str(path), 0.0))

    assert engine is None
    assert "nothing is recorded" in caplog.text
