"""Strategy Adaptive: what it makes of t(n) and the latency target (B05, B06, N20)."""

import math
import random
from itertools import pairwise

import pytest

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Effective,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.policy import EPOCH
from batchedapi_core.service_model import ServiceTime

LARGEST, INTERVAL = 128, 0.020
CURVES = [  # t(n) in seconds, latency target in seconds
    (ServiceTime(0.010, 0.0002), 0.050),
    (ServiceTime(0.010, 0.0002), 0.030),
    (ServiceTime(0.002, 0.001), 0.100),
    (ServiceTime(0.005, 0.005), 0.400),
    (ServiceTime(0.050, 0.0005), 0.150),
    (ServiceTime(0.001, 0.0003), 0.030),
    (ServiceTime(0.010, 0.0002), 5.0),
]


def best_size(curve: ServiceTime, target: float) -> int:
    """By brute force: rows a second within the target, less what queueing noise takes."""
    noise = 0.5 * math.log(100) * curve.per_row

    def rate(n: int) -> float:
        slack = max(0.0, target - 2 * curve.seconds(n))
        return n / curve.seconds(n) * slack / (slack + noise)

    return max(range(1, LARGEST + 1), key=rate)


class Server:
    """One lane in virtual time; the rows of a Poisson stream, `load` a second."""

    def __init__(self, target: float, seed: int = 1) -> None:
        policy = BatchPolicy(LARGEST, INTERVAL, Strategy.ADAPTIVE, target)
        self.batcher: Batcher = Batcher(policy)
        self.batcher.lane_added(0.0)
        self.random = random.Random(seed)
        self.now = self.next_arrival = 0.0
        self.sizes: list[int] = []
        self.seen: list[Effective] = []

    def run(self, curve: ServiceTime, load: float, batches: int) -> None:
        """Until so many batches are done; times vary by 3 % around the curve."""
        done = len(self.sizes) + batches
        while len(self.sizes) < done:
            self.arrive(load)
            action = next_action(self.batcher, self.now)
            match action:
                case Release(size):
                    self.execute(curve, size)
                case WaitUntil(at):
                    self.now = min(at, self.next_arrival)
                case _:
                    self.now = self.next_arrival

    def execute(self, curve: ServiceTime, size: int) -> None:
        """A batch from start to end."""
        requests = self.batcher.take(size, self.now).requests
        self.batcher.started(len(requests), self.now)
        seconds = curve.seconds(len(requests)) * self.random.uniform(0.97, 1.03)
        self.now += seconds
        self.batcher.finished(requests, seconds, self.now)
        self.sizes.append(len(requests))
        self.seen.append(self.batcher.effective)

    def arrive(self, load: float) -> None:
        """Everybody until now, short of a queue that nobody would admit."""
        while self.next_arrival <= self.now:
            if self.batcher.queue.size < 4 * LARGEST:
                request = Request(0, "", 1, 1, Client(), self.next_arrival, math.inf)
                self.batcher.arrive(request, self.next_arrival)
            self.next_arrival += self.random.expovariate(load)


@pytest.mark.no_cover
@pytest.mark.parametrize(("curve", "target"), CURVES)
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_size_and_interval_converge_to_the_optimum(
    curve: ServiceTime, target: float, share: float
) -> None:
    """B05: within 10 % (or one row) of brute force, below capacity and above."""
    server, best = Server(target), best_size(curve, target)

    server.run(curve, share * best / curve.seconds(best), batches=400)
    size, interval = server.seen[-1]

    if share > 1.0:
        # Below capacity no batch may be large enough to say more than that it may be larger.
        assert size <= max(1.1 * best, best + 1)
    assert max(0.9 * best, 1) <= size + 1
    assert interval <= INTERVAL
    assert pytest.approx(min(INTERVAL, curve.seconds(best)), rel=0.1) == interval


@pytest.mark.parametrize(("curve", "target"), CURVES)
def test_the_fit_is_within_ten_percent(curve: ServiceTime, target: float) -> None:
    """B06, over all sizes that it is used for; a quiet and a busy time were seen."""
    server, best = Server(target), best_size(curve, target)
    server.run(curve, 0.5 / curve.seconds(1), batches=100)
    server.run(curve, 2 * best / curve.seconds(best), batches=200)

    for size in range(1, best + 1):
        learned = server.batcher.service.seconds(size)
        assert pytest.approx(curve.seconds(size), rel=0.1) == learned


