"""F4: replicas go when larger batches of fewer can do the work, and only then."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.core.scaling.closed_loop import TICK, C, D, Loop

from batchedapi_core.scaling.policy import PolicyKind, default_behaviors

pytestmark = pytest.mark.no_cover  # minutes of simulated load, and no line that others leave out


def test_eight_replicas_with_a_long_window_become_one() -> None:
    """Eight are as busy with small batches as one is with full ones; busy time would keep them."""
    loop = Loop(D, 8)

    counts = loop.run(800.0, 360.0)

    assert 8 == counts[0]
    assert 1 == counts[-1]
    assert loop.p99(800.0, 30.0) <= D.latency_target


def test_no_replica_goes_whose_going_breaks_the_target() -> None:
    """Requests of many rows arrive in lumps: 7 replicas hold the target and 6 do not."""
    loop = Loop(C, 14)

    loop.run(800.0, 200.0)
    counts = loop.run(800.0, 70.0)

    assert counts[-1] < 14
    assert min(counts) >= 7
    assert loop.p99(800.0, 60.0) <= C.latency_target


def test_one_request_in_flight_as_the_target_climbs_where_one_replica_does() -> None:
    """A window makes requests wait in every replica, so more of them hold more in flight."""
    up, down = default_behaviors(PolicyKind.CONCURRENCY)
    policy = replace(
        D.policy(), kind=PolicyKind.CONCURRENCY, target_concurrency=1.0, up=up, down=down
    )
    loop = Loop(D, 8, policy=policy)

    counts = loop.run(800.0, 330.0)

    steps = sorted(set(counts))
    assert [8, 12, 18, 27, 41] == steps[:5]
    assert counts == sorted(counts)
    assert all(later - sooner >= 60.0 / TICK for sooner, later in _first_looks(counts, steps))


def _first_looks(counts: list[int], steps: list[int]) -> list[tuple[int, int]]:
    """When each step was reached, beside when the next was."""
    looks = [counts.index(step) for step in steps[1:]]
    return list(pairwise(looks))
