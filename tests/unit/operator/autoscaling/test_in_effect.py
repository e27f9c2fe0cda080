"""The settings in effect on replicas, and the status's account of them."""

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.worlds import WALL, api, deployment_body, pod_body

from batchedapi_core.scaling.policy import PolicyKind, StepKind, StepPolicy
from batchedapi_core.scaling.samples import Unready
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.in_effect import (
    effective_of,
    policy_of,
    processes_of,
    samples_of,
    unready_of,
)
from batchedapi_operator.autoscaling.metrics_page import MetricsPage, parse_page
from batchedapi_operator.cluster import JsonObject, rfc3339
from batchedapi_operator.views import DeploymentView, PodView


def pages(**figures: Any) -> list[MetricsPage]:
    """One pod with two lanes."""
    return [parse_page(page(**figures), "pod", time=0.0, unix_time=2000.0)]


@pytest.mark.parametrize(
    ("predictor", "cpu", "processes", "seen"),
    [
        ({"processesPerReplica": 3}, "200m", 3, 3),
        ({"processesPerReplica": "cpu_count"}, "3500m", 3, 2),
        ({"processesPerReplica": "cpu_count"}, "200m", 1, 2),
        ({"processesPerReplica": "cpu_count", "threadsPerProcess": 4}, "200m", 1, 1),
    ],
)
def test_processes_are_those_written_or_those_that_a_replica_has(
    predictor: dict[str, Any], cpu: str, processes: int, seen: int
) -> None:
    """W08: what a node has is not known here; until a replica answers, the request decides."""
    written = api(predictor={"path": "m:C", **predictor}, compute={"cpu": cpu})

    assert processes == processes_of(written)
    lanes = processes * written.spec.predictor.threads_per_process
    assert lanes == policy_of(written, [], ScalingState.empty(), 0.0).lanes
    assert seen == processes_of(written, pages())
    lanes = seen * written.spec.predictor.threads_per_process
    assert lanes == policy_of(written, pages(), ScalingState.empty(), 0.0).lanes


def test_calls_tell_nothing_of_processes() -> None:
    """Async methods without batching run as many calls as requests are let in."""
    written = api(predictor={"path": "m:C", "processesPerReplica": "cpu_count"})

    seen = pages(lanes=1024)

    assert 1 == processes_of(written, seen)
    assert 1024 == policy_of(written, seen, ScalingState.empty(), 0.0).lanes


def test_the_status_says_what_is_in_effect() -> None:
    """Whoever reads it sees the manifest, the decorator and the environment resolved."""
    threads = api(predictor={"path": "m:C", "processesPerReplica": 3, "threadsPerProcess": 2})

    found = effective_of(threads, pages(max_batch_size=64))

    assert {
        "processesPerReplica": 3,
        "lanes": 6,
        "maxBatchSize": 64,
        "batchInterval": "5ms",
    } == found
    assert effective_of(threads, []) is None


@pytest.mark.parametrize(
    ("batching", "size"), [({}, 32), ({"maxBatchSize": 8}, 8), ({"enabled": False}, 1)], ids=str
)
def test_sizes_are_those_written_until_a_replica_says(batching: dict[str, Any], size: int) -> None:
    """Nothing else is known before the first scrape; afterwards the decorator counts too."""
    written, state = api(serverSideBatching=batching), ScalingState.empty()

    assert size == policy_of(written, [], state, 0.0).max_batch_size
    assert policy_of(written, pages(max_batch_size=64), state, 0.0).max_batch_size == 64


@pytest.mark.parametrize(
    ("unit", "figures", "expected"),
    [
        pytest.param("Rows", {"size": 100.0}, 16, id="rows"),
        pytest.param("Rows", {"size": 400.0}, 4, id="rows that cost 4"),
        pytest.param("Requests", {"size": 25.0, "requests": 25.0}, 64, id="requests of 4 rows"),
        pytest.param("Rows", {"requests": 25.0}, 16, id="an older replica"),
        pytest.param("Requests", {"requests": 25.0}, 64, id="an older replica's requests"),
    ],
)
def test_a_full_batch_has_rows_whatever_is_limited(
    unit: str, figures: dict[str, float], expected: int
) -> None:
    """100 rows have run, and the limit is 16: of rows, of their cost, or of requests."""
    written, seen = api(serverSideBatching={"sizeUnit": unit}), pages(**figures)

    policy = policy_of(written, seen, ScalingState.empty(), 0.0)

    assert (expected, 16) == (policy.max_batch_size, policy.max_size)
    (sample,) = samples_of(written, seen)
    assert 100.0 / expected == pytest.approx(sample.sizes / 16)


