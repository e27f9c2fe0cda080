"""Specs that the apiserver (schema and CEL) and Python must judge alike."""

import copy
from typing import Any, Final

Document = dict[str, Any]

GOOD: Final[Document] = {"predictor": {"path": "model:Iris"}}


def document(spec: Document, name: str = "corpus") -> Document:
    """A BatchedAPI with that spec."""
    return {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": name},
        "spec": copy.deepcopy(spec),
    }


def spec(**parts: Any) -> Document:
    """The smallest good spec with `parts` added."""
    return {**copy.deepcopy(GOOD), **parts}


def predictor(**parts: Any) -> Document:
    """The smallest good spec with `parts` added to its predictor."""
    return {"predictor": {"path": "model:Iris", **parts}}


BATCHING: Final = "serverSideBatching"

ACCEPTED: Final[dict[str, Document]] = {
    "smallest": spec(),
    "file path": {"predictor": {"path": "pkg.model:Iris"}},
    "source config map": predictor(source={"configMap": "iris"}),
    "source in image": predictor(source={"inImage": {}}),
    "env": predictor(env=[{"name": "A", "value": "1"}, {"name": "B"}]),
    "config of any shape": predictor(config={"a": {"b": [1, "x", True]}}),
    "batch of one": spec(**{BATCHING: {"maxBatchSize": 1}}),
    "interval below latency": spec(**{BATCHING: {"batchInterval": "5ms", "maxLatency": "100ms"}}),
    "interval of 0s": spec(**{BATCHING: {"batchInterval": "0s"}}),
    "interval of 60s without a timeout": spec(
        **{BATCHING: {"batchInterval": "60s"}}, overload={"timeout": "0s"}
    ),
    "compound duration": spec(overload={"timeout": "1m30s"}),
    "bounds equal": spec(autoscaling={"minReplicas": 3, "maxReplicas": 3}),
    "external with replicas": spec(autoscaling={"mode": "External"}, replicas=3),
    "off with no replicas running": spec(autoscaling={"mode": "Off"}, replicas=0),
    "quantities": spec(compute={"cpu": "500m", "mem": "1Gi", "gpu": 2}),
    "cpu as a number": spec(compute={"cpu": 2}),
    "smallest quantities": spec(compute={"cpu": "1m", "mem": 1}, overload={"maxBodySize": "1Ki"}),
    "body size as a number": spec(overload={"maxBodySize": 1024}),
    "surge as a number": spec(updateStrategy={"maxSurge": 1, "maxUnavailable": 0}),
    "endpoint": spec(networking={"endpoint": "/v1/iris"}),
    "requests fit": spec(
        **{BATCHING: {"sizeUnit": "Requests", "maxBatchSize": 32}},
        overload={"maxReplicaConcurrency": 32},
    ),
}
"""Name of the case -> spec."""

