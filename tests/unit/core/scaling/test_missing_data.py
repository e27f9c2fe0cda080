"""F10: what is not known never removes a replica, and no number makes it crash."""

import json
import random
from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import Cause, ScalingDecision
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.record import record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime
from thorough import examples

POLICY = ScalingPolicy(min_replicas=1, max_replicas=20, max_batch_size=8, batch_interval=0.010)
SLEEPY = ServiceTime(fixed=0.010, per_row=0.0002)
WATCHED = 60  # ticks of five seconds: longer than the stabilization window


def scrape(pod: int, tick: int, rows: float) -> PodSample:
    """A pod that has served `rows` so far, half in batches of 5 and half of 7."""
    batches = rows / 6
    return PodSample(
        pod=f"pod-{pod}",
        time=5.0 * tick,
        process_start=-1000.0,
        uptime=1000.0 + 5.0 * tick,
        rows_received=rows,
        rows_rejected=0.0,
        batches=batches,
        rows=rows,
        full_batches=0.0,
        batch_seconds=batches * SLEEPY.seconds(6),
        rows_squared=batches * 37,
        row_seconds=batches * (5 * SLEEPY.seconds(5) + 7 * SLEEPY.seconds(7)) / 2,
        queue_rows=0.0,
        lanes=1.0,
    )


@lru_cache(1)
def watched(pods: int, rate: float) -> ScalingState:
    """After a history without gaps."""
    state = ScalingState.empty()
    for tick in range(WATCHED):
        samples = tuple(scrape(pod, tick, 5.0 * rate * (tick + 1)) for pod in range(pods))
        _, state = step(POLICY, state, Observation(samples, pods, pods, "a"), 5.0 * tick)
    return state


def decide_with(
    pods: int, rate_before: float, rate_after: float, missing: set[int], ticks: int
) -> list[ScalingDecision]:
    """Decisions of `ticks` in which `missing` pods are silent, after a history without gaps.

    The load is `rate_before` rows/s a pod until then and `rate_after` since; the count is kept
    where it is, so that every decision is taken from the same place.
    """
    state = watched(pods, rate_before)
    rows = WATCHED * 5.0 * rate_before
    decisions = []
    for tick in range(WATCHED, WATCHED + ticks):
        rows += 5.0 * rate_after
        samples = tuple(scrape(pod, tick, rows) for pod in range(pods) if pod not in missing)
        decision, state = step(POLICY, state, Observation(samples, pods, pods, "a"), 5.0 * tick)
        decisions.append(decision)
    return decisions


@settings(derandomize=True, max_examples=examples(15), deadline=None)
@given(
    pods=st.integers(1, 10),
    seed=st.integers(0, 2**16),
    rate_before=st.floats(10, 600),
    rate_after=st.floats(0, 1500),
)
def test_no_subset_of_silent_pods_removes_a_replica_that_full_data_would_keep(
    pods: int, seed: int, rate_before: float, rate_after: float
) -> None:
    """Never down for want of data; under 80 % nothing goes, under 50 % nothing moves."""
    chance = random.Random(seed)
    missing = set(chance.sample(range(pods), chance.randint(0, pods)))
    coverage = (pods - len(missing)) / pods

    full = decide_with(pods, rate_before, rate_after, set(), ticks=60)
    partial = decide_with(pods, rate_before, rate_after, missing, ticks=60)

    for known, guessed in zip(full, partial, strict=True):
        assert guessed.desired >= min(known.desired, pods)
        if coverage < 0.8:
            assert guessed.desired >= pods
        if coverage < 0.5:
            assert (pods, Cause.NO_METRICS) == (guessed.desired, guessed.reason)


def test_the_property_above_can_fail() -> None:
    """With all pods seen, the same fall in load does remove replicas."""
    decisions = decide_with(6, 600.0, 10.0, set(), ticks=60)

    assert 6 == decisions[0].desired
    assert 3 == decisions[-1].desired
    assert Cause.SCALE_DOWN is decisions[-1].reason


