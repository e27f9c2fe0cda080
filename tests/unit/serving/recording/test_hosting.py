"""Who stands at the desk of a web process, with and without a recording."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedapi_serving.metrics import slots
from batchedapi_serving.recording.desk import RecordingDesk
from batchedapi_serving.settings import RecordingSettings
from batchedapi_serving.web.control import ControlLine
from batchedapi_serving.web.hosting import QueueHost, hosted
from dispatching import replica_settings


@pytest.fixture
def control() -> Iterator[ControlLine]:
    """Nobody listens at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ControlLine(ours)


def memory() -> slots.Memory:
    """Of a replica that has counted nothing."""
    return memoryview(bytearray(slots.BYTES)).cast("d")


async def test_without_a_recording_the_desk_is_the_dispatcher_itself(control: ControlLine) -> None:
    """Nothing is paid for what is not asked for."""
    host = QueueHost(replica_settings(), memory(), control)

    assert host.dispatcher is host.desk
    assert host.dispatcher is host.server.desk


async def test_requests_of_all_web_processes_come_to_a_desk_that_records(
    tmp_path: Path, control: ControlLine
) -> None:
    """Further ones hand theirs in at the same; at the end what is held is written."""
    record = tmp_path / "record.jsonl"
    settings = replica_settings(
        runtime=str(tmp_path), recording=RecordingSettings(str(record), 0.0)
    )

    async with hosted(settings, memory(), control, 0) as host:
        assert isinstance(host, QueueHost)
        assert isinstance(host.desk, RecordingDesk)
        assert host.desk is host.server.desk
        host.desk._arrivals.arrived(1.0, 2, None, "predict")
        await asyncio.sleep(0)

    assert '{"t": 1.000000, "rows": 2, "shape": null, "method": "predict"}\n' == record.read_text()


async def test_a_recording_that_cannot_go_on_leaves_the_desk_as_it_is(
    tmp_path: Path, control: ControlLine
) -> None:
    """A replica is worth more."""
    gone = RecordingSettings(str(tmp_path / "removed" / "record.jsonl"), 0.0)
    host = QueueHost(replica_settings(recording=gone), memory(), control)

    assert host.dispatcher is host.desk
    host.desk_closed()
