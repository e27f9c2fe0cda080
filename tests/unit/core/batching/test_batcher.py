"""The owner of queue, lanes and what is learned."""

from math import inf

import pytest

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Client,
    Release,
    Request,
    Strategy,
    WaitUntil,
    next_action,
)


def batcher_of(
    *, lanes: int = 1, interval: float = 0.020, strategy: Strategy = Strategy.WINDOW
) -> Batcher:
    """64 rows a batch, t(n) = 10 ms + 0.2 ms n known."""
    batcher: Batcher = Batcher(BatchPolicy(64, interval, strategy))
    for _ in range(lanes):
        batcher.lane_added(0.0)
    for size in (1, 16, 64) * 16:
        batcher.service.observe(size, 0.010 + 0.0002 * size)
    return batcher


def request_of(size: int = 1, *, at: float = 0.0, client: Client | None = None) -> Request:
    """A request of `size` rows without a deadline."""
    return Request(0, "", size, size, client or Client(), at, inf)


def run_all(batcher: Batcher, now: float, seconds: float | None) -> list[Request]:
    """Everything queued in one batch, done at once."""
    requests, _ = batcher.take(64, now)
    batcher.started(sum(request.size for request in requests), now)
    batcher.finished(requests, seconds, now)
    return requests


def fixed_replay(count: int) -> list[tuple[float, int, str]]:
    """(time, size, reason) of every batch; requests at 0 s, at most 64, 2 s, 0.1 s a batch."""
    batcher = batcher_of(interval=2.0, strategy=Strategy.FIXED)
    for _ in range(count):
        batcher.arrive(request_of(), 0.0)
    log, now = [], 0.0
    while batcher.queue.size:
        match next_action(batcher, now):
            case Release(size, reason):
                requests, _ = batcher.take(size, now)
                log.append((now, len(requests), reason))
                batcher.started(len(requests), now)
                now += 0.1
                batcher.finished(requests, 0.1, now)
            case WaitUntil(at):
                now = at
    return log


def test_fixed_releases_a_full_batch_and_the_remainder_at_the_time_limit() -> None:
    """D15: 100 concurrent requests, at most 64 a batch, 2 s: 64/64, then 36/64 after 2 s."""
    assert [(0.0, 64, "full"), (2.0, 36, "interval")] == fixed_replay(100)


def test_fixed_holds_a_single_request_for_the_time_limit() -> None:
    """D12: one request, 2 s: 1/64 after 2 s."""
    assert [(2.0, 1, "interval")] == fixed_replay(1)


def test_a_large_request_that_does_not_fit_completes_the_batch() -> None:
    """40 + 30 rows are more than 64: the 40 go as full, the 30 are decided on next."""
    batcher = batcher_of(strategy=Strategy.FIXED)
    first, second = request_of(40), request_of(30)
    batcher.arrive(first, 0.0)
    batcher.arrive(second, 0.0)

    action = next_action(batcher, 0.0)

    assert Release(64, "full") == action
    assert ([first], []) == batcher.take(64, 0.0)
    assert WaitUntil(0.02, 64) == next_action(batcher, 0.0)


@pytest.mark.parametrize("size", [0, 65])
def test_what_can_never_fit_a_batch_is_refused(size: int) -> None:
    """At the head of the queue it would block everybody behind it for ever."""
    batcher = batcher_of()

    with pytest.raises(ValueError, match=f"expected 1 to 64 .max_batch_size., got {size}; split"):
        batcher.arrive(request_of(size), 0.0)

    assert batcher.queue.size == 0


def test_sizes_and_rows_are_counted_apart() -> None:
    """With the unit Requests a request of ten rows takes one place and counts ten in metrics."""
    batcher = batcher_of()

    batcher.arrive(Request(0, "", 10, 1, Client(), 0.0, 5.0), 0.0)

    assert (1, 10) == (batcher.queue.size, batcher.queue.rows)


def test_parts_of_an_oversize_request_are_one_return_of_its_client() -> None:
    """130 rows come back once, together, when the last of the three parts was answered."""
    batcher, client = batcher_of(), Client()
    parts = [request_of(size, client=client) for size in (64, 64, 2)]
    batcher.arrive_parts(parts, 0.0)
    while batcher.queue.size:
        run_all(batcher, 0.0, 0.0228)

    (answer,) = client.answers

    assert [0, 0, 130] == [part.returning for part in parts]
    assert answer[1] == 130


