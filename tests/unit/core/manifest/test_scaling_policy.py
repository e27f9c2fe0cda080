"""A manifest, and what replicas say of themselves, as the values that the scaling policy wants."""

from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.manifest import (
    Autoscaling,
    BatchedAPI,
    BatchedAPISpec,
    InEffect,
    behaviors_of,
    model_processes,
    parse_api,
    scaling_policy_of,
)
from batchedapi_core.scaling.policy import (
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
    default_behaviors,
)


def api(**spec: Any) -> BatchedAPI:
    """A manifest with these sections; `predictor` is added to the smallest good one."""
    predictor = {"path": "model:Iris", **spec.pop("predictor", {})}
    return parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": "iris"},
            "spec": {"predictor": predictor, **spec},
        }
    )


def spec_of(spec: dict[str, Any]) -> BatchedAPISpec:
    """The parsed spec of a manifest with that spec."""
    return api(**spec).spec


def scaling(**fields: Any) -> Autoscaling:
    """The autoscaling of a manifest with those fields."""
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
    assert (None, None) == (autoscaling.target_replica_concurrency, autoscaling.behavior)


def test_everything_can_be_written() -> None:
    """The words are those of the field: the HPA's, Cortex's, Kubernetes' own units."""
    spec = spec_of(
        {
            "paused": True,
            "autoscaling": {
                "policy": "Concurrency",
                "targetReplicaConcurrency": "1500m",
                "window": "2m",
                "slo": {"percentile": 95, "latency": "80ms"},
            },
        }
    )
    autoscaling = spec.autoscaling

    assert spec.paused
    assert (PolicyKind.CONCURRENCY, "1500m", 120.0, 95, 0.08) == (
        autoscaling.policy,
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


def test_a_manifest_that_says_nothing_is_scaled_by_the_defaults() -> None:
    """ScalingPolicy itself has them, but for the batching: nobody has to write one to begin."""
    expected = ScalingPolicy(
        min_replicas=1,
        max_replicas=100,
        max_batch_size=contract.DEFAULT_BATCHED_MAX_BATCH_SIZE,
        batch_interval=0.010,
        target_concurrency=32.0,
    )

    assert expected == scaling_policy_of(api())


def test_what_is_written_reaches_the_policy() -> None:
    """Every field once, with a value that no default has."""
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 7}}
    written = api(
        paused=True,
        predictor={"processesPerReplica": 3, "threadsPerProcess": 2},
        serverSideBatching={"maxBatchSize": 8, "batchInterval": "7ms", "maxLatency": "100ms"},
        autoscaling={
            "policy": "Concurrency",
            "minReplicas": 2,
            "maxReplicas": 7,
            "targetReplicaConcurrency": "12500m",
            "targetUtilizationPercent": 70,
            "window": "120s",
            "slo": {"percentile": 95, "latency": "80ms"},
            "behavior": behavior,
        },
    )
    up, down = behaviors_of(scaling(policy="Concurrency", behavior=behavior))

    expected = ScalingPolicy(
        min_replicas=2,
        max_replicas=7,
        max_batch_size=8,
        batch_interval=0.007,
        latency_target=0.080,
        quantile=0.95,
        target_utilization=0.70,
        lanes=6,
        kind=PolicyKind.CONCURRENCY,
        target_concurrency=12.5,
        paused=True,
        up=up,
        down=down,
        window=120.0,
    )
    assert expected == scaling_policy_of(written)


def test_what_replicas_say_beats_the_manifest() -> None:
    """A decorator, the environment and Adaptive change what is written; 0 is said, too."""
    written = api(serverSideBatching={"maxBatchSize": 8, "batchInterval": "7ms"})

    policy = scaling_policy_of(written, InEffect(max_batch_size=64, batch_interval=0.0))

    assert (64, 0.0, 64.0) == (
        policy.max_batch_size,
        policy.batch_interval,
        policy.target_concurrency,
    )


