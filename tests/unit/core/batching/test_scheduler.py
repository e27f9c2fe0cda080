"""A replica's next step: choice among methods, waits, lateness, reruns, deaths."""

import random
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.core.batching.replica import Replica, ids_of

from batchedapi_core.batching import (
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
    Strategy,
    Trial,
    WaitUntil,
    process_lost,
)

FAILED = Result.FAILED


# ------------------------------------------------------------ choice and waits


def test_a_dispatch_names_its_lane_and_no_other_batch_gets_it() -> None:
    """It runs from then on."""
    replica = Replica(0.0)
    replica.arrive(0.0)
    decision = replica.scheduler.next(3.0)
    replica.arrive(3.0)

    assert isinstance(decision, Dispatch)
    assert (0, 3.0) == (decision.batch.lane.process, decision.batch.started)
    assert Idle() == replica.scheduler.next(0.0)


def test_without_methods_or_lanes_there_is_nothing_to_do() -> None:
    """A replica whose first process has not loaded, or whose last one died."""
    nothing = Replica(lanes=0)
    empty = Scheduler(LanePool(LaneChoice.RANDOM, random.Random(1)), Trial(), isolates=True)
    empty.lane_added(Lane(1), 0.0)
    ask = nothing.arrive(0.0, rows=4)[1]

    assert (False, Idle(), Idle()) == (ask, nothing.scheduler.next(0.0), empty.next(0.0))
    assert (True, False) == (nothing.scheduler.has_work(), empty.has_work())


def test_of_those_that_may_start_the_oldest_goes_first() -> None:
    """Neither the order of the methods nor the size of their batches decides."""
    replica = Replica(0.0, 0.0, 9.0)
    for at, method, rows in ((0.0, 2, 1), (0.1, 1, 1), (0.2, 0, 4)):
        replica.arrive(at, method, rows=rows)

    assert [[2]] == replica.run(0.3)


def test_the_earliest_wait_is_the_one_to_come_back_at() -> None:
    """One timer is enough; the others are asked at their arrivals."""
    replica = Replica(3.0, 1.0, 1.0)
    replica.arrive(0.0, 0)
    replica.arrive(0.5, 1)

    assert WaitUntil(1.5, 4) == replica.scheduler.next(0.5)


def test_an_arrival_asks_only_where_it_can_change_something() -> None:
    """Nobody waits there; so much is queued as is awaited; another shape waits too."""
    replica = Replica(3.0, 1.0)
    asked = [replica.arrive(0.0)[1]]
    replica.scheduler.next(0.0)
    asked += [replica.arrive(0.1)[1], replica.arrive(0.1, 1)[1]]
    replica.scheduler.next(0.1)
    asked += [replica.arrive(0.2, 1)[1], replica.arrive(0.2, rows=2)[1]]

    assert [True, False, True, False, True] == asked
    assert [[1, 2, 5]] == replica.run(0.2)
    assert not replica.arrive(0.3)[1]


def test_another_shape_ends_a_wait() -> None:
    """Holding one back would delay the other, who cannot ride along."""
    replica = Replica(3.0, 3.0)
    replica.arrive(0.0, shapes="a")
    waits = replica.scheduler.next(0.0)

    assert WaitUntil(3.0, 4) == waits
    assert replica.arrive(0.1, shapes="b")[1]
    assert [[1]] == replica.run(0.1)


def test_a_wait_of_another_method_is_not_thought_over() -> None:
    """It is for all its clients; asking in between would give up on the last ones."""
    replica = Replica(3.0, 1.0)
    replica.arrive(0.0)
    replica.arrive(0.0, 1)
    replica.scheduler.next(0.0)
    replica.scheduler.methods["0"].batcher.draining = True  # a changed mind, if it were asked

    assert WaitUntil(1.0, 4) == replica.scheduler.next(0.5)
    assert [[2]] == replica.run(1.0)


def test_whatever_happens_to_a_lane_everybody_thinks_anew() -> None:
    """A batch that ended taught something, and there is another lane to fill."""
    replica = Replica(3.0, 3.0)
    replica.arrive(0.0)
    replica.scheduler.next(0.0)
    replica.scheduler.methods["0"].batcher.draining = True

    replica.scheduler.lane_added(Lane(7), 0.1)

    assert [[1]] == replica.run(0.1)


