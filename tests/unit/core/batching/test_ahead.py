"""A full batch waits at a busy lane: when it is sent, when it begins, and what if it never does."""

import random
from math import inf

import pytest
from tests.unit.core.batching.replica import Replica, ids_of

from batchedapi_core.batching import (
    RETRY,
    Ahead,
    Batch,
    BatchEnd,
    BatchPolicy,
    Begins,
    Client,
    Dispatch,
    Expired,
    Idle,
    Lane,
    LaneChoice,
    LanePool,
    QueueOrder,
    Request,
    Result,
    Scheduler,
    Trial,
    WaitUntil,
    process_lost,
)
from batchedapi_core.batching import scheduler as rules
from batchedapi_core.batching.lanes import Lanes


@pytest.fixture(autouse=True)
def any_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take whole seconds here, behind which nothing would be worth sending ahead."""
    monkeypatch.setattr(rules, "LONGEST_AHEAD", 60.0)


def busy(*intervals: float, lanes: int = 1, full: int = 1, seconds: float = 1.0) -> Replica:
    """Every lane runs a batch of 4 that began at 0 and takes 1 s, as all do; so many are queued."""
    replica = Replica(*(intervals or (9.0,)), lanes=lanes)
    for method in replica.scheduler.methods.values():
        method.batcher.service.observe(4, seconds)
    for _ in range(4 * lanes):
        replica.arrive(0.0)
    assert lanes == len(replica.start(0.0))
    for _ in range(4 * full):
        replica.arrive(0.1)
    return replica


def running(replica: Replica) -> list[Batch]:
    """All batches that run, the one that began first at first."""
    batches = [batch for _, batch in replica.scheduler._pool.running()]
    return sorted(batches, key=lambda batch: batch.started)


def test_a_full_batch_is_sent_to_a_busy_lane_and_begins_when_that_is_free() -> None:
    """Until then it waits: neither its time nor what is learned of it has begun."""
    replica = busy(full=2)
    scheduler = replica.scheduler
    (first,) = running(replica)
    sent = scheduler.next(0.2)
    again = scheduler.next(0.2)

    assert isinstance(sent, Ahead)
    assert ([5, 6, 7, 8], first.lane, inf) == (
        ids_of(sent.batch),
        sent.batch.lane,
        sent.batch.started,
    )
    assert Idle() == again  # one at most
    assert [first] == running(replica)
    assert (8, scheduler.has_work()) == (scheduler.waiting_rows("0"), True)

    scheduler.finished(first, Result.SUCCEEDED, 1.1)

    assert Begins(sent.batch) == scheduler.next(1.1)
    assert ([sent.batch], 1.1) == (running(replica), sent.batch.started)
    assert isinstance(scheduler.next(1.1), Ahead)  # the next one
    assert 4 == scheduler.waiting_rows("0")
    assert (0, 1) == (scheduler.lanes.free, scheduler.lanes.total)


@pytest.mark.parametrize(("seconds", "expected"), [(0.11, Idle), (0.09, Ahead)])
def test_nothing_is_sent_to_a_lane_whose_batch_takes_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: type
) -> None:
    """It would be run though all have left who asked for it, to save a hundredth of the time."""
    monkeypatch.setattr(rules, "LONGEST_AHEAD", 0.1)
    replica = busy(seconds=seconds)

    assert expected is type(replica.scheduler.next(0.05))


def test_an_arrival_asks_if_it_makes_a_batch_full_that_could_be_sent() -> None:
    """All others find the lanes busy, and change nothing."""
    replica = busy(full=0)
    asked = []
    for _ in range(5):
        asked.append(replica.arrive(0.2)[1])
        replica.run(0.2)

    assert [False, False, False, True, False] == asked
    assert replica.ahead is not None


def test_a_batch_that_is_not_full_waits_in_its_queue() -> None:
    """More may join it until a lane is free."""
    replica = busy(full=0)
    for _ in range(3):
        replica.arrive(0.2)

    assert Idle() == replica.scheduler.next(0.2)


def test_of_several_shapes_one_must_be_full() -> None:
    """As much as a batch in all is not one."""
    replica = busy(full=0)
    for shape in "abab":
        replica.arrive(0.2, shapes=shape)
    assert Idle() == replica.scheduler.next(0.2)

    for _ in range(2):
        replica.arrive(0.3, shapes="b")
    sent = replica.scheduler.next(0.3)

    assert isinstance(sent, Ahead)
    assert [6, 8, 9, 10] == ids_of(sent.batch)


def test_with_a_lane_free_nothing_is_sent_ahead() -> None:
    """It runs there."""
    replica = busy(lanes=2, full=0)
    scheduler = replica.scheduler
    scheduler.finished(running(replica)[0], Result.SUCCEEDED, 0.9)
    for _ in range(4):
        replica.arrive(1.0)

    assert isinstance(scheduler.next(1.0), Dispatch)


def test_it_goes_to_the_lane_that_is_expected_free_first() -> None:
    """Another one may be free before, and takes what is queued then."""
    replica = busy(lanes=2, full=0)
    scheduler = replica.scheduler
    early, late = running(replica)
    scheduler.finished(early, Result.SUCCEEDED, 0.5)
    for _ in range(12):
        replica.arrive(0.5)
    replica.start(0.5)

    assert replica.ahead is not None
    assert late.lane is replica.ahead.lane
    scheduler.finished(running(replica)[1], Result.SUCCEEDED, 0.6)
    assert [[17, 18, 19, 20]] == replica.run(0.6)
    assert [13, 14, 15, 16] == ids_of(replica.ahead)


def test_of_several_lanes_each_must_have_a_batch_to_run_meanwhile() -> None:
    """One that is free before its time would idle, and what is ahead elsewhere would wait."""
    replica = busy(lanes=2)
    assert Idle() == replica.scheduler.next(0.2)

    asked = [replica.arrive(0.2)[1] for _ in range(4)]

    assert [False, False, False, True] == asked
    assert isinstance(replica.scheduler.next(0.2), Ahead)


def test_nothing_is_sent_to_a_lane_that_is_overdue() -> None:
    """It may hang; and while no time is known, every lane is."""
    replica = busy()
    assert Idle() == replica.scheduler.next(1.0)

    unknown = Replica()
    for _ in range(8):
        unknown.arrive(0.0)
    assert [[1, 2, 3, 4]] == unknown.run(0.0)
    assert unknown.ahead is None


def test_of_what_is_queued_by_deadline_nothing_is_sent_ahead() -> None:
    """Whoever comes in a greater hurry could not overtake it there."""
    replica = busy()
    batcher = replica.scheduler.methods["0"].batcher
    batcher.policy = BatchPolicy(4, 9.0, queue_order=QueueOrder.DEADLINE)

    assert Idle() == replica.scheduler.next(0.2)


def test_calls_that_would_run_side_by_side_are_not_sent_ahead() -> None:
    """A channel has no place where they could wait."""
    pool = LanePool(LaneChoice.RANDOM, random.Random(1))
    scheduler = Scheduler(pool, Trial(), isolates=True, sends_ahead=False)
    method = scheduler.add_method("0", BatchPolicy(1, 0.0))
    method.batcher.service.observe(1, 1.0)
    scheduler.lane_added(Lane(0), 0.0)
    asked = []
    for number in range(2):
        asked.append(scheduler.arrive(Request(number, "0", 1, 1, Client(), 0.0, inf), 0.0))
        scheduler.next(0.0)

    assert [True, False] == asked
    assert Idle() == scheduler.next(0.1)


def test_an_older_request_of_another_method_is_not_overtaken() -> None:
    """It would have gone first if the lane were free; of the others the oldest decides."""
    replica = busy(9.0, 9.0, full=0)
    replica.arrive(0.1, 1)
    for _ in range(4):
        replica.arrive(0.2)
    assert Idle() == replica.scheduler.next(0.2)

    for _ in range(3):
        replica.arrive(0.3, 1)
    sent = replica.scheduler.next(0.3)

    assert isinstance(sent, Ahead)
    assert "1" == sent.batch.method
    assert (4, 4) == tuple(map(replica.scheduler.waiting_rows, "01"))


@pytest.mark.parametrize("why", ["reruns", "trial", "systemic"])
def test_while_anything_is_taken_apart_nothing_is_sent_ahead(why: str) -> None:
    """A rerun has its turn, and runs beside nothing that it could take with it."""
    replica = busy()
    scheduler = replica.scheduler
    match why:
        case "reruns":
            scheduler._reruns.add([Batch("0", running(replica)[0].requests, "retry")])
        case "trial":
            scheduler._reruns.trial.runs = True
        case _:
            scheduler.methods["0"].isolation.systemic = True

    assert Idle() == scheduler.next(0.2)


def test_nothing_is_sent_to_a_lane_that_runs_something_again() -> None:
    """It is the likeliest to fail, or to end its process."""
    replica = busy()
    running(replica)[0].reason = RETRY

    assert Idle() == replica.scheduler.next(0.2)


def test_a_failed_batch_and_the_one_ahead_take_turns() -> None:
    """It was queued before: it has begun when the other failed, and is that queue's turn."""
    replica = busy(full=2)
    scheduler = replica.scheduler
    assert [] == replica.start(0.2)
    verdict = scheduler.finished(running(replica)[0], Result.FAILED, 1.0)
    ran = []
    for now in (1.0, 2.0, 3.0):
        batch = replica.only(now)
        ran.append(batch.reason)
        scheduler.finished(batch, Result.SUCCEEDED, now + 1.0)

    assert not verdict.answered
    assert ["full", "retry", "full"] == ran


