"""How long a replica takes to be ready, as far as a forecast should look."""

import random
from dataclasses import replace

import pytest
from tests.unit.core.scaling.closed_loop import Replica

from batchedapi_core.scaling import PodSample
from batchedapi_core.scaling.startup import LONGEST, start_up_of


def pod(name: str, seconds: float | None) -> PodSample:
    """A pod that took so long."""
    return replace(Replica(name, 0.0).scrape(10.0), startup=seconds)


def test_unknown_stays_unknown_and_the_first_that_is_measured_counts() -> None:
    """A default is the caller's; a guess here would look like a measurement."""
    assert start_up_of(None, (), [pod("a", None)]) is None
    assert 12.0 == start_up_of(None, (), [pod("a", None), pod("b", 12.0)])


def test_a_pod_counts_once() -> None:
    """It starts once, and is seen every five seconds."""
    known = pod("a", 90.0)

    assert 30.0 == start_up_of(30.0, [known], [known])


def test_it_settles_towards_the_slow_ones() -> None:
    """Being late costs requests, being early a little money."""
    chance, known = random.Random(5), None
    settled = []
    for number in range(2000):
        known = start_up_of(known, (), [pod(str(number), chance.uniform(20.0, 40.0))])
        settled.append(known or 0.0)

    mean = sum(settled[1000:]) / 1000
    assert 32.0 < mean < 38.0


def test_slow_ones_are_believed_at_once_and_fast_ones_slowly() -> None:
    """Also when several come at one look."""
    assert 45.0 == start_up_of(30.0, (), [pod("a", 60.0)])
    assert 28.0 == start_up_of(30.0, (), [pod("a", 10.0)])
    assert 44.0 == pytest.approx(start_up_of(30.0, (), [pod("a", 60.0), pod("b", 10.0)]))


def test_hours_were_no_start() -> None:
    """A pod that waited for a node over night must not make the forecast look a day ahead."""
    assert LONGEST == start_up_of(None, (), [pod("a", 86_400.0)])
