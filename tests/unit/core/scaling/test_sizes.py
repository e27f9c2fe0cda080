"""Where `maxBatchSize` counts requests or cost: rows of a full batch, and how full batches are."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.observe import LoadWindow, in_rows, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

POLICY = ScalingPolicy(
    min_replicas=1, max_replicas=9, max_batch_size=8, batch_interval=0.01, warm_up_batches=0
)
"""As a replica exports it: 8 of whatever is limited."""


def sample_of(time: float, rows: float, sizes: float, *, pod: str = "a") -> PodSample:
    """A pod that has run `rows` in full batches, whose sizes add up to `sizes`."""
    batches = sizes / 8
    return PodSample(
        pod=pod,
        time=time,
        process_start=0.0,
        uptime=time,
        rows_received=rows,
        rows_rejected=0,
        batches=batches,
        rows=rows,
        full_batches=batches,
        batch_seconds=0.01 * batches + 0.0002 * rows,
        rows_squared=0,
        row_seconds=0,
        queue_rows=0,
        lanes=1,
        sizes=sizes,
    )


def looked(*samples: PodSample) -> tuple[LoadWindow, ScalingState, ScalingPolicy]:
    """One look at each sample of one pod, in order."""
    state = ScalingState.empty()
    for sample in samples:
        policy = in_rows(POLICY, state, [sample], sample.time)
        load, state = observe(policy, state, Observation((sample,), 1, 1, "a"), sample.time)
    return load, state, policy


@pytest.mark.parametrize(
    ("rows", "sizes", "expected"),
    [
        pytest.param(800, 800, 8, id="rows"),
        pytest.param(8000, 800, 80, id="requests of 10 rows"),
        pytest.param(200, 800, 2, id="rows that cost 4"),
        pytest.param(300, 800, 3, id="rows that cost 2.67"),
        pytest.param(10, 800, 1, id="rows that cost more than a batch may"),
    ],
)
def test_a_full_batch_has_as_many_rows_as_its_size_holds(
    rows: float, sizes: float, expected: int
) -> None:
    """t(n), demand and capacity are about rows, whatever the unit of maxBatchSize."""
    load, state, policy = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, rows, sizes))

    assert (expected, 8) == (policy.max_batch_size, policy.max_size)
    assert in_rows(POLICY, state, [], 1005.0) == policy
    assert 100.0 == pytest.approx(load.batching.fill_percent)


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(
    per_size=st.floats(0.001, 1000),
    limit=st.integers(1, MAX_BATCH_SIZE_LIMIT),
    batches=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20),
)
def test_the_unit_of_sizes_changes_no_share_and_no_rows(
    per_size: float, limit: int, batches: list[float]
) -> None:
    """Fill is the same share of a full batch, and a full batch the same rows, in any unit."""
    assume(abs(abs(per_size - 1.0) - 0.02) > 1e-6)  # where rounding decides whether they are equal
    sizes = sum(limit * fill for fill in batches)
    sample = replace(
        sample_of(1005.0, sizes * per_size, sizes), batches=len(batches), full_batches=0.0
    )
    look = Observation((sample,), 1, 1, "a")
    policy = in_rows(replace(POLICY, max_batch_size=limit), ScalingState.empty(), [sample], 1005.0)

    before = replace(sample_of(1000.0, 0, 0), batches=0.0)
    _, state = observe(policy, ScalingState.empty(), Observation((before,), 1, 1, "a"), 1000.0)
    load, _ = observe(policy, state, look, 1005.0)

    each = 1.0 if abs(per_size - 1.0) < 0.02 else per_size  # two counters that are equal
    rows = min(limit * each, float(MAX_BATCH_SIZE_LIMIT))
    assert rows - 1e-6 <= policy.max_batch_size <= max(1.0, rows + 1.0 + 1e-6)
    assert 100 * sum(batches) / len(batches) == pytest.approx(load.batching.fill_percent)


def test_the_requests_of_the_last_minute_count_and_not_those_of_last_week() -> None:
    """Clients that begin to send 10 rows a request are planned for as soon as they do."""
    long_ago = sample_of(1000.0, 1e6, 1e6)
    _, state, _ = looked(long_ago, sample_of(1005.0, 1e6 + 8000, 1e6 + 800))

    policy = in_rows(POLICY, state, [long_ago], 1005.0)

    assert policy.max_batch_size == 80


def test_without_recent_batches_all_that_was_counted_is_used() -> None:
    """The first look after the operator started has no window yet."""
    seen = [sample_of(1000.0, 300, 100), sample_of(1000.0, 0, 0, pod="b")]

    policy = in_rows(POLICY, ScalingState.empty(), seen, 1000.0)

    assert policy.max_batch_size == 24


@pytest.mark.parametrize("seen", [(), (sample_of(1000.0, 0, 0),)], ids=["nobody", "idle"])
def test_before_any_batch_a_row_is_taken_for_one(seen: tuple[PodSample, ...]) -> None:
    """Nothing is decided on it: without batches there is no service time either."""
    policy = in_rows(POLICY, ScalingState.empty(), seen, 1000.0)

    assert (8, 8) == (policy.max_batch_size, policy.max_size)


@pytest.mark.parametrize(
    ("rows", "sizes", "expected"),
    [(1e12, 1.0, MAX_BATCH_SIZE_LIMIT), (1.0, 1e12, 1), (float("nan"), 1.0, 8)],
)
def test_impossible_counts_leave_a_batch_that_is_possible(
    rows: float, sizes: float, expected: int
) -> None:
    """A pod runs its user's code and may export anything."""
    policy = in_rows(POLICY, ScalingState.empty(), [sample_of(1.0, rows, sizes)], 1.0)

    assert expected == policy.max_batch_size


