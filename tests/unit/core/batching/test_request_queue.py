"""FIFO, cancellation and expiry."""

from math import inf

from batchedapi_core.batching import Client, Request
from batchedapi_core.batching.queue import RequestQueue


def queue_of(*sizes: int, timeout: float = inf) -> tuple[RequestQueue, list[Request]]:
    """One request a size, arriving a second apart from 0, with twice the rows of its size."""
    queue: RequestQueue = RequestQueue()
    requests = [
        Request(i, "", 2 * size, size, Client(), float(i), i + timeout)
        for i, size in enumerate(sizes)
    ]
    for request in requests:
        queue.append(request)
    return queue, requests


def test_an_empty_queue_has_no_oldest() -> None:
    """Callers compare it with other times: infinity needs no special case there."""
    queue, _ = queue_of()

    assert inf == queue.oldest_arrival
    assert ([], []) == queue.take(10, 0.0)


def test_the_oldest_are_taken_first_and_none_is_split() -> None:
    """A request larger than the room left keeps its place; nothing overtakes it."""
    queue, (first, second, third, fourth) = queue_of(3, 2, 4, 1)

    taken = queue.take(8, 3.0)

    assert ([first, second], []) == taken
    assert (5, 10) == (queue.size, queue.rows)
    assert ([third, fourth], []) == queue.take(8, 3.0)


def test_the_expired_are_handed_out_apart_and_take_no_room() -> None:
    """A batch is for those who still wait; the others are to be answered 504, not forgotten."""
    queue, (first, second, third) = queue_of(2, 2, 2, timeout=1.5)

    taken = queue.take(4, 1.5)

    assert ([second, third], [first]) == taken
    assert (0, 0) == (queue.size, queue.rows)


def test_taking_nothing_still_fetches_the_expired() -> None:
    """Requests expire while every lane is busy too."""
    queue, (first, second) = queue_of(1, 1, timeout=5.0)

    assert ([], [first]) == queue.take(0, 5.5)
    assert second.arrived == queue.oldest_arrival


def test_a_cancelled_head_stops_counting_at_once() -> None:
    """The interval counts from the oldest who still waits."""
    queue, (first, second) = queue_of(2, 3)

    queue.cancel(first)

    assert (3, 6) == (queue.size, queue.rows)
    assert second.arrived == queue.oldest_arrival
    assert ([second], []) == queue.take(10, 2.0)


def test_the_cancelled_in_the_middle_are_skipped() -> None:
    """Dispatching for nobody wastes a place in the batch."""
    queue, (first, second, third) = queue_of(1, 1, 1)

    queue.cancel(second)

    assert queue.size == 2
    assert ([first, third], []) == queue.take(2, 2.0)
    assert queue._cancelled == 0  # or every later cancellation sweeps the whole queue


def test_cancelling_twice_or_after_leaving_counts_once() -> None:
    """A timeout and a closed connection often meet; sizes below zero would stop dispatch."""
    queue, (first, second) = queue_of(1, 2)

    queue.take(1, 1.0)
    queue.cancel(first)
    queue.cancel(second)
    queue.cancel(second)

    assert first.cancelled
    assert (0, 0) == (queue.size, queue.rows)


def test_cancelled_entries_are_not_kept_while_the_head_waits() -> None:
    """With every lane dead one patient client must not keep a thousand others."""
    queue, (_, *others) = queue_of(*[1] * 1_001)

    for request in others:
        queue.cancel(request)

    assert queue.size == 1
    assert len(queue._requests) < 40
