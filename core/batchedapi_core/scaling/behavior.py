"""How fast a replica count may change, in the words of the HorizontalPodAutoscaler.

Stabilization is symmetric: down only to the highest recommendation of its window, up only to the
lowest. A policy limits what happens within one period; where there are several, `select` says
whether the one that allows most or the one that allows least counts.

Two roundings differ from the HPA's, both towards fewer surprises: a percentage never removes more
than it says (half of 3 is 1, the HPA removes 2), and always one replica may come or go.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

SHORTEST_HOLD: Final = 60.0
"""Seconds: the stabilization that is as long as a start-up is not shorter than this.

Half of it costs 2 % less, and lets a quarter more requests be late where bursts are random.
"""


class StepKind(StrEnum):
    """What the value of a step policy counts."""

    PODS = "Pods"
    PERCENT = "Percent"


class Select(StrEnum):
    """Which of several step policies counts."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """At most `value` replicas, or percent of those at its begin, within one period."""

    kind: StepKind
    value: int
    period: float  # seconds

    def __str__(self) -> str:
        """As the sentences write it."""
        pods = "pod" if self.value == 1 else "pods"
        unit = "%" if self.kind is StepKind.PERCENT else pods
        return f"{self.value} {unit} in {self.period:g} s"


@dataclass(frozen=True, slots=True)
class Behavior:
    """Of one direction.

    Raises:
        ValueError: A value that no decision could be made with.
    """

    stabilization: float | None  # seconds; None: as long as a replica takes to start
    policies: tuple[StepPolicy, ...]  # none: any step is allowed
    select: Select = Select.MAX
    tolerance: float = 0.0  # share of the replicas by which the need must differ

    def __post_init__(self) -> None:
        possible = all(one.value > 0 and 0 < one.period < math.inf for one in self.policies)
        window = 0.0 if self.stabilization is None else self.stabilization
        if not (0 <= window < math.inf and 0 <= self.tolerance < math.inf and possible):
            raise ValueError(
                "scaling behavior: expected stabilization >= 0, tolerance >= 0 and policies with "
                f"value > 0 and period > 0, got {self}"
            )

    def window(self, start_up: float) -> float:
        """Seconds of stabilization, where a replica takes `start_up` seconds to start.

        What goes must be started again if it was needed after all: hence the default.
        """
        return max(SHORTEST_HOLD, start_up) if self.stabilization is None else self.stabilization

    @property
    def longest_period(self) -> float:
        """Seconds of history that the policies need."""
        return max((policy.period for policy in self.policies), default=0.0)


def most(behavior: Behavior, starts: Sequence[int], current: int) -> int | None:
    """Replicas that a scale-up may reach; None: as many as it likes.

    Args:
        behavior: Of scale-up.
        starts: For each policy, the replicas at the begin of its period.
        current: Replicas now.
    """
    reached = [
        _grown(policy, start) for policy, start in zip(behavior.policies, starts, strict=True)
    ]
    match behavior.select:
        case Select.DISABLED:
            return current
        case Select.MAX:
            return max(current, *reached) if reached else None
        case Select.MIN:
            return max(current, min(reached)) if reached else None
        case _:
            assert_never(behavior.select)


def fewest(behavior: Behavior, starts: Sequence[int], current: int) -> int:
    """Replicas that a scale-down must leave.

    Args:
        behavior: Of scale-down.
        starts: For each policy, the most replicas within its period.
        current: Replicas now.
    """
    left = [_shrunk(policy, start) for policy, start in zip(behavior.policies, starts, strict=True)]
    match behavior.select:
        case Select.DISABLED:
            return current
        case Select.MAX:
            return min(current, *left) if left else 0
        case Select.MIN:
            return min(current, max(left)) if left else 0
        case _:
            assert_never(behavior.select)


def _grown(policy: StepPolicy, start: int) -> int:
    match policy.kind:
        case StepKind.PODS:
            return start + policy.value
        case StepKind.PERCENT:
            return max(start + 1, -(-start * (100 + policy.value) // 100))
        case _:
            assert_never(policy.kind)


def _shrunk(policy: StepPolicy, start: int) -> int:
    match policy.kind:
        case StepKind.PODS:
            return start - policy.value
        case StepKind.PERCENT:
            return min(start - 1, -(-start * (100 - policy.value) // 100))
        case _:
            assert_never(policy.kind)
