"""`spec.autoscaling` as the values that the scaling policy wants."""

from typing import Any

from batchedapi_core import contract
from batchedapi_core.manifest import Autoscaling, BatchedAPISpec, behaviors_of, parse_api
from batchedapi_core.scaling import (
    Behavior,
    PolicyKind,
    Select,
    StepKind,
    StepPolicy,
    default_behaviors,
)


def spec_of(spec: dict[str, Any]) -> BatchedAPISpec:
    """Of a manifest with that spec."""
    return parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "iris"},
            "spec": {"predictor": {"path": "model:Iris"}, **spec},
        }
    ).spec


def scaling(**fields: Any) -> Autoscaling:
    """Of a manifest with those fields."""
    return spec_of({"autoscaling": fields}).autoscaling


def test_what_is_not_written_is_decided_by_capacity_over_a_minute() -> None:
    """p99 within maxLatency, nobody paused, and Cortex's window."""
    spec = spec_of({})
    autoscaling = spec.autoscaling

    assert not spec.paused
    assert (PolicyKind.CAPACITY_SLO, 60.0, 99, None) == (
        autoscaling.policy,
        autoscaling.window,
        autoscaling.slo.percentile,
        autoscaling.slo.latency,
    )
    assert (None, None, None) == (
        autoscaling.init_replicas,
        autoscaling.target_replica_concurrency,
        autoscaling.behavior,
    )


def test_everything_can_be_written() -> None:
    """The words are those of the field: the HPA's, Cortex's, Kubernetes' own units."""
    spec = spec_of(
        {
            "paused": True,
            "autoscaling": {
                "policy": "Concurrency",
                "initReplicas": 2,
                "targetReplicaConcurrency": "1500m",
                "window": "2m",
                "slo": {"percentile": 95, "latency": "80ms"},
            },
        }
    )
    autoscaling = spec.autoscaling

    assert spec.paused
    assert (PolicyKind.CONCURRENCY, 2, "1500m", 120.0, 95, 0.08) == (
        autoscaling.policy,
        autoscaling.init_replicas,
        autoscaling.target_replica_concurrency,
        autoscaling.window,
        autoscaling.slo.percentile,
        autoscaling.slo.latency,
    )


def test_without_behavior_each_policy_has_its_own() -> None:
    """Cortex's pace fits the one, the other may follow at once."""
    for kind in PolicyKind:
        assert default_behaviors(kind) == behaviors_of(scaling(policy=kind.value))
    assert behaviors_of(scaling(policy="Concurrency")) != behaviors_of(scaling())
    assert default_behaviors(PolicyKind.CAPACITY_SLO) == behaviors_of(scaling(behavior={}))


def test_what_is_written_overrides_that_alone() -> None:
    """As in an HPA: a window of its own keeps the default policies, and the other direction."""
    up, down = default_behaviors(PolicyKind.CAPACITY_SLO)

    changed = behaviors_of(scaling(behavior={"scaleDown": {"stabilizationWindowSeconds": 0}}))

    assert (up, Behavior(0.0, down.policies, down.select, down.tolerance)) == changed


def test_a_whole_behavior_is_taken_over() -> None:
    """Every field arrives, with its unit."""
    up, down = behaviors_of(
        scaling(
            behavior={
                "scaleUp": {
                    "stabilizationWindowSeconds": 15,
                    "policies": [
                        {"type": "Pods", "value": 2, "periodSeconds": 30},
                        {"type": "Percent", "value": 10, "periodSeconds": 60},
                    ],
                    "selectPolicy": "Min",
                    "tolerance": "100m",
                },
                "scaleDown": {"selectPolicy": "Disabled", "tolerance": 0},
            }
        )
    )

    steps = (StepPolicy(StepKind.PODS, 2, 30.0), StepPolicy(StepKind.PERCENT, 10, 60.0))
    assert Behavior(15.0, steps, Select.MIN, 0.1) == up
    assert (Select.DISABLED, 0.0, None) == (down.select, down.tolerance, down.stabilization)
