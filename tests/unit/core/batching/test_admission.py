"""Refusing what would be late."""

import pytest

from batchedapi_core.batching import (
    Admission,
    Batcher,
    BatchPolicy,
    Client,
    Request,
    retry_after,
)


def batcher_of(*, queued: int, busy: bool, known: bool = True) -> Batcher:
    """t(n) = 10 ms + 0.2 ms n, 64 rows a batch, one lane; busy with 50 rows until 0.020 s."""
    batcher: Batcher = Batcher(BatchPolicy(64, 0.02, latency_target=0.05))
    batcher.lane_added(0.0)
    for size in (1, 16, 64) * 16 if known else ():
        batcher.service.observe(size, 0.010 + 0.0002 * size)
    if busy:
        batcher.started(50, 0.0)
    for _ in range(queued):
        batcher.arrive(Request(0, "", 1, 1, Client(), 0.0, 30.0), 0.0)
    return batcher


@pytest.mark.parametrize(
    ("queued", "target", "accepted"),
    [
        (0, 0.05, True),  # 20 + 10.2 ms
        (63, 0.05, True),  # 20 + 22.8 ms
        (64, 0.05, False),  # 20 + 22.8 + 10.2 ms
        (64, 0.06, True),
        (0, 0.001, False),
    ],
)
def test_a_request_is_taken_if_it_is_expected_in_time(
    queued: int, target: float, *, accepted: bool
) -> None:
    """The time of its own batch behind those before it, with 5 % to spare."""
    batcher = batcher_of(queued=queued, busy=True)

    assert accepted == Admission(target).accepts(batcher, 1, 0.0)


@pytest.mark.parametrize("target", [0.001, 0.05])
def test_an_idle_server_always_tries(target: float) -> None:
    """A bad estimate of t(n) would otherwise refuse everything for ever and never be corrected."""
    assert Admission(target).accepts(batcher_of(queued=0, busy=False), 1, 0.0)


def test_everything_is_taken_while_nothing_is_known() -> None:
    """The first batches teach t(n)."""
    assert Admission(0.001).accepts(batcher_of(queued=500, busy=True, known=False), 1, 0.0)


def test_the_wait_for_a_busy_lane_ends() -> None:
    """A request refused at the start of a batch is accepted near its end."""
    batcher, admission = batcher_of(queued=0, busy=True), Admission(0.020)

    assert not admission.accepts(batcher, 1, 0.0)
    assert admission.accepts(batcher, 1, 0.018)


def test_who_is_expected_to_ride_along_counts() -> None:
    """Under load the batch of this request will be larger than what is queued now."""
    batcher, admission = batcher_of(queued=0, busy=True), Admission(0.040)

    answers = [admission.accepts(batcher, 1, i * 1e-6) for i in range(100)]

    assert answers[0]
    assert not answers[-1]


def test_a_second_lane_halves_the_wait() -> None:
    """Two full batches before this request run side by side."""
    batcher, target = batcher_of(queued=128, busy=True), 0.075

    alone = Admission(target).accepts(batcher, 1, 0.0)
    batcher.lane_added(0.0)
    batcher.started(50, 0.0)
    together = Admission(target).accepts(batcher, 1, 0.0)

    assert not alone
    assert together


def test_without_lanes_the_batches_before_it_still_count() -> None:
    """While the only model process restarts nothing divides by its lanes."""
    batcher = batcher_of(queued=64, busy=False)
    batcher.lane_removed(was_free=True, now=0.0)

    assert not Admission(0.02).accepts(batcher, 1, 0.0)
    assert Admission(0.05).accepts(batcher, 1, 0.0)


def test_retry_after_is_backlog_over_capacity() -> None:
    """78 queued + 50 running are two full batches of 22.8 ms."""
    assert pytest.approx(0.0456) == retry_after(batcher_of(queued=78, busy=True))


def test_a_first_burst_is_not_refused_on_a_guess() -> None:
    """A batch of one took 2 ms: that 64 take 65 ms is nothing but a guess, and they take 3."""
    batcher: Batcher = Batcher(BatchPolicy(64, 0.005, latency_target=0.030))
    batcher.lane_added(0.0)
    batcher.service.observe(1, 0.002)
    batcher.started(1, 0.0)
    admission = Admission(0.030)

    taken = []
    for n in range(63):
        taken.append(admission.accepts(batcher, 1, 0.0001 * n))
        batcher.arrive(Request(0, "", 1, 1, Client(), 0.0, 30.0), 0.0)

    assert [True] * 63 == taken


def test_warm_up_batches_say_what_a_full_batch_takes() -> None:
    """So the first burst that would be late is refused as a later one is."""
    batcher: Batcher = Batcher(BatchPolicy(64, 0.005, latency_target=0.030))
    batcher.lane_added(0.0)
    for size in (1, 8, 64):
        batcher.warmed_up(size, 0.002 + 0.0005 * size)
    batcher.started(64, 0.0)

    assert not Admission(0.030).accepts(batcher, 1, 0.0)
    assert Admission(0.050).accepts(batcher, 1, 0.0)
