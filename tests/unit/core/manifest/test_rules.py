"""Every rule between fields: what it accepts, what it refuses, and that both sides carry it."""

from typing import Any

import pytest
from crds.crd import crd
from pydantic import BaseModel

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ManifestError, Rule, parse_api


def document(spec: dict[str, Any], name: str = "iris") -> dict[str, Any]:
    """A manifest."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": name},
        "spec": {"predictor": {"path": "model:Iris"}, **spec},
    }


def source(**members: Any) -> dict[str, Any]:
    """A spec with that source."""
    return {"predictor": {"path": "model:Iris", "source": members}}


def predictor(**members: Any) -> dict[str, Any]:
    """A spec with that predictor."""
    return {"predictor": {"path": "model:Iris", **members}}


def method(common: dict[str, Any], **batching: Any) -> dict[str, Any]:
    """A spec with `common` batching, and a method that has `batching` of its own."""
    own = {"name": "embed", "serverSideBatching": batching}
    return {**predictor(methods=[{"name": "other"}, own]), "serverSideBatching": common}


QUEUE: dict[str, Any] = {"queue": {"redis": {}}}
STEP = {"type": "Percent", "value": 50, "periodSeconds": 10}


def scaling_up(**rules: Any) -> dict[str, Any]:
    """A spec with those rules for scaling up."""
    return {"autoscaling": {"behavior": {"scaleUp": rules}}}


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("source needs configMap", source(configMap="a"), source()),
    (
        "batchInterval must be below",
        {"serverSideBatching": {"batchInterval": "9ms", "maxLatency": "10ms"}},
        {"serverSideBatching": {"batchInterval": "10ms", "maxLatency": "10ms"}},
    ),
    (
        "minReplicas must be <=",
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 3}},
        {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}},
    ),
    (
        "window must be a multiple of 10s",
        {"autoscaling": {"window": "1m10s"}},
        {"autoscaling": {"window": "65s"}},
    ),
    (
        "window must be a multiple of 10s",
        {"autoscaling": {"window": "10s"}},
        {"autoscaling": {"window": "20s1ms"}},
    ),
    (
        "targetReplicaConcurrency must be at least 1m",
        {"autoscaling": {"targetReplicaConcurrency": "1m"}},
        {"autoscaling": {"targetReplicaConcurrency": 0}},
    ),
    (
        "must not both be 0",
        {"updateStrategy": {"maxSurge": 0, "maxUnavailable": "1%"}},
        {"updateStrategy": {"maxSurge": 0, "maxUnavailable": "0%"}},
    ),
    (
        "which maxUnavailable is unless it is set",
        {"updateStrategy": {}},
        {"updateStrategy": {"maxSurge": 0}},
    ),
    (
        "must not both be 0",
        {"updateStrategy": {"maxSurge": "100%", "maxUnavailable": 0}},
        {"updateStrategy": {"maxSurge": "0%", "maxUnavailable": 0}},
    ),
    (
        "maxSurge must not be negative",
        {"updateStrategy": {"maxSurge": 0, "maxUnavailable": 1}},
        {"updateStrategy": {"maxSurge": -1}},
    ),
    (
        "maxUnavailable must not be negative",
        {"updateStrategy": {"maxUnavailable": 0}},
        {"updateStrategy": {"maxUnavailable": -1}},
    ),
    (
        "maxBodySize must be at least 1Ki",
        {"overload": {"maxBodySize": "1024"}},
        {"overload": {"maxBodySize": "1k"}},
    ),
    (
        "maxBodySize must be at least 1Ki",
        {"overload": {"maxBodySize": 1024}},
        {"overload": {"maxBodySize": 1023}},
    ),
    (
        "cpu must be at least 1m",
        {"compute": {"cpu": "0.001"}},
        {"compute": {"cpu": "0m"}},
    ),
    (
        "mem must be at least 1",
        {"compute": {"mem": 1}},
        {"compute": {"mem": "999m"}},
    ),
    (
        "endpoint must not be /docs",
        {"networking": {"endpoint": "/docs/x"}},
        {"networking": {"endpoint": "/docs"}},
    ),
    (
        "endpoint must not be /docs",
        {"networking": {"endpoint": "/predict"}},
        {"networking": {"endpoint": "/openapi.json"}},
    ),
    (
        "cannot be set while spec.autoscaling.mode is Native",
        {"autoscaling": {"mode": "External"}, "replicas": 0},
        {"replicas": 3},
    ),
    (
        "maxReplicaConcurrency is below",
        {
            "serverSideBatching": {"sizeUnit": "Requests", "maxBatchSize": 8},
            "overload": {"maxReplicaConcurrency": 8},
        },
        {
            "serverSideBatching": {"sizeUnit": "Requests", "maxBatchSize": 9},
            "overload": {"maxReplicaConcurrency": 8},
        },
    ),
    (
        "maxReplicaConcurrency is below",
        {"serverSideBatching": {"maxBatchSize": 9}, "overload": {"maxReplicaConcurrency": 8}},
        {
            "serverSideBatching": {"sizeUnit": "Requests", "maxBatchSize": 1000},
            "overload": {"maxReplicaConcurrency": 1},
        },
    ),
    (
        "timeout must be 0s",
        {"overload": {"timeout": "0s"}, "serverSideBatching": {"batchInterval": "60s"}},
        {"overload": {"timeout": "1s"}, "serverSideBatching": {"batchInterval": "1s"}},
    ),
    (
        "Exclusive needs spec.compute.gpu",
        {**predictor(gpuAssignment="Exclusive", processesPerReplica=2), "compute": {"gpu": 4}},
        {**predictor(gpuAssignment="Exclusive", processesPerReplica=2), "compute": {"gpu": 3}},
    ),
    (
        "Exclusive needs spec.compute.gpu",
        {
            **predictor(gpuAssignment="Exclusive", processesPerReplica="cpu_count"),
            "compute": {"gpu": 3},
        },
        {**predictor(gpuAssignment="Exclusive", processesPerReplica=4), "compute": {"gpu": 2}},
    ),
    (
        "Exclusive needs spec.compute.gpu",
        {
            **predictor(gpuAssignment="Exclusive", processesPerReplica=2),
            "pod": {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "two"}]},
        },
        {**predictor(gpuAssignment="Exclusive", processesPerReplica=2), "compute": {"gpu": 1}},
    ),
    (
        "env[].name must not be PATH, PYTHONPATH, PYTHONHOME, LD_* or BATCHEDAPI_*",
        predictor(env=[{"name": "MY_PATH"}, {"name": "LD"}, {"name": "PYTHONUNBUFFERED"}]),
        predictor(env=[{"name": "A"}, {"name": "LD_LIBRARY_PATH", "value": "/x"}]),
    ),
    (
        "env[].value must be a number of threads",
        predictor(env=[{"name": "OMP_NUM_THREADS", "value": "16"}, {"name": "THREADS"}]),
        predictor(env=[{"name": "OMP_NUM_THREADS", "value": "$(THREADS)"}]),
    ),
    (
        "must not have .. in its path",
        predictor(model={"uri": "file:///a/..b"}),
        predictor(model={"uri": "file:///a/../b"}),
    ),
    (
        "spec.predictor.path is required, unless model is served as it is",
        {"predictor": {"model": {"uri": "https://host/iris.onnx?version=2"}}},
        {"predictor": {"model": {"uri": "https://host/iris.bst"}}},
    ),
    (
        "model.format and model.trusted",
        {"predictor": {"model": {"uri": "s3://b/iris.bst", "format": "xgboost"}}},
        predictor(model={"uri": "s3://b/iris.bst", "format": "xgboost"}),
    ),
    (
        "spec.predictor.source needs path",
        predictor(source={"configMap": "code"}, model={"uri": "s3://b/iris.onnx"}),
        {"predictor": {"source": {"configMap": "code"}, "model": {"uri": "s3://b/x.onnx"}}},
    ),
    (
        "model.cache would do nothing",
        predictor(model={"uri": "s3://b/x", "cache": {"pvc": "models"}}),
        predictor(model={"uri": "pvc://b/x", "cache": {"pvc": "models"}}),
    ),
    (
        "outputBatchDim needs batchDim",
        predictor(methods=[{"name": "a", "batchDim": 7, "outputBatchDim": 0}]),
        predictor(methods=[{"name": "a", "outputBatchDim": 0}]),
    ),
    (
        "batchable is false",
        predictor(methods=[{"name": "a", "batchable": False}]),
        predictor(methods=[{"name": "a", "batchable": False, "batchDim": 0}]),
    ),
    (
        "strategy Adaptive needs",
        {"serverSideBatching": {"strategy": "Adaptive", "maxLatency": "1s"}},
        {"serverSideBatching": {"strategy": "Adaptive"}},
    ),
    (
        "methods[].serverSideBatching.batchInterval must be below its maxLatency",
        method({"maxLatency": "20ms"}, batchInterval="19ms"),
        method({"maxLatency": "20ms"}, batchInterval="20ms"),
    ),
    (
        "methods[].serverSideBatching.maxBatchSize is above spec.overload",
        method({"sizeUnit": "Requests"}, maxBatchSize=1024),
        method({"sizeUnit": "Requests"}, maxBatchSize=1025),
    ),
    (
        "methods[].serverSideBatching.batchInterval must be below spec.overload.timeout",
        method({}, batchInterval="29s"),
        method({}, batchInterval="30s"),
    ),
    (
        "serverSideBatching.queueOrder Deadline cannot be beside",
        {"serverSideBatching": {"queueOrder": "Deadline"}},
        {"serverSideBatching": {**QUEUE, "queueOrder": "Deadline"}},
    ),
    (
        "minReplicas 0 needs spec.serverSideBatching.queue",
        {"serverSideBatching": QUEUE, "autoscaling": {"minReplicas": 0}},
        {"autoscaling": {"minReplicas": 0}},
    ),
    (
        "autoRollback cannot be true with spec.serverSideBatching.queue",
        {"serverSideBatching": QUEUE, "updateStrategy": {"autoRollback": False}},
        {"serverSideBatching": QUEUE, "updateStrategy": {"autoRollback": True}},
    ),
    (
        "canary cannot be set with spec.serverSideBatching.queue",
        {"serverSideBatching": QUEUE},
        {"serverSideBatching": QUEUE, "updateStrategy": {"canary": {"percent": 20}}},
    ),
    (
        "web.minReplicas must be <=",
        {"serverSideBatching": {"queue": {"redis": {}, "web": {"maxReplicas": 2}}}},
        {"serverSideBatching": {"queue": {"redis": {}, "web": {"minReplicas": 11}}}},
    ),
    (
        "web.cpuLimit must be at least",
        {"serverSideBatching": {"queue": {"redis": {}, "web": {"cpuLimit": "200m"}}}},
        {"serverSideBatching": {"queue": {"redis": {}, "web": {"cpuLimit": "199m"}}}},
    ),
]


@pytest.mark.parametrize(("message", "accepted", "refused"), CASES, ids=str)
def test_a_rule_accepts_its_edge_and_refuses_what_is_beyond(
    message: str, accepted: dict[str, Any], refused: dict[str, Any]
) -> None:
    """The message carries the full path itself, as the apiserver names only the object."""
    parse_api(document(accepted))

    with pytest.raises(ManifestError) as caught:
        parse_api(document(refused))
    assert any(message in problem for problem in caught.value.problems)
    assert all(problem.startswith("spec.") for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("accepted", "refused", "message"),
    [
        ("a" * 45, "a" * 46, "45 characters at most"),
        ("a-b", "a.b", "also the name of a Service"),
        ("a1", "1a", "must begin with a letter"),
    ],
)
def test_the_name_must_fit_those_of_its_children(accepted: str, refused: str, message: str) -> None:
    """A Service takes no dot and no digit in front, a pod's label 63 characters."""
    with pytest.raises(ManifestError, match=rf"^metadata\.name .*{message}"):
        parse_api(document({}, refused))

    assert accepted == parse_api(document({}, accepted)).metadata.name


