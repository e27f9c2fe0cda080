"""The loads are what their names say, and the same in every run."""

import pytest

from autoscaling.traces import HELD_OUT_SEEDS, LOADS, Family, bursty


@pytest.mark.parametrize("name", LOADS)
def test_a_load_fits_the_fleet(name: str) -> None:
    """Above 40 replicas' worth no autoscaler could be told from another."""
    load = LOADS[name]

    levels = [load.level(float(t)) for t in range(load.seconds)]

    assert 0.0 < min(levels)
    assert max(levels) <= 12.0


@pytest.mark.parametrize(
    ("name", "t", "expected"),
    [
        ("constant", 500.0, 4.5),
        ("ramp", 1200.0, 8.0),
        ("diurnal", 0.0, 0.5),
        ("diurnal", 450.0, 8.0),
        ("step", 299.0, 0.6),
        ("step", 300.0, 6.0),
        ("flash", 320.0, 8.8),
        ("sawtooth", 299.9, 6.0),
        ("sawtooth", 300.0, 0.5),
    ],
)
def test_a_load_has_its_level(name: str, t: float, expected: float) -> None:
    """The published figures are of these shapes."""
    assert pytest.approx(expected, abs=0.01) == LOADS[name].level(t)


def test_the_mmpp_switches_between_its_two_levels() -> None:
    """It spends about 60 s low for 25 s high."""
    load = LOADS["mmpp"]
    levels = [load.level(float(t)) for t in range(load.seconds)]

    assert {1.5, 5.0} == set(levels)
    assert 0.1 < levels.count(5.0) / len(levels) < 0.6


def test_held_out_loads_are_drawn_from_seeds_and_differ() -> None:
    """The same in every run, so that a table can be compared with the last."""
    first, again = (bursty(HELD_OUT_SEEDS[0], 600) for _ in range(2))
    other = bursty(HELD_OUT_SEEDS[1], 600)

    drawn = [[level(float(t)) for t in range(600)] for level in (first, again, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_held_out_replicas_start_as_slowly_as_published() -> None:
    """20 to 60 s; elsewhere 20 to 40."""
    startups = {load.startup for load in LOADS.values() if load.family is Family.HELD_OUT}

    assert {(20.0, 60.0)} == startups


def test_a_trace_is_in_units_of_a_replica() -> None:
    """So one load fits a replica of 160 rows/s and one of 2400."""
    trace = LOADS["constant"].trace(unit=100.0)

    assert (450.0, 900.0) == (trace.rate(10.0), trace.seconds)