def test_the_latency_target_is_max_latency_unless_there_is_an_slo() -> None:
    """One place to say it is enough; without any, replicas are sized for full batches."""
    limit, slo = {"maxLatency": "100ms"}, {"slo": {"latency": "80ms"}}

    assert scaling_policy_of(api()).latency_target is None
    assert 0.1 == scaling_policy_of(api(serverSideBatching=limit)).latency_target
    assert 0.08 == scaling_policy_of(api(autoscaling=slo)).latency_target
    both = api(serverSideBatching=limit, autoscaling=slo)
    assert 0.08 == scaling_policy_of(both).latency_target


def test_batching_that_is_off_has_batches_of_one() -> None:
    """Then lanes are the concurrency."""
    written = api(
        predictor={"processesPerReplica": 3},
        serverSideBatching={"maxBatchSize": 1},
    )

    policy = scaling_policy_of(written)

    assert (1, 3, 3.0) == (policy.max_batch_size, policy.lanes, policy.target_concurrency)


@pytest.mark.parametrize(
    ("lanes", "processes"),
    [
        pytest.param(None, 5, id="nobody says: the request, 5.5 CPUs"),
        pytest.param(0, 5, id="none has started"),
        pytest.param(1, 5, id="its first is still starting"),
        pytest.param(2, 1, id="one"),
        pytest.param(7, 3, id="three and a part"),
        pytest.param(63, 31, id="one lane fewer than calls would have"),
        pytest.param(64, 5, id="calls"),
        pytest.param(500, 5, id="calls of a manifest before"),
    ],
)
def test_processes_by_cpus_are_those_that_lanes_tell(lanes: int | None, processes: int) -> None:
    """W08: what a node has is not known here; calls are as many as requests are let in."""
    written = api(
        predictor={"processesPerReplica": "cpu_count", "threadsPerProcess": 2},
        compute={"cpu": "5500m"},
        serverSideBatching={"maxBatchSize": 4},
        overload={"maxReplicaConcurrency": 64},
    )

    assert processes == model_processes(written, InEffect(lanes=lanes))


@pytest.mark.parametrize("lanes", [None, 0, 1, 8, 1024])
def test_processes_that_are_written_are_as_many(lanes: int | None) -> None:
    """Also while some of them start, or start again."""
    written = api(predictor={"processesPerReplica": 3})

    assert 3 == model_processes(written, InEffect(lanes=lanes))


@pytest.mark.parametrize(
    ("said", "lanes", "concurrency"),
    [
        pytest.param(InEffect(), 6, 48.0, id="what is written"),
        pytest.param(InEffect(lanes=4), 6, 48.0, id="a process is starting"),
        pytest.param(InEffect(lanes=4, another=True), 4, 32.0, id="another revision runs"),
        pytest.param(InEffect(max_batch_size=1), 6, 6.0, id="no batching"),
        pytest.param(InEffect(lanes=70, max_batch_size=1), 70, 6.0, id="calls"),
        pytest.param(InEffect(lanes=64), 64, 512.0, id="calls, of batches"),
    ],
)
def test_a_replica_is_to_have_as_many_requests_as_fill_its_lanes(
    said: InEffect, lanes: int, concurrency: float
) -> None:
    """W05: without batching its threads; calls occupy none, and it would let in no more of them."""
    written = api(
        predictor={"processesPerReplica": 3, "threadsPerProcess": 2},
        serverSideBatching={"maxBatchSize": 8},
        overload={"maxReplicaConcurrency": 64},
    )

    policy = scaling_policy_of(written, said)

    assert (lanes, concurrency) == (policy.lanes, policy.target_concurrency)


@pytest.mark.parametrize(
    ("section", "gpu"),
    [
        ({}, False),
        ({"compute": {"gpu": 1}}, True),
        ({"pod": {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "b"}]}}, True),
    ],
)
def test_a_claim_counts_as_a_gpu(section: dict[str, Any], *, gpu: bool) -> None:
    """Nobody here knows what it is of, and an order too many is dear where it is one."""
    assert gpu is scaling_policy_of(api(**section), InEffect()).gpu
