"""Batches that a model process keeps for the next revision: how many, how often, and of what."""

import asyncio
from typing import Any

import pytest

from batchedapi_serving.ipc import Frame, FrameReader
from batchedapi_serving.model.recent import (
    MOST_BATCHES,
    MOST_BYTES,
    PAUSE,
    RecentBatches,
    RecordedRunner,
)
from batchedapi_serving.predictor import MethodSpec

METHODS = [MethodSpec("predict", batched=True), MethodSpec("call", batched=False)]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Uncopied:
    """Has the length of rows that are too large to keep, and nothing to copy."""

    def __len__(self) -> int:
        return MOST_BYTES // 2 + 1


class Answering:
    """Answers each batch with its rows, after it has overwritten them as a method may."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self._answer = answer or {"kind": "tensors", "outputs": [], "not_finite": []}

    def run(self, meta: dict[str, Any], payload: Any) -> tuple[dict[str, Any], list[bytes]]:
        """See FrameRunner."""
        given = b"" if isinstance(payload, Uncopied) else bytes(payload)
        if isinstance(payload, memoryview):
            payload[:] = bytes(len(payload))
        return {**self._answer, "rows": meta["rows"]}, [given.upper()]

    async def run_async(
        self, meta: dict[str, Any], payload: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """See FrameRunner."""
        return self.run(meta, payload)

    def streams(self, method: str) -> bool:
        """See FrameRunner."""
        return method == "stream"

    async def run_stream(self, *_: Any) -> Any:
        """See FrameRunner."""


def batch(method: str = "predict", rows: int = 2, **more: Any) -> dict[str, Any]:
    """The frame of one."""
    return {"method": method, "rows": rows, **more}


def kept(recent: RecentBatches) -> list[Frame]:
    """Its batches, without the frame about the methods."""
    head, *frames = FrameReader().feed(b"".join(recent.to_frames()))
    assert ("one", ["predict"]) == (
        head.meta["revision"], [method["name"] for method in head.meta["methods"]],
    )  # fmt: skip
    return frames


def test_a_batch_is_kept_as_it_came_with_its_answer() -> None:
    """How it came, and what the method made of its arrays, is no part of it."""
    clock = Clock()
    recent = RecentBatches(METHODS, "one", clock=clock)
    runner = RecordedRunner(Answering(), recent, clock)

    runner.run(batch(memory=1, trace={}, call=3, lengths=[1]), memoryview(bytearray(b"rows")))

    (frame,) = kept(recent)
    assert (batch(lengths=[1], size=2), 4, 0.0) == tuple(
        frame.meta[name] for name in ("batch", "rows", "seconds")
    )
    assert (b"rowsROWS", "tensors") == (frame.payload, frame.meta["answer"]["kind"])


def test_a_few_a_second_are_kept_whatever_the_load() -> None:
    """So that copying them costs less than 1 % of the time."""
    clock = Clock()
    recent = RecentBatches(METHODS, "one", clock=clock)
    runner = RecordedRunner(Answering(), recent, clock)

    for _ in range(100):
        asyncio.run(runner.run_async(batch(), b"rows"))
        clock.now += PAUSE / 10
    assert 10 == len(kept(recent))

    runner.run(batch(), bytes(2_000_000))  # with its answer worth 0.2 s
    clock.now += 0.15
    runner.run(batch(), b"late")
    assert 11 == len(kept(recent))


@pytest.mark.parametrize(
    ("length", "batches", "left"),
    [(10, MOST_BATCHES + 10, MOST_BATCHES), (2_000_000, 9, 4), (MOST_BYTES // 4, 2, 0)],
)
def test_a_ring_has_bounds(length: int, batches: int, left: int) -> None:
    """16 MiB a replica, however long it runs; what would push all others out is not kept."""
    clock = Clock()
    recent = RecentBatches(METHODS, "one", clock=clock)
    runner = RecordedRunner(Answering(), recent, clock)
    for i in range(batches):
        runner.run(batch(rows=i + 1), bytes(length))
        clock.now += 60

    frames = kept(recent)

    assert sum(len(frame.payload) for frame in frames) <= MOST_BYTES
    last = range(batches - left + 1, batches + 1)
    assert [*last] == [frame.meta["batch"]["rows"] for frame in frames]


@pytest.mark.parametrize("answered", [False, True])
def test_a_batch_too_large_to_keep_is_not_copied_and_is_told(*, answered: bool) -> None:
    """Neither its rows nor its answers: else each would be, a few times a second, for nothing."""
    clock = Clock()
    recent = RecentBatches(METHODS, "one", clock=clock)
    large: Any = Uncopied()

    if answered:
        recent.keep(batch(), b"rows", {}, (large,), 0.1)
    else:
        RecordedRunner(Answering(), recent, clock).run(batch(), large)

    (head,) = FrameReader().feed(b"".join(recent.to_frames()))
    assert (["predict"], False) == (head.meta["too_large"], recent.is_due("predict", 4))


def test_requests_and_answers_that_nobody_got_are_not_kept() -> None:
    """A method that takes a request may act on it: it must not be run twice."""
    clock = Clock()
    recent = RecentBatches(METHODS, "one", clock=clock)

    RecordedRunner(Answering(), recent, clock).run(batch("call"), b"request")
    unfit = {"kind": "error", "unfit": True}
    RecordedRunner(Answering(unfit), recent, clock).run(batch(), b"rows")

    assert [] == kept(recent)


def test_streams_are_passed_on() -> None:
    """They have no batches."""
    runner = RecordedRunner(Answering(), RecentBatches(METHODS, "one"))

    assert [True, False] == [runner.streams(name) for name in ("stream", "predict")]
