"""The choice of a lane with room for a batch, and the detection of a process that hangs."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from batchedapi_core.batching import Batch, Lane, LaneChoice, LanePool

CHI_SQUARE_7 = 24.3
"""Exceeded by chance once in a thousand, with 7 degrees of freedom."""


def pool_of(choice: LaneChoice, processes: Sequence[int]) -> tuple[LanePool, list[Lane]]:
    """A pool with a free lane for each."""
    pool = LanePool(choice, random.Random(9))  # the same in every run
    lanes = [Lane(process) for process in processes]
    for lane in lanes:
        pool.add(lane)
    return pool, lanes


def give(pool: LanePool) -> Batch:
    """A batch that is on its lane."""
    batch = Batch("", (), "full")
    batch.lane = pool.take(batch)
    return batch


def lane_of(pool: LanePool) -> Lane:
    """The lane of the next batch."""
    lane = give(pool).lane
    assert lane is not None
    return lane


def test_lanes_are_chosen_at_random_with_equal_chances() -> None:
    """B09: chi-square of 8,000 choices among 8."""
    pool, lanes = pool_of(LaneChoice.RANDOM, range(8))
    chosen: Counter[Lane] = Counter()
    for _ in range(8000):
        batch = give(pool)
        chosen[batch.lane] += 1
        pool.release(batch, batch.lane, 0.0)

    statistic = sum((chosen[lane] - 1000) ** 2 / 1000 for lane in lanes)
    assert 0.0 < statistic < CHI_SQUARE_7


def test_least_loaded_takes_the_process_with_the_fewest_busy_lanes() -> None:
    """B10: with two lanes each, the processes fill up evenly."""
    pool, _ = pool_of(LaneChoice.LEAST_LOADED, [1, 1, 2, 2, 3, 3])

    first, second = ([lane_of(pool).process for _ in range(3)] for _ in range(2))

    assert [1, 2, 3] == sorted(first) == sorted(second)
    assert not pool.with_room


def test_least_loaded_counts_lanes_that_are_busy_and_not_those_that_are_gone() -> None:
    """A process that has just started with one of its lanes is not a loaded one."""
    pool, lanes = pool_of(LaneChoice.LEAST_LOADED, [1, 1, 1, 2])
    busy = lane_of(pool)
    assert busy.process == 1
    pool.remove(lanes[1] if lanes[1] is not busy else lanes[0])

    assert 2 == lane_of(pool).process


def test_among_equals_the_longest_free_is_next() -> None:
    """With one lane a process this is in turn."""
    pool, lanes = pool_of(LaneChoice.LEAST_LOADED, [1, 2, 3])
    first = give(pool)
    pool.release(first, lanes[0], 0.0)

    assert [lanes[1], lanes[2], lanes[0]] == [lane_of(pool) for _ in range(3)]


@pytest.mark.parametrize("choice", LaneChoice)
def test_a_lane_that_is_gone_is_never_taken(choice: LaneChoice) -> None:
    """Nor comes back when its batch is reported."""
    pool, lanes = pool_of(choice, [1, 2])
    taken = give(pool)
    (other,) = [lane for lane in lanes if lane is not taken.lane]

    pool.remove(taken.lane)
    pool.release(taken, taken.lane, 0.0)

    assert other is lane_of(pool)
    assert not pool.with_room


@pytest.mark.parametrize("choice", LaneChoice)
def test_a_lane_for_several_batches_has_room_until_it_has_so_many(choice: LaneChoice) -> None:
    """A channel runs the calls of an async method side by side."""
    pool = LanePool(choice, random.Random(1))
    channels = [Lane(1, at_once=2), Lane(2, at_once=2)]
    for channel in channels:
        pool.add(channel)

    batches = [give(pool) for _ in range(4)]
    assert not pool.with_room
    pool.release(batches[0], batches[0].lane, 0.0)

    assert [2, 2] == [Counter(b.lane for b in batches)[channel] for channel in channels]
    assert batches[0].lane is lane_of(pool)


def test_a_process_hangs_when_one_batch_has_had_the_whole_timeout() -> None:
    """Seconds on the caller's clock; free lanes do not hang, and what has not begun neither."""
    pool, _ = pool_of(LaneChoice.RANDOM, [7, 8, 9])
    busy, _ = give(pool), give(pool)
    busy.started = 10.0

    assert (set(), {busy.lane.process}) == (pool.hanging(39.9, 30.0), pool.hanging(40.0, 30.0))
    assert (40.0, float("inf")) == (pool.next_hang(39.9, 30.0), pool.next_hang(40.0, 30.0))


def test_a_process_that_answered_another_call_since_does_not_hang() -> None:
    """A call may await what does not come: its clients get their 504, and it is cancelled."""
    pool, channel = LanePool(LaneChoice.RANDOM, random.Random(1)), Lane(7, 2, grace=1.0)
    pool.add(channel)
    before, stuck = give(pool), give(pool)
    before.started, stuck.started = 0.0, 1.0
    pool.release(before, channel, 1.0)  # at whose end it began: that is not since
    late = pool.hanging(32.0, 30.0)
    other = give(pool)
    pool.release(other, channel, 5.0)

    assert (set(), {7}, set()) == (pool.hanging(31.9, 30.0), late, pool.hanging(32.0, 30.0))