def test_when_a_batch_ends_every_wait_is_thought_over() -> None:
    """It taught something of all: how long they take, and how full they get."""
    replica = Replica(0.0, 3.0, lanes=2)
    replica.arrive(0.0)
    running = replica.only(0.0)
    replica.arrive(0.1, 1)
    replica.scheduler.next(0.1)
    replica.scheduler.methods["1"].batcher.draining = True

    replica.scheduler.finished(running, Result.SUCCEEDED, 0.2)

    assert [[2]] == replica.run(0.2)


def test_a_method_whose_batch_went_waits_for_nothing_any_more() -> None:
    """With a second lane free, its next request would be held back by the wait before."""
    replica = Replica(3.0, 3.0, lanes=2)
    replica.arrive(0.0)
    replica.arrive(0.0, 1)
    replica.scheduler.next(0.0)
    replica.arrive(0.1, rows=3)
    batches = replica.run(0.1)

    assert [[1, 3]] == batches
    assert replica.arrive(0.2)[1]
    assert WaitUntil(3.0, 4) == replica.scheduler.next(0.2)


def test_when_all_who_waited_left_the_next_is_asked_for() -> None:
    """It would wait for the end of a wait that nobody is in."""
    replica = Replica(3.0)
    request, _ = replica.arrive(0.0)
    replica.scheduler.next(0.0)

    assert 1 == replica.scheduler.cancel(request)
    assert 0 == replica.scheduler.cancel(request)
    assert replica.arrive(1.0)[1]
    assert WaitUntil(4.0, 4) == replica.scheduler.next(1.0)
    assert Idle() == Replica().scheduler.next(0.0)


def test_draining_ends_every_wait() -> None:
    """Nobody comes any more."""
    replica = Replica(3.0, 3.0)
    replica.arrive(0.0)
    replica.scheduler.next(0.0)

    replica.scheduler.drain()

    assert [[1]] == replica.run(0.1)


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(
    ticks=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=60),
    strategy=st.sampled_from([Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE]),
    lanes=st.integers(1, 2),
)
def test_no_method_starves(ticks: list[tuple[int, ...]], strategy: Strategy, lanes: int) -> None:
    """After its interval the oldest request of all is in the next batch that starts.

    Up to 15 rows arrive each 5 ms for lanes that run at most four rows each in that time.
    """
    interval, now = 0.020, 0.0
    replica = Replica(lanes=lanes)
    scheduler = replica.scheduler
    scheduler.methods.clear()
    for number in range(3):
        scheduler.add_method(str(number), BatchPolicy(4, interval, strategy))
    running: list[Batch] = []
    for arrivals in [*ticks, *[(0, 0, 0)] * 30 * len(ticks)]:
        for method, rows in enumerate(arrivals):
            for _ in range(rows):
                replica.arrive(now, method)
        while running:
            scheduler.finished(running.pop(), Result.SUCCEEDED, now)
        oldest = min(m.batcher.queue.oldest_arrival for m in scheduler.methods.values())
        while isinstance((decision := scheduler.next(now)), Dispatch | Ahead | Begins):
            batch = decision.batch
            if not isinstance(decision, Ahead):
                running.append(batch)
            if not isinstance(decision, Begins):  # which were the oldest when they were sent
                # Window counts from the free lane, so one more batch may have gone before.
                assert now <= oldest + 2 * interval or batch.requests[0].arrived == oldest
            oldest = min(
                method.batcher.queue.oldest_arrival for method in scheduler.methods.values()
            )
        now += 0.005

    assert not scheduler.has_work()


# ------------------------------------------------------------ too late to run


def test_who_would_be_answered_too_late_is_not_run() -> None:
    """In an overload those whose turn it is are those about to expire."""
    replica = Replica(0.0)
    replica.scheduler.methods["0"].batcher.service.observe(1, 0.4)
    replica.arrive(0.0, timeout=1.0)
    replica.arrive(0.3, timeout=1.0)
    decision = replica.scheduler.next(0.7)

    assert isinstance(decision, Dispatch)
    assert [1] == [request.id for request in decision.expired]
    assert [2] == ids_of(decision.batch)


