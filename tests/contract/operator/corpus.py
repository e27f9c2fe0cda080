"""Specs that the apiserver (schema and CEL) and Python must judge alike."""

import copy
from typing import Any, Final

import pod_specs

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


def method(common: Document | None = None, **parts: Any) -> Document:
    """A method `a` with `parts`, beside batching that is common to all."""
    return {
        "predictor": {"path": "model:Iris", "methods": [{"name": "a", **parts}]},
        "serverSideBatching": common or {},
    }


BATCHING: Final = "serverSideBatching"
LARGEST: Final = list(range(1, 33))

ACCEPTED: Final[dict[str, Document]] = {
    **pod_specs.ACCEPTED,
    "smallest": spec(),
    "file path": {"predictor": {"path": "pkg.model:Iris"}},
    "a file whose name tells its format": {
        "predictor": {"model": {"uri": "https://models.example/iris.onnx?version=3"}}
    },
    "a model of the hub": {"predictor": {"model": {"uri": "hf://org/bert@main"}}},
    "a folder of a format": {
        "predictor": {
            "model": {"uri": "pvc://models/bert", "format": "huggingface", "trusted": True}
        }
    },
    "source config map": predictor(source={"configMap": "iris"}),
    "env": predictor(env=[{"name": "A", "value": "1"}, {"name": "B"}]),
    "env near what is refused": predictor(
        env=[{"name": "PATHS"}, {"name": "LDFLAGS"}, {"name": "OMP_NUM_THREADS", "value": "12"}]
    ),
    "config of any shape": predictor(config={"a": {"b": [1, "x", True]}}),
    "batch of one": spec(**{BATCHING: {"maxBatchSize": 1}}),
    "interval below latency": spec(**{BATCHING: {"batchInterval": "5ms", "maxLatency": "100ms"}}),
    "interval of 0s": spec(**{BATCHING: {"batchInterval": "0s"}}),
    "interval of 60s without a timeout": spec(
        **{BATCHING: {"batchInterval": "60s"}}, overload={"timeout": "0s"}
    ),
    "compound duration": spec(overload={"timeout": "1m30s"}),
    "bounds equal": spec(autoscaling={"minReplicas": 3, "maxReplicas": 3}),
    "a window of minutes": spec(autoscaling={"window": "1m30s"}),
    "a share of a request in flight": spec(
        autoscaling={"policy": "Concurrency", "targetReplicaConcurrency": "500m"}
    ),
    "a latency to size for": spec(autoscaling={"slo": {"percentile": 95, "latency": "80ms"}}),
    "words of an HPA": spec(
        autoscaling={
            "behavior": {
                "scaleUp": {"selectPolicy": "Disabled", "tolerance": "0.1"},
                "scaleDown": {
                    "stabilizationWindowSeconds": 0,
                    "selectPolicy": "Min",
                    "policies": [
                        {"type": "Pods", "value": 1, "periodSeconds": 15},
                        {"type": "Percent", "value": 50, "periodSeconds": 60},
                    ],
                },
            }
        }
    ),
    "paused": spec(paused=True),
    "every address": spec(
        networking={
            "grpc": True,
            "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}, "port": 8000},
            "gateway": {
                "parentRefs": [{"name": "edge", "namespace": "infra", "sectionName": "https"}],
                "hostnames": ["*.example.com"],
                "grpcHostnames": ["grpc.example.com"],
                "paths": ["/", "/v1/models/a:predict"],
            },
            "ingress": {"host": "a.example.com", "className": "nginx", "tlsSecret": "tls"},
        }
    ),
    "clients of every kind": spec(
        networking={
            "allowFrom": [
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}},
            ]
        }
    ),
    "metadata of the children": spec(
        childMetadata={"labels": {"team": "a"}, "annotations": {"example.com/b": "c"}}
    ),
    "web pods of their own": spec(
        **{BATCHING: {"queue": {"redis": {}, "web": {"pod": {"serviceAccountName": "web"}}}}}
    ),
    "external without replicas": spec(autoscaling={"mode": "External"}),
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
    "a process for each cpu": predictor(processesPerReplica="cpu_count", cpuThreads="Auto"),
    "most processes": predictor(processesPerReplica=64, cpuThreads=256, webProcesses=16),
    "removed fields of the predictor": predictor(threadSafe=False, source={"inImage": {}}),
    "exclusive gpus": predictor(gpuAssignment="Exclusive", processesPerReplica=2)
    | {"compute": {"gpu": 4}},
    "exclusive gpus for each cpu": predictor(
        gpuAssignment="Exclusive", processesPerReplica="cpu_count"
    )
    | {"compute": {"gpu": 3}},
    "model in a claim": predictor(model={"uri": "pvc://weights/iris/1"}),
    "model in a whole claim": predictor(model={"uri": "pvc://weights"}),
    "model with a digest": predictor(model={"uri": "s3://models/a.bin", "sha256": "0" * 64}),
    "model of a file": predictor(model={"uri": "file:///models/a..b/x"}),
    "no warm-up": predictor(warmup={"enabled": False}),
    "warm-up sizes": predictor(warmup={"batchSizes": [1, 8]}),
    "removed fields": spec(
        **{
            BATCHING: {
                "enabled": False,
                "tuning": "Off",
                "shapePolicy": "Pad",
                "preferredBatchSizes": [4],
            }
        },
        autoscaling={"initReplicas": 3},
    ),
    "adaptive": spec(**{BATCHING: {"strategy": "Adaptive", "maxLatency": "50ms"}}),
    "immediate": spec(**{BATCHING: {"strategy": "Immediate"}}),
    "32 warm-up sizes": predictor(warmup={"batchSizes": LARGEST}),
    "every choice": spec(
        **{
            BATCHING: {
                "dispatch": "LeastLoaded",
                "queueOrder": "Deadline",
                "onItemError": "FailBatch",
                "receipt": "All",
            }
        }
    ),
    "grpc": spec(networking={"grpc": True}),
    "keys of a Secret": spec(networking={"apiKeys": {"secretName": "keys"}}),
    "origins of pages": spec(
        networking={"cors": {"allowOrigins": ["https://app.example.com", "http://localhost:3000"]}}
    ),
    "any origin, and an access log": spec(
        networking={"cors": {"allowOrigins": ["*"]}, "accessLog": True}
    ),
    "connections that stay": spec(networking={"maxConnectionAge": "0s", "keepAlive": "24h"}),
    "methods": predictor(
        methods=[
            {"name": "predict"},
            {"name": "embed", "batchable": True, "batchDim": 1, "outputBatchDim": 0},
            {"name": "describe", "batchable": False},
        ]
    ),
    "a method of its own": method(
        {"maxLatency": "20ms"},
        serverSideBatching={
            "maxBatchSize": 64,
            "batchInterval": "30ms",
            "maxLatency": "90ms",
        },
    ),
    "a queue": spec(**{BATCHING: {"queue": {"redis": {}}}}),
    "a queue and nobody to begin with": spec(
        **{BATCHING: {"queue": {"redis": {}}}},
        autoscaling={"minReplicas": 0, "idleTimeout": "1m30s"},
    ),
    "a queue with everything": spec(
        **{
            BATCHING: {
                "queue": {
                    "redis": {
                        "host": "redis.shared.svc",
                        "port": 6380,
                        "db": 3,
                        "tls": True,
                        "usernameSecret": {"name": "redis", "key": "user"},
                        "passwordSecret": {"name": "redis", "key": "password"},
                        "prefix": "team-a/",
                        "maxLength": 1000,
                    },
                    "web": {
                        "minReplicas": 3,
                        "maxReplicas": 3,
                        "cpu": 1,
                        "cpuLimit": "1500m",
                        "mem": "512Mi",
                    },
                }
            }
        }
    ),
    "removed fields of a method": method(
        serverSideBatching={"strategy": "Adaptive", "sizeUnit": "Requests", "queueOrder": "FIFO"}
    ),
}
"""Name of the case -> spec."""

