"""Rows of different lengths: who shares a batch, and that nothing is lost or starves by it."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from batchedapi_core.batching import (
    Admission,
    Ahead,
    Batch,
    Batcher,
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
    padding_class,
)
from batchedapi_core.batching.lengths import lengths_of as rows_longest_own
from batchedapi_core.batching.lengths import span_of
from batchedapi_core.batching.queue import Buckets, LengthQueue
from batchedapi_core.service_surface import ServiceSurface

SURFACE = ServiceSurface(0.004, 0.0, 0.00002, 0.0)
LONGEST = 512
Batches = list[tuple[str, list[int]]]


class Replica:
    """A scheduler of one method, whose batches take what SURFACE says."""

    def __init__(
        self, policy: BatchPolicy | None = None, *, taught: bool = True, counts_rows: bool = True
    ) -> None:
        policy = policy or BatchPolicy(8, 0.005, pads_to=LONGEST)
        self.scheduler = Scheduler(
            LanePool(LaneChoice.RANDOM, random.Random(1)), Trial(), isolates=True
        )
        self.method = self.scheduler.add_method("m", policy, counts_rows=counts_rows)
        self.batcher = self.method.batcher
        self.scheduler.lane_added(Lane(1), 0.0)
        self.ids = itertools.count(1)
        samples = self.batcher.surface
        if taught and samples is not None:
            for rows, longest in itertools.product((1, 2, 4, 8, 16), (4, 16, 64, 256)):
                seconds = SURFACE.seconds(rows, longest, 0)
                samples.observe(rows, longest, rows * longest, seconds)
                self.batcher.service.observe(rows, seconds)

    def arrive(
        self,
        *lengths: int,
        at: float = 0.0,
        timeout: float = inf,
        sizes: Sequence[int] | None = None,
    ) -> Request:
        """A request, one row of each length."""
        size = self.method.size_of(len(lengths), sizes)
        request = Request(next(self.ids), "m", len(lengths), size, Client(), at, at + timeout)
        shapes = None if sizes else [(length,) for length in lengths]
        self.scheduler.arrive(request, at, sizes, shapes)
        return request

    def batch(self, now: float = 0.0) -> Batch:
        """The batch that starts now."""
        decision = self.scheduler.next(now)
        assert isinstance(decision, Dispatch), decision
        return decision.batch

    def ends(self, batch: Batch, now: float) -> None:
        """It was answered."""
        self.scheduler.finished(batch, Result.SUCCEEDED, now)


def lengths_of(batch: Batch) -> list[int]:
    """Of its requests, in order of arrival."""
    return [request.length for request in batch.requests]


def queue_of(lengths: Sequence[int]) -> LengthQueue:
    """Rows that came at once, in this order."""
    queue = LengthQueue(QueueOrder.FIFO)
    for number, length in enumerate(lengths):
        request = Request(number, "m", 1, 1, Client(), 0.0, inf)
        request.length = length
        queue.append(request)
    return queue


def seconds_of(lengths: Sequence[int], surface: ServiceSurface) -> float:
    """Seconds of a batch."""
    return surface.seconds(len(lengths), max(lengths), sum(lengths))


def least_seconds(lengths: Sequence[int], surface: ServiceSurface, most: int) -> float:
    """Seconds in which all are served if they share batches in the best of all ways."""
    if not lengths:
        return 0.0
    first, *rest = lengths
    found = []
    for company in range(min(most, len(lengths))):
        for chosen in itertools.combinations(range(len(rest)), company):
            batch = [first, *(rest[i] for i in chosen)]
            others = [length for i, length in enumerate(rest) if i not in chosen]
            found.append(seconds_of(batch, surface) + least_seconds(others, surface, most))
    return min(found)


def share_of_best(seed: int) -> float:
    """Work a second of the rule on a queue of seven, as a share of the best by brute force."""
    rng = random.Random(seed)
    surface = ServiceSurface(
        10 ** rng.uniform(-3.3, -1.7), 1e-4, 10 ** rng.uniform(-6, -4.3), rng.choice((0.0, 1e-5))
    )
    lengths = [max(4, min(LONGEST, int(rng.lognormvariate(3.6, 0.9)))) for _ in range(7)]
    queue, seconds = queue_of(lengths), 0.0
    while queue.size:
        group = queue.group(surface, 4)
        batch = queue.take(4, 0.0).requests if group is None else group
        if group is not None:
            queue.take_these(group, 0.0, 0.0)
        seconds += seconds_of([request.length for request in batch], surface)
    return least_seconds(lengths, surface, 4) / seconds


def test_the_rule_is_nearly_the_best_of_all() -> None:
    """Even where nothing comes any more, which the rule does not expect.

    Rows of a span are not cut, and a batch is filled first.
    """
    shares = [share_of_best(seed) for seed in range(40)]

    assert sum(shares) / len(shares) > 0.98
    assert min(shares) > 0.85


@pytest.mark.parametrize("length", [1, 7, 8, 100, 511, 16_000, 441_000])
def test_lengths_of_a_span_differ_by_less_than_an_eighth(length: int) -> None:
    """And a longer row is never in a span before."""
    assert span_of(length) <= span_of(length + 1)
    assert span_of(length) < span_of(length + length // 8 + 1)


@pytest.mark.parametrize(("fixed", "taken"), [(0.02, 7), (0.01, 0)])
def test_a_row_that_costs_more_pays_for_more_padding(fixed: float, taken: int) -> None:
    """Of 500 a unit pays for 2 of length, or 1: a row that costs 40 for 80, or 40, of the 60."""
    queue = LengthQueue(QueueOrder.FIFO)
    for number, cost in enumerate([100] * 2 + [40] * 12):
        request = Request(number, "m", 1, cost, Client(), 0.0, inf)
        request.length = cost
        queue.append(request)

    group = queue.group(ServiceSurface(fixed, 0.0, 0.00002, 0.0), 500)

    assert [40] * taken + [100] * 2 == [request.length for request in group or ()]


@pytest.mark.parametrize(("fixed", "taken"), [(0.004, 5), (0.0001, 0)])
def test_a_batch_with_room_takes_rows_whose_padding_costs_little(fixed: float, taken: int) -> None:
    """Less than their share of a full batch's fixed cost: 2 of a length against 25, and 0.6."""
    queue = queue_of([12] * 3 + [10] * 8)

    group = queue.group(ServiceSurface(fixed, 0.0, 0.00002, 0.0), 8)

    assert [10] * taken + [12] * 3 == [request.length for request in group or ()]