def test_nobody_is_given_up_in_the_first_half_of_its_own_timeout() -> None:
    """So an estimate that is wrong cannot refuse everything, whoever is in a hurry beside it."""
    replica = Replica(0.0)
    replica.scheduler.methods["0"].batcher.service.observe(1, 60.0)
    replica.arrive(0.0, timeout=30.0)
    replica.arrive(14.0, timeout=1.0)

    assert [[1, 2]] == replica.run(14.4)
    replica.arrive(20.0, timeout=30.0)
    replica.scheduler.lane_added(Lane(9), 35.0)
    assert isinstance(replica.scheduler.next(35.0), Expired)
    assert Idle() == replica.scheduler.next(35.0)


# ------------------------------------------------------------ requests in parts, and memory


def test_a_request_larger_than_a_batch_is_split_and_leaves_as_a_whole() -> None:
    """By its rows, or where their shape changes."""
    replica = Replica(0.0)
    large, _ = replica.arrive(0.0, rows=10)
    mixed, _ = replica.arrive(0.0, rows=4, shapes="aabb")
    alike, _ = replica.arrive(0.0, rows=4, shapes="aaaa")

    assert [(0, 4), (4, 4), (8, 2)] == [(part.first, part.rows) for part in large.parts]
    assert [("a", 0, 2), ("b", 2, 2)] == [(p.shape, p.first, p.rows) for p in mixed.parts]
    assert ([alike], "a") == (list(alike.parts), alike.shape)
    assert (10, 4, 4) == tuple(map(replica.scheduler.cancel, (large, mixed, alike)))
    assert Idle() == replica.scheduler.next(9.0)


def test_where_sizes_are_of_requests_rows_do_not_split() -> None:
    """But shapes do."""
    replica = Replica(0.0)
    rows = replica.scheduler.methods["0"]
    method = replica.scheduler.add_method("all", BatchPolicy(2, 0.0), counts_rows=False)
    request = Request(1, "all", 9, method.size_of(9), Client(), 0.0, inf)
    mixed = Request(2, "all", 3, method.size_of(3), Client(), 0.0, inf)
    replica.scheduler.arrive(request, 0.0)
    replica.scheduler.arrive(mixed, 0.0, None, "aab")

    assert (1, 1) == (request.size, mixed.size)
    assert (2, 5) == (rows.size_of(2), rows.size_of(2, [2, 3]))
    assert [9] == [part.rows for part in request.parts]
    assert [(2, 1), (1, 1)] == [(part.rows, part.size) for part in mixed.parts]


def test_what_ran_out_of_memory_is_not_tried_again_at_that_size() -> None:
    """The limit is for that shape: suspected at once, and known when both halves ran."""
    replica = Replica(0.0)
    scheduler, memory = replica.scheduler, replica.scheduler.methods["0"].memory
    for _ in range(8):
        replica.arrive(0.0)
    verdict = scheduler.finished(replica.only(0.0), Result.OUT_OF_MEMORY, 1.0)
    for now in (1.0, 2.0):
        scheduler.finished(replica.only(now), Result.SUCCEEDED, now + 1.0)
    sizes = []
    for now in (3.0, 4.0):
        batch = replica.only(now)
        sizes.append(batch.size)
        scheduler.finished(batch, Result.SUCCEEDED, now + 1.0)
    large, _ = replica.arrive(5.0, rows=4)

    assert BatchEnd(answered=False, limit=2) == verdict
    assert (2, 4) == (memory.limit_of(None), memory.limit_of("other"))
    assert [2, 2] == sizes
    assert [2, 2] == [part.rows for part in large.parts]


