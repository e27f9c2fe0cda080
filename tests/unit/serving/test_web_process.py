"""Reports of a web process to its supervisor, and the desk at its engine when recording."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.recording import RecordingEngine
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.settings import RecordingSettings
from batchedapi_serving.web_process import ControlLine, queue_here
from dispatching import replica_settings

PREDICT = MethodSpec("predict", True, max_batch_size=8, example={"id": 1})
LARGE = {"input": Tensor("FP32", [9999])}
EMBED = MethodSpec("embed", True, max_batch_size=32)


@pytest.fixture
def pair() -> Iterator[tuple[ControlLine, socket.socket]]:
    """The line and the supervisor's end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(5)
        yield ControlLine(ours), theirs


def said(end: socket.socket) -> list[Any]:
    """Every message, one a line."""
    return [json.loads(line) for line in end.recv(1 << 20).splitlines()]


async def test_the_methods_and_an_example_are_told_once_ready(
    pair: tuple[ControlLine, socket.socket],
) -> None:
    """D13: the start line shows a request that works; metrics need names and sizes."""
    line, end = pair

    line.ready([PREDICT, EMBED], "predict")

    assert line.known.is_set()
    methods = [["predict", 8], ["embed", 32]]
    assert [{"ready": {"id": 1}, "methods": methods}] == said(end)


@pytest.mark.parametrize(
    ("methods", "default"),
    [
        ([EMBED, MethodSpec("rank", True)], None),
        ([MethodSpec("predict", True, inputs=LARGE, single_input=True)], "predict"),
        ([MethodSpec("predict", True, example="x" * 5000)], "predict"),
    ],
    ids=["no default", "large tensor", "long example"],
)
async def test_an_example_that_nobody_could_read_is_not_told(
    pair: tuple[ControlLine, socket.socket], methods: list[MethodSpec], default: str | None
) -> None:
    """Nor one of a method that a plain request does not reach."""
    line, end = pair

    line.ready(methods, default)

    assert [None] == [message["ready"] for message in said(end)]


async def test_a_process_that_hangs_is_named(pair: tuple[ControlLine, socket.socket]) -> None:
    """The supervisor owns the processes."""
    line, end = pair

    line.replace(17)

    assert [{"replace": 17}] == said(end)


@pytest.fixture
def control() -> Iterator[ControlLine]:
    """Nobody listens at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ControlLine(ours)


def memory() -> slots.Memory:
    """The memory of a replica that has counted nothing."""
    return memoryview(bytearray(slots.BYTES)).cast("d")


async def test_without_a_recording_the_desk_is_the_dispatcher_itself(
    tmp_path: Path, control: ControlLine
) -> None:
    """Nothing is paid for what is not asked for."""
    settings = replica_settings(runtime=str(tmp_path))

    async with queue_here(settings, memory(), control) as backend:
        assert isinstance(backend.engine, Dispatcher)


async def test_requests_of_all_web_processes_come_to_a_desk_that_records(
    tmp_path: Path, control: ControlLine
) -> None:
    """Further ones hand theirs in at the same; at the end what is held is written."""
    record = tmp_path / "record.jsonl"
    settings = replica_settings(
        runtime=str(tmp_path), recording=RecordingSettings(str(record), 0.0)
    )

    async with queue_here(settings, memory(), control) as backend:
        assert isinstance(backend.engine, RecordingEngine)
        further: Any = backend.emptied.__self__  # type: ignore[attr-defined]  # the server of further web processes
        assert backend.engine is further.engine
        backend.engine._arrivals.arrived(1.0, 2, (3, 4), "predict")
        await asyncio.sleep(0)

    assert (
        '{"t": 1.000000, "rows": 2, "lengths": [3, 4], "method": "predict"}\n' == record.read_text()
    )


async def test_a_recording_that_cannot_go_on_leaves_the_desk_as_it_is(
    tmp_path: Path, control: ControlLine
) -> None:
    """A replica is worth more."""
    gone = RecordingSettings(str(tmp_path / "removed" / "record.jsonl"), 0.0)
    settings = replica_settings(runtime=str(tmp_path), recording=gone)

    async with queue_here(settings, memory(), control) as backend:
        assert isinstance(backend.engine, Dispatcher)