# ------------------------------------------------------------ too late


def test_who_would_be_answered_too_late_is_not_sent_ahead() -> None:
    """It is given up as it would be if the lane were free then; nobody stands in for it."""
    replica = busy(full=0)
    replica.arrive(0.0, timeout=1.5)
    for _ in range(4):
        replica.arrive(0.1)
    sent = replica.scheduler.next(0.8)

    assert isinstance(sent, Ahead)
    assert ([5], [6, 7, 8, 9]) == ([late.id for late in sent.expired], ids_of(sent.batch))


def test_where_all_are_too_late_nothing_is_sent() -> None:
    """They are given up, and that is all."""
    replica = busy(full=0)
    for _ in range(4):
        replica.arrive(0.0, timeout=1.5)
    decision = replica.scheduler.next(0.8)

    assert isinstance(decision, Expired)
    assert [5, 6, 7, 8] == [late.id for late in decision.requests]


def test_whose_time_is_over_before_its_turn_is_not_sent_ahead() -> None:
    """Not given up so early, its timeout ends its wait in the queue."""
    replica = busy(full=0)
    late, _ = replica.arrive(0.0, timeout=1.5)
    hurried, _ = replica.arrive(0.8, timeout=0.1)
    for _ in range(4):
        replica.arrive(0.8)
    scheduler = replica.scheduler
    decision = scheduler.next(0.8)

    assert Expired([late]) == decision
    assert Idle() == scheduler.next(0.8)
    assert (True, 5) == (hurried.queued, scheduler.waiting_rows("0"))
    assert 1 == scheduler.cancel(hurried)
    assert isinstance(scheduler.next(0.9), Ahead)