def test_a_row_that_has_no_room_alone_shrinks_nobodys_batches() -> None:
    """Its client has its error, and what was suspected is forgotten."""
    replica = Replica(0.0)
    scheduler, memory = replica.scheduler, replica.scheduler.methods["0"].memory
    for _ in range(2):
        replica.arrive(0.0)
    scheduler.finished(replica.only(0.0), Result.OUT_OF_MEMORY, 1.0)
    suspected = memory.limit_of(None)
    scheduler.finished(replica.only(1.0), Result.ITEM_ERROR, 2.0)
    verdict = scheduler.finished(replica.only(2.0), Result.OUT_OF_MEMORY, 3.0)

    assert (1, 4) == (suspected, memory.limit_of(None))
    assert BatchEnd(answered=True) == verdict
    assert memory.exceeded(None, 1) is None


def test_suspicions_are_bounded() -> None:
    """Lengths of text are hundreds of shapes."""
    memory = Replica(0.0).scheduler.methods["0"].memory
    for shape in range(300):
        memory.exceeded(shape, 4)

    assert (4, 2) == (memory.limit_of(0), memory.limit_of(299))


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("result", [FAILED, Result.ITEM_ERROR, Result.OUT_OF_MEMORY])
def test_without_isolation_nothing_is_run_twice(result: Result) -> None:
    """`onItemError: FailBatch`."""
    replica = Replica(0.0, isolates=False)
    for _ in range(4):
        replica.arrive(0.0)

    verdict = replica.scheduler.finished(replica.only(0.0), result, 1.0)
    replica.arrive(2.0)
    batch = replica.only(2.0)
    lost = process_lost([replica.scheduler], 0, 3.0, out_of_memory=False)

    assert verdict.answered
    assert [(batch, BatchEnd(answered=True))] == lost
    assert not replica.scheduler.has_work()


def test_a_refused_row_is_its_answer_and_teaches_nothing() -> None:
    """Its time is not that of a batch that ran to its end."""
    replica = Replica(0.0)
    replica.arrive(0.0)

    verdict = replica.scheduler.finished(replica.only(0.0), Result.ITEM_ERROR, 1.0)

    assert verdict.answered
    assert not replica.scheduler.methods["0"].batcher.service.known


def test_the_rows_of_one_request_are_told_apart() -> None:
    """Where one was refused, nobody knows which."""
    replica = Replica(0.0)
    replica.arrive(0.0, rows=4)
    replica.scheduler.finished(replica.only(0.0), Result.ITEM_ERROR, 1.0)

    batch = replica.only(1.0)

    assert [(0, 2)] == [(part.first, part.rows) for part in batch.requests]
    assert "retry" == batch.reason


def test_after_a_success_failed_batches_are_halved_again() -> None:
    """While everything fails they are run one by one."""
    replica = Replica(0.0)
    scheduler = replica.scheduler
    isolation = scheduler.methods["0"].isolation
    isolation.systemic = True
    for _ in range(3):
        replica.arrive(0.0)
    scheduler.finished(replica.only(0.0), FAILED, 1.0)

    sizes = []
    for now in (1.0, 2.0, 3.0):
        batch = replica.only(now)
        sizes.append(batch.size)
        scheduler.finished(batch, Result.SUCCEEDED, now + 1.0)

    assert [1, 1, 1] == sizes
    assert not isolation.systemic


def test_reruns_take_turns_with_what_is_queued() -> None:
    """Each method with work has one batch between two reruns; a request that left is skipped."""
    replica = Replica(0.0, 0.0)
    scheduler = replica.scheduler
    leaves, *_ = (replica.arrive(0.0)[0] for _ in range(4))
    scheduler.finished(replica.only(0.0), FAILED, 1.0)
    for n in range(8):
        replica.arrive(1.0 + 0.01 * n, n % 2, rows=4)
    ran = []
    for n in range(7):
        batch = replica.only(2.0 + n)
        ran.append((batch.method, batch.reason == "retry"))
        scheduler.finished(batch, Result.SUCCEEDED, 2.5 + n)
        scheduler.cancel(leaves)

    queued = [("0", False), ("1", False)]
    assert [*queued, ("0", True), *queued, ("0", True), ("0", False)] == ran