def test_what_the_manifest_says_of_scaling_reaches_the_policy() -> None:
    """Every field once, with a value that no default has."""
    written = api(
        paused=True,
        serverSideBatching={"maxLatency": "100ms"},
        compute={"gpu": 1},
        autoscaling={
            "policy": "Concurrency",
            "minReplicas": 2,
            "maxReplicas": 7,
            "targetReplicaConcurrency": "12500m",
            "targetUtilizationPercent": 70,
            "hedge": 2,
            "window": "120s",
            "slo": {"percentile": 95, "latency": "80ms"},
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 7},
                "scaleDown": {"policies": [{"type": "Pods", "value": 3, "periodSeconds": 30}]},
            },
        },
    )

    policy = policy_of(written, pages(), ScalingState.empty(), 0.0)

    assert (PolicyKind.CONCURRENCY, 12.5, True) == (
        policy.kind,
        policy.target_concurrency,
        policy.paused,
    )
    assert (2, 7, 0.7, 120.0) == (
        policy.min_replicas,
        policy.max_replicas,
        policy.target_utilization,
        policy.window,
    )
    assert (0.95, 0.08) == (policy.quantile, policy.latency_target)
    assert (2.0, True) == (policy.hedge, policy.gpu)
    assert 7.0 == policy.up.stabilization
    assert (StepPolicy(StepKind.PODS, 3, 30.0),) == policy.down.policies


@pytest.mark.parametrize(
    ("predictor", "figures", "expected"),
    [
        pytest.param({}, {"max_batch_size": 16}, 16.0, id="one lane"),
        pytest.param({"processesPerReplica": 3}, {"max_batch_size": 16}, 48.0, id="three"),
        pytest.param(
            {"processesPerReplica": 3, "threadsPerProcess": 2}, {"max_batch_size": 1}, 6.0,
            id="no batching",
        ),
        pytest.param({}, {"max_batch_size": 1, "lanes": 1024}, 1.0, id="calls"),
    ],
)  # fmt: skip
def test_a_replica_is_to_have_as_many_requests_as_fill_its_lanes(
    predictor: dict[str, Any], figures: dict[str, Any], expected: float
) -> None:
    """W05: Cortex's default, processes times threads, is right only without batching."""
    written = api(predictor={"path": "m:C", **predictor}, autoscaling={"policy": "Concurrency"})

    policy = policy_of(written, pages(**figures), ScalingState.empty(), 0.0)

    assert expected == policy.target_concurrency


def test_without_a_latency_of_its_own_the_slo_is_max_latency() -> None:
    """One place to say it is enough."""
    written = api(serverSideBatching={"maxLatency": "100ms"})

    policy = policy_of(written, [], ScalingState.empty(), 0.0)

    assert (0.1, 0.99) == (policy.latency_target, policy.quantile)


NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def ordered(name: str, age: float, **parts: Any) -> JsonObject:
    """A pod that was created `age` seconds ago and is not ready."""
    body = pod_body(name, ready=False, **parts)
    body["metadata"]["creationTimestamp"] = rfc3339(WALL - timedelta(seconds=age))
    return body


def test_ordered_is_not_ready() -> None:
    """The fate of each replica reaches the decision as counts and an age."""
    bodies = [
        pod_body("ready"),
        ordered("starting", 12.0),
        ordered("no node", 40.0, conditions=[NO_ROOM]),
        ordered("crashing", 30.0, state={"waiting": {"reason": "ImagePullBackOff"}}),
        {**pod_body("no date", ready=False)},
    ]
    deployment = DeploymentView.of(deployment_body(replicas=5))
    pods = [PodView.of(body) for body in bodies]

    assert Unready(1, 1, 30.0) == unready_of(deployment, pods, WALL)
    assert Unready() == unready_of(deployment, pods[:1], WALL)