REFUSED: Final[dict[str, tuple[Document, str]]] = {
    **pod_specs.REFUSED,
    "no predictor": ({}, "spec.predictor"),
    "no path": ({"predictor": {}}, "spec.predictor.path"),
    "a file whose name tells nothing": (
        {"predictor": {"model": {"uri": "file:///models/iris.bst"}}},
        "spec.predictor.path",
    ),
    "an unknown format": (
        {"predictor": {"model": {"uri": "file:///iris", "format": "mystery"}}},
        "spec.predictor.model.format",
    ),
    "a format beside a class": (
        predictor(model={"uri": "file:///iris", "format": "onnx"}),
        "spec.predictor.path",
    ),
    "trust beside a class": (
        predictor(model={"uri": "file:///iris", "trusted": False}),
        "spec.predictor.path",
    ),
    "source without a class": (
        {"predictor": {"model": {"uri": "file:///a.onnx"}, "source": {"configMap": "a"}}},
        "spec.predictor.source",
    ),
    "path without a class": ({"predictor": {"path": "model"}}, "spec.predictor.path"),
    "no source in source": (predictor(source={}), "spec.predictor.source"),
    "a config map elsewhere": (
        predictor(source={"configMap": "../../other/configmaps/iris"}),
        "spec.predictor.source.configMap",
    ),
    "a config map with a bad name": (
        predictor(source={"configMap": "Iris"}),
        "spec.predictor.source.configMap",
    ),
    "bad env name": (predictor(env=[{"name": "1A"}]), "spec.predictor.env"),
    "a variable twice": (predictor(env=[{"name": "A"}] * 2), "spec.predictor.env"),
    "another path": (predictor(env=[{"name": "PATH", "value": "/x"}]), "spec.predictor.env"),
    "other modules": (predictor(env=[{"name": "PYTHONPATH"}]), "spec.predictor.env"),
    "another interpreter": (predictor(env=[{"name": "PYTHONHOME"}]), "spec.predictor.env"),
    "other libraries": (
        predictor(env=[{"name": "LD_PRELOAD", "value": "x"}]),
        "spec.predictor.env",
    ),
    "a setting of ours": (
        predictor(env=[{"name": "A"}, {"name": "BATCHEDAPI_CPU_REQUEST", "value": "3"}]),
        "spec.predictor.env",
    ),
    "threads without a number": (
        predictor(env=[{"name": "OMP_NUM_THREADS"}]),
        "spec.predictor.env",
    ),
    "no threads": (
        predictor(env=[{"name": "MKL_NUM_THREADS", "value": "0"}]),
        "spec.predictor.env",
    ),
    "threads in words": (
        predictor(env=[{"name": "OPENBLAS_NUM_THREADS", "value": "many"}]),
        "spec.predictor.env",
    ),
    "threads below zero": (
        predictor(env=[{"name": "NUMEXPR_NUM_THREADS", "value": "-1"}]),
        "spec.predictor.env",
    ),
    "a variable that no process can have": (
        predictor(env=[{"name": "A", "value": "a\0b"}]),
        "spec.predictor.env",
    ),
    "an image with blanks": (predictor(image=" iris:v1"), "spec.predictor.image"),
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
    "a way back without a deadline": (
        spec(**{BATCHING: {"queue": {"redis": {}}}}, updateStrategy={"autoRollback": True}),
        "spec.updateStrategy.autoRollback",
    ),
    "a canary that takes rows": (
        spec(**{BATCHING: {"queue": {"redis": {}}}}, updateStrategy={"canary": {}}),
        "spec.updateStrategy.canary",
    ),
    "no canary at all": (
        spec(updateStrategy={"canary": {"percent": 0}}),
        "spec.updateStrategy.canary.percent",
    ),
    "a canary for a moment": (
        spec(updateStrategy={"canary": {"for": "1s"}}),
        "spec.updateStrategy.canary.for",
    ),
    "fewer than none": (
        spec(**{BATCHING: {"queue": {"redis": {}}}}, autoscaling={"minReplicas": -1}),
        "spec.autoscaling.minReplicas",
    ),
    "idle for no time": (
        spec(autoscaling={"idleTimeout": "0s"}),
        "spec.autoscaling.idleTimeout",
    ),
    "a queue nowhere": (spec(**{BATCHING: {"queue": {}}}), f"spec.{BATCHING}.queue.redis"),
    "a queue at an address": (
        spec(**{BATCHING: {"queue": {"redis": {"host": "redis://redis:6379"}}}}),
        f"spec.{BATCHING}.queue.redis.host",
    ),
    "a secret without a key": (
        spec(**{BATCHING: {"queue": {"redis": {"passwordSecret": {"name": "redis"}}}}}),
        f"spec.{BATCHING}.queue.redis.passwordSecret.key",
    ),
    "one web pod": (
        spec(**{BATCHING: {"queue": {"redis": {}, "web": {"minReplicas": 1}}}}),
        f"spec.{BATCHING}.queue.web.minReplicas",
    ),
    "bounds of web pods crossed": (
        spec(**{BATCHING: {"queue": {"redis": {}, "web": {"minReplicas": 11}}}}),
        f"spec.{BATCHING}.queue.web.minReplicas",
    ),
    "web pods without cpu": (
        spec(**{BATCHING: {"queue": {"redis": {}, "web": {"cpu": "0.0001"}}}}),
        f"spec.{BATCHING}.queue.web.cpu",
    ),
    "web pods without memory": (
        spec(**{BATCHING: {"queue": {"redis": {}, "web": {"mem": 0}}}}),
        f"spec.{BATCHING}.queue.web.mem",
    ),
    "web pods limited below their request": (
        spec(**{BATCHING: {"queue": {"redis": {}, "web": {"cpuLimit": "100m"}}}}),
        f"spec.{BATCHING}.queue.web.cpuLimit",
    ),
    "one queue by deadline": (
        spec(**{BATCHING: {"queue": {"redis": {}}, "queueOrder": "Deadline"}}),
        f"spec.{BATCHING}.queueOrder",
    ),
    "over-used": (
        spec(autoscaling={"targetUtilizationPercent": 101}),
        "spec.autoscaling.targetUtilizationPercent",
    ),
    "a window of 15s": (spec(autoscaling={"window": "15s"}), "spec.autoscaling.window"),
    "a window of 10.5s": (spec(autoscaling={"window": "10500ms"}), "spec.autoscaling.window"),
    "a window of 5s": (spec(autoscaling={"window": "5s"}), "spec.autoscaling.window"),
    "no request in flight": (
        spec(autoscaling={"targetReplicaConcurrency": "0"}),
        "spec.autoscaling.targetReplicaConcurrency",
    ),
    "unknown policy": (spec(autoscaling={"policy": "Fill"}), "spec.autoscaling.policy"),
    "all requests in time": (
        spec(autoscaling={"slo": {"percentile": 100}}),
        "spec.autoscaling.slo.percentile",
    ),
    "a behavior without a step": (
        spec(autoscaling={"behavior": {"scaleUp": {"policies": []}}}),
        "spec.autoscaling.behavior.scaleUp.policies",
    ),
    "a step of nothing": (
        spec(
            autoscaling={
                "behavior": {
                    "scaleDown": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]}
                }
            }
        ),
        "spec.autoscaling.behavior.scaleDown.policies",
    ),
    "a tolerance that is no number": (
        spec(autoscaling={"behavior": {"scaleUp": {"tolerance": "some"}}}),
        "spec.autoscaling.behavior.scaleUp.tolerance",
    ),
    "paused as text": (spec(paused="perhaps"), "spec.paused"),
    "unknown mode": (spec(autoscaling={"mode": "Auto"}), "spec.autoscaling.mode"),
    "a label of a child that is ours": (
        spec(childMetadata={"labels": {"app.kubernetes.io/name": "x"}}),
        "spec.childMetadata.labels",
    ),
    "an annotation that a controller counts with": (
        spec(childMetadata={"annotations": {"deployment.kubernetes.io/revision": "1"}}),
        "spec.childMetadata.annotations",
    ),
    "http on the port of grpc": (
        spec(networking={"service": {"port": 9000}}),
        "spec.networking.service.port",
    ),
    "a route of grpc without grpc": (
        spec(
            networking={
                "gateway": {
                    "parentRefs": [{"name": "edge"}],
                    "hostnames": ["a.b"],
                    "grpcHostnames": ["c.b"],
                }
            }
        ),
        "spec.networking.gateway.grpcHostnames",
    ),
    "a host with a port": (
        spec(networking={"ingress": {"host": "a.b:80"}}),
        "spec.networking.ingress.host",
    ),
    "replicas in native": (spec(replicas=3), "spec.replicas"),
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
    "keys without a Secret": (
        spec(networking={"apiKeys": {}}),
        "spec.networking.apiKeys.secretName",
    ),
    "no origin": (
        spec(networking={"cors": {"allowOrigins": []}}),
        "spec.networking.cors.allowOrigins",
    ),
    "an origin with a path": (
        spec(networking={"cors": {"allowOrigins": ["https://a.example.com/app"]}}),
        "spec.networking.cors.allowOrigins[0]",
    ),
    "relative endpoint": (spec(networking={"endpoint": "iris"}), "spec.networking.endpoint"),
    "unknown field": (spec(autoscalling={}), "spec.autoscalling"),
    "unknown count": (predictor(processesPerReplica="all"), "spec.predictor.processesPerReplica"),
    "65 processes": (predictor(processesPerReplica=65), "spec.predictor.processesPerReplica"),
    "count in quotes": (predictor(processesPerReplica="2"), "spec.predictor.processesPerReplica"),
    "no cpu threads": (predictor(cpuThreads=0), "spec.predictor.cpuThreads"),
    "cpu threads in lower case": (predictor(cpuThreads="auto"), "spec.predictor.cpuThreads"),
    "no web process": (predictor(webProcesses=0), "spec.predictor.webProcesses"),
    "gpus that cannot be shared out": (
        predictor(gpuAssignment="Exclusive", processesPerReplica=2) | {"compute": {"gpu": 3}},
        "spec.predictor.gpuAssignment",
    ),
    "fewer gpus than processes": (
        predictor(gpuAssignment="Exclusive", processesPerReplica=2) | {"compute": {"gpu": 1}},
        "spec.predictor.gpuAssignment",
    ),
    "unknown assignment": (predictor(gpuAssignment="Mine"), "spec.predictor.gpuAssignment"),
    "model without a scheme": (predictor(model={"uri": "model.bin"}), "spec.predictor.model.uri"),
    "model over plain http": (
        predictor(model={"uri": "http://host/model.bin"}),
        "spec.predictor.model.uri",
    ),
    "model beside its claim": (
        predictor(model={"uri": "pvc://weights/../../etc"}),
        "spec.predictor.model.uri",
    ),
    "cache of a model that is used in place": (
        predictor(model={"uri": "pvc://weights", "cache": {"pvc": "models"}}),
        "spec.predictor.model.cache",
    ),
    "claim with a bad name": (predictor(model={"uri": "pvc://-a/b"}), "spec.predictor.model.uri"),
    "short digest": (
        predictor(model={"uri": "file:///a", "sha256": "00"}),
        "spec.predictor.model.sha256",
    ),
    "warm-up of nothing": (
        predictor(warmup={"batchSizes": [0]}),
        "spec.predictor.warmup.batchSizes",
    ),
    "adaptive to nothing": (
        spec(**{BATCHING: {"strategy": "Adaptive"}}),
        "spec.serverSideBatching.strategy",
    ),
    "33 warm-up sizes": (
        predictor(warmup={"batchSizes": [*LARGEST, 33]}),
        "spec.predictor.warmup.batchSizes",
    ),
    "unknown receipt": (spec(**{BATCHING: {"receipt": "on"}}), "spec.serverSideBatching.receipt"),
    "connections that stay for ever": (
        spec(networking={"keepAlive": "0s"}),
        "spec.networking.keepAlive",
    ),
    "connections older than a day": (
        spec(networking={"maxConnectionAge": "25h"}),
        "spec.networking.maxConnectionAge",
    ),
    "grpc as text": (spec(networking={"grpc": "maybe"}), "spec.networking.grpc"),
    "a private method": (predictor(methods=[{"name": "_a"}]), "spec.predictor.methods"),
    "a method without a name": (predictor(methods=[{}]), "spec.predictor.methods"),
    "a method twice": (
        predictor(methods=[{"name": "a"}, {"name": "b"}, {"name": "a"}]),
        "spec.predictor.methods",
    ),
    "eighth dimension": (method(batchDim=8), "spec.predictor.methods"),
    "only the output's dimension": (
        method(outputBatchDim=1),
        "spec.predictor.methods[].outputBatchDim",
    ),
    "batching of what is not batched": (
        method(batchable=False, serverSideBatching={"maxBatchSize": 2}),
        "spec.predictor.methods[].batchable",
    ),
    "dimension of what is not batched": (
        method(batchable=False, batchDim=1),
        "spec.predictor.methods[].batchable",
    ),
    "method's interval above the common latency": (
        method({"maxLatency": "20ms"}, serverSideBatching={"batchInterval": "20ms"}),
        "spec.predictor.methods[].serverSideBatching.batchInterval",
    ),
    "common interval above the method's latency": (
        method(serverSideBatching={"maxLatency": "10ms"}),
        "spec.predictor.methods[].serverSideBatching.batchInterval",
    ),
    "method's requests do not fit": (
        method({"sizeUnit": "Requests"}, serverSideBatching={"maxBatchSize": 33})
        | {"overload": {"maxReplicaConcurrency": 32}},
        "spec.predictor.methods[].serverSideBatching.maxBatchSize",
    ),
    "timeout within the method's interval": (
        method(serverSideBatching={"batchInterval": "2s"}) | {"overload": {"timeout": "1s"}},
        "spec.predictor.methods[].serverSideBatching.batchInterval",
    ),
}
"""Name of the case -> (spec, path that the message must name)."""

REFUSED_NAMES: Final = ("a" * 46, "a.b", "1a")
"""Good for Kubernetes, not for a parent of Services."""
