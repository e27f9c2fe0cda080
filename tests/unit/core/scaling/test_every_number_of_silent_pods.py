"""F10: k of n metrics ports are dead, for every k and n, and nothing moves the unsafe way."""

from dataclasses import replace
from functools import cache

import pytest
from tests.unit.core.scaling.closed_loop import Replica

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import Cause, ScalingDecision
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy, default_behaviors
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

LINE = ServiceTime(0.010, 0.0002)
WATCHED, DARK = 65, 65  # looks, each longer than any stabilization window
EVERY = [(pods, silent) for pods in range(1, 6) for silent in range(pods + 1)]


def policy_of(kind: PolicyKind) -> ScalingPolicy:
    """Either policy, with its own pace."""
    up, down = default_behaviors(kind)
    return ScalingPolicy(
        min_replicas=1,
        max_replicas=30,
        max_batch_size=8,
        batch_interval=0.010,
        kind=kind,
        target_concurrency=4.0,
        up=up,
        down=down,
    )


def page(pod: int, look: int, rows: float, rate: float) -> PodSample:
    """The page of a pod that serves `rate` rows/s in batches of six."""
    batches = rows / 6
    return replace(
        Replica(
            f"pod-{pod}",
            -1000.0,
            received=rows,
            batches=batches,
            rows=rows,
            seconds=batches * LINE.seconds(6),
            squared=batches * 37,
            row_seconds=batches * (5 * LINE.seconds(5) + 7 * LINE.seconds(7)) / 2,
        ).scrape(5.0 * look),
        in_flight=rate / 100.0,
    )


@cache
def watched(kind: PolicyKind, pods: int, rate: float) -> ScalingState:
    """After a history without gaps."""
    state = ScalingState.empty()
    for look in range(WATCHED):
        samples = tuple(page(pod, look, 5.0 * rate * (look + 1), rate) for pod in range(pods))
        seen = Observation(samples, pods, pods, "a")
        _, state = step(policy_of(kind), state, seen, 5.0 * look)
    return state


@cache
def decisions(
    kind: PolicyKind, pods: int, silent: int, before: float, after: float
) -> tuple[ScalingDecision, ...]:
    """With `silent` of `pods` dark, at `after` rows/s a pod; until then all answered, at `before`.

    The count is kept where it is, so that every decision is taken from the same place.
    """
    state, rows, made = watched(kind, pods, before), WATCHED * 5.0 * before, []
    for look in range(WATCHED, WATCHED + DARK):
        rows += 5.0 * after
        samples = tuple(page(pod, look, rows, after) for pod in range(silent, pods))
        seen = Observation(samples, pods, pods, "a")
        decision, state = step(policy_of(kind), state, seen, 5.0 * look)
        made.append(decision)
    return tuple(made)


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", PolicyKind)
@pytest.mark.parametrize(("pods", "silent"), EVERY)
def test_nothing_moves_the_unsafe_way(kind: PolicyKind, pods: int, silent: int) -> None:
    """Neither down while load falls, nor less far up while it rises, nor anywhere when all dark."""
    for before, after in ((400.0, 10.0), (400.0, 1200.0)):
        known = decisions(kind, pods, 0, before, after)
        guessed = decisions(kind, pods, silent, before, after)

        coverage = (pods - silent) / pods
        for full, partial in zip(known, guessed, strict=True):
            assert partial.desired >= min(full.desired, pods)
            if coverage < 0.8:
                assert partial.desired >= pods
            if coverage < 0.5:
                assert (pods, Cause.NO_METRICS) == (partial.desired, partial.reason)


@pytest.mark.parametrize("kind", PolicyKind)
def test_the_same_loads_do_move_what_is_seen(kind: PolicyKind) -> None:
    """Else the test above could not fail."""
    fall, rise = (decisions(kind, 5, 0, 400.0, after) for after in (10.0, 1200.0))

    assert fall[-1].desired < 5
    assert rise[-1].desired > 5