def test_a_rerun_that_nobody_waits_for_is_dropped() -> None:
    """Its clients have left, or had their 504."""
    replica = Replica(0.0)
    request, _ = replica.arrive(0.0)
    batch = replica.only(0.0)
    process_lost([replica.scheduler], 0, 1.0, out_of_memory=False)
    replica.scheduler.cancel(request)
    replica.scheduler.lane_added(Lane(1), 2.0)

    assert 0 == batch.deaths
    assert Idle() == replica.scheduler.next(2.0)
    assert not replica.scheduler.has_work()


# ------------------------------------------------------------ deaths


def test_with_a_process_all_its_batches_are_lost_and_run_again() -> None:
    """Whole once; each blamed for the death."""
    replica = Replica(0.0, lanes=0)
    scheduler = replica.scheduler
    for process in (1, 1, 2):
        scheduler.lane_added(Lane(process), 0.0)
    batches = []
    for _ in range(3):
        replica.arrive(0.0)
        batches += replica.start(0.0)
    dying = [batch for batch in batches if batch.lane.process == 1]

    lost = process_lost([scheduler], 1, 1.0, out_of_memory=False)

    assert [(batch, BatchEnd(answered=False)) for batch in dying] == lost
    assert (1, 0) == (scheduler.lanes.total, scheduler.lanes.free)
    scheduler.lane_added(Lane(3), 1.0)
    (again,) = replica.start(1.0)
    assert (1, "retry") == (again.deaths, again.reason)


def test_what_killed_a_process_twice_runs_one_by_one_and_then_fails() -> None:
    """One at a time, or all would be blamed for the next death."""
    replica = Replica(0.0, lanes=0)
    scheduler = replica.scheduler
    for _ in range(2):
        replica.arrive(0.0)
    verdicts: list[BatchEnd] = []
    for process in range(4):
        scheduler.lane_added(Lane(process), 0.0)
        scheduler.lane_added(Lane(9), 0.0)
        assert 1 == len(replica.start(0.0))
        for gone in (9, process):
            lost = process_lost([scheduler], gone, 0.0, out_of_memory=False)
            verdicts += [verdict for _, verdict in lost]

    assert [False, False, True, True] == [verdict.answered for verdict in verdicts]
    assert not scheduler.has_work()


def two_on_trial() -> Replica:
    """Two requests, of which two processes died."""
    replica = Replica(0.0, lanes=0)
    for _ in range(2):
        replica.arrive(0.0)
    for process in (1, 2):  # they are run together once more, and then on trial
        replica.scheduler.lane_added(Lane(process), 0.0)
        replica.only(0.0)
        process_lost([replica.scheduler], process, 0.0, out_of_memory=False)
    return replica


def test_beside_one_on_trial_the_others_are_innocent() -> None:
    """It is that one's fault, and they are run again as if nothing had happened."""
    replica = two_on_trial()
    scheduler = replica.scheduler
    replica.arrive(1.0)
    for _ in range(2):
        scheduler.lane_added(Lane(3), 1.0)
    running = replica.start(1.0)

    lost = process_lost([scheduler], 3, 2.0, out_of_memory=False)
    scheduler.lane_added(Lane(4), 2.0)
    scheduler.lane_added(Lane(4), 2.0)
    again = {tuple(ids_of(batch)): batch.deaths for batch in replica.start(2.0)}

    assert [[1], [3]] == sorted(map(ids_of, running))
    assert {1: True, 3: False} == {ids_of(batch)[0]: it.answered for batch, it in lost}
    assert {(2,): 2, (3,): 0} == again


def test_after_one_on_trial_came_back_the_next_is_tried() -> None:
    """It was innocent; of the others one may still be guilty."""
    replica = two_on_trial()
    scheduler = replica.scheduler
    for process in (3, 4):
        scheduler.lane_added(Lane(process), 1.0)
    tried = replica.only(1.0)

    assert [1] == ids_of(tried)
    assert scheduler.has_work()
    assert scheduler.finished(tried, Result.SUCCEEDED, 2.0).answered
    assert [[2]] == replica.run(2.0)


