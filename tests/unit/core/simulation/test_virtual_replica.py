"""A replica in virtual time: clients that leave, processes that end, batches that fail."""

import random
from math import inf

from batchedapi_core.batching import Batch, BatchPolicy, Client, Request, Result, Strategy
from batchedapi_core.simulation.virtual_replica import (
    BatchRun,
    Books,
    Death,
    End,
    Refused,
    ReplicaPlan,
    VirtualReplica,
)

POLICY = BatchPolicy(4, 0.0, Strategy.IMMEDIATE)


class World(Books):
    """A replica of one lane whose batches take a second, and what it told."""

    def __init__(self, *runs: BatchRun, plan: ReplicaPlan | None = None) -> None:
        """`runs` are what becomes of the first batches."""
        self.runs = list(runs)
        self.batches: list[list[int]] = []
        self.ends: dict[int, tuple[End, float]] = {}
        self.came_back = self.rows_expired = 0
        plan = plan or ReplicaPlan({"m": POLICY}, timeout=10.0, restart=5.0)
        self.replica = VirtualReplica(plan, self.run, self, random.Random(1))

    def ask(self, at: float, rows: int = 1) -> Request:
        """A request that is taken."""
        request = self.replica.arrive("m", rows, at)
        assert isinstance(request, Request)
        return request

    def settle(self) -> None:
        """Until nothing happens any more."""
        while self.replica.next_event < inf:
            self.replica.step(self.replica.next_event)

    def run(self, batch: Batch) -> BatchRun:
        """See Model."""
        self.batches.append([request.id for request in batch.requests])
        return self.runs.pop(0) if self.runs else BatchRun(1.0)

    def started(self, batch: Batch, now: float) -> None:
        """See Books."""
        assert batch.started == now

    def ended(self, request: Request, how: End, now: float) -> None:
        """See Books."""
        assert request.id not in self.ends
        self.ends[request.id] = (how, now)

    def expired(self, rows: int) -> None:
        """See Books."""
        self.rows_expired += rows

    def ran(self, batch: Batch, now: float) -> None:
        """See Books."""
        assert now > batch.started
        self.came_back += 1


def test_whoever_leaves_is_not_run_and_not_answered() -> None:
    """Queued or running; twice, or after the answer, is harmless."""
    world = World()
    running, queued, stays = (world.ask(0.1 * n) for n in range(3))
    for leaves in (running, queued, queued):
        world.replica.cancel(leaves)
    world.settle()
    world.replica.cancel(stays)

    assert [[running.id], [stays.id]] == world.batches
    assert {stays.id: (End.ANSWERED, 2.0)} == world.ends


def test_a_process_that_ends_is_replaced_once() -> None:
    """Its batch runs again in the next."""
    world = World()
    asked = world.ask(0.0)

    assert [1] == world.replica.processes
    world.replica.kill(1, 0.5)
    world.replica.kill(1, 0.6)
    world.settle()

    assert [2] == world.replica.processes
    assert {asked.id: (End.ANSWERED, 6.5)} == world.ends
    assert (2, 1) == (len(world.batches), world.came_back)


def test_who_dies_of_its_own_row_fails_after_the_second_time() -> None:
    """As in the serving image: a first death is mostly nobody's fault."""
    world = World(BatchRun(1.0, Death.DIED), BatchRun(1.0, Death.OUT_OF_MEMORY))
    asked = world.ask(0.0)
    world.settle()

    assert {asked.id: (End.FAILED, 7.0)} == world.ends


def test_a_failure_of_who_left_is_told_nobody() -> None:
    """Its batch failed as it was the only one in it."""
    world = World(BatchRun(1.0, Result.FAILED))
    asked = world.ask(0.0)
    world.replica.cancel(asked)
    world.settle()

    assert {} == world.ends
    assert 1 == world.came_back


def test_a_refused_row_of_a_request_in_parts_fails_it_when_all_parts_are_there() -> None:
    """The other rows have their answers beside it."""
    refused = BatchRun(1.0, Result.ITEM_ERROR)
    world = World(BatchRun(1.0), refused, refused, refused, refused)
    asked = world.ask(0.0, 5)
    world.settle()

    assert {asked.id: (End.FAILED, 2.0)} == world.ends


def test_of_a_failed_batch_each_request_runs_alone() -> None:
    """The clients are told nothing of the first try."""
    world = World(BatchRun(1.0), BatchRun(1.0, Result.FAILED), BatchRun(1.0, Result.FAILED))
    first, guilty, innocent = (world.ask(0.1 * n) for n in range(3))
    world.settle()

    assert [[first.id], [guilty.id, innocent.id], [guilty.id], [innocent.id]] == world.batches
    assert (End.FAILED, 3.0) == world.ends[guilty.id]
    assert (End.ANSWERED, 4.0) == world.ends[innocent.id]


def test_a_request_in_parts_of_a_known_client_is_answered_once() -> None:
    """When the last of its parts is there."""
    world = World()
    asked = world.replica.arrive("m", 5, 0.0, client=Client())
    world.settle()

    assert isinstance(asked, Request)
    assert {asked.id: (End.ANSWERED, 2.0)} == world.ends


def test_who_leaves_while_a_part_of_it_runs_is_not_answered() -> None:
    """The part that runs is run to its end, and is nobody's."""
    world = World()
    world.replica.cancel(world.ask(0.0, 5))
    world.settle()

    assert {} == world.ends
    assert 1 == world.came_back


def test_of_those_with_a_timeout_of_their_own_only_who_is_late_expires() -> None:
    """The one before it is answered, and its timeout later is nobody's."""
    world = World()
    patient = world.replica.arrive("m", 1, 0.0, timeout=5.0)
    hurried = world.replica.arrive("m", 1, 0.125, timeout=0.5)
    world.settle()

    assert isinstance(patient, Request)
    assert isinstance(hurried, Request)
    expected = {patient.id: (End.ANSWERED, 1.0), hurried.id: (End.EXPIRED, 0.625)}
    assert expected == world.ends


def test_what_is_over_the_timeout_is_told_at_once() -> None:
    """Queued rows count as expired, running ones do not; a hang gets its process replaced."""
    world = World(BatchRun(inf))
    running = world.ask(0.0)
    queued = world.ask(1.0, 3)
    hurried = world.replica.arrive("m", 1, 2.0, timeout=0.5)
    world.settle()

    assert isinstance(hurried, Request)
    expected = {hurried.id: 2.5, running.id: 10.0, queued.id: 11.0}
    assert {number: (End.EXPIRED, at) for number, at in expected.items()} == world.ends
    assert 4 == world.rows_expired
    assert [2] == world.replica.processes


def test_there_is_a_limit_of_requests_and_of_what_is_expected_to_be_late() -> None:
    """503 and 429."""
    plan = ReplicaPlan({"m": BatchPolicy(1, 0.0, Strategy.IMMEDIATE, 1.5)}, max_in_flight=2)
    world = World(plan=plan)
    world.ask(0.0)
    world.settle()
    first = world.ask(5.0)
    late = world.replica.arrive("m", 1, 5.0)
    none = [world.replica.arrive("m", 1, 5.9) for _ in range(2)]

    assert Refused.LATE is late
    assert isinstance(none[0], Request)
    assert Refused.QUEUE_FULL is none[1]
    world.replica.drain(5.95)
    world.settle()
    assert (End.ANSWERED, 6.0) == world.ends[first.id]
    assert (0, 0, 0) == (world.replica.in_flight, world.replica.queue_rows, world.replica.running)