def test_one_silent_pod_of_six_changes_nothing_about_the_demand() -> None:
    """The others are busy because it is; extrapolating gives its share back."""
    full = decide_with(6, 500.0, 500.0, set(), ticks=5)[-1].terms.base
    partial = decide_with(6, 500.0, 500.0, {3}, ticks=5)[-1].terms.base

    assert abs(full - partial) < 1e-6


hostile = (
    st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([0.0, -1.0, 1.0, 1e-308, 1e24, 1e300])
    | st.floats(0, 1e6)
)
hostile_sample = st.builds(
    PodSample,
    pod=st.sampled_from(["a", "b", "c"]),
    time=st.floats(0, 100) | hostile,
    process_start=st.sampled_from([-10.0, 0.0, 50.0]) | hostile,
    uptime=st.floats(0, 100) | hostile,
    rows_received=hostile,
    rows_rejected=hostile,
    batches=hostile,
    rows=hostile,
    full_batches=hostile,
    batch_seconds=hostile,
    rows_squared=hostile,
    row_seconds=hostile,
    squares_received=hostile,
    queue_rows=hostile,
    lanes=hostile,
)
plausible = st.floats(0, 1e24)
plausible_sample = st.builds(
    PodSample,
    pod=st.sampled_from(["a", "b"]),
    time=st.floats(0, 100),
    process_start=st.sampled_from([-10.0, 0.0, 50.0]),
    uptime=st.floats(0, 60),
    rows_received=plausible,
    rows_rejected=plausible,
    batches=plausible,
    rows=plausible,
    full_batches=plausible,
    batch_seconds=plausible,
    rows_squared=plausible,
    row_seconds=plausible,
    squares_received=plausible,
    queue_rows=plausible,
    lanes=plausible,
)
looks = st.lists(
    st.tuples(
        st.lists(hostile_sample | plausible_sample, max_size=3),
        st.integers(-1, 4),
        st.integers(-1, 50),
    ),
    max_size=6,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(looks, st.none() | st.floats(0.001, 1.0))
def test_hostile_numbers_never_crash_and_never_leave_the_bounds(
    seen: list[tuple[list[PodSample], int, int]], target: float | None
) -> None:
    """A pod is the user's code: it can export anything."""
    policy = ScalingPolicy(2, 9, 8, 0.010, target)
    state = ScalingState.empty()
    for tick, (samples, ready, current) in enumerate(seen):
        observation = Observation(tuple(samples), ready, current, "a")

        decision, state = step(policy, state, observation, 5.0 * tick)

        assert 2 <= decision.desired <= 9
        text = json.dumps(record(policy, decision), allow_nan=False)
        assert decision.desired == replay(json.loads(text))
        assert ScalingState.restored(state.to_saved()).model.revision in {"a", ""}


def test_counters_that_fall_and_recover_are_no_demand() -> None:
    """A page cut short, or an exporter that starts over: not all of it has just arrived."""
    state = ScalingState.empty()
    decisions = []
    for tick in range(40):
        rows = 500.0 * 5.0 * (tick + 2000)
        shown = rows / 1000 if tick in {20, 21} else rows
        samples = (scrape(0, tick, rows), scrape(1, tick, shown))
        decision, state = step(POLICY, state, Observation(samples, 2, 2, "a"), 5.0 * tick)
        decisions.append(decision)

    assert {2} == {decision.desired for decision in decisions}
    assert 0.5 == decisions[20].terms.coverage
    assert 1.0 == decisions[22].terms.coverage
    assert 1100 > max(decision.terms.base for decision in decisions)


def test_counters_that_stay_low_are_believed_in_the_end() -> None:
    """For ten minutes the pod is not seen; then what it says is where counting begins."""
    state = ScalingState.empty()
    coverage = []
    for tick in range(150):
        rows = 500.0 * 5.0 * (tick + (2000 if tick < 10 else 1))
        sample = scrape(0, tick, rows)
        decision, state = step(POLICY, state, Observation((sample,), 1, 1, "a"), 5.0 * tick)
        coverage.append(decision.terms.coverage)

    assert 1.0 == coverage[9]
    assert {0.0} == set(coverage[10:130])
    assert 1.0 == coverage[-1]
