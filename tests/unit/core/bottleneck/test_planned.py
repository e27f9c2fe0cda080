"""Replicas that are used as the autoscaler planned lack nothing; used beyond that, they do."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.core.bottleneck.regimes import TICK, Fleet, Regime

from batchedapi_core import contract
from batchedapi_core.bottleneck import BottleneckEvidence, Kind, PodLoad, Verdict, diagnose
from batchedapi_core.bottleneck.diagnose import find
from batchedapi_core.bottleneck.evidence import PERSISTENCE, REST
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model import BatchSums, ServiceTime

WINDOW = 60.0
PODS = 3
LINE = ServiceTime(0.0005, 0.001)  # twice 32 rows serve 1 % more
SIZE = 32
TARGETS = st.floats(0.5, 1.0)
PARTS = st.just(1.0) | st.floats(0.0, 1.0)
"""Of the target, that is used: mostly all of it, where planned and short are near each other."""
NOISE = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=20)
"""What windows of a steady load are off by, as shares of a tenth of what the target leaves."""


def used(share: float, target: float, **changes: object) -> BottleneckEvidence:
    """A minute of three pods alike that are used by `share`, in full batches."""
    batches = share * PODS * WINDOW / LINE.seconds(SIZE)
    rows = SIZE * batches
    sums = BatchSums(
        batches, rows, SIZE * rows, batches * LINE.seconds(SIZE), rows * LINE.seconds(SIZE)
    )
    pods = (PodLoad(f"api-{i}", rows / PODS, WINDOW, sums.seconds / PODS) for i in range(PODS))
    as_it_is = BottleneckEvidence(
        seconds=WINDOW,
        coverage=1.0,
        received=rows,
        rejected=(),
        released=(("full", batches),),
        sums=sums,
        sizes=rows,
        lane_seconds=PODS * WINDOW,
        max_batch_size=SIZE,
        batch_interval=0.02,
        target_utilization=target,
        pods=tuple(pods),
        service=LINE,
    )
    return replace(as_it_is, **changes)  # type: ignore[arg-type]  # fields by name


def largest(share: float, target: float) -> BottleneckEvidence:
    """The same while t(n) is not known, in batches of a size that no manifest exceeds."""
    seen = used(share, target, service=None, max_batch_size=contract.MAX_BATCH_SIZE_LIMIT)
    return replace(seen, sizes=seen.sums.batches * contract.MAX_BATCH_SIZE_LIMIT)


def above(target: float) -> float:
    """Where the autoscaler, too, speaks of saturation."""
    return max(0.9, (1.0 + target) / 2)


@given(TARGETS, PARTS, NOISE)
def test_replicas_used_as_planned_never_lack_compute(
    target: float, part: float, noise: list[float]
) -> None:
    """Nor is anything else wrong: full batches in busy lanes are what was paid for."""
    room = 1.0 - target
    shares = [part * target * (1.0 - 1e-9) + off * room / 10 for off in noise]

    assert {Kind.IDLE} == {find(used(max(0.0, share), target), None).kind for share in shares}


@given(TARGETS, PARTS, NOISE)
def test_what_lacked_compute_lacks_it_no_more_once_it_is_used_as_planned(
    target: float, part: float, noise: list[float]
) -> None:
    """Replicas were added: a verdict that stands on would ask for more of them for ever."""
    room = 1.0 - target
    verdict = Verdict(Kind.COMPUTE, "go from 2 to 3 replicas", changed=0.0)
    now = 0.0
    while now < max(REST, PERSISTENCE + TICK):
        now += TICK
        off = noise[round(now / TICK) % len(noise)]
        share = part * target * (1.0 - 1e-9) + off * room / 10
        verdict = diagnose(used(max(0.0, share), target), verdict, now)

    assert Kind.IDLE is verdict.kind


@given(TARGETS, st.floats(1.001, 2.0))
@example(1.0, 2.0)
def test_more_than_was_planned_for_lacks_compute(target: float, times: float) -> None:
    """As many replicas are advised as the target asks for; a tie is rounded either way."""
    share = times * above(target)
    served = min(1.0, share)

    found = find(used(served, target, received=share / served * rows_of(served)), None)

    assert Kind.COMPUTE is found.kind
    replicas = int(found.advice.split("to ")[-1].split(" replicas")[0])
    assert share / target * PODS <= replicas + 1e-9
    assert PODS + 1 == replicas or (replicas - 1) * target < share * PODS + 1e-9


def rows_of(share: float) -> float:
    """Received in a window by replicas used by that share."""
    return used(share, 1.0).received


@given(st.floats(0.5, 0.95), PARTS)
def test_without_a_curve_the_time_of_lanes_tells_planned_from_used_up(
    target: float, part: float
) -> None:
    """A lane that is used up is busy 98 % or more; of targets next to that it tells nothing."""
    assert Kind.IDLE is find(largest(part * target, target), None).kind
    assert Kind.IDLE is find(largest(part * target, target), Kind.COMPUTE).kind
    assert Kind.COMPUTE is find(largest(0.985, target), None).kind


@pytest.mark.parametrize(
    ("share", "standing", "kind"),
    [
        (0.96, None, Kind.IDLE),
        (0.97, None, Kind.COMPUTE),
        (0.95, Kind.COMPUTE, Kind.COMPUTE),
        (0.945, Kind.COMPUTE, Kind.IDLE),
    ],
)
def test_a_lack_of_compute_ends_halfway_back_to_the_target(
    share: float, standing: Kind | None, kind: Kind
) -> None:
    """At 93 % it begins above 96.5 % and ends at 94.75 %: a steady load wanders."""
    assert kind is find(used(share, 0.93), standing).kind


def test_the_default_target_is_planned_operation() -> None:
    """An operator gets no warning of the level that the autoscaler itself aims at."""
    policy = ScalingPolicy(min_replicas=1, max_replicas=4, max_batch_size=SIZE, batch_interval=0.02)
    target = policy.target_utilization

    assert Kind.IDLE is find(used(target, target), Kind.COMPUTE).kind


def test_planned_operation_that_a_larger_batch_would_improve_says_so() -> None:
    """The same replicas would serve half as much again."""
    line = ServiceTime(0.032, 0.001)
    seen = used(0.93, 0.93, service=line)

    found = find(replace(seen, received=0.93 * (seen.capacity(SIZE) or 0.0) * WINDOW), None)

    assert Kind.MAX_BATCH_SIZE is found.kind
    assert "raising maxBatchSize from 32 to 64 serves 33 % more rows/s" in found.advice


def test_full_batches_in_lanes_without_a_break_lack_compute_whatever_was_learned() -> None:
    """Clients that wait for answers send what is served; a slower node shows in the time alone."""
    faster = ServiceTime(0.8 * LINE.fixed, 0.8 * LINE.per_row)

    found = find(used(0.99, 0.93, service=faster), None)

    assert Kind.COMPUTE is found.kind
    assert "go from 3 to 4 replicas" in found.advice


def test_lanes_that_start_whatever_is_queued_are_busy_at_planned_operation() -> None:
    """Their time says nothing while batches have room: what arrives does."""
    seen = used(0.93, 0.93)
    busy = replace(
        seen,
        sums=replace(seen.sums, seconds=0.99 * seen.lane_seconds),
        released=(("full", 60.0), ("early", 40.0)),
    )

    assert Kind.IDLE is find(busy, None).kind


@pytest.mark.parametrize("standing", [Kind.IDLE, Kind.COMPUTE])
def test_a_poisson_load_at_the_target_is_idle(standing: Kind) -> None:
    """Batch by batch, with the noise of both: lanes are busy 95 % and most batches full."""
    regime = Regime(
        "planned", Kind.IDLE, (0.93 * 64 / 0.66,) * 3, fixed=0.02, per_row=0.01,
        max_batch_size=64, waits=False,
    )  # fmt: skip
    learned = ServiceTime(regime.fixed, regime.per_row)
    verdict = Verdict(standing, "said before", changed=0.0)

    said = []
    for tick, evidence in enumerate(Fleet(3).looks(regime, 1200.0), start=1):
        verdict = diagnose(replace(evidence, service=learned), verdict, tick * TICK)
        said.append(verdict.kind)

    assert {Kind.IDLE} == set(said[round((REST + PERSISTENCE) / TICK) :])
