"""The earliest deadline first."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    QueueOrder,
    Release,
    Request,
    Strategy,
    next_action,
)
from batchedapi_core.batching.queue import DeadlineQueue


def queue_of(*deadlines: float) -> tuple[DeadlineQueue, list[Request]]:
    """One row for each deadline, arriving a second apart from 0."""
    queue: DeadlineQueue = DeadlineQueue()
    requests = [Request(0, "", 1, 1, Client(), float(i), end) for i, end in enumerate(deadlines)]
    for request in requests:
        queue.append(request)
    return queue, requests


def test_the_most_urgent_goes_first_and_equals_in_order_of_arrival() -> None:
    """Requests without a deadline come last: they lose nothing by waiting."""
    queue, (patient, late, soon, equal, other) = queue_of(inf, 60.0, 50.0, 50.0, inf)

    assert ([soon, equal, late, patient, other], []) == queue.take(5, 10.0)


def test_the_oldest_is_known_though_another_is_first() -> None:
    """The interval is promised to whoever has waited longest."""
    queue, (first, second, third) = queue_of(60.0, 50.0, 40.0)
    oldest = [queue.oldest_arrival]

    queue.take(1, 10.0)
    oldest.append(queue.oldest_arrival)
    queue.cancel(first)
    oldest.append(queue.oldest_arrival)
    queue.cancel(second)

    assert [0.0, 0.0, 1.0] == oldest
    assert inf == queue.oldest_arrival
    assert not third.queued


def test_an_entry_larger_than_the_room_left_keeps_its_place() -> None:
    """Nothing less urgent overtakes it."""
    queue, (second,) = queue_of(50.0)
    first, third = (
        Request(0, "", 2, 2, Client(), 1.0, 40.0),
        Request(0, "", 1, 1, Client(), 1.0, 60.0),
    )
    queue.append(first)
    queue.append(third)

    assert ([first], []) == queue.take(2, 10.0)
    queue.append(Request(0, "", 3, 3, Client(), 2.0, 55.0))
    assert ([second], []) == queue.take(3, 10.0)


def test_the_expired_are_handed_out_apart() -> None:
    """They are first in this order, and to be answered 504."""
    queue, (gone, live) = queue_of(5.0, 50.0)

    assert ([live], [gone]) == queue.take(1, 5.0)
    assert (0, 0) == (queue.size, queue.rows)


def test_an_empty_queue_has_nobody_first() -> None:
    """Infinity needs no special case where turns are compared."""
    queue, _ = queue_of()

    assert (inf, inf) == queue.turn


def test_the_cancelled_are_not_kept() -> None:
    """One patient client must not keep a thousand others."""
    queue, (_, *others, last) = queue_of(inf, *[50.0 + i for i in range(1_000)], 1.0)

    for request in [*others, *others]:
        queue.cancel(request)

    assert queue.size == 2
    assert len(queue._heap) < 40
    assert len(queue._arrivals) < 40
    assert ([last], []) == queue.take(1, 0.0)


def test_in_a_batch_the_cancelled_in_the_middle_are_skipped() -> None:
    """They stay in the heap until their turn comes."""
    queue, (first, second, third) = queue_of(40.0, 50.0, 60.0)

    queue.cancel(second)

    assert ([first, third], []) == queue.take(3, 0.0)


def test_a_batcher_forms_its_batches_in_that_order() -> None:
    """The manifest's queueOrder: Deadline."""
    policy = BatchPolicy(2, 0.0, Strategy.FIXED, queue_order=QueueOrder.DEADLINE)
    batcher: Batcher = Batcher(policy)
    batcher.lane_added(0.0)
    for number, deadline in ((3, inf), (2, 9.0), (1, 5.0)):
        batcher.arrive(Request(number, "", 1, 1, Client(), 0.0, deadline), 0.0)

    action = next_action(batcher, 0.0)

    assert Release(2, "full") == action
    assert [1, 2] == [request.id for request in batcher.take(2, 0.0).requests]


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.sampled_from([5.0, 6.0, 7.0, inf])),
            st.tuples(st.just("cancel"), st.integers(0, 30).map(float)),
            st.tuples(st.just("take"), st.integers(1, 4).map(float)),
        ),
        min_size=50,  # else most are too short for the heap to outgrow what is queued
        max_size=150,
    )
)
def test_any_history_keeps_order_sizes_and_oldest(steps: list[tuple[str, float]]) -> None:
    """Against a list that is sorted every time."""
    queue, live = DeadlineQueue(), list[Request]()
    for now, (kind, value) in enumerate(steps):
        match kind:
            case "append":
                live.append(Request(0, "", 2, 1, Client(), float(now), value))
                queue.append(live[-1])
            case "cancel" if live:
                queue.cancel(live.pop(int(value) % len(live)))
            case "take":
                first = sorted(live, key=lambda request: request.deadline)[: int(value)]
                assert first == queue.take(int(value), 0.0).requests
                live = [request for request in live if request not in first]
        assert (len(live), 2 * len(live)) == (queue.size, queue.rows)
        assert min((request.arrived for request in live), default=inf) == queue.oldest_arrival
        assert len(queue._heap) <= max(16, 2 * len(live)) + 1
