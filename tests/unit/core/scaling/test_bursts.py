"""Bursts that come again and again are waited for while that is cheaper than missing them."""

import random

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth
from tests.unit.core.scaling.test_stories import ONE_REPLICA, World

from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Cause
from batchedapi_core.scaling.forecast import (
    IDLE_SECONDS,
    Burst,
    KeptReplicas,
    Recurrence,
    bursts_of,
    kept_for,
    recurrences,
)
from batchedapi_core.scaling.numbers import MOST_SAVED


def after(*looks: tuple[float, float, float | None], recent: float = 0.0) -> tuple[Burst, ...]:
    """Bursts after looks of (seconds, rows/s, error of the forecast)."""
    bursts: tuple[Burst, ...] = ()
    for now, base, error in looks:
        bursts = bursts_of(
            bursts, now, error=error, base=base, recent=recent, least=50.0, hold=30.0
        )
    return bursts


def test_a_burst_is_demand_that_its_forecast_was_far_too_low_for() -> None:
    """A foreseen rise is served, a small one is chance, one soon after is the same burst."""
    assert () == after((0.0, 900.0, None), (2.0, 900.0, 0.2), (4.0, 40.0, 9.0))
    assert (Burst(2.0, 20.0, 900.0),) == after((2.0, 800.0, 0.5), (20.0, 900.0, 0.3))
    assert (Burst(2.0, 2.0, 800.0), Burst(40.0, 40.0, 900.0)) == after(
        (2.0, 800.0, 0.5), (40.0, 900.0, 0.3)
    )


def test_a_burst_lasts_while_demand_is_about_as_high() -> None:
    """Keeping replicas costs the time between bursts, in which they have nothing to do."""
    long = [(2.0 * n, 800.0, 0.0) for n in range(1, 46)]

    assert (Burst(0.0, 90.0, 800.0),) == after((0.0, 800.0, 0.5), *long)
    assert (Burst(0.0, 90.0, 800.0),) == after((0.0, 800.0, 0.5), *long, (92.0, 500.0, 0.0))
    assert (Burst(0.0, 0.0, 800.0),) == after((0.0, 800.0, 0.5), (60.0, 800.0, 0.0))


def test_bursts_are_forgotten() -> None:
    """This morning's bursts are no pattern this evening; and there are never very many."""
    many = tuple((100.0 * n, 800.0, 0.5) for n in range(8))

    assert 8 == len(after(*many))
    assert () == after(*many, (5000.0, 100.0, 0.0))
    assert MOST_SAVED == len(after(*((40.0 * n, 800.0, 0.5) for n in range(20))))


def test_a_peak_that_was_reached_once_is_no_pattern() -> None:
    """The second highest was reached twice, with so long between on average; longer if overdue."""
    bursts = [Burst(0.0, 9.0, 500.0), Burst(100.0, 109.0, 900.0), Burst(300.0, 309.0, 700.0)]

    assert () == recurrences(bursts[:1], 400.0)
    assert (
        Recurrence(700.0, 191.0, 91.0, 609.0),
        Recurrence(500.0, 141.0, 91.0, 609.0),
    ) == recurrences(bursts, 400.0)
    assert (
        Recurrence(700.0, 191.0, 691.0, 9.0),
        Recurrence(500.0, 141.0, 691.0, 9.0),
    ) == recurrences(bursts, 1000.0)


def kept(*found: Recurrence, need: int = 1, idle: bool = False) -> KeptReplicas | None:
    """Replicas kept for these bursts; one serves 100 rows/s and takes 30 s to start."""
    return kept_for(found, need=need, one=100.0, lead=30.0, idle=idle)


def test_replicas_are_kept_for_as_long_as_that_is_cheaper() -> None:
    """9 of 10 replicas over 200 s are 1800 replica-seconds; 10 missing for 30 s, 16-fold, 4800."""
    often, rarely = Recurrence(1000.0, 200.0, 33.0, 900.0), Recurrence(1000.0, 700.0, 9.0, 900.0)
    overdue = Recurrence(1000.0, 200.0, 534.0, 300.0)

    found = kept(often)

    assert found is not None
    assert (10, often) == (found.replicas, found.burst)
    assert pytest.approx(4800 / 9 - 33.0) == found.seconds
    assert kept(rarely) is None
    assert kept(overdue) is None
    assert kept(Recurrence(400.0, 10.0, 9.0, 900.0), need=5) is None


