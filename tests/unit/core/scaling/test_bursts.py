"""Bursts that come again and again are waited for while that is cheaper than missing them."""

import random

from batchedapi_core.scaling.bursts import Burst, Recurrence, bursts_of, kept_for, recurrences
from batchedapi_core.scaling.numbers import MOST_SAVED


def after(*looks: tuple[float, float, float | None]) -> tuple[Burst, ...]:
    """Bursts after looks of (seconds, rows/s, error of the forecast)."""
    bursts: tuple[Burst, ...] = ()
    for now, base, error in looks:
        bursts = bursts_of(bursts, now, error=error, base=base, least=50.0, lead=30.0)
    return bursts


def test_a_burst_is_demand_that_its_forecast_was_far_too_low_for() -> None:
    """What was foreseen is served, what is small is chance, what follows at once is the same."""
    assert () == after((0.0, 900.0, None), (2.0, 900.0, 0.2), (4.0, 40.0, 9.0))
    assert (Burst(2.0, 20.0, 900.0),) == after((2.0, 800.0, 0.5), (20.0, 900.0, 0.3))
    assert (Burst(2.0, 2.0, 800.0), Burst(40.0, 40.0, 900.0)) == after(
        (2.0, 800.0, 0.5), (40.0, 900.0, 0.3)
    )


def test_a_burst_lasts_while_demand_is_about_as_high() -> None:
    """What keeping costs is the time between bursts, in which replicas have nothing to do."""
    long = [(2.0 * n, 800.0, 0.0) for n in range(1, 46)]

    assert (Burst(0.0, 90.0, 800.0),) == after((0.0, 800.0, 0.5), *long)
    assert (Burst(0.0, 90.0, 800.0),) == after((0.0, 800.0, 0.5), *long, (92.0, 500.0, 0.0))
    assert (Burst(0.0, 0.0, 800.0),) == after((0.0, 800.0, 0.5), (60.0, 800.0, 0.0))


def test_bursts_are_forgotten() -> None:
    """Those of this morning are no pattern this evening; and there are never very many."""
    many = tuple((100.0 * n, 800.0, 0.5) for n in range(8))

    assert 8 == len(after(*many))
    assert () == after(*many, (5000.0, 100.0, 0.0))
    assert MOST_SAVED == len(after(*((40.0 * n, 800.0, 0.5) for n in range(20))))


def test_a_peak_that_was_reached_once_is_no_pattern() -> None:
    """The second highest was reached twice, with so long between on average; longer if overdue."""
    bursts = [Burst(0.0, 9.0, 500.0), Burst(100.0, 109.0, 900.0), Burst(300.0, 309.0, 700.0)]

    assert () == recurrences(bursts[:1], 400.0)
    assert (Recurrence(700.0, 191.0), Recurrence(500.0, 141.0)) == recurrences(bursts, 400.0)
    assert (Recurrence(700.0, 691.0), Recurrence(500.0, 691.0)) == recurrences(bursts, 1000.0)


def test_replicas_are_kept_for_as_long_as_that_is_cheaper() -> None:
    """9 of 10 replicas over 200 s are 1800 replica-seconds; 10 missing for 30 s, 16-fold, 4800."""
    often, rarely = Recurrence(1000.0, 200.0), Recurrence(1000.0, 700.0)

    assert (10, often) == kept_for([often], need=1, one=100.0, lead=30.0)
    assert (1, None) == kept_for([rarely], need=1, one=100.0, lead=30.0)
    assert (5, None) == kept_for([Recurrence(400.0, 10.0)], need=5, one=100.0, lead=30.0)


def test_a_greater_need_never_keeps_fewer() -> None:
    """Else an autoscaler would remove replicas because more came."""
    chance = random.Random(1)
    for _ in range(300):
        found = [
            Recurrence(chance.uniform(0.0, 2000.0), chance.uniform(30.0, 900.0)) for _ in range(4)
        ]
        need = chance.randint(1, 10)

        less, more = (
            kept_for(found, need=count, one=100.0, lead=30.0)[0] for count in (need, need + 1)
        )

        assert less <= more or less <= need + 1