def test_a_process_killed_for_memory_gets_halves_at_once() -> None:
    """Whole, the batch would end the next one too."""
    replica = Replica(0.0)
    for _ in range(4):
        replica.arrive(0.0)
    replica.start(0.0)

    ((_, verdict),) = process_lost([replica.scheduler], 0, 1.0, out_of_memory=True)
    replica.scheduler.lane_added(Lane(1), 1.0)

    assert BatchEnd(answered=False, limit=2) == verdict
    assert [[1, 2]] == replica.run(1.0)


def test_a_closed_connection_is_not_awaited() -> None:
    """By any method."""
    replica = Replica(0.0)
    request, _ = replica.arrive(0.0)
    replica.scheduler.finished(replica.only(0.0), Result.SUCCEEDED, 1.0)
    assert request.client.answers

    replica.scheduler.disconnected(request.client)

    assert not request.client.answers


# ------------------------------------------------------------ laws


class History:
    """Random events, with books of its own."""

    def __init__(self, order: QueueOrder, lanes: int, *, isolates: bool) -> None:
        pool = LanePool(LaneChoice.RANDOM, random.Random(3))
        self.trial = Trial()
        self.scheduler = Scheduler(pool, self.trial, isolates=isolates)
        for name, size in (("a", 8), ("b", 3)):
            self.scheduler.add_method(name, BatchPolicy(size, 0.02, queue_order=order))
        self.isolates = isolates
        self.now = 0.0
        self.processes = 0
        self.alive: list[int] = []
        self.open: dict[int, Request] = {}
        self.missing: dict[int, set[int]] = {}
        self.running: dict[Batch, None] = {}
        self.ahead: Batch | None = None
        self.sent_ahead = 0
        self.clients = [Client() for _ in range(3)]
        for _ in range(lanes):
            self.lane()

    def lane(self) -> None:
        """A process more, with two lanes."""
        self.processes += 1
        self.alive.append(self.processes)
        for _ in range(2):
            self.scheduler.lane_added(Lane(self.processes), self.now)

    def play(self, kind: str, which: int, size: int) -> None:
        """One event, and what follows from it."""
        match kind:
            case "arrive":
                self.arrive(which, size)
            case "cancel" if which in self.open:
                self.scheduler.cancel(self.leave(which))
            case "finish" if self.running:
                self.finish(list(self.running)[which % len(self.running)], size)
            case "die" if self.alive:
                self.die(self.alive[which % len(self.alive)], out_of_memory=size > 6)
            case "lane" if len(self.alive) < 2:
                self.lane()
            case _:
                self.now += which / 1000
        self.act()

    def arrive(self, which: int, size: int) -> None:
        """A request, perhaps larger than a batch."""
        number = len(self.open) + sum(1 for _ in self.missing) + 1000 * self.processes
        while number in self.missing:
            number += 1
        deadline = self.now + (0.1 if which % 3 else 5.0)
        method = "ab"[which % 2]
        shapes = "xy"[which % 4 // 2] * size if which % 5 else "x" * (size - 1) + "y"
        request = Request(number, method, size, size, self.clients[which % 3], self.now, deadline)
        self.open[number] = request
        self.missing[number] = set(range(size))
        self.scheduler.arrive(request, self.now, None, shapes)

    def leave(self, number: int) -> Request:
        """It was answered, or nobody waits."""
        return self.open.pop(number)

    def act(self) -> None:
        """Do what is to be done now; whoever is over its timeout has its answer."""
        for number in [n for n, request in self.open.items() if request.deadline <= self.now]:
            self.scheduler.cancel(self.leave(number))
        while True:
            decision = self.scheduler.next(self.now)
            match decision:
                case Dispatch(batch, expired):
                    self.check(batch)
                    self.runs(batch)
                    self.told_late(expired)
                case Ahead(batch, expired):
                    self.check(batch)
                    assert self.ahead is None
                    self.ahead = batch
                    self.sent_ahead += 1
                    self.told_late(expired)
                case Begins(batch):
                    assert batch is self.ahead
                    self.ahead = None
                    self.runs(batch)
                case Expired(expired):
                    self.told_late(expired)
                case WaitUntil(at):
                    assert at > self.now
                    return
                case Idle():
                    return

    def told_late(self, expired: Sequence[Request]) -> None:
        """They are given up, in the second half of their own time at the earliest."""
        for request in expired:
            assert request.deadline - self.now <= (request.deadline - request.arrived) / 2
            if request.id in self.open:
                self.scheduler.cancel(self.leave(request.id))

    def check(self, batch: Batch) -> None:
        """It is what a batch may be."""
        method = self.scheduler.methods[batch.method]
        assert batch.lane.process in self.alive
        assert 1 == len({request.shape for request in batch.requests})
        assert {batch.method} == {request.method for request in batch.requests}
        shape = batch.requests[0].shape
        assert (
            len(batch.requests) == 1
            or batch.reason == "retry"
            or (batch.size <= method.memory.limit_of(shape))
        )
        assert batch.size <= method.batcher.policy.max_batch_size
        assert not any(request.cancelled for request in batch.requests)
        assert not batch.on_trial or not any(other.on_trial for other in self.running)
        for request in batch.requests:
            rows = set(range(request.first, request.first + request.rows))
            assert rows <= self.missing[request.id]  # neither answered nor running elsewhere
            assert not any(
                other.id == request.id and rows & set(range(other.first, other.first + other.rows))
                for running in [*self.running, *([self.ahead] if self.ahead else [])]
                for other in running.requests
            )

    def runs(self, batch: Batch) -> None:
        """It is alone on its lane."""
        assert batch.started == self.now
        assert all(other.lane is not batch.lane for other in self.running)
        self.running[batch] = None

    def finish(self, batch: Batch, how: int) -> None:
        """It ends in one of the ways in which it can."""
        del self.running[batch]
        result = [Result.SUCCEEDED] * 4 + [*Result]
        self.ended(batch, self.scheduler.finished(batch, result[how % len(result)], self.now))

    def die(self, process: int, *, out_of_memory: bool) -> None:
        """A process ends."""
        self.alive.remove(process)
        lost = process_lost([self.scheduler], process, self.now, out_of_memory=out_of_memory)
        if self.ahead is not None and self.ahead.lane.process == process:
            assert all(r.queued or r.cancelled for r in self.ahead.requests)
            self.ahead = None
        for batch, verdict in lost:
            del self.running[batch]
            self.ended(batch, verdict)

    def ended(self, batch: Batch, verdict: BatchEnd) -> None:
        """The batch's requests are answered, or run again."""
        assert verdict.answered or self.isolates
        for request in batch.requests if verdict.answered else ():
            rows = self.missing[request.id]
            rows -= set(range(request.first, request.first + request.rows))
            if not rows and request.id in self.open:
                self.leave(request.id)

    def settle(self) -> None:
        """Everything ends well."""
        self.scheduler.drain()
        if not self.alive:
            self.lane()
        self.act()
        while self.running:
            self.now += 0.001
            self.finish(next(iter(self.running)), 0)
            self.act()


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    phases=[Phase.explicit, Phase.generate],  # not shrunk: an example takes long enough
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["arrive"] * 6 + ["finish"] * 5 + ["cancel", "die", "lane", "lane", "pass"]
            ),
            st.integers(0, 60),
            st.integers(1, 12),
        ),
        min_size=30,
        max_size=90,
    ),
    order=st.sampled_from(QueueOrder),
    lanes=st.integers(0, 2),
    isolates=st.booleans(),
)
def test_any_history_keeps_every_promise(
    steps: list[tuple[str, int, int]], order: QueueOrder, lanes: int, *, isolates: bool
) -> None:
    """No row is lost, run at two places at once, run for nobody or beyond memory's limit."""
    history = History(order, lanes, isolates=isolates)

    for step in steps:
        history.play(*step)
    history.settle()

    assert {} == history.open
    assert not history.scheduler.has_work()
    assert not history.trial.runs
    lanes_left = history.scheduler.lanes
    assert (2 * len(history.alive), lanes_left.total) == (lanes_left.total, lanes_left.free)
    for method in history.scheduler.methods.values():
        assert (0, 0) == (method.batcher.queue.size, method.batcher.running_size)
