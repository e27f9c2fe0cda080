"""How far one step may go, by the words of the HorizontalPodAutoscaler."""

import pytest

from batchedapi_core.scaling.policy import (
    Behavior,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
    fewest,
    most,
)

POD = StepPolicy(StepKind.PODS, 2, 60.0)
HALF = StepPolicy(StepKind.PERCENT, 50, 15.0)


def of(*policies: StepPolicy, select: Select = Select.MAX) -> Behavior:
    """One direction with those policies."""
    return Behavior(0.0, policies, select)


@pytest.mark.parametrize(
    ("target", "window", "pace"),
    [(None, 60.0, 1.0), (0.5, 60.0, 1.0), (3.0, 60.0, 2.0), (10.0, 60.0, 6.0), (10.0, 5.0, 1.0)],
)
def test_an_api_that_may_take_its_time_is_given_as_much_more(
    target: float | None, window: float, pace: float
) -> None:
    """No more than there is of the past; a stabilization that is written down is as written."""
    policy = ScalingPolicy(1, 9, 8, 0.0, target, window=window)

    assert pace == policy.pace
    assert [60.0 * pace, 500.0, 7.0] == [
        policy.down.window(30.0, pace),
        policy.down.window(500.0, pace),
        Behavior(7.0, ()).window(30.0, pace),
    ]


@pytest.mark.parametrize(
    ("behavior", "starts", "current", "expected"),
    [
        (of(), (), 7, None),
        (of(POD), (4,), 4, 6),
        (of(POD), (4,), 5, 6),
        (of(POD), (2,), 5, 5),
        (of(HALF), (4,), 4, 6),
        (of(HALF), (5,), 5, 8),
        (of(HALF), (1,), 1, 2),
        (of(HALF), (0,), 0, 1),
        (of(POD, HALF), (10, 10), 10, 15),
        (of(POD, HALF, select=Select.MIN), (10, 10), 10, 12),
        (of(POD, HALF, select=Select.MIN), (10, 4), 10, 10),
        (of(select=Select.MIN), (), 7, None),
        (of(POD, select=Select.DISABLED), (4,), 4, 4),
    ],
)
def test_up_to_what_the_policies_let_come(
    behavior: Behavior, starts: tuple[int, ...], current: int, expected: int | None
) -> None:
    """From the count at the begin of each period; never less than there is."""
    assert expected == most(behavior, starts, current)


@pytest.mark.parametrize(
    ("behavior", "starts", "current", "expected"),
    [
        (of(), (), 7, 0),
        (of(POD), (7,), 7, 5),
        (of(POD), (9,), 7, 7),
        (of(HALF), (8,), 8, 4),
        (of(HALF), (3,), 3, 2),
        (of(HALF), (1,), 1, 0),
        (of(StepPolicy(StepKind.PERCENT, 10, 60.0)), (5,), 5, 4),
        (of(POD, HALF), (10, 10), 10, 5),
        (of(POD, HALF, select=Select.MIN), (10, 10), 10, 8),
        (of(POD, HALF, select=Select.MIN), (20, 10), 10, 10),
        (of(select=Select.MIN), (), 7, 0),
        (of(POD, select=Select.DISABLED), (4,), 4, 4),
    ],
)
def test_down_to_what_the_policies_leave(
    behavior: Behavior, starts: tuple[int, ...], current: int, expected: int
) -> None:
    """Half of three leaves two: a percentage never takes more than it says, but always one."""
    assert expected == fewest(behavior, starts, current)


@pytest.mark.parametrize(
    ("stabilization", "tolerance", "value", "period"),
    [
        (-1.0, 0.0, 1, 1.0),
        (float("inf"), 0.0, 1, 1.0),
        (0.0, -0.1, 1, 1.0),
        (0.0, float("nan"), 1, 1.0),
        (0.0, 0.0, 0, 1.0),
        (0.0, 0.0, 1, 0.0),
        (0.0, 0.0, 1, float("inf")),
    ],
)
def test_what_no_decision_could_be_made_with_is_refused(
    stabilization: float, tolerance: float, value: int, period: float
) -> None:
    """At construction, where the stack still shows who wrote it."""
    step = StepPolicy(StepKind.PODS, value, period)

    with pytest.raises(ValueError, match="scaling behavior: expected"):
        Behavior(stabilization, (step,), Select.MAX, tolerance)
