"""One account of the lanes for all methods of a replica."""

from math import inf

import pytest

from batchedapi_core.batching import Batcher, BatchPolicy, Client, Idle, Lanes, Request, next_action

POLICY = BatchPolicy(8, 0.01)


def request_of(size: int = 1) -> Request:
    """A request of `size` rows without a deadline."""
    return Request(0, "", size, size, Client(), 0.0, inf)


def test_a_lane_is_free_for_one_method_only() -> None:
    """Two methods that each counted it as theirs would both start a batch on it."""
    lanes = Lanes()
    first, second = Batcher(POLICY, lanes), Batcher(POLICY, lanes)
    lanes.added(0.0)
    for batcher in (first, second):
        batcher.arrive(request_of(), 0.0)

    first.started(1, 0.0)

    assert (1, 0) == (second.lanes.total, second.lanes.free)
    assert Idle() == next_action(second, 0.0)
    assert (1, 0) == (first.running_size, second.running_size)


def test_what_one_method_ends_another_may_start() -> None:
    """The interval of the second counts from the lane that the first gave back."""
    lanes = Lanes()
    first, second = Batcher(POLICY, lanes), Batcher(POLICY, lanes)
    second.lane_added(0.0)
    first.started(1, 0.0)

    first.finished([request_of()], 0.5, 0.5)

    assert (1, 0.5) == (second.lanes.free, second.lanes.free_since)


def test_a_lane_that_died_is_reported_once_and_its_batch_to_its_own_method() -> None:
    """The reporter of the lane does not matter, the owner of the batch does."""
    lanes = Lanes()
    first, second = Batcher(POLICY, lanes), Batcher(POLICY, lanes)
    lanes.added(0.0)
    lanes.added(0.0)
    second.started(3, 0.0)

    lanes.removed(was_free=False)
    second.lost(3)

    assert (1, 1, inf) == (first.lanes.total, first.lanes.free, first.lanes.next_free)
    assert second.running_size == 0


def test_without_lanes_of_its_own_a_batcher_makes_some() -> None:
    """One method alone needs to know nothing of sharing."""
    first, second = Batcher(POLICY), Batcher(POLICY)

    first.lane_added(0.0)

    assert (1, 0) == (first.lanes.total, second.lanes.total)


def test_the_next_free_lane_is_that_of_any_method() -> None:
    """Admission adds the time until then, whoever keeps the lane busy."""
    lanes = Lanes()
    first, second = Batcher(POLICY, lanes), Batcher(POLICY, lanes)
    for seconds, batcher in ((0.2, first), (0.1, second)):
        batcher.service.observe(1, seconds)
        lanes.added(0.0)
        batcher.started(1, 0.0)

    assert pytest.approx(0.1) == first.lanes.next_free