def test_a_pod_that_lost_its_readiness_or_goes_is_none_that_starts() -> None:
    """It started long ago, and its age says nothing of how long replicas take."""
    deleted, *ended, started, lost = (ordered(str(number), 3000.0) for number in range(5))
    deleted["metadata"]["deletionTimestamp"] = rfc3339(WALL)
    for body, phase in zip(ended, ("Failed", "Succeeded"), strict=True):
        body["status"]["phase"] = phase  # evicted, and kept by the cluster for hours
    started["status"]["containerStatuses"][0]["started"] = True
    lost["status"]["containerStatuses"][0]["restartCount"] = 1
    lost["status"]["startTime"] = rfc3339(WALL - timedelta(seconds=2990))
    lost["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(WALL - timedelta(seconds=5))
    pods = [PodView.of(body) for body in (deleted, *ended, started, lost)]

    assert Unready() == unready_of(DeploymentView.of(deployment_body()), pods, WALL)


def test_a_pod_that_never_got_ready_is_on_its_way_however_often_it_restarts() -> None:
    """Its condition is as old as its start on the node: it was never anything else."""
    crashing = ordered("crashing", 300.0, last_state={"terminated": {"exitCode": 1}})
    crashing["status"]["containerStatuses"][0]["restartCount"] = 7
    crashing["status"]["startTime"] = rfc3339(WALL - timedelta(seconds=290))
    since = rfc3339(WALL - timedelta(seconds=290))
    crashing["status"]["conditions"][0]["lastTransitionTime"] = since
    deployment = DeploymentView.of(deployment_body())

    assert Unready(0, 1, 300.0) == unready_of(deployment, [PodView.of(crashing)], WALL)


def test_a_busy_kubelet_does_not_make_a_pod_seem_to_have_been_ready() -> None:
    """It wrote the first status three seconds after it had begun with the pod."""
    slow = ordered("slow", 300.0, state={"waiting": {"reason": "ContainerCreating"}})
    slow["status"]["startTime"] = rfc3339(WALL - timedelta(seconds=290))
    written = rfc3339(WALL - timedelta(seconds=287))
    slow["status"]["conditions"][0]["lastTransitionTime"] = written
    initialized = {"type": "Initialized", "status": "True", "lastTransitionTime": written}
    slow["status"]["conditions"].append(initialized)

    assert not PodView.of(slow).was_ready
    slow["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(WALL - timedelta(seconds=5))
    assert PodView.of(slow).was_ready


def test_replicas_that_a_quota_forbids_fail() -> None:
    """They have no pod that could say so; its Deployment does."""
    body = deployment_body(replicas=9)
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    body["status"]["conditions"] = [refused]

    pods = [PodView.of(pod_body("ready"))]

    assert Unready(failing=8) == unready_of(DeploymentView.of(body), pods, WALL)
    refused["status"] = "False"
    assert Unready() == unready_of(DeploymentView.of(body), pods, WALL)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        pytest.param({"lanes": 1}, (1, 16, 16.0), id="one lane"),
        pytest.param({"lanes": 1, "max_batch_size": 1}, (1, 1, 1.0), id="no batching"),
        pytest.param({"lanes": 1024, "max_batch_size": 1}, (1024, 1, 4.0), id="calls"),
        pytest.param({"lanes": 0}, (4, 16, 64.0), id="its processes start"),
    ],
)
def test_while_replicas_run_another_revision_they_alone_tell_what_they_are_like(
    figures: dict[str, Any], expected: tuple[int, int, float]
) -> None:
    """Four processes were given up, or are tried: else a replica of one counts as four times it."""
    written = api(
        predictor={"path": "m:C", "processesPerReplica": 4}, autoscaling={"policy": "Concurrency"}
    )
    text = page(**{"max_batch_size": 16, **figures})
    seen = [
        parse_page(text, "a", time=0.0, unix_time=2000.0, revision="old"),
        parse_page(
            page(lanes=4, max_batch_size=64), "b", time=0.0, unix_time=2000.0, revision="new"
        ),
    ]

    policy = policy_of(written, seen, ScalingState.empty(), 0.0, "old")

    assert expected == (policy.lanes, policy.max_size, policy.target_concurrency)
