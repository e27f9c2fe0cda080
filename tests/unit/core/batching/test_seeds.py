"""Strategy Fixed reproduces what users of other batching servers have in their logs and documents.

A dispatcher in virtual time: one lane, a batch logged as `waited/interval, size/largest`.
"""

from dataclasses import dataclass, field
from math import inf

import pytest

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)


@dataclass
class Replay:
    """Requests of one row at given times, and every batch that they ride in."""

    largest: int
    interval: float
    fixed: float = 0.0  # seconds of t(n) = fixed + per_row * n
    per_row: float = 0.0
    now: float = 0.0
    log: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def run(self, arrivals: list[float]) -> "Replay":
        """All of them, until the last is answered."""
        batcher: Batcher = Batcher(BatchPolicy(self.largest, self.interval, Strategy.FIXED))
        batcher.lane_added(0.0)
        coming = list(reversed(arrivals))
        while coming or batcher.queue.size:
            while coming and coming[-1] <= self.now:
                at = coming.pop()
                batcher.arrive(Request(0, "", 1, 1, Client(), at, inf), at)
            match next_action(batcher, self.now):
                case Release(size):
                    self.execute(batcher, size)
                case WaitUntil(at):
                    self.now = min([at, *coming[-1:]])
                case _:
                    self.now = coming[-1]
        return self

    def execute(self, batcher: Batcher, size: int) -> None:
        """A batch from start to answers."""
        requests = batcher.take(size, self.now).requests
        waited, rows = self.now - requests[0].arrived, len(requests)
        self.log.append(f"{waited:.3f}/{self.interval:g}, {rows}/{self.largest}")
        self.sizes.append(rows)
        batcher.started(rows, self.now)
        seconds = self.fixed + self.per_row * rows
        self.now += seconds
        batcher.finished(requests, seconds, self.now)
        self.latencies += [self.now - request.arrived for request in requests]


def test_a_hundred_at_once_are_a_full_batch_and_the_rest_at_the_time_limit() -> None:
    """D15: batch_size=64, batch_time=2."""
    assert ["0.000/2, 64/64", "2.000/2, 36/64"] == Replay(64, 2.0).run([0.0] * 100).log


def test_a_lone_request_is_released_at_the_time_limit() -> None:
    """D12, D14, C18: `2.001/2, 1/64` less the timer's tick."""
    assert ["2.000/2, 1/64"] == Replay(64, 2.0).run([0.0]).log


def test_a_trickle_fills_what_it_can_in_the_interval() -> None:
    """C18: what is there is run when the time is over, counted from the first."""
    arrivals = [0.0, 0.5, 1.0, 1.5, 2.5]

    assert ["2.000/2, 4/64", "2.000/2, 1/64"] == Replay(64, 2.0).run(arrivals).log


def test_full_batches_one_after_the_other() -> None:
    """D15: a steady crowd makes full batches only, and the remainder waits for the limit."""
    replay = Replay(64, 2.0, fixed=0.064).run([0.0] * 356)

    assert [64] * 5 + [36] == replay.sizes
    assert "2.000/2, 36/64" == replay.log[-1]


def test_the_mean_batch_is_throughput_times_the_interval() -> None:
    """C26: 300 requests a second and 0.1 s make batches of 30."""
    replay = Replay(64, 0.1, per_row=0.0001).run([i / 300 for i in range(3_000)])

    mean = sum(replay.sizes) / len(replay.sizes)

    assert pytest.approx(300 * 0.1, rel=0.1) == mean


def test_the_worked_numbers_of_batching() -> None:
    """C31: 50 ms alone is 20 a second; 128 at 10 ms each take 1280 ms, at five times the rate."""
    alone = Replay(1, 0.0, fixed=0.040, per_row=0.010).run([0.0] * 128)
    together = Replay(128, 1.0, per_row=0.010).run([0.0] * 128)

    assert ([1] * 128, [128]) == (alone.sizes, together.sizes)
    assert pytest.approx([0.050 * (n + 1) for n in range(128)]) == alone.latencies
    assert pytest.approx([1.280] * 128) == together.latencies
    assert pytest.approx(5.0) == alone.now / together.now


def test_more_inputs_than_the_maximum_are_never_in_one_batch() -> None:
    """N22, B17: performance or memory degrade beyond it."""
    assert max(Replay(100, 0.5, per_row=0.001).run([i / 1000 for i in range(990)]).sizes) == 100
