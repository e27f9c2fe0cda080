"""The HPA's rules that decide how it fares: tolerance, stabilization, limits, unready pods."""

import math

import pytest

from autoscaling import hpa
from autoscaling.fleets import answers, fleet, pod
from batchedapi_core.simulation import SimulatedFleet, SimulatedPod


def busy_fleet(now: float, busy: float, *, ready: int, starting: int = 0) -> SimulatedFleet:
    """Pods equally busy since long ago, and pods that are not ready yet."""
    here = [pod(f"pod-{n}", now, ready_at=-100.0, busy=busy) for n in range(ready)]
    coming = [pod(f"new-{n}", now, ready_at=now + 10.0) for n in range(starting)]
    return fleet(now, here + coming)


def answer_to(controller: hpa.HorizontalPodAutoscaler, *fleets: SimulatedFleet) -> int | None:
    """Its answer to the last of the fleets."""
    return [controller(each) for each in fleets][-1]


def wished_after_a_minute(busy: float, *, ready: int, starting: int) -> int | None:
    """By one that keeps pods busy for 0.7 of their time, of a fleet that stays as it is."""
    fleets = [busy_fleet(float(t), busy, ready=ready, starting=starting) for t in range(1, 61)]
    return answer_to(hpa.on_busy(0.7), *fleets)


def test_it_decides_every_15_seconds() -> None:
    """Its sync period; between them it only watches."""
    found = answers(hpa.on_in_flight(10.0), lambda _: 40.0, replicas=4, until=60)

    assert [15, 30, 45, 60] == list(found)


@pytest.mark.parametrize(("in_flight", "expected"), [(37.0, 4), (43.0, 4), (45.0, 5)])
def test_a_tenth_off_its_target_is_close_enough(in_flight: float, expected: int) -> None:
    """Tolerance 0.1: 43 of 40 are five replicas' worth, and none is added."""
    found = answers(hpa.on_in_flight(10.0), lambda _: in_flight, replicas=4, until=15)

    assert {15: expected} == found


def test_it_goes_down_300_seconds_after_it_last_wished_for_more() -> None:
    """The last wish for four is that of 300 s; what came before 315 s holds no more at 615 s."""
    found = answers(
        hpa.on_in_flight(10.0), lambda t: 40.0 if t <= 300 else 10.0, replicas=4, until=615
    )

    assert {585: 4, 600: 4, 615: 3} == {t: found[t] for t in (585, 600, 615)}


@pytest.mark.parametrize(("replicas", "expected"), [(2, 6), (10, 20)])
def test_one_step_up_adds_four_or_doubles(replicas: int, expected: int) -> None:
    """The default scale-up policies, whichever allows more."""
    found = answers(hpa.on_in_flight(10.0), lambda _: 9000.0, replicas=replicas, until=15)

    assert {15: expected} == found


def test_pods_that_start_count_as_idle_when_it_would_go_up() -> None:
    """1.43 times four would be six, while the two it already asked for are starting."""
    assert 4 == wished_after_a_minute(1.0, ready=2, starting=2)


def test_pods_that_start_are_left_out_when_it_would_go_down() -> None:
    """Four at half the target are two replicas' worth; it does not wait for the others."""
    assert 2 == wished_after_a_minute(0.35, ready=4, starting=2)


def test_a_pod_that_has_just_become_ready_counts_as_one_that_starts() -> None:
    """Its metric is in part of the time before it: five busy ones would be 1.43 times five."""
    controller = hpa.on_busy(0.7)
    seen = []
    for t in range(1, 61):
        here = [pod(f"pod-{n}", float(t), ready_at=-100.0, busy=1.0) for n in range(4)]
        seen.append(fleet(float(t), [*here, pod("new", float(t), ready_at=50.0, busy=1.0)]))

    assert 6 == answer_to(controller, *seen)


def test_pods_that_start_do_not_make_it_go_down() -> None:
    """With two idle pods counted the mean would be two thirds of the target: four replicas."""
    assert 6 == wished_after_a_minute(0.68, ready=4, starting=2)


def test_without_any_pod_that_has_a_metric_it_leaves_the_replicas() -> None:
    """A failed metric is no reason to scale."""
    controller = hpa.on_busy(0.7)

    assert answer_to(controller, busy_fleet(15.0, 1.0, ready=0, starting=3)) is None


def test_the_mean_batch_is_taken_over_30_seconds() -> None:
    """16 of 32 rows are half, of a target of 0.7: four replicas become three."""
    controller = hpa.on_fill(0.7, 32)
    seen = [
        fleet(float(t), [pod(f"pod-{n}", float(t), batch_rows=16.0) for n in range(4)])
        for t in range(1, 31)
    ]

    assert 3 == answer_to(controller, *seen)


def received(now: float, gone: float) -> list[SimulatedPod]:
    """Two pods that each receive 100 rows/s; the second is gone after `gone`."""
    names = ["first", "second"] if now <= gone else ["first"]
    return [pod(name, now, received=100.0 * now) for name in names]


def test_a_pod_that_goes_takes_no_arrivals_with_it() -> None:
    """A sum of rates falls by what the pod received from then on, not by all it ever counted."""
    metric = hpa.ArrivalsOverPods(target=10.0)

    for now in range(1, 41):
        metric.observe(fleet(float(now), received(float(now), gone=25.0)))

    # From 12 to 25 s 200 rows/s came, then 100: 4300 in the 29 s between the looks kept.
    assert math.ceil(4300 / 29 / 10) == metric.replicas(fleet(40.0, received(40.0, gone=25.0)))