@pytest.mark.parametrize(
    ("batching", "path"),
    [
        ({"batchInterval": "61s"}, "batchInterval"),
        ({"maxLatency": "0s"}, "maxLatency"),
        ({"maxLatency": "2h"}, "maxLatency"),
    ],
)
def test_bounds_of_durations_are_kept_in_python_too(batching: dict[str, str], path: str) -> None:
    """In the cluster they are CEL rules, on a laptop there is no apiserver."""
    with pytest.raises(ManifestError, match=f"spec.serverSideBatching.{path}"):
        parse_api(document({"serverSideBatching": batching}))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (predictor(processesPerReplica=0), "processesPerReplica: expected 1 to 64 or cpu_count"),
        (predictor(processesPerReplica="2"), "processesPerReplica: expected 1 to 64 or cpu_count"),
        (predictor(processesPerReplica=True), "processesPerReplica: expected 1 to 64"),
        (predictor(cpuThreads=257), "cpuThreads: expected 1 to 256 or Auto"),
        (predictor(webProcesses=17), "webProcesses: "),
        (predictor(model={"uri": "ftp://bucket/x"}), "model.uri: "),
        (predictor(model={"uri": "hf://name"}), "model.uri: "),
        (predictor(model={"uri": "oci://host/name:1"}), "model.uri: "),
        (predictor(model={"uri": "oci://host/name@sha256:12"}), "model.uri: "),
        (predictor(model={"uri": "s3://b/x", "cache": {}}), "model.cache.pvc: "),
        (predictor(model={"uri": "pvc://Claim/x"}), "model.uri: "),
        (predictor(model={"uri": "file:///x", "sha256": "A" * 64}), "model.sha256: "),
        (predictor(methods=[{"name": "__init__"}]), "methods[0].name: "),
        (predictor(methods=[{"name": "a"}] * 2), "methods[1]: expected each only once, got 'a'"),
        (predictor(env=[{"name": "A"}] * 2), "env[1]: expected each only once, got 'A'"),
        (predictor(methods=[{"name": f"m{i}"} for i in range(33)]), "methods: "),
        (predictor(warmup={"batchSizes": [1, 1]}), "batchSizes[1]: expected each only once, got 1"),
        (predictor(warmup={"batchSizes": [0]}), "batchSizes[0]: "),
        ({"networking": {"grpc": 1}}, "networking.grpc: "),
        ({"paused": "true"}, "spec.paused: "),
        ({"autoscaling": {"policy": "Rps"}}, "autoscaling.policy: "),
        ({"autoscaling": {"window": "9s"}}, "autoscaling.window: "),
        ({"autoscaling": {"slo": {"percentile": 100}}}, "slo.percentile: "),
        (scaling_up(policies=[]), "scaleUp.policies: "),
        (scaling_up(policies=[{"type": "Pods", "value": 1}]), "periodSeconds: required"),
        (scaling_up(policies=[{**STEP, "value": 0}]), "policies[0].value: "),
        (scaling_up(policies=[{**STEP, "type": "Share"}]), "policies[0].type: "),
        (scaling_up(selectPolicy="Most"), "scaleUp.selectPolicy: "),
        (scaling_up(stabilizationWindowSeconds=3601), "stabilizationWindowSeconds: "),
        (scaling_up(tolerance="-0.1"), "scaleUp.tolerance: "),
    ],
    ids=str,
)
def test_what_the_schema_refuses_is_refused_in_python_too(
    spec: dict[str, Any], problem: str
) -> None:
    """With one problem each, and what was expected."""
    with pytest.raises(ManifestError) as caught:
        parse_api(document(spec))

    (only,) = caught.value.problems
    assert problem in only


