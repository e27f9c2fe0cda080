"""Loads: the counts are those of the rates, and no request is lost between two seconds."""

import numpy as np
import pytest

from batchedapi_core.scaling.minutes import Minute
from batchedapi_core.simulation import PoissonTrace, RecordedTrace, StepTrace, Trace, replayed


def times_of(trace: Trace, seed: int = 0) -> list[float]:
    """All arrivals, second by second."""
    rng = np.random.default_rng(seed)
    found: list[float] = []
    for second in range(int(trace.seconds)):
        times = trace.arrivals(float(second), rng).times
        assert all(second <= t < second + 1 for t in times)
        assert list(times) == sorted(times)
        found += times.tolist()
    return found


def test_a_poisson_trace_has_as_many_requests_as_its_rate_says() -> None:
    """Within four standard errors."""
    trace = PoissonTrace(lambda t: 100.0 if t < 50 else 0.0, 100.0)

    times = times_of(trace)

    assert 5000 == pytest.approx(len(times), abs=4 * 5000**0.5)
    assert max(times) < 50
    assert 100.0 == trace.peak(48.0, 53.0) == trace.rate(49.0)
    assert 0.0 == trace.rate(50.0)


def test_a_step_may_begin_within_a_second() -> None:
    """Half a second of it is half a second's worth of requests."""
    trace = StepTrace((0.0, 10.5, 20.0), (0.0, 1000.0, 0.0), 30.0)

    times = times_of(trace)

    assert 9500 == pytest.approx(len(times), abs=4 * 9500**0.5)
    assert 10.5 <= min(times) < 10.6
    assert 19.9 < max(times) < 20.0
    assert 1000.0 == trace.peak(10.0, 15.0)
    assert 0.0 == trace.peak(5.0, 10.0) == trace.rate(10.4)
    assert 1000.0 == trace.rate(10.5)


def test_the_same_seed_draws_the_same_requests() -> None:
    """A simulation in CI must not flicker."""
    trace = PoissonTrace(lambda _: 50.0, 20.0)

    assert times_of(trace, 1) == times_of(trace, 1)
    assert times_of(trace, 1) != times_of(trace, 2)


def test_recorded_requests_come_when_they_came_with_their_rows() -> None:
    """Lines of a recording are in order of answers, not of arrivals."""
    trace = RecordedTrace([2.25, 0.5, 0.25, 2.0], [4, 2, 1, 3])

    rng = np.random.default_rng(0)
    seconds = [trace.arrivals(float(second), rng) for second in range(4)]

    assert [[0.25, 0.5], [], [2.0, 2.25], []] == [s.times.tolist() for s in seconds]
    assert [[1, 2], [], [3, 4], []] == [s.rows.tolist() for s in seconds if s.rows is not None]
    assert 3.0 == trace.seconds
    assert (1, 2, 3, 4) == trace.sizes
    assert [3.0, 0.0, 7.0, 0.0] == [trace.rate(t + 0.5) for t in range(4)]
    assert 10 / 3 == trace.peak(0.0, 3.0)


def test_a_recording_of_nothing_lasts_no_time() -> None:
    """No requests, no seconds."""
    assert 0.0 == RecordedTrace([], []).seconds


def minute(demand: float | None, peak: float = 0.0) -> Minute:
    """One of a record."""
    return Minute(0, demand, peak, 0.0, 1.0, 0.0)


def test_recorded_minutes_have_their_rows_and_a_jump_is_where_it_was() -> None:
    """40 s into the second minute demand was four times as much, until 20 s into the fourth."""
    trace = replayed(
        [minute(100.0, 104.0), minute(200.0, 400.0), minute(400.0, 410.0), minute(200.0, 400.0),
         minute(100.0, 109.0)]
    )  # fmt: skip

    assert 300.0 == trace.seconds
    assert (0.0, 60.0, 100.0, 120.0, 180.0, 200.0, 240.0) == pytest.approx(trace.starts)
    assert (100.0, 100.0, 400.0, 400.0, 400.0, 100.0, 100.0) == pytest.approx(trace.rates)


def test_what_was_shorter_than_a_look_is_one_and_no_row_is_made_up() -> None:
    """Also where both neighbours had more, and where the peak is all that there was."""
    lower = replayed([minute(300.0), minute(100.0, 400.0), minute(300.0)])
    alone = replayed([minute(0.0), minute(1.0, 300.0), minute(0.0)])
    lull = replayed([minute(40.0), minute(10.0, 40.0), minute(40.0)])

    assert 100.0 == pytest.approx((2.0 * lower.rates[1] + 58.0 * lower.rates[2]) / 60.0)
    assert (400.0, 58.0) == pytest.approx((lower.rates[1], lower.starts[3] - lower.starts[2]))
    assert (0.0, 300.0, 0.0, 0.0) == pytest.approx(alone.rates)
    assert 60.0 == pytest.approx(300.0 * (alone.starts[2] - alone.starts[1]))
    assert (40.0, 40.0, 0.0, 40.0) == pytest.approx(lull.rates)
    assert 600.0 == pytest.approx(40.0 * (lull.starts[2] - lull.starts[1]))


def test_minutes_that_nobody_knows_are_like_the_one_before() -> None:
    """Of none before, there was nothing."""
    assert (0.0, 5.0, 5.0) == replayed([minute(None), minute(5.0), minute(None)]).rates