# ------------------------------------------------------------ it never begins


def test_a_lane_that_dies_gives_back_what_was_ahead_and_only_what_ran_is_suspected() -> None:
    """First in its queue, in its old order, once; who left meanwhile is not run."""
    replica = busy(0.0, full=2)
    scheduler = replica.scheduler
    assert [] == replica.start(0.2)
    ahead = replica.ahead
    assert ahead is not None
    scheduler.cancel(ahead.requests[1])
    died = running(replica)

    lost = process_lost([scheduler], 0, 0.5, out_of_memory=False)
    scheduler.lane_added(Lane(1), 0.6)

    assert [(died[0], BatchEnd(answered=False))] == lost
    assert (7, 0) == (scheduler.waiting_rows("0"), scheduler.methods["0"].batcher.running_size)
    next_ones = []
    for now in (0.6, 1.6, 2.6):
        batch = replica.only(now)
        next_ones.append((ids_of(batch), batch.deaths))
        scheduler.finished(batch, Result.SUCCEEDED, now + 1.0)
    assert [([5, 7, 8, 9], 0), ([1, 2, 3, 4], 1), ([10, 11, 12], 0)] == next_ones
    assert not scheduler.has_work()


def test_another_process_that_dies_leaves_it_where_it_is() -> None:
    """Its lane is as busy as before."""
    replica = busy(lanes=2, full=2)
    scheduler = replica.scheduler
    assert [] == replica.start(0.2)
    assert replica.ahead is not None
    ours = replica.ahead.lane.process

    process_lost([scheduler], 1 - ours, 0.5, out_of_memory=False)
    scheduler.finished(replica.ahead.lane.batches.copy().popitem()[0], Result.SUCCEEDED, 1.0)

    assert [[9, 10, 11, 12]] == replica.run(1.0)