def rules_of(model: type[BaseModel]) -> list[Rule]:
    """The rules of a model and of every model inside it."""
    found = list(getattr(model, "rules", ()))
    for field in model.model_fields.values():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found += rules_of(inner)
    return found


def validations_in(schema: Any) -> list[dict[str, str]]:
    """Every CEL rule below."""
    if isinstance(schema, list):
        return [found for member in schema for found in validations_in(member)]
    if not isinstance(schema, dict):
        return []
    found: list[dict[str, str]] = list(schema.get("x-kubernetes-validations", ()))
    for name, member in schema.items():
        if name != "x-kubernetes-validations":
            found += validations_in(member)
    return found


def test_every_rule_is_in_the_schema_of_the_apiserver() -> None:
    """A rule that only the laptop knows would let the cluster take what cannot work."""
    ours = {rule.message for rule in rules_of(BatchedAPI)}

    theirs = validations_in(crd())

    assert ours <= {validation["message"] for validation in theirs}
    assert all({"rule", "message"} <= set(validation) for validation in theirs)
    reasons = {validation.get("reason", "FieldValueInvalid") for validation in theirs}
    assert reasons <= {"FieldValueInvalid", "FieldValueRequired"}


def test_a_rule_for_new_manifests_does_not_bind_one_that_is_stored() -> None:
    """A manifest that was accepted once goes on; every other rule binds it as well."""
    preload = predictor(env=[{"name": "LD_PRELOAD"}])
    hot = predictor(model={"uri": "file:///a/../b"})

    assert parse_api(document(preload), stored=True).spec.predictor.env[0].name == "LD_PRELOAD"
    with pytest.raises(ManifestError, match="LD_"):
        parse_api(document(preload))
    with pytest.raises(ManifestError, match=r"must not have \.\."):
        parse_api(document(hot), stored=True)
