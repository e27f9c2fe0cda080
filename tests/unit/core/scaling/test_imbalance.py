"""The replica with the most load misses the target first."""

from dataclasses import replace

import numpy as np
import pytest

from batchedapi_core.scaling.load import Share, imbalance, shares_of
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.service_model import BatchSums, ServiceTime

POLICY = ScalingPolicy(min_replicas=1, max_replicas=9, max_batch_size=8, batch_interval=0.010)
SERVICE = ServiceTime(0.010, 0.0002)


def change_of(pod: str, rows: float, *, slowness: float = 1.0, mature: bool = True) -> PodChange:
    """Five seconds in batches of four."""
    batches = rows / 4
    seconds = slowness * batches * SERVICE.seconds(4)
    return PodChange(
        pod=pod,
        seconds=5.0,
        received=rows,
        full_batches=0.0,
        sums=BatchSums(batches, rows, rows * 4, seconds, seconds * 4),
        queue_rows=0.0,
        lanes=1.0,
        warming_up=False,
        mature=mature,
    )


def after_minutes(*changes: PodChange) -> tuple[Share, ...]:
    """Shares after so long that the beginning is forgotten."""
    shares: tuple[Share, ...] = ()
    for _ in range(600):
        shares = shares_of(POLICY, shares, changes, SERVICE, 5.0, ready=len(changes))
    return shares


def test_even_load_adds_nothing() -> None:
    """Also not where the user wants replicas used to the last percent."""
    shares = after_minutes(change_of("a", 400), change_of("b", 400))

    assert [1.0, 1.0] == pytest.approx([share.load for share in shares])
    assert 1.0 == imbalance(POLICY, shares)


def test_twice_as_much_on_one_pod_of_three_is_made_up_for() -> None:
    """1.5 times the mean, at 93 % of which it would be above all it can."""
    shares = after_minutes(change_of("a", 200), change_of("b", 400), change_of("c", 200))

    assert 1.5 == pytest.approx(max(share.load for share in shares))
    assert 1.5 * 0.93 / 0.95 == pytest.approx(imbalance(POLICY, shares), rel=0.03)


def test_a_slow_pod_with_an_even_part_is_as_hot() -> None:
    """The balancer does not know; the slowest sets the tail of the latencies."""
    shares = after_minutes(change_of("a", 300), change_of("b", 300, slowness=2.0))

    assert 4 / 3 == pytest.approx(max(share.load for share in shares))


def test_it_is_slow_to_believe_and_bounded() -> None:
    """One odd interval is chance; one absurd pod must not start a fleet."""
    changes = (change_of("a", 10), *(change_of(name, 10_000.0) for name in "b"))
    once = shares_of(POLICY, (), changes, SERVICE, 2.0, ready=2)

    assert 1.01 > imbalance(POLICY, once)
    many = after_minutes(change_of("a", 100_000.0), *(change_of(name, 4.0) for name in "bcdef"))
    assert 1.5 == imbalance(POLICY, many)


@pytest.mark.parametrize(
    "changes",
    [
        (change_of("a", 900),),
        (change_of("a", 900), change_of("b", 100, mature=False)),
        (change_of("a", 0), change_of("b", 0)),
    ],
    ids=["one pod", "one is new", "all are idle"],
)
def test_fewer_than_two_to_compare_say_nothing(changes: tuple[PodChange, ...]) -> None:
    """A pod that joined within the interval had no fair part of the load yet."""
    assert () == shares_of(POLICY, (), changes, SERVICE, 5.0, ready=len(changes))


def test_without_a_service_time_no_pod_is_slow() -> None:
    """The normal service time is not known yet."""
    changes = (change_of("a", 9), change_of("b", 400))

    assert () == shares_of(POLICY, (), changes, None, 5.0, ready=2)


def test_a_pod_without_load_makes_the_others_the_hotter() -> None:
    """One connection that does not let go of its pod: the mean is of all pods, idle ones too."""
    shares = after_minutes(change_of("a", 600), change_of("b", 0), change_of("c", 600))

    assert [1.5, 0.0, 1.5] == pytest.approx([share.load for share in shares])


def test_batches_that_outlast_a_look_make_no_pod_hot() -> None:
    """Rows come in one look and their batch ends in another; in most looks a pod does nothing."""
    shares: tuple[Share, ...] = ()
    for look in range(3000):
        changes = [
            replace(change_of(pod, 8.0 * (look % 10 == at + 4)), received=8.0 * (look % 10 == at))
            for at, pod in enumerate("abcde")
        ]
        shares = shares_of(POLICY, shares, changes, SERVICE, 2.0, ready=5)

    assert 1.0 == imbalance(POLICY, shares)
    assert [1.0] * 5 == pytest.approx([share.load for share in shares], abs=0.15)


@pytest.mark.parametrize("requests", [0.2, 1.0, 10.0, 100.0])
def test_chance_makes_no_pod_hot(requests: float) -> None:
    """Twenty pods to which so many requests come in a look on average, one as likely as another."""
    chance = np.random.default_rng(1)
    shares: tuple[Share, ...] = ()
    factors = []
    for _ in range(600):
        came = chance.poisson(requests, 20)
        changes = [change_of(f"pod-{n}", float(count)) for n, count in enumerate(came)]
        shares = shares_of(POLICY, shares, changes, SERVICE, 2.0, ready=20)
        factors.append(imbalance(POLICY, shares))

    assert 1.02 > sum(factors) / len(factors)


def test_what_was_known_of_a_pod_stands_until_all_others_are_seen_without_it() -> None:
    """A scrape that failed is no news; a pod that is gone is none to plan for."""
    before = (Share("a", 1.4), Share("b", 0.8), Share("c", 0.8))
    seen = (change_of("b", 80), change_of("c", 80))

    missed = shares_of(POLICY, before, seen, SERVICE, 2.0, ready=3)
    gone = shares_of(POLICY, before, seen, SERVICE, 2.0, ready=2)

    assert before[0] in missed
    assert {"b", "c"} == {one.pod for one in gone}
