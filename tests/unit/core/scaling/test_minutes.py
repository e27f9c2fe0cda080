"""The record of minutes: what it keeps, how long it gets, and what becomes of a damaged one."""

import base64
import random
import zlib
from dataclasses import replace

import pytest

from batchedapi_core.scaling.minutes import (
    MOST_CHARACTERS,
    MOST_MINUTES,
    Filling,
    Minute,
    Minutes,
)
from batchedapi_core.scaling.observe import Demand, LoadWindow, observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodChange
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import BatchSums

NOON = 29_000_160  # Unix minutes
POLICY = ScalingPolicy(min_replicas=1, max_replicas=5, max_batch_size=8, batch_interval=0.01)


def load(second: float, rate: float | None = 100.0, level: float = 110.0) -> LoadWindow:
    """A look of 2 s at one pod of two lanes, of which one is busy, so many seconds after noon."""
    nothing = Observation((), 1, 1, "r", wall=60.0 * NOON + second)
    seen, _ = observe(POLICY, ScalingState.empty(), nothing, 0.0)
    if rate is None:
        return seen
    sums = BatchSums(batches=20.0, rows=2.0 * rate, seconds=2.0)
    pod = PodChange("a", 2.0, 2.0 * rate, 0.0, sums, 0.0, 2.0, warming_up=False)
    demand = Demand(rate, rate, 2.0, level)
    return replace(seen, changes=(pod,), coverage=1.0, demand=demand)


def brought(*looks: LoadWindow) -> list[Minute]:
    """Minutes that have ended."""
    filling, found = Filling(), list[Minute]()
    for look in looks:
        filling, ended = filling.looked(look, 1.5, 1)
        found += [] if ended is None else [ended]
    return found


def test_a_minute_is_the_mean_of_its_looks_and_the_highest_of_their_levels() -> None:
    """The look that ends it is of the next."""
    rates = [100.0 if second <= 30 else 200.0 for second in range(2, 64, 2)]
    looks = [load(2.0 * n + 2.0, rate, 1.1 * rate) for n, rate in enumerate(rates)]

    (minute,) = brought(load(0.0), *looks)

    assert Minute(NOON, 150.0, 220.0, 150.0, 1.5, 0.75 - 0.25) == pytest.approx(minute)
    unread = [replace(one, coverage=0.5) for one in looks]  # one of two web pods of a queue
    assert [minute] == brought(load(0.0), *unread)


@pytest.mark.parametrize("replicas", [0, 1, 2, 5, 29])
def test_a_record_has_as_many_replicas_as_there_were(replicas: int) -> None:
    """It is kept by the ratio, so five are 5.02."""
    (minute,) = Minutes().plus([Minute(NOON, 1.0, 1.0, 1.0, float(replicas), 0.0)])

    assert replicas == minute.most


def test_what_nobody_saw_is_neither_nothing_nor_as_before() -> None:
    """Demand is unknown where too few replicas told, replicas are known all the same."""
    silent = [load(2.0 * n, None) for n in range(32)]

    assert [Minute(NOON, None, 0.0, 0.0, 1.5, 0.0)] == brought(*silent)
    assert [] == brought(load(0.0), load(3600.0))  # the operator was away, or its clock was set
    assert [] == brought(load(3600.0), load(0.0))
    assert [] == brought(*(replace(one, wall=None) for one in silent))


def noisy(count: int, sigma: float) -> list[Minute]:
    """As many minutes until noon; the ratio of neighbours has a logarithm as wide as that."""
    drawn = random.Random(7)
    found = []
    for time in range(NOON - count, NOON):
        demand = 100.0 * drawn.lognormvariate(0.0, sigma)
        replicas = 1.0 + int(demand / 40.0) + (drawn.random() if drawn.random() < 0.5 else 0.0)
        busy = replicas * min(1.0, drawn.uniform(0.3, 0.9))
        peak, rows = demand * drawn.uniform(1.0, 2.0), demand * drawn.gauss(1.0, 0.01)
        found.append(Minute(time, demand, peak, rows, replicas, busy))
    return found


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.5, 2.0])
def test_ten_days_are_60_kib_at_most_whatever_the_noise(sigma: float) -> None:
    """The oldest days are coarse where it takes that; what is counted stays within 1 %."""
    minutes = noisy(MOST_MINUTES, sigma)

    text = Minutes().plus(minutes).to_saved()

    assert len(text) <= MOST_CHARACTERS
    known = Minutes.restored(text)
    assert known is not None
    assert text == known.to_saved()  # what is coarse does not get coarser by being written again
    found = list(known)
    assert [one.time for one in minutes] == [one.time for one in found]
    for part in ("rows", "replicas", "busy"):
        total = sum(getattr(one, part) for one in minutes)
        assert total == pytest.approx(sum(getattr(one, part) for one in found), rel=0.01)
    for before, after in zip(minutes[-1440:], found[-1440:], strict=True):
        assert before[1:5] == pytest.approx(after[1:5], rel=0.012)


