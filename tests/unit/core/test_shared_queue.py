"""Decisions of web processes and workers about rows in one queue; no Redis, no clock."""

from collections.abc import Mapping

import pytest

from batchedapi_core.shared_queue import (
    Again,
    Claim,
    Fate,
    Hand,
    HeldRow,
    Living,
    RowsARequest,
    Worker,
    WorkerLanes,
    admits,
    again,
    expected_seconds,
    fate,
    rows_to_take,
    signature_in_use,
)


def lanes(**changes: float) -> WorkerLanes:
    """One free lane whose full batch of 8 takes 10 ms."""
    values = {"free": 1, "total": 1, "max_batch_size": 8, "full_seconds": 0.01, "held": 0}
    return WorkerLanes(**{**values, **changes})  # type: ignore[arg-type]  # names as above


def worker(
    signature: str = "a",
    *,
    revision: str = "1",
    started: float = 1.0,
    draining: bool = False,
    capacity: Mapping[str, tuple[int, int, float]] | None = None,
) -> Worker:
    """One lane, whose full batch of 8 takes 10 ms."""
    return Worker(signature, revision, started, draining, capacity or {"predict": (1, 8, 0.01)})


@pytest.mark.parametrize(
    ("situation", "rows"),
    [
        (lanes(), 16),
        (lanes(free=0), 8),
        (lanes(free=0, held=8), 0),
        (lanes(free=2, total=2, held=5), 19),
        (lanes(free=0, full_seconds=0.5), 0),
        (lanes(full_seconds=0.5), 8),
        (lanes(held=40), 0),
        (lanes(free=0, total=0), 0),
    ],
)
def test_a_worker_takes_what_its_lanes_run_next_and_one_batch_ahead(
    situation: WorkerLanes, rows: int
) -> None:
    """Rows taken earlier wait here while another worker may be idle."""
    assert rows == rows_to_take(situation)


def test_requests_of_many_rows_are_asked_for_by_fewer() -> None:
    """Redis counts requests, and lanes have room for rows."""
    rows = RowsARequest()

    at_first = rows.requests(16)
    for _ in range(200):
        rows.learn(4)

    assert 16 == at_first
    assert 4 == rows.requests(16)
    assert 1 == rows.requests(1)
    assert 0 == rows.requests(0)


@pytest.mark.parametrize(
    ("deaths", "runs_again", "expected"),
    [
        (1, True, Fate.IN_COMPANY),
        (2, True, Fate.ALONE),
        (3, True, Fate.FAILED),
        (1, False, Fate.REFUSED),
    ],
)
def test_a_row_of_dead_workers_runs_in_company_then_alone_then_fails(
    deaths: int,
    runs_again: bool,  # noqa: FBT001 - a parameter of the test
    expected: Fate,
) -> None:
    """One poisoned row must not take every worker along, and its neighbours are answered."""
    assert expected is fate(deaths, runs_again=runs_again)


@pytest.mark.parametrize(
    ("hand", "deaths", "expected"),
    [
        (Hand(), [1, 1], Claim(range(2), 0)),
        (Hand(busy=True), [1], Claim(range(1), 0)),
        (Hand(busy=True, alone=True), [1, 3], Claim([], 0)),
        (Hand(), [1, 2, 2], Claim([1], 2)),
        (Hand(busy=True), [1, 2], Claim([], 1)),
    ],
    ids=["any", "busy", "runs one alone", "one alone first", "busy, one alone"],
)
def test_rows_to_be_run_alone_are_claimed_first_and_with_an_empty_hand(
    hand: Hand, deaths: list[int], expected: Claim
) -> None:
    """A row that only waited beside another must not be taken for what killed the worker."""
    assert expected == hand.claim(deaths, runs_again=True)


def test_a_worker_takes_nothing_beside_a_row_that_is_run_alone_or_is_to_be() -> None:
    """Nor when it leaves: others run the queue, or it was empty for two looks."""
    idle = Hand()
    drains = Hand(draining=True)

    assert idle.takes
    assert not any(hand.takes for hand in (Hand(alone=True), Hand(suspect=True)))
    assert drains.takes
    assert not drains.leaves
    assert not Hand(others=1, quiet_looks=2).leaves
    assert all(
        hand.leaves and not hand.takes
        for hand in (drains._replace(others=1), drains._replace(quiet_looks=2))
    )


def test_who_is_missed_twice_in_a_row_is_dead() -> None:
    """After Redis stood still, everybody is missed once."""
    living = Living()

    looks = [
        living.look({"a", "b"}, {"b"}),
        living.look({"a", "b"}, {"b"}),
        living.look({"a", "b"}, {"a", "b"}),
        living.look({"a", "b"}, {"b"}),
    ]

    assert [set(), {"a"}, set(), set()] == looks


KEPT = [
    HeldRow(1, sent=True, entry="1-0"),
    HeldRow(2, sent=True, entry="2-0"),
    HeldRow(3, sent=True, entry=None),
    HeldRow(4, sent=False, entry=None),
]


@pytest.mark.parametrize(
    ("there", "runs_again", "expected"),
    [
        ({"1-0", "2-0"}, True, Again([3, 4], [])),
        ({"2-0"}, True, Again([1, 3, 4], [])),
        ({"1-0", "2-0"}, False, Again([4], [3])),
        ({"2-0"}, False, Again([4], [1, 3])),
    ],
)
def test_what_is_not_in_the_queue_any_more_is_handed_in_again(
    there: set[str],
    runs_again: bool,  # noqa: FBT001 - as above
    expected: Again,
) -> None:
    """Whoever may have been run is refused where nothing is run twice."""
    assert expected == again(KEPT, there, runs_again=runs_again)


OLD = {"1": ("a", 1.0), "2": ("b", 2.0)}


@pytest.mark.parametrize(
    ("workers", "revision", "published", "current", "expected"),
    [
        ([worker("a"), worker("b", started=2.0)], "3", {}, None, "b"),
        ([worker("a", revision="3"), worker("b", started=2.0)], "3", {}, None, "a"),
        ([worker("a"), worker("b", started=2.0, draining=True)], "3", {}, None, "a"),
        ([worker("b", draining=True)], "3", {}, "a", "b"),
        ([], "1", OLD, None, "a"),
        ([], "3", OLD, "a", "a"),
        ([], "", OLD, None, "b"),
        ([], "", {}, None, None),
    ],
)
def test_web_processes_check_by_the_methods_of_living_workers(
    workers: list[Worker],
    revision: str,
    published: dict[str, tuple[str, float]],
    current: str | None,
    expected: str | None,
) -> None:
    """While none runs, by what the last ones said: rows are taken at zero, too."""
    assert expected == signature_in_use(workers, revision, published, current)


def test_the_expected_wait_counts_all_workers_of_these_methods() -> None:
    """Eight run; eight more wait for a full batch; other methods' workers help nobody."""
    both = [worker("a"), worker("b"), worker("a", capacity={"predict": (1, 8, 0.0)})]

    assert 0.01 == pytest.approx(expected_seconds(both, "predict", "a", 8))
    assert 0.02 == pytest.approx(expected_seconds(both, "predict", "a", 16))
    assert 0.0 == expected_seconds(both, "other", "a", 100)


def test_nobody_is_refused_on_a_guess() -> None:
    """An empty queue always tries, and so does whoever has no target."""
    assert admits(None, 9.0, 100)
    assert admits(0.1, 9.0, 0)
    assert admits(0.1, 0.09, 10)
    assert not admits(0.1, 0.099, 10)
