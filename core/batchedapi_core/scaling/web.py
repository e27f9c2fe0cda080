"""How many web pods an API with one queue has: by the CPU that they use, as their pages say.

    need = CPU used by all / (CPU that each asks for * USED_SHARE)

Web pods start in a second and cost little, so there is no forecast: up at once, down to the highest
need of the last five minutes, as a HorizontalPodAutoscaler goes by default.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from batchedapi_core.contract import percent
from batchedapi_core.scaling.numbers import MOST_REPLICAS, ROUNDING
from batchedapi_core.scaling.state import Recommendation, standing_high, unexpired

USED_SHARE: Final = 0.8
"""Share of the CPU that a web pod asks for, to be used: more than that may not be there."""
TOLERANCE: Final = 0.1
"""Share by which the need must differ, as a HorizontalPodAutoscaler has it."""
DOWN_SECONDS: Final = 300.0
WINDOW: Final = 30.0
"""Seconds over which use is measured."""
SETTLED: Final = 10.0
"""Seconds of it that a pod has to tell of: the CPU of its start says nothing."""
SEEN_SHARE: Final = 0.5
"""Share of the ready pods, to be seen: else nothing moves."""
FEWEST_STEP: Final = 4
"""Pods that may come at once; or as many as there are."""


@dataclass(frozen=True, slots=True)
class WebPolicy:
    """Bounds and size of web pods."""

    min_replicas: int
    max_replicas: int
    cpu: float  # cores that each asks for


@dataclass(frozen=True, slots=True)
class CpuSample:
    """CPU that a pod has used since its processes started, at one look."""

    pod: str  # uid
    time: float  # seconds, monotonic
    seconds: float  # CPU


@dataclass(frozen=True, slots=True)
class WebState:
    """Memory between looks."""

    samples: tuple[CpuSample, ...] = ()  # of the last WINDOW, in order of time
    high: tuple[Recommendation, ...] = ()  # that hold a scale-down


@dataclass(frozen=True, slots=True)
class WebDecision:
    """How many, and why."""

    desired: int
    text: str


def decide_web(
    policy: WebPolicy,
    state: WebState,
    looked: Sequence[CpuSample],
    *,
    ready: int,
    current: int,
    now: float,
) -> tuple[WebDecision, WebState]:
    """Choose how many web pods there are to be.

    Args:
        policy: Bounds and size.
        state: As returned at the last look.
        looked: Of the ready pods that answered.
        ready: Web pods.
        current: Asked for so far.
        now: Monotonic seconds.
    """
    kept = tuple(one for one in state.samples if now - one.time < WINDOW)
    state = replace(state, samples=(*kept, *looked), high=unexpired(state.high, now))
    rates = _rates(state.samples, looked)
    if not rates or len(rates) < SEEN_SHARE * ready:
        text = f"CPU of {len(rates)} of {ready} web pods is known"
        return _within(policy, current, f"{text}, so their number stays"), state
    used = sum(rates) / len(rates) * ready
    need = used / (policy.cpu * USED_SHARE)
    wanted = max(1, math.ceil(min(need, MOST_REPLICAS) - ROUNDING))
    if abs(need - current) <= TOLERANCE * current:
        wanted = current
    made = [Recommendation(wanted, now + DOWN_SECONDS)]
    state = replace(state, high=standing_high(state.high, made))
    text = (
        f"{ready} web pods use {used:.2f} CPU, {percent(USED_SHARE)} of {policy.cpu:g} are to be"
        f" used of each => {need:.2f}"
    )
    held = max(one.replicas for one in state.high)
    if wanted < current and held > wanted:
        wanted = min(current, held)
        text += f"; {held} were needed within the last {DOWN_SECONDS:.0f} s"
    step = current + max(current, FEWEST_STEP)
    if wanted > step:
        wanted, text = step, f"{text}; at most {step - current} come at once"
    return _within(policy, wanted, text), state


def _within(policy: WebPolicy, wanted: int, text: str) -> WebDecision:
    desired = min(policy.max_replicas, max(policy.min_replicas, wanted))
    if desired != wanted:
        text += f"; web.minReplicas is {policy.min_replicas}, maxReplicas {policy.max_replicas}"
    return WebDecision(desired, text)


def _rates(samples: Sequence[CpuSample], looked: Sequence[CpuSample]) -> list[float]:
    """Cores that each pod uses; without those that started, or started anew, just now."""
    first: dict[str, CpuSample] = {}
    for one in samples:
        known = first.get(one.pod)
        if known is None or one.seconds < known.seconds:  # its processes started anew
            first[one.pod] = one
    return [
        (one.seconds - first[one.pod].seconds) / (one.time - first[one.pod].time)
        for one in looked
        if one.time - first[one.pod].time >= SETTLED
    ]
