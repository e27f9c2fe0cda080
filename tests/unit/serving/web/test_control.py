"""What a web process tells its supervisor."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from batchedapi_serving.predictor.api import MethodSpec, Tensor
from batchedapi_serving.web.control import ControlLine

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