def test_fill_is_in_the_unit_of_the_largest_batch() -> None:
    """In rows a batch of 8 requests would be called 1000 % full."""
    load, _, _ = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800))
    half = replace(sample_of(1010.0, 12000, 1200), batches=200.0)
    fuller, _, _ = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800), half)

    assert load.batching.fill_percent == pytest.approx(100.0)
    assert fuller.batching.fill_percent == pytest.approx(75.0)
    assert fuller.batching.mean_rows == pytest.approx(60.0)


def test_a_decision_on_sizes_is_recorded_with_both_limits_and_replays() -> None:
    """F3 holds for every unit."""
    load, state, policy = looked(sample_of(1000.0, 0, 0), sample_of(1005.0, 8000, 800))
    decision, _ = decide(policy, load, state, 1005.0)

    recorded = record(policy, decision)

    assert (80, 8) == tuple(recorded["policy"][name] for name in ("max_batch_size", "max_size"))
    assert "mean batch 80.0 of 80" in recorded["text"]
    assert decision.desired == replay(recorded)


@dataclass
class Costly:
    """One lane in virtual time that runs what waits, up to `limit` of cost a batch."""

    limit: int = 128
    service: ServiceTime = ServiceTime(fixed=0.010, per_row=0.0002)  # noqa: RUF009 - frozen
    costs: Iterator[int] = field(default_factory=lambda: itertools.cycle((1, 7, 4, 2, 6, 3, 5)))
    free: float = 0.0
    waiting: float = 0.0
    sample: PodSample = field(default_factory=lambda: sample_of(0.0, 0, 0))
    next_cost: int = 4

    def serve(self, rate: float, seconds: float) -> PodSample:
        """`rate` rows/s for so long; what it exports then."""
        end = self.sample.time + seconds
        while self.free < end:
            rows, size = self._batch()
            busy = self.service.seconds(rows) if rows else 1 / rate
            self.free += busy
            self.waiting += rate * busy - rows
            if rows:
                self._count(rows, size, busy)
        self.sample = replace(
            self.sample,
            time=end,
            uptime=end,
            rows_received=self.sample.rows_received + rate * seconds,
            queue_rows=max(0.0, self.waiting),
        )
        return self.sample

    def _batch(self) -> tuple[int, int]:
        rows = size = 0
        while rows + 1 <= self.waiting and size + self.next_cost <= self.limit:
            rows, size = rows + 1, size + self.next_cost
            self.next_cost = next(self.costs)
        return rows, size

    def _count(self, rows: int, size: int, seconds: float) -> None:
        was = self.sample
        self.sample = replace(
            was,
            batches=was.batches + 1,
            rows=was.rows + rows,
            sizes=was.sizes + size,
            batch_seconds=was.batch_seconds + seconds,
            rows_squared=was.rows_squared + rows**2,
            row_seconds=was.row_seconds + rows * seconds,
        )


def test_a_service_with_costs_of_its_own_gets_the_capacity_it_has() -> None:
    """Rows cost 4 at the mean. Taken for rows, the limit would promise batches twice those seen."""
    overrun = Costly()
    most = overrun.serve(5000.0, 60.0).rows / 60.0
    lane, state = Costly(), ScalingState.empty()
    limit = replace(POLICY, max_batch_size=lane.limit)

    for rate in (1000.0, 1700.0) * 12:
        seen = lane.serve(rate, 5.0)
        policy = in_rows(limit, state, [seen], seen.time)
        load, state = observe(policy, state, Observation((seen,), 1, 1, "a"), seen.time)
        decision, state = decide(policy, load, state, seen.time)

    unlike, _ = decide(limit, load, state, seen.time)
    assert 32 == policy.max_batch_size
    assert most == pytest.approx(decision.terms.capacity, rel=0.1)
    assert most * 1.1 < unlike.terms.capacity


def test_a_counter_of_sizes_that_fell_is_not_compared() -> None:
    """As with every other counter: without a restart it cannot fall."""
    load, _, _ = looked(
        sample_of(1000.0, 8000, 800), replace(sample_of(1005.0, 8080, 808), sizes=9)
    )

    assert () == load.changes


def test_a_limit_of_no_size_is_refused() -> None:
    """Nothing could be divided by it."""
    with pytest.raises(ValueError, match="max_size >= 1"):
        replace(POLICY, max_size=0)


def test_a_page_read_while_a_batch_was_counted_makes_no_row_more() -> None:
    """One of two equal counters was a batch ahead: eight rows are not nine."""
    seen = [sample_of(1000.0, 1008, 1000)]

    policy = in_rows(POLICY, ScalingState.empty(), seen, 1000.0)

    assert 8 == policy.max_batch_size