def test_a_long_queue_is_cut_by_spans() -> None:
    """However many rows wait, a batch is full and has the one whose turn it is."""
    queue = queue_of([300, *(16 + number % 64 for number in range(3000))])

    group = queue.group(SURFACE, 100)

    assert group is not None
    assert 300 == group[-1].length
    assert len(queue.group(ServiceSurface(1.0, 0.0, 0.00002, 0.0), 100) or ()) == 100


def test_neighbours_ride_and_the_others_follow() -> None:
    """Eight short rows and one long one are two batches, each with the reason `shape`."""
    replica = Replica()
    for length in (10, 12, 400, 11, 13):
        replica.arrive(length)

    first = replica.batch()
    replica.ends(first, 0.010)
    second = replica.batch(0.010)

    assert ("shape", {10, 11, 12, 13}) == (first.reason, set(lengths_of(first)))
    assert [400] == lengths_of(second)


def test_the_oldest_rides_whatever_it_costs() -> None:
    """However many short ones come, the long one is in the next batch once it is the oldest."""
    replica = Replica()
    replica.arrive(500, at=0.0)
    for _ in range(30):
        replica.arrive(10, at=0.001)

    assert 500 in lengths_of(replica.batch(0.002))


def test_a_group_that_has_no_room_for_another_is_full() -> None:
    """As a batch in turn; and nothing but a full one goes ahead."""
    replica = Replica()
    for number in range(20):
        replica.arrive(10 + number // 10)
    replica.arrive(400)

    running = replica.batch()
    ahead = replica.scheduler.next(0.0)

    assert "full" == running.reason
    assert isinstance(ahead, Ahead)
    assert 8 == ahead.batch.size


def test_what_is_not_full_does_not_go_ahead() -> None:
    """Better company may come until the lane is free."""
    replica = Replica()
    for number in range(12):
        replica.arrive(10 if number < 4 else 100 + 50 * number)

    replica.batch()

    assert isinstance(replica.scheduler.next(0.0), Idle)


@pytest.mark.parametrize("beside", [(), (LONGEST + 1,)])
def test_what_was_ahead_of_a_lane_that_is_lost_is_queued_first(beside: tuple[int, ...]) -> None:
    """In its turn, and in the order of lengths; also beside rows that are not padded to these."""
    replica = Replica()
    for number in range(30):
        replica.arrive(10 + number % 2)
    replica.batch()
    ahead = replica.scheduler.next(0.0)
    assert isinstance(ahead, Ahead)
    for length in beside:
        replica.arrive(length)

    replica.scheduler.lanes_lost(1)
    replica.scheduler.lane_added(Lane(2), 0.0)

    assert set(ahead.batch.requests) & set(replica.batch().requests)
    assert 14 + len(beside) == replica.batcher.queue.size


def batches(policy: BatchPolicy, lengths: Sequence[int], *, warm: bool = False) -> Batches:
    """Reason and requests of each batch, of rows of these lengths in turn; 0: their cost is told.

    A batch takes what SURFACE says of its rows alone. `warm`: batches of each length ran before.
    """
    rng = random.Random(1)
    replica, found, now = Replica(policy, taught=False), [], 0.0
    running: list[Batch] = []
    length_of = itertools.cycle(lengths)
    for rows, length in itertools.product((1, 8) if warm else (), lengths):
        replica.batcher.warmed_up(rows, SURFACE.seconds(rows, 16, 0), rows, length)

    def decide(now: float) -> None:
        while not isinstance(decision := replica.scheduler.next(now), WaitUntil | Idle):
            if isinstance(decision, Dispatch | Begins):
                running.append(decision.batch)
                found.append((decision.batch.reason, [r.id for r in decision.batch.requests]))

    for _ in range(400):
        now += rng.expovariate(800)
        while running:
            end = running[0].started + SURFACE.seconds(running[0].rows, 16, 0)
            if end > now:
                break
            replica.ends(running.pop(), end)
            decide(end)
        for _ in range(rng.choice((0, 1, 1, 5))):
            if length := next(length_of):
                replica.arrive(length, at=now, timeout=rng.choice((0.05, 0.5)))
            else:
                replica.arrive(1, at=now, timeout=0.5, sizes=(1,))
        decide(now)
    return found


@pytest.mark.parametrize("strategy", [Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE])
@pytest.mark.parametrize("order", list(QueueOrder))
@pytest.mark.parametrize("length", [16, 0])
def test_rows_of_one_length_are_batched_as_if_they_had_none(
    strategy: Strategy, order: QueueOrder, length: int
) -> None:
    """Tensors of one shape and images pay nothing for a rule that is not theirs."""
    policy = BatchPolicy(8, 0.005, strategy, None, order)

    without = batches(policy, [length])

    assert len(without) > 20
    assert without == batches(replace(policy, pads_to=LONGEST), [length])


@pytest.mark.parametrize("strategy", [Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE])
@pytest.mark.parametrize("order", list(QueueOrder))
def test_where_padding_costs_nothing_lengths_change_no_batch(
    strategy: Strategy, order: QueueOrder
) -> None:
    """A model that skips the padding, whose time is of the rows alone, once it is warmed up."""
    policy = BatchPolicy(8, 0.005, strategy, None, order)

    without = batches(policy, [16], warm=True)

    assert len(without) > 20
    lengths = [4, 400, 16, 90, 33, 210]
    assert without == batches(replace(policy, pads_to=LONGEST), lengths, warm=True)


def test_fixed_waits_for_its_interval_whatever_the_lengths() -> None:
    """It never releases earlier; then the group of the oldest goes, and the rest at once."""
    replica = Replica(BatchPolicy(8, 0.005, Strategy.FIXED, pads_to=LONGEST))
    for length in (10, 400, 12):
        replica.arrive(length)

    assert WaitUntil(0.005, 8) == replica.scheduler.next(0.0)
    assert [10, 12] == lengths_of(replica.batch(0.005))


def test_draining_is_the_reason_of_a_group_too() -> None:
    """Exactly one reason a batch."""
    replica = Replica()
    replica.arrive(10)
    replica.arrive(400)
    replica.scheduler.drain()

    assert "drain" == replica.batch().reason


def test_a_request_of_many_lengths_is_split_and_one_of_like_rows_is_not() -> None:
    """Each of its rows rides where it fits; its own order is kept by `first`."""
    replica = Replica()
    whole = replica.arrive(20, 20, 20)
    parts = replica.arrive(10, 400, 10)

    assert whole.split is None
    assert 20 == whole.length
    assert [(0, 10), (1, 400), (2, 10)] == [(p.first, p.length) for p in parts.parts]


def test_requests_that_count_as_one_are_split_by_length() -> None:
    """By sizeUnit Requests: a part for each run of one length."""
    replica = Replica(counts_rows=False)

    request = replica.arrive(10, 10, 400)

    assert [(2, 1), (1, 1)] == [(part.rows, part.size) for part in request.parts]


def test_the_length_of_an_item_is_its_cost() -> None:
    """size_of says it, and the batch is bounded by the sum."""
    replica = Replica(BatchPolicy(500, 0.005, pads_to=LONGEST))
    for size in (10, 300, 12, 290):
        replica.arrive(0, sizes=(size,))

    assert [10, 12] == lengths_of(replica.batch())
    assert 590 == replica.batcher.queue.size


def test_a_request_without_lengths_rides_in_its_turn() -> None:
    """None are known of rows without a size or a shape."""
    replica = Replica()
    request = Request(1, "m", 2, 2, Client(), 0.0, inf)

    replica.scheduler.arrive(request, 0.0)
    batch = replica.batch()
    replica.ends(batch, 0.010)

    assert [request] == batch.requests
    assert 0 == request.length


def test_rows_too_long_to_be_padded_freely_ride_with_their_own_class() -> None:
    """Memory: rows beyond `pads_to` share a batch with lengths between two powers of two."""
    replica = Replica(BatchPolicy(8, 0.005, pads_to=64))
    for length in (10, 12, 60, 100, 120, 1000):
        replica.arrive(length)
    buckets = isinstance(replica.batcher.queue, Buckets)

    batches, now = [], 0.0
    while replica.batcher.queue.size:
        batches.append(replica.batch(now))
        now += 0.01
        replica.ends(batches[-1], now)

    assert buckets
    assert [100, 120] in [lengths_of(batch) for batch in batches]
    assert [1000] in [lengths_of(batch) for batch in batches]


def test_before_the_first_batch_all_lengths_share_one() -> None:
    """Nothing is known of padding: the oldest first, as ever."""
    replica = Replica(taught=False)
    for length in (10, 400, 12):
        replica.arrive(length)

    assert [10, 400, 12] == lengths_of(replica.batch())


def test_a_warm_up_of_two_lengths_tells_what_length_costs() -> None:
    """The first requests are not padded blindly; of alike rows it teaches t(n) alone."""
    replica = Replica(taught=False)
    for rows, length in ((1, 400), (8, 400), (1, 100), (8, 100)):
        replica.batcher.warmed_up(rows, SURFACE.seconds(rows, length, 0), rows, length)
    for length in (10, 400, 12):
        replica.arrive(length)
    alike = Batcher(BatchPolicy(8, 0.005, pads_to=LONGEST))
    alike.warmed_up(8, 0.010)

    assert [10, 12] == lengths_of(replica.batch())
    assert replica.batcher.surface is not None
    assert replica.batcher.surface.surface.per_row < 0.02 * SURFACE.per_padded * 400
    assert alike.surface is not None
    assert not alike.surface.known


def test_one_that_left_is_in_no_group() -> None:
    """Neither counted nor run."""
    replica = Replica()
    replica.arrive(10)
    left = replica.arrive(12)
    replica.arrive(14)
    replica.arrive(400)

    replica.scheduler.cancel(left)
    replica.scheduler.cancel(left)

    assert [10, 14] == lengths_of(replica.batch())
    assert 1 == replica.batcher.queue.size


def test_who_is_late_is_in_no_group_and_heads_too_late_come_along() -> None:
    """Their deadlines are nearer than the batch takes."""
    replica = Replica()
    late = replica.arrive(10, timeout=0.010)
    near = replica.arrive(11, at=0.001, timeout=0.009)
    for length in (12, 12, 12, 400):
        replica.arrive(length, at=0.009)

    decision = replica.scheduler.next(0.009)

    assert isinstance(decision, Dispatch)
    assert {late, near} == set(decision.expired)
    assert [12, 12, 12] == lengths_of(decision.batch)


def test_the_earliest_deadline_is_in_the_next_batch() -> None:
    """By queueOrder Deadline: it has the turn, not the oldest."""
    replica = Replica(BatchPolicy(8, 0.005, queue_order=QueueOrder.DEADLINE, pads_to=LONGEST))
    replica.arrive(10, timeout=9.0)
    replica.arrive(12, timeout=9.0)
    replica.arrive(400, timeout=1.0)

    assert [400] == lengths_of(replica.batch())


def test_memory_that_ran_out_is_stronger_than_the_rule() -> None:
    """What is suspected to be the most is taken in turn."""
    replica = Replica()
    for number in range(12):
        replica.arrive(10 + number // 6 * 300)
    batch = replica.batch()
    replica.scheduler.finished(batch, Result.OUT_OF_MEMORY, 0.010)
    for now in (0.010, 0.020, 0.030):
        again = replica.batch(now)
        replica.ends(again, now + 0.005)

    assert 6 == batch.size
    assert replica.method.memory.any
    assert replica.batch(0.1).size <= 3


def test_a_lane_is_expected_back_by_the_lengths_of_its_batch() -> None:
    """The wait, admission and the batch ahead go by it: 4 ms and 10 ms, not the mean of both."""
    ends = []
    for length in (4, 256):
        replica = Replica()
        replica.arrive(length)
        replica.batch()
        ends.append(replica.batcher.lanes.next_free)

    assert [pytest.approx(SURFACE.seconds(1, n, n), rel=0.05) for n in (4, 256)] == ends


def test_a_wait_is_cut_short_for_the_longest_that_is_queued() -> None:
    """maxLatency: what is left once the batch of all that waits has run."""
    replica = Replica(BatchPolicy(8, 1.0, Strategy.WINDOW, latency_target=0.020, pads_to=LONGEST))
    replica.arrive(250)

    assert pytest.approx(0.009, rel=0.05) == replica.batcher.seconds_queued()


@pytest.mark.parametrize(("target", "short", "long"), [(0.05, True, True), (0.040, True, False)])
def test_admission_goes_by_the_length_of_the_request(
    target: float, *, short: bool, long: bool
) -> None:
    """One batch of 4.2 ms runs: a row of 10 is in time, and one of 500 takes 10 ms more."""
    replica = Replica(BatchPolicy(8, 0.005, latency_target=target, pads_to=64))
    surface = replica.batcher.surface
    assert surface is not None
    for _ in range(20):
        surface.observe(1, 10, 10, SURFACE.seconds(1, 10, 10))
    replica.arrive(10)
    replica.batch()
    for length in (10, 100):
        replica.arrive(length)

    answers = [
        Admission(target).accepts(replica.batcher, 1, 0.0, 1, replica.batcher.longest(None, [(n,)]))
        for n in (10, 500)
    ]

    assert [short, long] == answers


def test_a_warm_up_refuses_nobody() -> None:
    """Its full batches are not the traffic of late, also when a process more reports them."""
    policy = BatchPolicy(32, 0.005, latency_target=0.050, pads_to=LONGEST)
    replica = Replica(policy, taught=False)

    def warmed_up() -> None:
        for rows in (1, 2, 4, 8, 16, 32):
            replica.batcher.warmed_up(rows, SURFACE.seconds(rows, 256, 0), rows, 256)

    answers = []
    for now in (0.0, 1.0, 2.0):
        warmed_up()
        replica.arrive(20, at=now)
        batch = replica.batch(now)
        answers.append(Admission(0.050).accepts(replica.batcher, 1, now, 1, 20))
        replica.ends(batch, now + SURFACE.seconds(1, 20, 20))

    assert [True] * 3 == answers


def test_admission_without_a_lane_counts_the_queue_alone() -> None:
    """A replica whose processes are replaced: there is no lane that could be free next."""
    replica = Replica()
    replica.arrive(10)
    replica.arrive(400)
    replica.scheduler.lanes_lost(1)

    assert Admission(1.0).accepts(replica.batcher, 1, 0.0, 1, 400)
    assert not Admission(0.01).accepts(replica.batcher, 1, 0.0, 1, 400)


def test_alike_rows_have_no_longest() -> None:
    """Admission asks t(n) for them, as ever."""
    assert 0 == Batcher(BatchPolicy(8, 0.005)).longest((3,), [(5,)])
    assert 0 == Batcher(BatchPolicy(8, 0.005, pads_to=8)).longest(None, None)


class History(Replica):
    """Requests, batches and ends in any order; `waiting` is what should be queued."""

    def __init__(self, seed: int) -> None:
        super().__init__(BatchPolicy(8, 0.002, pads_to=200))
        self.rng = random.Random(seed)
        self.now = 0.0
        self.waiting: dict[int, Request] = {}
        self.running: list[Batch] = []

    def step(self) -> None:
        """A request comes, perhaps leaves, perhaps a batch ends, and what follows."""
        rng = self.rng
        self.now += rng.expovariate(500)
        lengths = [max(1, int(rng.lognormvariate(3.6, 1.0))) for _ in range(rng.choice((1, 1, 3)))]
        request = self.arrive(*lengths, at=self.now, timeout=rng.choice((0.05, 1.0)))
        if rng.random() < 0.1:
            self.scheduler.cancel(request)
        else:
            self.waiting.update((id(part), part) for part in request.parts)
        if self.running and rng.random() < 0.5:
            self.ends(self.running.pop(), self.now)
        self.decide()

    def decide(self) -> None:
        """Each that leaves the queue was in it, and the head is always among them."""
        while not isinstance(decision := self.scheduler.next(self.now), WaitUntil | Idle):
            if isinstance(decision, Begins):
                self.running.append(decision.batch)
                continue
            gone = list(decision.requests if isinstance(decision, Expired) else decision.expired)
            for part in gone:
                del self.waiting[id(part)]
            if not isinstance(decision, Expired):
                self.takes(decision.batch)
            if isinstance(decision, Dispatch):
                self.running.append(decision.batch)

    def takes(self, batch: Batch) -> None:
        """One batch is of one shape, and has the oldest of it."""
        (shape,) = {part.shape for part in batch.requests}
        oldest = min(part.arrived for part in self.waiting.values() if part.shape == shape)
        assert oldest == batch.requests[0].arrived
        for part in batch.requests:
            del self.waiting[id(part)]


@pytest.mark.parametrize("seed", range(20))
def test_each_row_leaves_once_and_none_starves(seed: int) -> None:
    """Any lengths, cancellations and timeouts; each batch has the request whose turn it is."""
    history = History(seed)

    for _ in range(300):
        history.step()

    queue = history.batcher.queue
    queues = queue.queues.values() if isinstance(queue, Buckets) else [queue]
    own = sum(one.own for one in queues if isinstance(one, LengthQueue))
    assert sum(part.size for part in history.waiting.values()) == queue.size
    assert sum(part.length * part.rows for part in history.waiting.values()) == own


def test_in_buckets_a_group_of_the_next_shape_is_taken() -> None:
    """Rows too long to share a batch with any do not change who of the others does."""
    replica = Replica(BatchPolicy(8, 0.005, pads_to=300))
    for length in (10, 12, 290, 11, 1000):
        replica.arrive(length)

    assert {10, 11, 12} == set(lengths_of(replica.batch()))
    assert isinstance(replica.batcher.queue, Buckets)


def test_without_padding_the_shape_is_what_rows_must_share() -> None:
    """Two classes beyond what is padded freely, and none below."""
    assert [(5,), None, (3,)] == [
        padding_class((5,), 0),
        padding_class((5,), 8),
        padding_class((5,), 4),
    ]


@pytest.mark.parametrize("together", [True, False])
def test_of_two_dimensions_each_is_padded_to_its_own_longest(*, together: bool) -> None:
    """Rows of 2 x 8 and 8 x 2 are 8 x 8 in a batch, be they of one request or of two."""
    replica = Replica(taught=False)
    shapes = [(2, 8), (8, 2)]
    for each in [shapes] if together else [[one] for one in shapes]:
        request = Request(next(replica.ids), "m", len(each), len(each), Client(), 0.0, inf)
        replica.scheduler.arrive(request, 0.0, None, each)

    batch = replica.batch(0.005)
    replica.ends(batch, 0.01)

    surface = replica.batcher.surface
    assert (2, 64, 32) == rows_longest_own(batch.requests)
    assert surface is not None
    assert (128.0, 32.0) == (surface.late.padded, surface.late.own)


@pytest.mark.parametrize(("pads_to", "by_length"), [(0, False), (200, True)])
def test_what_was_learned_is_of_lengths_where_rows_have_them(
    pads_to: int, *, by_length: bool
) -> None:
    """Else, and before a batch of theirs ran, the line t(n) alone."""
    batcher = Batcher(BatchPolicy(8, 0.0, pads_to=pads_to))
    batcher.warmed_up(4, 0.01)
    before = batcher.learned(1.0)
    request = Request(0, "", 4, 4, Client(), 0.0, inf)
    request.length = 50

    batcher.finished([request], 0.01, 1.0)

    line = batcher.service.line
    assert before[2] == 0.0
    assert by_length == (batcher.learned(3.0)[2] > 0.0)
    assert by_length == (batcher.learned(3.0) != (line.fixed, 3.0 * line.per_row, 0.0))
