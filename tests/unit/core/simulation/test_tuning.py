"""The search for size, interval and lanes: bounded by the curve, as good as trying everything."""

import math
from dataclasses import replace
from itertools import product
from typing import Final

import pytest

from batchedapi_core.simulation import NoisyService
from batchedapi_core.simulation.tuning import (
    Candidate,
    Curve,
    Forecast,
    LaneCurve,
    Task,
    best_few,
    by_rule,
    choose,
    explore,
    forecast,
    powers_of_two,
    round_interval,
    service_of,
)

SLOW: Final = Curve((1, 2, 4, 8, 16), (0.06, 0.064, 0.072, 0.088, 0.12))
"""50 ms a batch and 4 to 5 ms a row: few requests to simulate."""
BASE: Final = NoisyService(0.05, 0.005, 4, 0.01, latency_target=0.3)
OWN: Final = Candidate(4, 0.01)


def task(**changes: object) -> Task:
    """One process with SLOW, a target of 300 ms."""
    return replace(
        Task(BASE, OWN, (LaneCurve(1, 1, SLOW),), requests=700),
        **changes,  # type: ignore[arg-type]
    )


def test_between_sizes_a_curve_is_a_line_and_beyond_the_last_in_proportion() -> None:
    """Nothing is gained by a size that nobody has seen."""
    curve = Curve((1, 4), (0.01, 0.04))

    assert 0.01 == curve.at(1)
    assert 0.02 == pytest.approx(curve.at(2))
    assert 0.08 == pytest.approx(curve.at(8))
    assert 0.02 == curve.slower(2.0).at(1)
    assert 100 == pytest.approx(curve.most(8))


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [((), ()), ((2,), (0.1,)), ((1, 1), (0.1, 0.1)), ((1, 2), (0.1,)), ((1,), (0.0,))],
)
def test_a_curve_that_is_none_is_refused(
    sizes: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    """It would be found out in the middle of a search."""
    with pytest.raises(ValueError, match="curve: expected"):
        Curve(sizes, seconds)


def test_a_task_without_a_target_is_refused() -> None:
    """Goodput is what is in time."""
    with pytest.raises(ValueError, match="latency target"):
        task(service=replace(BASE, latency_target=None))


@pytest.mark.parametrize(
    "setting", [Candidate(1, 0.0), Candidate(6, 0.0, 2, 1), Candidate(16, 0.1)]
)
def test_a_service_takes_what_the_curve_says_at_any_size(setting: Candidate) -> None:
    """A curve that is no line is simulated as it was measured."""
    service = service_of(BASE, SLOW, setting)

    assert service.pace is not None
    for rows in range(1, setting.max_batch_size + 1):
        share = rows / setting.max_batch_size
        assert SLOW.at(rows) == pytest.approx(
            service.time.seconds(rows) * service.pace(0, 0.0, share)
        )
    assert setting.lanes == service.lanes


def test_what_is_held_is_below_what_full_batches_serve_and_near_it() -> None:
    """With five times the time of a batch to spare, queueing takes little."""
    found = forecast(task(), SLOW, OWN)

    assert 0.75 * 4 / 0.072 < found.goodput < 4 / 0.072
    assert 0.072 < found.p99 < 0.3


def test_a_target_that_no_batch_meets_is_held_at_no_load() -> None:
    """It is said, not guessed around; and nothing is proposed."""
    hopeless = task(service=replace(BASE, latency_target=0.02), manifest=Candidate(1, 0.0))

    made = list(explore(hopeless))

    assert {0.0} == {one.goodput for one in made}
    assert math.isnan(made[0].p99)
    assert choose(made, hopeless.manifest) is None
    assert [] == best_few(made, hopeless.manifest, 3)
    assert choose([], OWN) is None


def test_the_rest_of_a_replica_limits_what_its_batches_could_do() -> None:
    """A web process that is used up is not made faster by larger batches."""
    assert 20.0 == forecast(task(ceiling=20.0), SLOW, OWN).goodput


@pytest.mark.no_cover
def test_the_search_is_within_5_percent_of_every_size_and_interval() -> None:
    """F7, on one curve."""
    searched = choose(list(explore(task())), OWN)

    grid = [
        forecast(task(), SLOW, Candidate(size, interval))
        for size, interval in product((1, 2, 4, 6, 8, 12, 16), (0.0, 0.05))
    ]
    assert searched is not None
    assert searched.goodput >= 0.95 * max(one.goodput for one in grid)


def test_the_manifest_comes_first_and_other_lanes_are_tried() -> None:
    """Whoever interrupts it has something to compare with."""
    made = list(explore(task(lanes=(LaneCurve(1, 1, SLOW), LaneCurve(2, 1, SLOW)), largest=8)))

    assert OWN == made[0].setting
    assert {1, 2} == {one.setting.lanes for one in made}
    assert 8 >= max(one.setting.max_batch_size for one in made)
    chosen = choose(made, OWN)
    assert chosen is not None
    assert 2 == chosen.setting.processes


def test_a_manifest_whose_lanes_were_not_measured_is_not_simulated() -> None:
    """There is no curve for them."""
    made = list(explore(task(manifest=Candidate(4, 0.01, 3, 1), largest=2)))

    assert {(1, 1)} == {(one.setting.processes, one.setting.threads) for one in made}


def test_of_settings_that_serve_alike_the_most_modest_is_chosen() -> None:
    """Copies of a model are memory, and a change is a rollout."""
    made = [
        Forecast(Candidate(8, 0.0, 2, 1), 101.0, 0.1),
        Forecast(Candidate(16, 0.0), 101.0, 0.1),
        Forecast(OWN, 100.0, 0.1),
        Forecast(Candidate(1, 0.0), 50.0, 0.1),
    ]

    chosen = choose(made, OWN)

    assert chosen is not None
    assert OWN == chosen.setting


def test_the_best_few_are_different_experiments() -> None:
    """Three sizes next to each other would be one run three times."""
    made = [
        Forecast(Candidate(16, 0.0), 100.0, 0.1),
        Forecast(Candidate(15, 0.0), 97.0, 0.1),
        Forecast(Candidate(8, 0.0), 90.0, 0.1),
        Forecast(Candidate(8, 0.0, 2, 1), 80.0, 0.1),
        Forecast(Candidate(1, 0.0), 0.0, math.nan),
    ]

    assert [16, 8, 8] == [one.setting.max_batch_size for one in best_few(made, OWN, 3)]
    assert 3 == len(best_few(made, OWN, 5))
    assert 3 == len(best_few(made[:-1], OWN, 5))


def test_the_rule_of_thumb_is_rate_times_the_longest_wait_with_the_batch_s_own_time_on_top() -> (
    None
):
    """C22, C23: 96 rows/s alone; 8 of them come in 83 ms, and their batch takes 12 ms more."""
    curve = Curve((1, 64), (0.0104, 0.023))

    found = by_rule(curve, 1, 0.1, 64)

    assert found is not None
    rows, wait = found
    assert (8, 0.083) == (rows, wait)
    assert wait + curve.at(rows) <= 0.1
    assert 2 == by_rule(curve, 1, 0.1, 2)[0]  # type: ignore[index]
    assert by_rule(curve, 1, 0.01, 64) is None


def test_sizes_double_and_end_with_the_largest_and_intervals_are_written_short() -> None:
    """They stand in manifests."""
    assert [1, 2, 4, 6] == powers_of_two(6)
    assert [1] == powers_of_two(1)
    assert 0.0003 == round_interval(0.00031)
    assert 0.013 == round_interval(0.0125001)
