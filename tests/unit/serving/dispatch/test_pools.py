"""Which free lane gets a batch."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from batchedapi_core.batching import LaneChoice
from batchedapi_serving.dispatch.batch import Batch
from batchedapi_serving.dispatch.lanes import Lane
from batchedapi_serving.dispatch.pools import LanePool

CHI_SQUARE_7 = 24.3
"""Exceeded by chance once in a thousand, with 7 degrees of freedom."""
BATCH: Batch = Batch(None, (), "full")  # type: ignore[arg-type]  # nothing looks into it


def lane(pid: int) -> Lane:
    """Of a process; connected to nothing."""
    made = Lane(None)  # type: ignore[arg-type]  # it never has anything to tell
    made.pid = pid
    return made


def pool_of(choice: LaneChoice, pids: Sequence[int]) -> tuple[LanePool, list[Lane]]:
    """A pool with a free lane for each."""
    pool, lanes = LanePool(choice), [lane(pid) for pid in pids]
    for one in lanes:
        pool.add(one)
    return pool, lanes


def run(pool: LanePool) -> Lane:
    """Start a batch."""
    taken = pool.take()
    taken.batch = BATCH
    return taken


def test_lanes_are_chosen_at_random_with_equal_chances() -> None:
    """B09: chi-square of 8,000 choices among 8."""
    random.seed(9)  # the same 8,000 in every run
    pool, lanes = pool_of(LaneChoice.RANDOM, range(8))
    chosen: Counter[Lane] = Counter()
    for _ in range(8000):
        one = pool.take()
        chosen[one] += 1
        pool.release(one, 0.0)

    statistic = sum((chosen[one] - 1000) ** 2 / 1000 for one in lanes)
    assert 0.0 < statistic < CHI_SQUARE_7


def test_least_loaded_takes_the_process_with_the_fewest_busy_lanes() -> None:
    """B10: with two lanes each, the processes fill up evenly."""
    pool, _ = pool_of(LaneChoice.LEAST_LOADED, [1, 1, 2, 2, 3, 3])

    first, second = [run(pool).pid for _ in range(3)], [run(pool).pid for _ in range(3)]

    assert [1, 2, 3] == sorted(first) == sorted(second)


def test_least_loaded_counts_lanes_that_are_busy_and_not_those_that_are_gone() -> None:
    """A process that has just started with one of its lanes is not a loaded one."""
    pool, lanes = pool_of(LaneChoice.LEAST_LOADED, [1, 1, 1, 2])
    busy = run(pool)
    assert busy.pid == 1
    pool.remove(lanes[1] if lanes[1] is not busy else lanes[0])

    assert run(pool).pid == 2


def test_among_equals_the_longest_free_is_next() -> None:
    """With one lane a process this is in turn."""
    pool, lanes = pool_of(LaneChoice.LEAST_LOADED, [1, 2, 3])
    first = run(pool)
    first.batch = None
    pool.release(first, 0.0)

    assert [lanes[1], lanes[2], lanes[0]] == [run(pool) for _ in range(3)]


@pytest.mark.parametrize("choice", LaneChoice)
def test_a_lane_that_is_gone_is_never_taken(choice: LaneChoice) -> None:
    """Nor comes back when its batch is reported."""
    pool, lanes = pool_of(choice, [1, 2])
    taken = run(pool)
    (other,) = [one for one in lanes if one is not taken]

    pool.remove(taken)
    pool.release(taken, 0.0)

    assert (1, other) == (len(pool), pool.take())


def test_a_process_hangs_when_one_batch_has_had_the_whole_timeout() -> None:
    """Seconds on the dispatcher's clock; free lanes do not hang."""
    pool, _ = pool_of(LaneChoice.RANDOM, [7, 8])
    busy = run(pool)
    busy.started = 10.0

    assert (set(), {busy.pid}) == (pool.hanging(39.9, 30.0), pool.hanging(40.0, 30.0))
    assert 40.0 == pool.next_hang(39.9, 30.0)