def test_a_size_of_one_is_no_trap() -> None:
    """Two rows that once took twice as long as one make one look best, but not for ever."""
    server = Server(0.050)
    for _ in range(20):
        server.batcher.service.observe(1, 0.010)
    for _ in range(20):
        server.batcher.service.observe(2, 0.020)
    curve = ServiceTime(0.010, 0.0002)

    server.run(curve, 20.0, batches=32)
    trapped = server.seen[-1].max_batch_size
    server.run(curve, 5_000.0, batches=3 * EPOCH)

    assert trapped < 8
    assert best_size(curve, 0.050) * 0.9 <= server.seen[-1].max_batch_size


def test_a_larger_batch_is_tried_now_and_then() -> None:
    """A model that was slow while it was cold is fast later: only a larger batch can show it."""
    server = Server(0.050)
    server.run(ServiceTime(0.010, 0.001), 5_000.0, batches=200)
    slow = server.seen[-1].max_batch_size

    server.run(ServiceTime(0.010, 0.0002), 5_000.0, batches=4 * EPOCH)

    assert best_size(ServiceTime(0.010, 0.001), 0.050) * 1.1 >= slow
    assert best_size(ServiceTime(0.010, 0.0002), 0.050) * 0.9 <= server.seen[-1].max_batch_size


def test_a_quiet_night_forgets_nothing() -> None:
    """Batches are small for lack of rows then; in the morning the best size is still known."""
    curve, target = CURVES[1]
    server = Server(target)
    server.run(curve, 4_000.0, batches=100)

    server.run(curve, 10.0, batches=2 * EPOCH)

    assert pytest.approx(curve.seconds(64), rel=0.1) == server.batcher.service.seconds(64)
    assert 0.8 * best_size(curve, target) <= server.seen[-1].max_batch_size


def test_trying_is_rare() -> None:
    """A batch beyond the best size may be late: at most one in a hundred is."""
    curve, target = CURVES[0]
    server = Server(target)
    server.run(curve, 4_000.0, batches=300)

    server.run(curve, 4_000.0, batches=2 * EPOCH)
    beyond = [size for size in server.sizes[300:] if size > 1.1 * best_size(curve, target)]

    assert len(beyond) <= 0.01 * 2 * EPOCH


def test_a_target_that_cannot_be_met_changes_nothing() -> None:
    """Batches of one would lose the throughput and still be late."""
    server = Server(0.015)

    server.run(ServiceTime(0.010, 0.0002), 5_000.0, batches=100)

    assert {Effective(LARGEST, INTERVAL)} == set(server.seen)


def test_limits_never_exceed_the_users() -> None:
    """N20: they are caps on whatever is learned."""
    for curve, target in CURVES:
        server = Server(target)
        server.run(curve, 3_000.0, batches=150)

        assert all(1 <= size <= LARGEST for size, _ in server.seen)
        assert all(0.0 < interval <= INTERVAL for _, interval in server.seen)
        assert max(server.sizes) <= LARGEST


def test_it_is_not_computed_for_every_batch() -> None:
    """The search costs more than a decision."""
    curve, target = CURVES[0]
    server = Server(target)

    server.run(curve, 5_000.0, batches=320)
    changes = sum(before != after for before, after in pairwise(server.seen))

    assert changes <= 320 / 16 + 5


def test_a_clock_too_coarse_to_see_a_batch_changes_nothing() -> None:
    """Batches of no duration say nothing about what is best."""
    server = Server(0.050)

    server.run(ServiceTime(0.0, 0.0), 1_000.0, batches=40)

    assert {Effective(LARGEST, INTERVAL)} == set(server.seen)


def test_memory_and_latency_both_limit() -> None:
    """C24 under Adaptive: the smaller of the two holds, and tuning does not undo it."""
    curve, target = CURVES[0]
    server = Server(target)
    server.batcher.limit(None, 10)

    server.run(curve, 5_000.0, batches=200)

    assert {10} == {effective.max_batch_size for effective in server.seen}
    assert max(server.sizes) == 10


def test_other_strategies_keep_the_users_limits() -> None:
    """Only Adaptive moves them."""
    batcher: Batcher = Batcher(BatchPolicy(64, 0.01, latency_target=0.03))
    batcher.lane_added(0.0)
    for now in range(100):
        request = Request(0, "", 1, 1, Client(), float(now), math.inf)
        batcher.arrive(request, float(now))
        batcher.take(1, float(now))
        batcher.started(1, float(now))
        batcher.finished([request], 0.010, now + 0.010)

    assert Effective(64, 0.01) == batcher.effective