def test_what_all_have_left_is_not_put_back() -> None:
    """Nobody waits for it."""
    replica = busy()
    scheduler = replica.scheduler
    assert [] == replica.start(0.2)
    assert replica.ahead is not None
    for request in replica.ahead.requests:
        assert 0 == scheduler.cancel(request)

    process_lost([scheduler], 0, 0.5, out_of_memory=False)

    assert 0 == scheduler.waiting_rows("0")


@pytest.mark.parametrize("others", ["", "b", "bc", "abc"])
def test_it_is_put_back_among_its_like(others: str) -> None:
    """Other shapes may have come meanwhile, as may more of its own."""
    replica = busy(full=0)
    scheduler = replica.scheduler
    for _ in range(4):
        replica.arrive(0.1, shapes="a")
    assert [] == replica.start(0.2)
    for shape in others:
        replica.arrive(0.3, shapes=shape)

    process_lost([scheduler], 0, 0.5, out_of_memory=True)
    scheduler.lane_added(Lane(1), 0.6)
    batcher = scheduler.methods["0"].batcher

    assert 4 + len(others) == batcher.queue.size == batcher.queue.rows
    assert [5, 6, 7, 8] == ids_of(replica.only(0.6))


def test_a_process_hangs_from_when_its_batch_began_and_not_from_when_it_was_sent() -> None:
    """Nor does one hang for what is ahead of it."""
    replica = busy()
    scheduler = replica.scheduler
    assert [] == replica.start(0.2)
    scheduler.finished(running(replica)[0], Result.SUCCEEDED, 1.0)
    (second,) = replica.start(1.0)

    assert 1.0 == second.started
    assert (set(), 6.0) == (scheduler.hanging(5.9, 5.0), scheduler.next_hang(5.9, 5.0))
    assert {0} == scheduler.hanging(6.0, 5.0)


# ------------------------------------------------------------ what others expect


def test_a_lane_with_a_batch_ahead_is_free_after_both() -> None:
    """Unless another is before, which whoever asks for an answer in time may count on."""
    lanes = Lanes()
    lanes.added(0.0)
    lanes.added(0.0)
    lanes.ahead = 1.0
    free = [lanes.next_free]
    lanes.taken(2.0)
    free.append(lanes.next_free)
    lanes.taken(2.5)
    free.append(lanes.next_free)
    lanes.ahead = 0.0

    assert ([inf, 3.0, 2.5], 2.0) == (free, lanes.next_free)


def test_a_drain_is_as_fast_as_what_was_before() -> None:
    """Full batches are sent ahead, and what is left goes when the lane is free."""
    replica = busy(full=1)
    scheduler = replica.scheduler
    replica.arrive(0.1)
    scheduler.drain()
    order = []
    assert [] == replica.start(0.2)
    batches = running(replica)
    for now in (1.0, 2.0):
        scheduler.finished(batches.pop(), Result.SUCCEEDED, now)
        batches = replica.start(now)
        order += [(ids_of(batch), batch.reason) for batch in batches]

    assert [([5, 6, 7, 8], "full"), ([9], "drain")] == order


def test_a_wait_is_no_decision_for_a_busy_lane() -> None:
    """A lane that is free again is asked for as before."""
    replica = busy(full=0)
    replica.arrive(0.1)
    replica.scheduler.finished(running(replica)[0], Result.SUCCEEDED, 1.0)

    assert WaitUntil(9.1, 4) == replica.scheduler.next(1.0)