def test_a_pattern_is_given_up_when_it_is_forgotten_at_the_latest() -> None:
    """One burst that is remembered is none."""
    found = kept(Recurrence(1000.0, 200.0, 33.0, 60.0))

    assert found is not None
    assert 60.0 == found.seconds


def test_an_idle_api_keeps_half_and_for_five_minutes() -> None:
    """Another burst is only a guess, and replicas kept for it do nothing."""
    since = [Recurrence(1000.0, 200.0, seconds, 900.0) for seconds in (40.0, IDLE_SECONDS)]

    assert KeptReplicas(5, since[0], 260.0) == kept(since[0], idle=True)
    assert kept(since[1], idle=True) is None
    assert kept(since[1]) is not None


def test_the_highest_pattern_that_is_worth_it_counts() -> None:
    """In whatever order they come."""
    high, low = Recurrence(1000.0, 200.0, 9.0, 900.0), Recurrence(400.0, 100.0, 9.0, 900.0)

    assert [10, 10] == [found.replicas for found in (kept(high, low), kept(low, high)) if found]


def test_what_comes_back_within_the_hold_was_never_gone() -> None:
    """A client that paused: its replicas are still there, and nothing was missed."""
    assert () == after((2.0, 900.0, 2.0), recent=900.0)
    assert () == after((2.0, 900.0, 2.0), recent=858.0)
    assert (Burst(2.0, 2.0, 900.0),) == after((2.0, 900.0, 2.0), recent=856.0)


def test_dips_of_one_load_are_no_pattern() -> None:
    """Two of 20 s once kept three replicas of an idle API for minutes: "bursts every 60 s"."""
    world = World(start_up=6.0)
    world.run(20, 120)
    for rate in (2.4, 0.3, 2.4, 0.3, 2.4):
        world.run(rate * ONE_REPLICA, 20)

    counts = world.run(0, 180)

    assert 1 == len(world.state.bursts)
    assert Cause.BURSTS not in {decision.reason for decision in world.decisions}
    assert 1 == counts[-1]


def test_bursts_of_an_api_that_falls_idle_are_given_up_and_why_says_when() -> None:
    """The announced time comes true."""
    world = World(start_up=20.0)
    world.run(20, 120)
    for _ in range(2):
        world.run(5.4 * ONE_REPLICA, 30)
        world.run(20, 80)
    world.run(5.4 * ONE_REPLICA, 30)

    world.run(0, 200)
    last = world.decisions[-1]
    told = last.clamps[-1].detail

    assert (Cause.BURSTS, 3) == (last.reason, last.desired)
    assert "; given up in " in told
    left = int(told.partition("given up in ")[2].partition(" s")[0])
    assert {3} == set(world.run(0, left - 2))
    assert 2 == world.run(0, 6)[-1]
    assert 1 == world.run(0, 60)[-1]


def test_little_load_is_idle_as_none_is() -> None:
    """A probe every few seconds is no reason to keep twice as many."""
    recurring = (Recurrence(worth(9.0), 100.0, 50.0, 800.0),)
    busy, idle = (
        conclude(POLICY, evidence_of(worth(share), ready=9, current=9, recurring=recurring))
        for share in (0.06, 0.05)
    )

    assert (9, 5) == (busy.desired, idle.desired)


def test_a_greater_need_never_keeps_fewer() -> None:
    """Else an autoscaler would remove replicas because more came."""
    chance = random.Random(1)
    for _ in range(300):
        found = [
            Recurrence(
                chance.uniform(0.0, 2000.0),
                chance.uniform(30.0, 900.0),
                chance.uniform(0.0, 900.0),
                900.0,
            )
            for _ in range(4)
        ]
        need = chance.randint(1, 10)

        idle = chance.random() < 0.5
        less, more = (kept(*found, need=count, idle=idle) for count in (need, need + 1))

        fewer = need if less is None else less.replicas
        assert fewer <= (need + 1 if more is None else more.replicas)