REFUSED: Final[dict[str, tuple[Document, str]]] = {
    "no predictor": ({}, "spec.predictor"),
    "no path": ({"predictor": {}}, "spec.predictor.path"),
    "path without a class": ({"predictor": {"path": "model"}}, "spec.predictor.path"),
    "two sources": (
        predictor(source={"configMap": "iris", "inImage": {}}),
        "spec.predictor.source",
    ),
    "no source in source": (predictor(source={}), "spec.predictor.source"),
    "bad env name": (predictor(env=[{"name": "1A"}]), "spec.predictor.env"),
    "no processes": (predictor(processesPerReplica=0), "spec.predictor.processesPerReplica"),
    "empty image": (predictor(image=""), "spec.predictor.image"),
    "unknown log level": (predictor(logLevel="loud"), "spec.predictor.logLevel"),
    "batch of none": (
        spec(**{BATCHING: {"maxBatchSize": 0}}),
        "spec.serverSideBatching.maxBatchSize",
    ),
    "batch too large": (
        spec(**{BATCHING: {"maxBatchSize": 65537}}),
        "spec.serverSideBatching.maxBatchSize",
    ),
    "no duration": (
        spec(**{BATCHING: {"batchInterval": "5 parsecs"}}),
        "spec.serverSideBatching.batchInterval",
    ),
    "interval above latency": (
        spec(**{BATCHING: {"batchInterval": "100ms", "maxLatency": "100ms"}}),
        "spec.serverSideBatching.batchInterval",
    ),
    "interval over a minute": (
        spec(**{BATCHING: {"batchInterval": "61s"}}, overload={"timeout": "0s"}),
        "spec.serverSideBatching.batchInterval",
    ),
    "latency of nothing": (
        spec(**{BATCHING: {"batchInterval": "0s", "maxLatency": "0s"}}),
        "spec.serverSideBatching",
    ),
    "unknown strategy": (
        spec(**{BATCHING: {"strategy": "Sometimes"}}),
        "spec.serverSideBatching.strategy",
    ),
    "requests do not fit": (
        spec(
            **{BATCHING: {"sizeUnit": "Requests", "maxBatchSize": 33}},
            overload={"maxReplicaConcurrency": 32},
        ),
        "spec.overload.maxReplicaConcurrency",
    ),
    "timeout within the interval": (
        spec(**{BATCHING: {"batchInterval": "2s"}}, overload={"timeout": "1s"}),
        "spec.overload.timeout",
    ),
    "bounds crossed": (
        spec(autoscaling={"minReplicas": 4, "maxReplicas": 3}),
        "spec.autoscaling.minReplicas",
    ),
    "no replicas at least": (
        spec(autoscaling={"minReplicas": 0}),
        "spec.autoscaling.minReplicas",
    ),
    "over-used": (
        spec(autoscaling={"targetUtilizationPercent": 101}),
        "spec.autoscaling.targetUtilizationPercent",
    ),
    "unknown mode": (spec(autoscaling={"mode": "Auto"}), "spec.autoscaling.mode"),
    "replicas in native": (spec(replicas=3), "spec.replicas"),
    "external without replicas": (spec(autoscaling={"mode": "External"}), "spec.replicas"),
    "off without replicas": (spec(autoscaling={"mode": "Off"}), "spec.replicas"),
    "no quantity": (spec(compute={"cpu": "lots"}), "spec.compute.cpu"),
    "no cpu": (spec(compute={"cpu": 0}), "spec.compute.cpu"),
    "less cpu than can be asked for": (spec(compute={"cpu": "0.0005"}), "spec.compute.cpu"),
    "no memory": (spec(compute={"mem": "0Gi"}), "spec.compute.mem"),
    "no body fits": (spec(overload={"maxBodySize": "0"}), "spec.overload.maxBodySize"),
    "a tenth of a byte": (spec(overload={"maxBodySize": "100m"}), "spec.overload.maxBodySize"),
    "a small body": (spec(overload={"maxBodySize": 1023}), "spec.overload.maxBodySize"),
    "negative surge": (spec(updateStrategy={"maxSurge": -1}), "spec.updateStrategy.maxSurge"),
    "negative unavailability": (
        spec(updateStrategy={"maxUnavailable": -1}),
        "spec.updateStrategy.maxUnavailable",
    ),
    "a number in quotes": (spec(updateStrategy={"maxSurge": "3"}), "spec.updateStrategy.maxSurge"),
    "too many gpus": (spec(compute={"gpu": 17}), "spec.compute.gpu"),
    "an update that cannot begin": (
        spec(updateStrategy={"maxSurge": 0, "maxUnavailable": "0%"}),
        "spec.updateStrategy.maxSurge",
    ),
    "reserved endpoint": (
        spec(networking={"endpoint": "/docs"}),
        "spec.networking.endpoint",
    ),
    "relative endpoint": (spec(networking={"endpoint": "iris"}), "spec.networking.endpoint"),
    "unknown field": (spec(autoscalling={}), "spec.autoscalling"),
}
"""Name of the case -> (spec, path that the message must name)."""

REFUSED_NAMES: Final = ("a" * 46, "a.b", "1a")
"""Good for Kubernetes, not for a parent of Services."""
