"""Rows of different shapes: never in one batch, and none of them waits for ever."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Idle,
    QueueOrder,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.queue import Buckets
from batchedapi_core.contract import RELEASE_REASONS

INTERVAL = 0.020


def batcher_of(strategy: Strategy = Strategy.FIXED, order: QueueOrder = QueueOrder.FIFO) -> Batcher:
    """8 rows a batch, one free lane."""
    batcher: Batcher = Batcher(BatchPolicy(8, INTERVAL, strategy, None, order))
    batcher.lane_added(0.0)
    return batcher


def arrive(batcher: Batcher, shapes: str, at: float = 0.0, deadline: float = inf) -> list[Request]:
    """One row of each shape; a letter is one."""
    requests = [Request(ord(s), "", 1, 1, Client(), at, deadline, s) for s in shapes]
    for request in requests:
        batcher.arrive(request, at)
    return requests


def take(batcher: Batcher, now: float = 0.0) -> tuple[str, str]:
    """Reason and shapes of the batch that is released now."""
    action = next_action(batcher, now)
    assert isinstance(action, Release)
    taken = batcher.take(action.size, now, action.shape)
    return action.reason, "".join(chr(request.id) for request in taken.requests)


def test_the_reason_is_published() -> None:
    """The metric's label values are written down in one place."""
    assert "shape" in RELEASE_REASONS


@pytest.mark.parametrize("strategy", [Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE])
def test_another_shape_ends_the_wait_of_the_oldest(strategy: Strategy) -> None:
    """A wait for company would delay the others, who cannot ride along."""
    batcher = batcher_of(strategy)
    arrive(batcher, "abaa")

    assert ("shape", "aaa") == take(batcher)
    assert take(batcher, INTERVAL)[1] == "b"


def test_one_shape_waits_as_if_there_were_none() -> None:
    """Only different shapes in the queue at once are in each other's way."""
    batcher = batcher_of()
    arrive(batcher, "aaa")
    waiting = next_action(batcher, 0.0)
    arrive(batcher, "b")
    several = isinstance(batcher.queue, Buckets)
    batch = take(batcher)

    assert WaitUntil(INTERVAL, 8) == waiting
    assert several
    assert ("shape", "aaa") == batch
    assert not isinstance(batcher.queue, Buckets)
    assert WaitUntil(INTERVAL, 8) == next_action(batcher, 0.0)


def test_a_batch_says_its_shape() -> None:
    """The caller takes with it, and knows what to limit when memory runs out."""
    batcher = batcher_of()
    arrive(batcher, "a" * 8)

    assert Release(8, "full", "a") == next_action(batcher, 0.0)


def test_a_full_batch_overtakes_a_younger_wait_but_not_an_older() -> None:
    """Full batches are cheap; but a stream of them must not keep the odd one waiting for ever."""
    batcher = batcher_of()
    arrive(batcher, "a" + "b" * 16)

    before = take(batcher, INTERVAL / 2)
    after = take(batcher, INTERVAL)

    assert ("full", "bbbbbbbb") == before
    assert ("shape", "a") == after


def test_a_full_batch_that_was_cancelled_overtakes_nobody() -> None:
    """It was full when it was noted."""
    batcher = batcher_of()
    requests = arrive(batcher, "a" + "b" * 8)

    batcher.cancel(requests[1])

    assert ("shape", "a") == take(batcher)


def test_no_lane_no_batch_of_any_shape() -> None:
    """Whatever waits, a lane must be free."""
    batcher = batcher_of()
    arrive(batcher, "ab")
    batcher.started(1, 0.0)

    assert Idle() == next_action(batcher, 0.0)


def test_draining_is_the_reason_whatever_the_shapes() -> None:
    """Shapes are to blame for small batches only while somebody would have waited."""
    batcher = batcher_of()
    arrive(batcher, "ab")
    batcher.draining = True

    assert ("drain", "a") == take(batcher)


def test_sizes_are_of_all_shapes() -> None:
    """Admission and the gauges count every waiting request."""
    batcher = batcher_of()
    requests = arrive(batcher, "aab", at=1.0)
    arrive(batcher, "c", at=2.0)

    for request in (requests[0], requests[0], requests[2]):
        batcher.cancel(request)

    assert (2, 2, 1.0) == (batcher.queue.size, batcher.queue.rows, batcher.queue.oldest_arrival)


def test_a_shape_that_is_not_queued_has_no_batch() -> None:
    """Everybody of it may have left between the decision and the taking."""
    batcher = batcher_of()
    arrive(batcher, "ab")

    assert ([], []) == batcher.take(8, 0.0, "c")


def test_parts_of_several_shapes_are_queued_with_their_likes() -> None:
    """A ragged request is cut where the shape changes; each part finds its own company."""
    batcher, client = batcher_of(), Client()
    parts = [Request(ord(s), "", 1, 1, client, 0.0, inf, s) for s in "aba"]

    batcher.arrive_parts(parts, 0.0)

    assert [0, 0, 3] == [part.returning for part in parts]
    assert ("shape", "aa") == take(batcher)


def test_the_earliest_deadline_decides_under_that_order() -> None:
    """The queue order decides the next request, across shapes too."""
    batcher = batcher_of(order=QueueOrder.DEADLINE)
    arrive(batcher, "aa", deadline=9.0)
    arrive(batcher, "b", deadline=8.0)
    arrive(batcher, "a", deadline=7.0)

    assert ("shape", "aaa") == take(batcher)


def test_turns_that_come_and_go_are_not_kept() -> None:
    """Each cancelled head is another turn: a hundred thousand of them must not pile up."""
    batcher = batcher_of(order=QueueOrder.DEADLINE)
    arrive(batcher, "a", deadline=9.0)
    arrive(batcher, "b", deadline=9.5)

    for _ in range(200):
        (request,) = arrive(batcher, "a", deadline=5.0)
        batcher.cancel(request)

    assert isinstance(batcher.queue, Buckets)
    assert len(batcher.queue._turns) < 40
    assert ("shape", "a") == take(batcher)


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(
    ticks=st.lists(st.text("abcd", max_size=12), min_size=1, max_size=60),
    strategy=st.sampled_from([Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE]),
)
def test_no_shape_starves(ticks: list[str], strategy: Strategy) -> None:
    """Whatever the others bring: after the interval nobody younger is released before the oldest.

    One lane, 5 ms a batch, new rows of any shapes every 5 ms: more than the lane can do.
    """
    batcher, now = batcher_of(strategy), 0.0
    queued: list[Request] = []
    for shapes in [*ticks, *[""] * 40 * len(ticks)]:
        queued += arrive(batcher, shapes, at=now)
        action = next_action(batcher, now)
        if isinstance(action, Release):
            taken = batcher.take(action.size, now, action.shape).requests
            assert {action.shape} == {request.shape for request in taken}
            oldest = min(request.arrived for request in queued)
            assert now < oldest + INTERVAL or taken[0].arrived == oldest
            queued = [request for request in queued if request not in taken]
        now += 0.005

    assert not queued
