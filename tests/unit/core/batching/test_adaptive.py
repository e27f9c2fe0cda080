"""Strategy Adaptive: what it makes of t(n) and the latency target (B05, B06, N20)."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from batchedapi_core.batching.policy import (
    EPOCH,
    LONGEST_REST,
    SHORTEST_REST,
    Adaptive,
    Epoch,
    alike,
    made_worse,
)
from batchedapi_core.service_model import ServiceTime, ServiceTimeSamples

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


def in_effect(batcher: Batcher) -> Effective:
    """Size and interval of requests without a shape."""
    policy = batcher.policies.of(None)
    return Effective(policy.max_batch_size, policy.batch_interval)


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
        self.seen.append(in_effect(self.batcher))

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

    assert Effective(64, 0.01) == in_effect(batcher)


class Changes:
    """Adaptive, told of batches: an epoch of them has one size, one curve and one latency."""

    def __init__(self) -> None:
        self.adaptive = Adaptive(BatchPolicy(LARGEST, INTERVAL, Strategy.ADAPTIVE, 0.100))
        self.samples = ServiceTimeSamples()
        self.now = 0.0
        self.setting = Effective(LARGEST, INTERVAL)

    def epochs(
        self, curve: ServiceTime, *, latency: float, size: int = LARGEST, count: int = 1,
        rate: float = 1_000.0,
    ) -> Effective:  # fmt: skip
        """So many epochs; the setting at their end."""
        for _ in range(count * EPOCH):
            for seen in (1, 8, size):
                self.samples.observe(seen, curve.seconds(seen))
            self.now += size / rate
            told = self.adaptive.executed(size, self.samples, latency=latency, now=self.now)
            self.setting = told or self.setting
        return self.setting


FAST, SLOW = ServiceTime(0.010, 0.0002), ServiceTime(0.002, 0.001)
"""With 100 ms to answer: batches of 128, and of some 30."""


def changed(latency: float, rate: float = 1_000.0) -> tuple[Changes, Effective, Effective]:
    """A good setting, a change, and the setting after an epoch of `latency` under that."""
    changes = Changes()
    good = changes.epochs(FAST, latency=0.040, count=3)
    changes.epochs(SLOW, latency=0.040)
    after = changes.epochs(SLOW, latency=latency, rate=rate)
    return changes, good, after


def test_a_change_that_makes_it_worse_is_taken_back() -> None:
    """F7: 10 % on the p99, at the load of before."""
    _, good, after = changed(0.050)

    assert good == after


def test_a_change_that_makes_it_little_worse_stays() -> None:
    """Below 10 % it is what the target has room for."""
    _, good, after = changed(0.043)

    assert not alike(good, after)


def test_load_is_no_fault_of_a_setting() -> None:
    """Waits grow with load: the setting before would have had them as well, or longer ones."""
    _, good, after = changed(0.080, rate=1_200.0)

    assert not alike(good, after)


def test_less_load_excuses_nothing() -> None:
    """A setting that serves less and makes requests wait longer is worse in both."""
    _, good, after = changed(0.080, rate=500.0)

    assert good == after


def test_what_was_taken_back_is_not_tried_for_a_while() -> None:
    """It would be as bad, and each trial costs an epoch of late answers."""
    changes, good, _ = changed(0.050)

    resting = changes.epochs(SLOW, latency=0.040, count=SHORTEST_REST - 1)
    after = changes.epochs(SLOW, latency=0.040)

    assert good == resting
    assert not alike(good, after)


def test_each_time_it_rests_twice_as_long() -> None:
    """So that it settles: of a hundred epochs few are trials."""
    changes, good, _ = changed(0.050)
    trials = []

    for _ in range(100):
        held = alike(good, changes.setting)
        changes.epochs(SLOW, latency=0.040 if held else 0.050)
        trials.append(not alike(good, changes.setting) or not held)

    assert 3 <= sum(trials) <= 2 * (100 // LONGEST_REST + LONGEST_REST.bit_length())


def test_a_change_that_was_kept_forgets_earlier_ones() -> None:
    """The rest after the next one that is worse is a short one again."""
    changes, _, _ = changed(0.050)

    kept = changes.epochs(SLOW, latency=0.040, count=SHORTEST_REST + 3)
    changes.epochs(FAST, latency=0.040)
    back = changes.epochs(FAST, latency=0.050)
    changes.epochs(FAST, latency=0.040, count=SHORTEST_REST)
    again = changes.epochs(FAST, latency=0.040)

    assert kept == back
    assert not alike(kept, again)


def test_chance_is_not_taken_for_a_change() -> None:
    """One percent is beyond the 99th percentile by definition; twice as many are not by chance."""
    few, many = (
        Epoch(Effective(64, 0.01), tuple(sorted([0.040] * (500 - n) + [0.050] * n)), 100.0)
        for n in (10, 11)
    )
    before = Epoch(Effective(32, 0.01), (0.040,) * 500, 100.0)

    assert not made_worse(before, few)
    assert made_worse(before, many)
    assert not made_worse(Epoch(Effective(62, 0.01), (0.040,) * 500, 100.0), many)  # no change


def test_a_quiet_hour_does_not_hide_the_load_of_the_minute_after() -> None:
    """Over time the epoch has less load than before; most of its batches ran under more."""
    changes = Changes()
    good = changes.epochs(FAST, latency=0.040, count=3)
    changes.epochs(SLOW, latency=0.040)

    changes.now += 3_600.0
    after = changes.epochs(SLOW, latency=0.080, rate=2_000.0)

    assert not alike(good, after)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 16),
            st.floats(1e-4, 0.2),
            st.floats(1e-4, 1.0),
            st.floats(0.0, 1.0),
            st.integers(1, 2 * EPOCH),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_happens_it_stays_within_the_bounds(
    history: list[tuple[int, float, float, float, int]],
) -> None:
    """N20, F7: size, seconds, latency, gap and number of batches are anything at all."""
    adaptive = Adaptive(BatchPolicy(16, INTERVAL, Strategy.ADAPTIVE, 0.100))
    samples, now, seen = ServiceTimeSamples(), 0.0, []
    for size, seconds, latency, gap, batches in history:
        for _ in range(batches):
            samples.observe(size, seconds)
            now += gap
            seen.append(adaptive.executed(size, samples, latency=latency, now=now))

    assert all(1 <= one.max_batch_size <= 16 for one in seen if one)
    assert all(0.0 <= one.batch_interval <= INTERVAL for one in seen if one)