def test_a_coarse_minute_has_the_highest_peak_and_what_is_known() -> None:
    """Jumps of seconds are not averaged away, and unknown ones are no demand of 0."""
    minutes = [
        one if one.time % 5 else one._replace(demand=None, peak=0.0)
        for one in noisy(MOST_MINUTES, 5.0)
    ]
    minutes[:10] = [one._replace(demand=None, peak=0.0) for one in minutes[:10]]

    found = list(Minutes.restored(Minutes().plus(minutes).to_saved()) or ())

    assert all(one.demand is None for one in found[:10])
    assert found[10].demand is not None
    assert 1 == len({one[1:] for one in found[10:15]})
    assert max(one.peak for one in minutes[10:15]) == pytest.approx(found[10].peak, rel=0.012)


def test_minutes_that_nobody_looked_at_are_kept_as_such() -> None:
    """An operator that was away for an hour does not tell of an hour without demand."""
    one = Minute(NOON, 10.0, 11.0, 10.0, 2.0, 1.0)

    found = list(Minutes().plus([one, one._replace(time=NOON + 60)]))

    assert 61 == len(found)
    assert (None, 0.0) == (found[30].demand, found[30].replicas)


@pytest.mark.parametrize(
    ("later", "times"),
    [
        (NOON + 1, (NOON, NOON + 1)),
        (NOON, (NOON, NOON)),
        (NOON - 5, (NOON - 5, NOON - 5)),
        (NOON + 5 * MOST_MINUTES, (NOON + 5 * MOST_MINUTES, NOON + 5 * MOST_MINUTES)),
        (NOON + MOST_MINUTES, (NOON + 1, NOON + MOST_MINUTES)),
    ],
)
def test_the_record_ends_with_what_came_last(later: int, times: tuple[int, int]) -> None:
    """Also where clocks were set back, or a begin was made up by somebody."""
    one = Minute(NOON, 10.0, 11.0, 10.0, 2.0, 1.0)

    found = list(Minutes().plus([one]).plus([one._replace(time=later)]))

    assert times == (found[0].time, found[-1].time)
    assert len(found) <= MOST_MINUTES


def packed(data: bytes) -> str:
    """As a record is."""
    return base64.b64encode(zlib.compress(data)).decode()


GOOD = Minutes().plus(noisy(100, 0.1)).to_saved()


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        7,
        "",
        "not base64!",
        GOOD[:-8],
        GOOD[:40] + ("AAAA" if GOOD[40:44] != "AAAA" else "BBBB") + GOOD[44:],
        "A" * (MOST_CHARACTERS + 1),
        packed(b""),
        packed(b"\1\0\0\0\0"),
        packed(b"\2\0\0\0\0" + bytes(10)),  # of a version to come
        packed(b"\1\0\0\0\0" + bytes(11)),
        packed(bytes(10**7)),
    ],
)
def test_a_damaged_record_is_none(damaged: object) -> None:
    """Anybody may edit it, and nothing of it is believed then."""
    assert Minutes.restored(damaged) is None


def test_numbers_that_nobody_counts_to_are_the_largest_and_the_least() -> None:
    """No edit makes a number that is not finite."""
    huge = Minute(NOON, 1e30, 1e-30, 1e30, 1e30, 1e31)
    made = packed(b"\1\0\0\0\0" + b"\xfe" * 10)

    (found,) = Minutes().plus([huge])
    assert (2.0**32, 0.0, 2.0**32, 2.0**32, 2.0**32) == found[1:]
    assert all(
        number is None or 0.0 <= number < 2.0**60
        for number in next(iter(Minutes.restored(made) or ()))
    )
