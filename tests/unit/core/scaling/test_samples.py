"""How counters become changes: restarts, first sights, falls and impossible numbers."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.load import (
    BatchTotals,
    LoadInterval,
    arrival_rate,
    came_in,
    level,
)
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange, PodSample, change, usable
from batchedapi_core.service_model import RequestRows

ROWS = st.floats(0.0, 1e4)
SEEN = PodSample(
    pod="a",
    time=1000.0,
    process_start=0.0,
    uptime=1000.0,
    rows_received=5000,
    rows_rejected=0,
    batches=1000,
    rows=5000,
    full_batches=100,
    batch_seconds=20.0,
    rows_squared=30000,
    row_seconds=110.0,
    queue_rows=10,
    lanes=1,
)
LATER = replace(
    SEEN, time=1005.0, uptime=1005.0, rows_received=5100, batches=1020, rows=5095, queue_rows=15
)
RESTARTED = replace(
    SEEN, time=1005.0, process_start=1003.0, uptime=2.0, rows_received=7, batches=3, rows=7,
    full_batches=0, batch_seconds=0.1, rows_squared=17, row_seconds=0.3,
    queue_rows=0,
)  # fmt: skip


def change_of(
    before: PodSample | None, after: PodSample, since_full_look: float | None = None
) -> PodChange | None:
    """With a window of a minute."""
    return change(before, after, window=60.0, since_full_look=since_full_look, warm_up_batches=20)


def test_a_running_pod_changes_by_the_difference() -> None:
    """The plain case."""
    rise = change_of(SEEN, LATER)

    assert rise is not None
    assert (5.0, 100.0, 20.0, 95.0) == (
        rise.seconds,
        rise.received,
        rise.sums.batches,
        rise.sums.rows,
    )
    assert not rise.warming_up


def test_a_restarted_pod_changes_by_all_it_did_since() -> None:
    """Its counters are smaller, its work is not negative."""
    rise = change_of(SEEN, RESTARTED)

    assert rise is not None
    assert (2.0, 7.0, 3.0) == (rise.seconds, rise.received, rise.sums.batches)
    assert rise.warming_up


def test_a_counter_that_falls_without_a_restart_skips_the_pod() -> None:
    """Taking the whole value for the increase gave eighty times the demand."""
    assert change_of(SEEN, replace(LATER, batches=900)) is None
    assert change_of(SEEN, replace(LATER, batch_seconds=19.0)) is None


@pytest.mark.parametrize(
    "contradiction",
    [
        replace(LATER, time=1000.0),
        replace(LATER, process_start=-100.0),
        replace(RESTARTED, uptime=900.0),
        replace(RESTARTED, uptime=0.0),
    ],
    ids=["no time passed", "started earlier", "restarted before it was seen", "no age"],
)
def test_clocks_that_contradict_each_other_skip_the_pod(contradiction: PodSample) -> None:
    """A node whose clock jumps must not look like a burst."""
    assert change_of(SEEN, contradiction) is None


def test_a_young_pod_is_taken_at_its_whole_life() -> None:
    """All it counted lies within the window."""
    rise = change_of(None, RESTARTED)

    assert rise is not None
    assert (2.0, 7.0) == (rise.seconds, rise.received)


def test_an_old_pod_at_first_sight_says_nothing() -> None:
    """The operator restarted: when its rows came is not known."""
    assert change_of(None, SEEN) is None


def test_an_old_pod_that_was_not_ready_a_moment_ago_started_serving_since() -> None:
    """Models take minutes to load; the last look saw every ready pod and not this one."""
    loaded = replace(RESTARTED, uptime=300.0)

    rise = change_of(None, loaded, since_full_look=5.0)

    assert change_of(None, loaded) is None
    assert rise is not None
    assert (5.0, 7.0) == (rise.seconds, rise.received)


def test_a_pod_that_was_forgotten_is_not_taken_for_a_new_one() -> None:
    """Older than samples are kept, it may have served long before."""
    assert change_of(None, SEEN, since_full_look=5.0) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 1e25])
@pytest.mark.parametrize(
    "field",
    ["rows_received", "batches", "batch_seconds", "row_seconds", "queue_rows", "lanes", "uptime"],
)
def test_a_sample_with_an_impossible_number_is_as_good_as_none(field: str, number: float) -> None:
    """A pod whose numbers cannot be trusted is a pod that was not seen."""
    impossible: dict[str, Any] = {field: number}

    assert () == usable([replace(SEEN, **impossible)])
    assert (SEEN,) == usable([SEEN])


@pytest.mark.parametrize(
    "broken",
    [
        replace(SEEN, time=float("nan")),
        replace(SEEN, process_start=float("inf")),
        replace(SEEN, squares_received=float("nan")),
    ],
)
def test_a_broken_clock_or_sum_is_as_good_as_none(broken: PodSample) -> None:
    """As above, for what is no counter."""
    assert () == usable([broken])


def test_a_pod_scraped_twice_counts_once() -> None:
    """The latest sample is the one; else its demand would double."""
    assert (LATER,) == usable([SEEN, LATER])
    assert (LATER,) == usable([LATER, SEEN])


def test_unseen_pods_are_taken_to_be_like_those_seen() -> None:
    """A replica misses scrapes exactly when it is loaded; zero would remove it."""
    rise = change_of(SEEN, LATER)
    assert rise is not None

    assert 20.0 == arrival_rate([rise], interval=5.0, coverage=1.0)
    assert 40.0 == arrival_rate([rise], interval=5.0, coverage=0.5)


def test_load_that_moved_to_a_young_pod_counts_once() -> None:
    """Its seven rows came within two seconds, of five in which the others lost them."""
    rise = change_of(None, RESTARTED)
    assert rise is not None

    assert 7 / 5 == arrival_rate([rise], interval=5.0, coverage=1.0)


def test_rows_dispatched_queued_and_rejected_stand_in_for_rows_received() -> None:
    """A server of another make may not count what it turned away."""
    rise = change_of(SEEN, replace(LATER, rows_received=5000, rows_rejected=50))
    assert rise is not None

    assert (95 + 5 + 50) / 5 == arrival_rate([rise], interval=5.0, coverage=1.0)


def test_a_batch_that_outlasts_a_look_does_not_count_twice() -> None:
    """Its rows leave the queue in one look and are counted as run in a later one."""
    queued = replace(SEEN, rows_received=5010)
    begun = replace(queued, time=1002.0, uptime=1002.0, rows_received=5030, queue_rows=0)
    ended = replace(begun, time=1004.0, uptime=1004.0, rows_received=5050, rows=5030, queue_rows=20)

    looks = [change_of(queued, begun), change_of(begun, ended)]

    assert [20.0, 20.0] == [one.received for one in looks if one is not None]


def level_of(*rates: float) -> float:
    """The level over intervals of two seconds."""
    return level(
        [LoadInterval.of(2.0 * n, 2.0, rate, BatchTotals()) for n, rate in enumerate(rates)]
    )


def test_the_level_follows_a_jump_at_once_and_a_fall_when_all_intervals_show_it() -> None:
    """Less one standard error of a Poisson count, so that noise around 100 is taken for 100."""
    assert 400 - (400 / 2) ** 0.5 == level_of(100.0, 100.0, 100.0, 400.0)
    assert 96.0 < level_of(95.0, 105.0, 98.0, 102.0, 104.0) < 100.0
    assert 70.0 < level_of(100.0, 100.0, 100.0, 100.0, 0.0) < 80.0
    assert 0.0 == level_of(0.0, 0.0) == level_of()


def test_means_over_less_than_the_shortest_say_nothing() -> None:
    """A jump counts by its share of the seconds that the API gives itself."""
    jump = [LoadInterval.of(2.0 * n, 2.0, rate, BatchTotals()) for n, rate in enumerate((0, 0, 90))]

    assert [90 - 45**0.5, 30 - 30**0.5 / 6**0.5, 0.0] == pytest.approx(
        [level(jump), level(jump, shortest=5.0), level([], shortest=5.0)]
    )


def test_one_request_of_many_rows_is_no_jump() -> None:
    """Chance goes by requests: 900 rows are sure in 900 requests, and not at all in one."""
    calm = [LoadInterval.of(2.0 * n, 2.0, 0.0, BatchTotals()) for n in range(4)]
    single, of_nine, whole = (
        level(
            [*calm, LoadInterval.of(8.0, 2.0, 450.0, BatchTotals(), came=RequestRows(rows, rows))]
        )
        for rows in (1.0, 9.0, 900.0)
    )

    assert 450.0 - 15.0 == pytest.approx(single)
    assert 450.0 * 0.9 == pytest.approx(of_nine)
    assert 90.0 * (1 - 1 / 30) == pytest.approx(whole)


def test_a_steady_demand_of_few_large_requests_is_not_taken_for_less() -> None:
    """One of 200 rows each second."""
    steady = [
        LoadInterval.of(2.0 * n, 2.0, 200.0, BatchTotals(), came=RequestRows(200.0, 200.0))
        for n in range(5)
    ]

    assert 190.0 < level(steady) < 200.0
    assert 0.0 == level(
        [LoadInterval.of(0.0, 2.0, 1500.0, BatchTotals(), came=RequestRows(3000.0, 3000.0))]
    )


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.tuples(ROWS, ROWS, st.booleans()), min_size=1, max_size=8), ROWS, st.data())
def test_more_rows_of_any_pod_never_lower_the_level(
    pods: list[tuple[float, float, bool]], more: float, data: st.DataObject
) -> None:
    """Also in a fleet of which some do not count requests, and with rows in the requests before."""
    at = data.draw(st.integers(0, len(pods) - 1))
    above = [(rows + more * (n == at), rest, counts) for n, (rows, rest, counts) in enumerate(pods)]
    calm = LoadInterval.of(0.0, 2.0, 1.0, BatchTotals())

    def level_of_pods(pods: list[tuple[float, float, bool]]) -> float:
        changes = [
            rise_of(rows, min(rows, requests) if counts else 0.0, 2.0 + 9.0 * (n % 2))
            for n, (rows, requests, counts) in enumerate(pods)
        ]
        rate = arrival_rate(changes, 2.0, 1.0)
        each = came_in(changes, 2.0)
        return level([calm, LoadInterval.of(2.0, 2.0, rate, BatchTotals(), came=each)])

    assert level_of_pods(pods) <= level_of_pods(above) + 1e-6


def rise_of(rows: float, requests: float, seconds: float) -> PodChange:
    """Within so long."""
    found = change_of(SEEN, LATER)
    assert found is not None
    return replace(found, seconds=seconds, received=rows, requests_received=requests)


def test_requests_came_if_they_were_answered_or_are_in_flight() -> None:
    """A hundred and five rows in 21 requests, of which one is not answered yet."""
    before = replace(SEEN, answered=500, in_flight=3)
    rise = change_of(before, replace(LATER, answered=520, in_flight=4, rows_received=5115))

    assert rise is not None
    assert 21.0 == rise.requests_received
    assert RequestRows(5.0, 5.0) == came_in([rise], 5.0)


@pytest.mark.parametrize("rows", [0.0, 100.0])
def test_replicas_that_do_not_count_requests_have_one_row_in_each(rows: float) -> None:
    """As for rows that came to nobody."""
    rise = change_of(SEEN, replace(LATER, rows_received=5000 + rows, in_flight=4))

    assert rise is not None
    assert RequestRows() == came_in([rise], 5.0)


def test_more_rows_in_an_interval_never_lower_the_level() -> None:
    """Else an autoscaler would remove replicas because more came."""
    chance = random.Random(1)
    for _ in range(500):
        rates = [chance.expovariate(1 / chance.choice((0.1, 100.0))) for _ in range(5)]
        at = chance.randrange(5)

        more = [rate * (3.0 if n == at else 1.0) for n, rate in enumerate(rates)]

        assert level_of(*rates) <= level_of(*more)


def test_counters_that_explain_are_compared_like_those_that_decide() -> None:
    """There is one place that says what rose, and one rule for what fell."""
    before = replace(SEEN, further=(4.0, 10.0))

    rise = change_of(before, replace(LATER, further=(5.0, 13.0)))

    assert rise is not None
    assert ([1.0, 3.0], False) == (list(rise.further), rise.first)
    assert change_of(before, replace(LATER, further=(5.0, 9.0))) is None


def test_what_a_pod_did_before_it_was_known_is_told_as_such() -> None:
    """It is demand of a look, but no part of the time between two."""
    young = replace(SEEN, uptime=30.0, process_start=970.0, further=(4.0,))

    rise = change_of(None, young)

    assert rise is not None
    assert rise.first
    assert [4.0] == list(rise.further)


def test_the_fixed_cost_that_replicas_learned_of_lengths_is_that_of_the_model() -> None:
    """The first is taken as it is, each later one moves it a little, and none changes nothing."""
    policy = ScalingPolicy(min_replicas=1, max_replicas=2, max_batch_size=8, batch_interval=0.0)
    model, found = LearnedModel("r"), []

    for fixed in (None, 0.01, 0.02, None):
        rise = change_of(SEEN, replace(LATER, fixed=fixed, batch_seconds=21.0))
        assert rise is not None
        model = model.learned(policy, [rise], 0.0)
        found.append(model.fixed)

    assert [None, 0.01, pytest.approx(0.011), pytest.approx(0.011)] == found
    line = model.service(policy)
    assert line is not None
    assert pytest.approx(0.011) == line.fixed
