"""Reruns after a failure or a death, of requests and of the rows of one."""

from math import inf

import pytest

from batchedapi_core.batching import Batch, Client, Isolation, Request


def requests_of(count: int, rows: int = 1) -> list[Request]:
    """As many, without a deadline."""
    return [Request(n, "m", rows, rows, Client(), 0.0, inf) for n in range(count)]


def after_failure(batch: Batch) -> list[Batch]:
    """With nothing known of other batches."""
    return batch.after_failure(Isolation())


def after_memory_error(batch: Batch) -> list[Batch]:
    """With nothing known of other batches."""
    return batch.after_memory_error(Isolation())


def requests_in(batches: list[Batch]) -> list[list[Request]]:
    """The requests of each batch."""
    return [list(batch.requests) for batch in batches]


def test_a_batch_counts_rows_and_sizes() -> None:
    """Both have a histogram."""
    batch = Batch("m", requests_of(3, rows=4), "full")

    assert (12, 12, "full") == (batch.rows, batch.size, batch.reason)


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_a_failed_batch_is_run_again_in_two_halves(count: int) -> None:
    """The culprit is in one of them; every request is in exactly one."""
    requests = requests_of(count)

    halves = after_failure(Batch("m", requests, "full"))

    assert [requests[: count // 2], requests[count // 2 :]] == requests_in(halves)
    assert {"retry"} == {half.reason for half in halves}


def test_a_lone_failure_is_the_culprit() -> None:
    """There is nobody else to blame."""
    batch = Batch("m", requests_of(1), "full")

    assert [] == after_failure(batch) == after_memory_error(batch)


def test_the_last_one_who_still_waits_is_run_alone_before_it_is_blamed() -> None:
    """The row that failed may have been one whose client has left."""
    requests = requests_of(2)
    requests[0].cancelled = True

    assert [[requests[1]]] == requests_in(after_failure(Batch("m", requests, "full")))


def test_nobody_who_left_is_run_again() -> None:
    """Neither after a failure nor after a death, his own or another's."""
    requests = requests_of(4)
    for request in requests:
        request.cancelled = True
    batch = Batch("m", requests, "full")

    assert [] == after_failure(batch) == after_memory_error(batch)
    assert [] == batch.after_death(alone=True) == batch.after_anothers_death()
    assert batch.still_wanted(0.0) is None


def test_whoever_left_or_is_late_when_its_turn_comes_is_not_run() -> None:
    """S18: a batch that is run again may have waited for a lane."""
    requests = requests_of(4)
    batch = Batch("m", requests, "retry", deaths=1)
    assert batch.still_wanted(5.0) is batch
    requests[0].cancelled = True
    requests[1].deadline = 5.0

    wanted = batch.still_wanted(5.0)

    assert wanted is not None
    assert (requests[2:], 1) == (list(wanted.requests), wanted.deaths)


def test_after_a_death_the_batch_is_run_whole_then_one_by_one_then_not_at_all() -> None:
    """A death is mostly nobody's fault (a kill, a node's memory); twice is somebody's."""
    requests = requests_of(3)

    (again,) = Batch("m", requests, "full").after_death(alone=True)
    singles = again.after_death(alone=True)
    last = [single.after_death(alone=True) for single in singles]

    assert requests == again.requests
    assert [[request] for request in requests] == requests_in(singles)
    assert [[], [], []] == last
    assert [False, True] == [again.on_trial, singles[0].on_trial]


def test_a_lone_request_gets_a_second_try_and_no_third() -> None:
    """Else one that kills its process would kill it for ever."""
    (again,) = Batch("m", requests_of(1), "full").after_death(alone=True)

    assert [] == again.after_death(alone=True)
    assert 1 == len(again.after_death(alone=False))


def test_halves_remember_the_deaths() -> None:
    """A batch that died, then failed, then dies again is not started from the beginning."""
    (again,) = Batch("m", requests_of(4), "full").after_death(alone=True)
    half = after_failure(again)[0]

    assert [1, 1] == [len(batch.requests) for batch in half.after_death(alone=True)]


def test_a_lone_request_of_many_rows_is_halved_when_memory_runs_out() -> None:
    """Its rows, sizes and place in the answer are those of the whole."""
    (request,) = requests_of(1, rows=7)

    one, two = after_memory_error(Batch("m", [request], "full"))
    halves = [*one.requests, *two.requests]

    assert [(3, 3), (4, 4)] == [(half.rows, half.size) for half in halves]
    assert [0, 3] == [half.first for half in halves]
    assert [0, 7] == [half.returning for half in halves]
    assert halves == list(request.parts)
    assert {request.id} == {half.id for half in halves}


def test_rows_of_one_request_are_halved_so_often_and_then_refused_together() -> None:
    """They are one client's: 1024 rows that are all refused are not 1024 runs."""
    (request,) = requests_of(1, rows=8)
    batches, runs = [Batch("m", [request], "full")], 0
    while batches:
        batches += batches.pop(0).after_item_error(Isolation())
        runs += 1

    assert 1 + 2 * 4 == runs


def test_a_part_may_be_divided_again() -> None:
    """Until one row is left; the answer is put together in order."""
    (request,) = requests_of(1, rows=4)

    one, two = request.divide([(0, 2), (2, 4)])
    three, four = two.divide([(0, 1), (1, 2)])

    assert [one, three, four] == list(request.parts) == list(four.parts)
    assert [0, 2, 3] == [part.first for part in request.parts]
    assert one.splitting() is request.splitting()
