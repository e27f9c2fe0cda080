"""From `spec.autoscaling` to the values that the scaling policy wants."""

from batchedapi_core.manifest.autoscaling import Autoscaling, ScalingRules
from batchedapi_core.manifest.units import parse_quantity
from batchedapi_core.scaling.behavior import Behavior, StepPolicy
from batchedapi_core.scaling.policy import default_behaviors


def behaviors_of(autoscaling: Autoscaling) -> tuple[Behavior, Behavior]:
    """(up, down): the defaults of the policy in use, and what is written over them."""
    up, down = default_behaviors(autoscaling.policy)
    written = autoscaling.behavior
    if written is None:
        return up, down
    return _over(up, written.scale_up), _over(down, written.scale_down)


def _over(default: Behavior, written: ScalingRules | None) -> Behavior:
    if written is None:
        return default
    window, steps = written.stabilization_window_seconds, written.policies
    policies = default.policies
    if steps is not None:
        policies = tuple(StepPolicy(s.type, s.value, float(s.period_seconds)) for s in steps)
    return Behavior(
        stabilization=default.stabilization if window is None else float(window),
        policies=policies,
        select=written.select_policy or default.select,
        tolerance=default.tolerance
        if written.tolerance is None
        else parse_quantity(written.tolerance),
    )
