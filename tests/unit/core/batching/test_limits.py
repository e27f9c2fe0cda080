"""C24, B17: a batch that did not fit in memory, and what is remembered of it."""

from collections.abc import Hashable
from math import inf

import pytest

from batchedapi_core.batching import (
    Admission,
    Batcher,
    BatchPolicy,
    Client,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)
from batchedapi_core.batching.policy import MOST_SHAPES


def limits_of(batcher: Batcher) -> tuple[int, float]:
    """Size and interval of requests without a shape."""
    policy = batcher.policies.of(None)
    return policy.max_batch_size, policy.batch_interval


def batcher_of(queued: int = 0, size: int = 1) -> Batcher:
    """Fixed, 64 rows a batch, 2 s, one free lane."""
    batcher: Batcher = Batcher(BatchPolicy(64, 2.0, Strategy.FIXED))
    batcher.lane_added(0.0)
    for _ in range(queued):
        batcher.arrive(request_of(size), 0.0)
    return batcher


def request_of(size: int, shape: Hashable = None) -> Request:
    """A request of `size` rows at 0 s."""
    return Request(0, "", size, size, Client(), 0.0, inf, shape)


def test_size_and_interval_are_divided_by_the_same_factor() -> None:
    """C24: half the batch fills in half the time."""
    batcher = batcher_of(queued=10)

    batcher.limit(None, 32)

    assert (32, 1.0) == limits_of(batcher)
    assert WaitUntil(1.0, 32) == next_action(batcher, 0.0)


def test_a_batch_that_is_as_large_as_allowed_is_full() -> None:
    """Everything queued is dispatched in batches of the size that fits."""
    batcher = batcher_of(queued=40)

    batcher.limit(None, 32)

    assert Release(32, "full") == next_action(batcher, 0.0)


def test_a_limit_never_grows_again() -> None:
    """A size that did not fit once is not tried again at the cost of a failed batch."""
    batcher = batcher_of()
    batcher.limit(None, 16)

    batcher.limit(None, 32)

    assert (16, 16) == (batcher.limit_of(None), batcher.policies.largest(None))


def test_queued_entries_above_the_limit_run_alone() -> None:
    """They were accepted before, cannot be cut here and must not block the queue."""
    batcher = batcher_of(queued=2, size=40)
    batcher.arrive(request_of(1), 0.0)

    batcher.limit(None, 32)
    batches = []
    while batcher.queue.size:
        action = next_action(batcher, 2.0)
        assert isinstance(action, Release)
        batches.append([request.size for request in batcher.take(action.size, 2.0).requests])

    assert [[40], [40], [1]] == batches


def test_only_the_shape_that_failed_is_limited() -> None:
    """Long rows need more memory than short ones."""
    batcher = batcher_of()
    batcher.limit("long", 2)
    for shape in ("long", "long", "short", "short", "short"):
        batcher.arrive(request_of(1, shape), 0.0)
    full = next_action(batcher, 0.0)
    batcher.take(2, 0.0, "long")

    assert (2, 64) == (batcher.limit_of("long"), batcher.limit_of("short"))
    assert Release(2, "full", "long") == full
    assert WaitUntil(2.0, 64) == next_action(batcher, 0.0)
    assert (64, 2.0) == limits_of(batcher)


def test_the_limit_holds_whenever_the_shape_comes_back() -> None:
    """The queue was empty in between, and other shapes were served."""
    batcher = batcher_of()
    batcher.limit("long", 2)
    sizes = []
    for shape in ("long", "short", "long"):
        for _ in range(3):
            batcher.arrive(request_of(1, shape), 0.0)
        action = next_action(batcher, 5.0)
        assert isinstance(action, Release)
        sizes.append(action.size)
        batcher.take(64, 5.0, shape)
        batcher.take(64, 5.0, shape)

    assert [2, 3, 2] == sizes


def test_admission_counts_with_the_batches_that_are_possible() -> None:
    """Sixteen batches of four rows take longer than one of 64."""
    batcher = batcher_of(queued=63)
    for size in (1, 16, 64) * 16:
        batcher.service.observe(size, 0.010 + 0.0002 * size)
    before = Admission(0.05).accepts(batcher, 1, 0.0)

    batcher.limit(None, 4)

    assert before
    assert not Admission(0.05).accepts(batcher, 1, 0.0)


def test_only_so_many_shapes_are_remembered() -> None:
    """Lengths of text are thousands of shapes; the one limited longest ago is learned again."""
    batcher = batcher_of()

    for shape in range(MOST_SHAPES + 1):
        batcher.arrive(request_of(1, shape), 0.0)
        batcher.take(1, 0.0, shape)
        batcher.limit(shape, 2)

    assert [64, 2, 2] == [batcher.limit_of(shape) for shape in (0, 1, MOST_SHAPES)]
    assert len(batcher.policies._limited) <= MOST_SHAPES


def test_a_limit_below_one_row_is_refused() -> None:
    """One row that does not fit is the caller's to answer with an error."""
    with pytest.raises(ValueError, match="limit of shape None: expected a size of at least 1"):
        batcher_of().limit(None, 0)