def test_parts_are_refused_together() -> None:
    """Half of a request in the queue would be run for nobody."""
    batcher = batcher_of()

    with pytest.raises(ValueError, match="got 65"):
        batcher.arrive_parts([request_of(64), request_of(65)], 0.0)

    assert batcher.queue.size == 0


def test_a_failed_batch_teaches_nothing() -> None:
    """How long a failure took says nothing about t(n), and its clients may not come back."""
    batcher, client = batcher_of(), Client()
    line = batcher.service.line
    batcher.arrive(request_of(client=client), 0.0)

    run_all(batcher, 1.0, None)

    assert line == batcher.service.line
    assert not client.answers
    assert (1, 0) == (batcher.lanes.free, batcher.running_size)


def test_a_cancelled_request_is_not_expected_back_after_its_batch() -> None:
    """It was cancelled while it ran: the batch counts it, the wait for the next does not."""
    batcher, client = batcher_of(), Client()
    request = request_of(client=client)
    batcher.arrive(request, 0.0)
    batcher.take(64, 0.0)
    batcher.started(1, 0.0)
    batcher.cancel(request)

    batcher.finished([request], 0.0102, 0.0102)

    assert not client.answers
    assert batcher.running_size == 0


def test_a_closed_connection_is_not_awaited() -> None:
    """The caller says so when it learns it; otherwise the next batch waits once for nothing."""
    batcher, clients = batcher_of(), [Client(), Client()]
    for now in range(30):
        for client in clients:
            batcher.arrive(request_of(client=client, at=now), now)
        run_all(batcher, now + 0.999, 0.0104)
    batcher.arrive(request_of(client=clients[0], at=30.0), 30.0)
    waiting = next_action(batcher, 30.0)

    batcher.disconnected(clients[1])

    assert isinstance(waiting, WaitUntil)
    assert Release(1, "early") == next_action(batcher, 30.0)


def test_a_second_lane_becoming_free_does_not_extend_a_wait() -> None:
    """The interval counts while any lane is free, so only the first to be free starts it."""
    batcher = batcher_of(lanes=2)
    for _ in range(2):
        batcher.arrive(request_of(), 0.0)
    batches = [batcher.take(1, 0.0).requests for _ in range(2)]
    for _ in batches:
        batcher.started(1, 0.0)

    batcher.finished(batches[0], 0.010, 0.010)
    batcher.finished(batches[1], 0.015, 0.015)

    assert batcher.lanes.free_since == 0.010


def test_a_lane_that_died_gives_its_batch_back() -> None:
    """A batch that is run again runs once in the books: lost with its lane, started on another."""
    batcher = batcher_of(lanes=2)
    batcher.arrive(request_of(), 0.0)
    requests, _ = batcher.take(64, 0.0)
    batcher.started(1, 0.0)

    batcher.lane_removed(was_free=False, now=0.001)
    batcher.lost(1)
    alone = (batcher.lanes.total, batcher.lanes.free, batcher.running_size, batcher.lanes.next_free)
    batcher.started(1, 0.001)
    again = (batcher.lanes.total, batcher.lanes.free, batcher.running_size)
    expected_end = batcher.lanes.next_free
    batcher.finished(requests, 0.0102, 0.0112)

    assert (1, 1, 0, inf) == alone
    assert (1, 0, 1) == again
    assert pytest.approx(0.0112) == expected_end
    assert (1, 1, 0) == (batcher.lanes.total, batcher.lanes.free, batcher.running_size)


def test_a_free_lane_that_is_removed_takes_no_batch() -> None:
    """Its process is gone; what is queued waits for another."""
    batcher = batcher_of(lanes=2)

    batcher.lane_removed(was_free=True, now=1.0)

    assert (1, 1) == (batcher.lanes.total, batcher.lanes.free)


def test_the_next_free_lane_is_the_one_expected_first() -> None:
    """Admission adds the time until then."""
    batcher = batcher_of(lanes=2)

    batcher.started(64, 0.0)
    batcher.started(1, 0.005)

    assert pytest.approx(0.0152) == batcher.lanes.next_free
    assert batcher.running_size == 65
