"""The pod that a replica is: what it runs, and that it asks for nothing it does not need."""

from typing import Any

import pytest
from tests.unit.operator.worlds import IMAGE, api

from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.deployment import build_deployment


def built(model: BatchedAPI) -> dict[str, Any]:
    """The Deployment of an API without a source."""
    return build_deployment(model, revision_of(model, {}, {}), IMAGE)


def pod_spec(**spec: Any) -> dict[str, Any]:
    """The pod spec that `spec` leads to."""
    found: dict[str, Any] = built(api(**spec))["spec"]["template"]["spec"]
    return found


def container(**spec: Any) -> dict[str, Any]:
    """The serving container that `spec` leads to."""
    (found,) = pod_spec(**spec)["containers"]
    result: dict[str, Any] = found
    return result


def test_replicas_are_not_part_of_it() -> None:
    """An apply that named them would fight the autoscaler."""
    assert "replicas" not in built(api())["spec"]


def test_it_serves_the_revision_with_its_drain_delay() -> None:
    """One parser: a replica runs what a laptop runs, on the mounted slice."""
    delayed = container(updateStrategy={"drainDelay": "2s"})

    expected = (
        "serve -f /etc/batchedapi/batchedapi.yaml --host 0.0.0.0 --drain-delay 2s"
        " --tolerate-unknown-fields"
    )
    assert expected.split() == delayed["args"]


def test_it_is_admitted_under_pod_security_restricted() -> None:
    """Namespaces of users enforce it; nothing a replica does needs more."""
    pod = pod_spec()

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {"type": "RuntimeDefault"} == pod["securityContext"]["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    } == pod["containers"][0]["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_memory_is_limited_and_cpu_is_not() -> None:
    """A CPU limit throttles a batch in the middle; memory without one takes the node down."""
    resources = container(compute={"cpu": "500m", "mem": "1Gi", "gpu": 2})["resources"]

    assert {"cpu": "500m", "memory": "1Gi"} == resources["requests"]
    assert {"memory": "1Gi", "nvidia.com/gpu": "2"} == resources["limits"]


def test_without_memory_and_gpus_there_are_no_limits() -> None:
    """An empty limits object would be a field that nobody asked for."""
    assert {"requests": {"cpu": "200m"}} == container()["resources"]


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        pytest.param("30s", 45, id="drain 5 + timeout 30 + margin 10"),
        pytest.param("1500ms", 17, id="rounded up"),
        pytest.param("0s", 615, id="no limit on requests: ten minutes for them"),
    ],
)
def test_the_grace_period_covers_drain_and_timeout(timeout: str, expected: int) -> None:
    """A shorter one would kill requests that were accepted."""
    assert expected == pod_spec(overload={"timeout": timeout})["terminationGracePeriodSeconds"]


def test_probes_ask_the_admin_port() -> None:
    """It answers while the model hangs, and it knows whether that is the model's fault."""
    found = container()

    probes = {
        name: (found[name]["httpGet"]["path"], found[name]["httpGet"]["port"])
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert {
        "startupProbe": ("/startupz", "admin"),
        "readinessProbe": ("/readyz", "admin"),
        "livenessProbe": ("/livez", "admin"),
    } == probes


def test_max_replicas_rolls_nothing() -> None:
    """Limits of the autoscaler are no business of the pods."""
    few, many = (api(autoscaling={"maxReplicas": limit}) for limit in (5, 50))

    assert built(few) == built(many)


def test_environment_is_passed_in_order() -> None:
    """Kubernetes expands $(NAME) of earlier entries only."""
    entries = [{"name": "B", "value": "2"}, {"name": "A", "value": "$(B)"}]

    assert entries == container(predictor={"path": "m:C", "env": entries})["env"]


def test_the_update_strategy_is_that_of_the_manifest() -> None:
    """How many replicas more or fewer an update may run with is the user's to say."""
    spec = built(api(updateStrategy={"maxSurge": 2, "maxUnavailable": "10%"}))["spec"]

    assert {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 2, "maxUnavailable": "10%"},
    } == spec["strategy"]


def test_grpc_opens_a_port_and_nothing_else_does() -> None:
    """A port that nobody answers on is a riddle to whoever finds it."""
    closed, opened = container(), container(networking={"grpc": True})

    assert ["http", "admin"] == [port["name"] for port in closed["ports"]]
    assert {"name": "grpc", "containerPort": 9000} == opened["ports"][-1]
    assert closed["args"] == opened["args"]


def test_a_claim_is_mounted_read_only_where_the_slice_says() -> None:
    """Every replica may have it, and none may change the model of the others."""
    predictor = {"path": "model:Iris", "model": {"uri": "pvc://weights/iris/1"}}
    pod = pod_spec(predictor=predictor)

    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} == pod["volumes"][-1]
    mount = {"name": "model", "mountPath": "/mnt/model", "readOnly": True}
    assert mount == pod["containers"][0]["volumeMounts"][-1]


def test_an_image_is_mounted_by_its_digest() -> None:
    """The node pulls it once, with the pod's own pull secrets; no cache is needed beside it."""
    reference = f"host/a@sha256:{'0' * 64}"
    model = {"uri": f"oci://{reference}/b", "cache": {"pvc": "models"}}
    mounted = api(predictor={"path": "model:Iris", "model": model}).with_image_mounted()
    pod = built(mounted)["spec"]["template"]["spec"]

    assert {"name": "model", "image": {"reference": reference}} == pod["volumes"][-1]
    mount = {"name": "model", "mountPath": "/mnt/model", "readOnly": True}
    assert mount == pod["containers"][0]["volumeMounts"][-1]


def test_a_cache_is_mounted_to_be_written_to() -> None:
    """Where a claim with the model would be: an API has one of the two."""
    model = {"uri": "s3://bucket/key", "cache": {"pvc": "models"}}
    pod = pod_spec(predictor={"path": "model:Iris", "model": model})

    claim = {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
    assert claim == pod["volumes"][-1]
    assert {"name": "model", "mountPath": "/mnt/model"} == pod["containers"][0]["volumeMounts"][-1]


@pytest.mark.parametrize("uri", ["s3://bucket/key", "file:///models/a"])
def test_a_model_that_is_fetched_mounts_nothing(uri: str) -> None:
    """It goes into the scratch volume."""
    found = pod_spec(predictor={"path": "model:Iris", "model": {"uri": uri}})

    assert pod_spec()["volumes"][1:] == found["volumes"][1:]


def test_cpu_count_is_told_the_request() -> None:
    """W08: a container reads its limit from the kernel, but its request nowhere."""
    predictor = {"path": "model:Iris", "processesPerReplica": "cpu_count"}
    found = container(predictor=predictor, compute={"cpu": "1500m"})

    assert {"name": "BATCHEDAPI_CPU_REQUEST", "value": "1500m"} in found["env"]


@pytest.mark.parametrize(("told", "seconds"), [({}, 600), ({"startupTimeout": "90.5s"}, 91)])
def test_loading_has_one_deadline(told: dict[str, str], seconds: int) -> None:
    """The probe ends the pod then, and a rollout is not called stuck before; unset: as ever."""
    spec = built(api(predictor={"path": "model:Iris", **told}))["spec"]
    (container,) = spec["template"]["spec"]["containers"]

    probe = container["startupProbe"]
    assert (1, seconds) == (probe["periodSeconds"], probe["failureThreshold"])
    assert seconds + 60 == spec["progressDeadlineSeconds"]
