"""From a document to a BatchedAPI, and to the part of it that a replica is given."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.manifest import (
    BatchedAPI,
    LogLevel,
    ManifestError,
    ScalingMode,
    UnknownFields,
    format_duration,
    parse_api,
    serving_slice,
    with_changes,
)

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)


def document(spec: Any = None, **metadata: Any) -> dict[str, Any]:
    """A manifest with `spec` over the least that is needed."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "iris", **metadata},
        "spec": {"predictor": {"path": "model:Iris"}, **(spec or {})},
    }


def problems(value: object) -> tuple[str, ...]:
    """Why a manifest is refused."""
    with pytest.raises(ManifestError) as caught:
        parse_api(value)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def test_what_is_not_written_has_the_decided_defaults() -> None:
    """C03, C05, N05, W03: one process, one thread, 10 ms, 30 s, 1 to 100 replicas."""
    api = parse_api(document())
    spec = api.spec

    assert (1, 1, LogLevel.INFO) == (
        spec.predictor.processes_per_replica,
        spec.predictor.threads_per_process,
        spec.predictor.log_level,
    )
    batching = spec.server_side_batching
    assert (None, 0.010, Strategy.WINDOW, SizeUnit.ROWS, None) == (
        batching.max_batch_size,
        batching.batch_interval,
        batching.strategy,
        batching.size_unit,
        batching.max_latency,
    )
    assert (30.0, "32Mi", 1024) == (
        spec.overload.timeout,
        spec.overload.max_body_size,
        spec.overload.max_replica_concurrency,
    )
    assert (ScalingMode.NATIVE, 1, 100, 93) == (
        spec.autoscaling.mode,
        spec.autoscaling.min_replicas,
        spec.autoscaling.max_replicas,
        spec.autoscaling.target_utilization_percent,
    )
    assert (False, 300.0, 3900.0) == (
        spec.networking.grpc,
        spec.networking.max_connection_age,
        spec.networking.keep_alive,
    )
    assert ("200m", None, 0, 5.0) == (
        spec.compute.cpu,
        spec.compute.mem,
        spec.compute.gpu,
        spec.update_strategy.drain_delay,
    )


def test_the_endpoint_is_the_name_unless_it_is_written() -> None:
    """As the Service has the name."""
    assert parse_api(document()).endpoint == "/iris"
    assert parse_api(document({"networking": {"endpoint": "/v1/x"}})).endpoint == "/v1/x"


def test_what_kubernetes_adds_to_metadata_is_no_obstacle() -> None:
    """The same parser reads a file and an object from the apiserver."""
    api = parse_api(document(uid="u", generation=3, managedFields=[], labels={"a": "b"}))

    assert ("iris", "default", "u", 3) == (
        api.metadata.name,
        api.metadata.namespace,
        api.metadata.uid,
        api.metadata.generation,
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "expected a BatchedAPI object, got NoneType"),
        ([], "expected a BatchedAPI object, got list"),
        ({}, "expected kind BatchedAPI of batchedapi.dev/v1alpha1, got None of None"),
        ({**document(), "kind": "Deployment"}, "got 'Deployment' of 'batchedapi.dev/v1alpha1'"),
        ({**document(), "apiVersion": "v1"}, "got 'BatchedAPI' of 'v1'"),
        ({**document(), "metadata": None}, "metadata: "),
        ({**document(), "spec": None}, "spec: "),
        ({**document(), "spec": {}}, "spec.predictor: required, but missing"),
        ({**document(), "spec": {"predictor": {}}}, "spec.predictor.path is required, unless"),
        (document(name="Iris_1"), "metadata.name: "),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_no_batchedapi_is_refused_in_one_line(value: object, problem: str) -> None:
    """With what was expected and what came."""
    (only,) = problems(value)

    assert problem in only


def test_every_problem_is_named_at_once_with_its_path_and_value() -> None:
    """Fixing them one by one is tedious."""
    found = problems(
        document(
            {
                "serverSideBatching": {"maxBatchSize": 0, "batchInterval": "5 ms"},
                "autoscaling": {"minReplicas": "many"},
                "compute": {"cpu": "1 core", "mem": ["1Gi"]},
                "gpuType": "t4",
            }
        )
    )

    assert len(found) == 6
    assert all("got" in problem or "unknown field" in problem for problem in found)
    text = "\n".join(found)
    assert (
        "spec.serverSideBatching.maxBatchSize: Input should be greater than or equal to 1, got 0"
        in text
    )
    assert "spec.serverSideBatching.batchInterval: expected a duration such as 5ms" in text
    assert "spec.autoscaling.minReplicas: " in text
    assert "spec.compute.cpu: expected a quantity" in text
    assert "spec.gpuType: unknown field" in text


@pytest.mark.parametrize(
    "spec",
    [
        {"replica": 3},
        {"predictor": {"path": "m:C", "processes": 2}},
        {"predictor": {"path": "m:C", "source": {"configmap": "x"}}},
        {"serverSideBatching": {"max_batch_size": 3, "maxBatch": 2}},
    ],
    ids=str,
)
def test_an_unknown_field_is_refused_where_it_stands(spec: dict[str, Any]) -> None:
    """A typing error that passes silently is found in production."""
    assert any("unknown field" in problem for problem in problems(document(spec)))


def test_unknown_fields_are_ignored_with_their_paths_when_asked() -> None:
    """A replica may be older than the operator that wrote its manifest; config is the user's."""
    warnings: list[str] = []
    spec = {
        "predictor": {
            "path": "m:C",
            "new": 1,
            "config": {"anything": {"nested": 1}},
            "source": {"configMap": "a", "newer": True},
            "env": [{"name": "A"}],
        },
        "later": {"a": 1},
        "serverSideBatching": {"maxBatchSize": 3, "future": {}},
    }

    api = parse_api(document(spec), UnknownFields.IGNORE, warnings.append)

    paths = ["spec.predictor.new", "spec.predictor.source.newer", "spec.later"]
    assert [
        f"{path}: unknown field ignored; this version does not have it"
        for path in [*paths, "spec.serverSideBatching.future"]
    ] == warnings
    assert {"anything": {"nested": 1}} == api.spec.predictor.config
    assert api.spec.server_side_batching.max_batch_size == 3


def test_a_wrong_value_is_refused_even_when_unknown_fields_are_ignored() -> None:
    """Not knowing a field is one thing, misreading one another."""
    with pytest.raises(ManifestError):
        parse_api(document({"replicas": "x"}), UnknownFields.IGNORE)
    with pytest.raises(ManifestError):
        parse_api({**document(), "spec": "text"}, UnknownFields.IGNORE)


@SETTINGS
@given(
    processes=st.integers(1, 64),
    threads=st.integers(1, 64),
    size=st.none() | st.integers(1, 1000),
    interval=st.integers(0, 60_000),
    strategy=st.sampled_from(Strategy),
    unit=st.sampled_from(SizeUnit),
    config=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
)
def test_the_serving_slice_serves_the_same(**values: Any) -> None:
    """A replica reads the slice with the same parser and must come to the same settings."""
    batching = {
        "batchInterval": f"{values['interval']}ms",
        **({"maxLatency": "1h"} if values["strategy"] is Strategy.ADAPTIVE else {}),
        "strategy": values["strategy"].value,
        "sizeUnit": values["unit"].value,
        **({"maxBatchSize": values["size"]} if values["size"] else {}),
    }
    api = parse_api(
        document(
            {
                "predictor": {
                    "path": "model:Iris",
                    "processesPerReplica": values["processes"],
                    "threadsPerProcess": values["threads"],
                    "config": values["config"],
                },
                "serverSideBatching": batching,
                "overload": {"timeout": "90s"},
            }
        )
    )

    served = parse_api(serving_slice(api))

    assert api.spec.server_side_batching == served.spec.server_side_batching
    assert api.spec.overload == served.spec.overload
    assert api.spec.predictor == served.spec.predictor
    assert api.endpoint == served.endpoint
    interval = serving_slice(api)["spec"]["serverSideBatching"]["batchInterval"]
    assert format_duration(values["interval"] / 1000) == interval


@pytest.mark.parametrize(
    "change",
    [
        {"autoscaling": {"minReplicas": 2, "maxReplicas": 50}},
        {"autoscaling": {"idleTimeout": "1h"}},
        {"autoscaling": {"mode": "Off"}, "replicas": 3},
        {"compute": {"cpu": "2", "mem": "1Gi", "gpu": 1}},
        {"updateStrategy": {"maxSurge": 1, "drainDelay": "9s"}},
        {"predictor": {"path": "model:Iris", "image": "other:1"}},
        {"predictor": {"path": "model:Iris", "source": {"configMap": "x"}}},
        {"predictor": {"path": "model:Iris", "env": [{"name": "A", "value": "b"}]}},
    ],
    ids=str,
)
def test_what_does_not_change_a_replica_is_not_in_its_slice(change: dict[str, Any]) -> None:
    """The slice's hash names the revision: a change of maxReplicas must roll no pod."""
    assert serving_slice(parse_api(document())) == serving_slice(parse_api(document(change)))


@pytest.mark.parametrize(
    "change",
    [
        {"predictor": {"path": "model:Other"}},
        {"predictor": {"path": "model:Iris", "config": {"a": 1}}},
        {"predictor": {"path": "model:Iris", "processesPerReplica": 2}},
        {"serverSideBatching": {"maxBatchSize": 3}},
        {"overload": {"timeout": "31s"}},
        {"networking": {"endpoint": "/other"}},
        {"networking": {"grpc": True}},
        {"networking": {"maxConnectionAge": "1h"}},
        {"networking": {"keepAlive": "620s"}},
        {"predictor": {"path": "model:Iris", "processesPerReplica": "cpu_count"}},
        {"predictor": {"path": "model:Iris", "threadSafe": False}},
        {"predictor": {"path": "model:Iris", "gpuAssignment": "All"}},
        {"predictor": {"path": "model:Iris", "cpuThreads": 2}},
        {"predictor": {"path": "model:Iris", "webProcesses": 2}},
        {"predictor": {"path": "model:Iris", "warmup": {"batchSizes": [4]}}},
        {"predictor": {"path": "model:Iris", "model": {"uri": "file:///a"}}},
        {"predictor": {"path": "model:Iris", "methods": [{"name": "a", "batchable": False}]}},
        {"serverSideBatching": {"enabled": False}},
        {"serverSideBatching": {"preferredBatchSizes": [4]}},
        {"serverSideBatching": {"shapePolicy": "Pad"}},
        {"serverSideBatching": {"dispatch": "LeastLoaded"}},
        {"serverSideBatching": {"queueOrder": "Deadline"}},
        {"serverSideBatching": {"onItemError": "FailBatch"}},
        {"serverSideBatching": {"receipt": "All"}},
        {"serverSideBatching": {"queue": {"redis": {}}}},
    ],
    ids=str,
)
def test_what_changes_a_replica_is_in_its_slice(change: dict[str, Any]) -> None:
    """Else the change would never reach a pod."""
    assert serving_slice(parse_api(document())) != serving_slice(parse_api(document(change)))


def queue_in_slice(namespace: str = "shop", **queue: Any) -> dict[str, Any]:
    """The queue in the slice of an API with that queue, in that namespace."""
    written = document({"serverSideBatching": {"queue": {"redis": {}} | queue}})
    written["metadata"]["namespace"] = namespace
    told: dict[str, Any] = serving_slice(parse_api(written))["spec"]["serverSideBatching"]["queue"]
    return told


def test_of_a_queue_a_pod_is_told_what_it_connects_by() -> None:
    """More web pods must not roll anything, and passwords travel in variables from Secrets."""
    secret = {"name": "redis", "key": "password"}
    redis = {"host": "redis", "passwordSecret": secret, "usernameSecret": secret}

    told = queue_in_slice(redis=redis, web={"maxReplicas": 20, "cpu": "1"})

    assert {"redis": {"host": "redis", "prefix": "shop:"}} == told


def test_apis_of_one_name_in_two_namespaces_keep_apart_on_one_redis() -> None:
    """Unless somebody says what stands before the keys, as one's own web app needs to know."""
    assert "a:" == queue_in_slice("a")["redis"]["prefix"]
    assert "b:" == queue_in_slice("b")["redis"]["prefix"]
    assert "both" == queue_in_slice("b", redis={"prefix": "both"})["redis"]["prefix"]
    assert "" == queue_in_slice("b", redis={"prefix": ""})["redis"]["prefix"]


EVERYTHING: dict[str, Any] = {
    "predictor": {
        "path": "model:Iris",
        "processesPerReplica": "cpu_count",
        "gpuAssignment": "None",
        "cpuThreads": 3,
        "webProcesses": 2,
        "warmup": {"enabled": False},
        "model": {"uri": "s3://bucket/key", "sha256": "0" * 64},
        "methods": [
            {
                "name": "embed",
                "batchable": True,
                "batchDim": 1,
                "outputBatchDim": 0,
                "serverSideBatching": {
                    "maxBatchSize": 8,
                    "batchInterval": "4ms",
                    "maxLatency": "50ms",
                },
            }
        ],
    },
    "serverSideBatching": {
        "dispatch": "LeastLoaded",
        "queueOrder": "Deadline",
        "onItemError": "FailBatch",
        "receipt": "Headers",
    },
    "networking": {"grpc": True, "maxConnectionAge": "0s", "keepAlive": "90s"},
}


def test_every_field_that_a_replica_acts_on_survives_its_slice() -> None:
    """A field that is left out when it has its default must not be left out otherwise."""
    api = parse_api(document(EVERYTHING))

    served = parse_api(serving_slice(api))

    assert api.spec.predictor == served.spec.predictor
    assert api.spec.server_side_batching == served.spec.server_side_batching
    assert (True, 0.0, 90.0) == (
        served.spec.networking.grpc,
        served.spec.networking.max_connection_age,
        served.spec.networking.keep_alive,
    )


def test_defaults_of_later_fields_are_not_in_the_slice() -> None:
    """One more line is another revision: an upgrade of the operator would roll every replica."""
    written = serving_slice(parse_api(document()))["spec"]

    assert {
        "predictor": {
            "path": "model:Iris",
            "config": {},
            "processesPerReplica": 1,
            "threadsPerProcess": 1,
            "logLevel": "info",
        },
        "serverSideBatching": {"batchInterval": "10ms", "strategy": "Window", "sizeUnit": "Rows"},
        "overload": {"timeout": "30s", "maxBodySize": "32Mi", "maxReplicaConcurrency": 1024},
        "networking": {"endpoint": "/iris"},
    } == written


@pytest.mark.parametrize(
    ("uri", "claim", "served"),
    [
        ("pvc://weights/iris/1/", "weights", "file:///mnt/model/iris/1"),
        ("pvc://weights", "weights", "file:///mnt/model"),
        ("pvc://weights/", "weights", "file:///mnt/model"),
        ("file:///models/a", None, "file:///models/a"),
        ("https://host/a.bin", None, "https://host/a.bin"),
    ],
)
def test_a_claim_is_a_folder_to_its_replicas(uri: str, claim: str | None, served: str) -> None:
    """A container knows no claims: it finds them mounted."""
    api = parse_api(document({"predictor": {"path": "m:C", "model": {"uri": uri}}}))

    assert api.spec.predictor.model is not None
    assert claim == api.spec.predictor.model.claim
    assert served == serving_slice(api)["spec"]["predictor"]["model"]["uri"]


@pytest.mark.parametrize(
    ("path", "served"), [("", "file:///mnt/model"), ("/a/b.onnx/", "file:///mnt/model/a/b.onnx")]
)
def test_an_image_that_is_mounted_is_a_folder_to_its_replicas(path: str, served: str) -> None:
    """It is there before they start, and the node keeps it: a cache would do nothing."""
    reference = f"registry.example:5000/models/a@sha256:{'0' * 64}"
    model = {"uri": f"oci://{reference}{path}", "cache": {"pvc": "models"}}
    pulled = parse_api(document({"predictor": {"path": "m:C", "model": model}}))

    mounted = pulled.with_image_mounted()

    assert mounted.spec.predictor.model is not None
    assert reference == mounted.spec.predictor.model.image
    assert {"uri": served} == serving_slice(mounted)["spec"]["predictor"]["model"]
    assert model == serving_slice(pulled)["spec"]["predictor"]["model"]


@pytest.mark.parametrize("model", [{}, {"model": {"uri": "s3://b/k"}}])
def test_what_is_no_image_is_not_mounted(model: dict[str, Any]) -> None:
    """Where the operator mounts images it asks of every API."""
    api = parse_api(document({"predictor": {"path": "m:C", **model}}))

    assert api == api.with_image_mounted()


def test_a_method_has_the_common_batching_but_for_what_it_writes() -> None:
    """N25: one default, and differences of single methods."""
    api = parse_api(
        document(
            {
                "predictor": {
                    "path": "m:C",
                    "methods": [{"name": "a", "serverSideBatching": {"maxBatchSize": 4}}],
                },
                "serverSideBatching": {"batchInterval": "7ms", "maxBatchSize": 9},
            }
        )
    )
    (method,) = api.spec.predictor.methods
    assert method.server_side_batching is not None

    batching = method.server_side_batching.over(api.spec.server_side_batching)

    assert (4, 0.007) == (batching.max_batch_size, batching.batch_interval)


def test_unknown_fields_in_elements_of_lists_are_ignored_when_asked() -> None:
    """A newer operator may say more of a method than this replica knows."""
    warnings: list[str] = []
    spec = {"predictor": {"path": "m:C", "methods": [{"name": "a", "route": "/x"}]}}

    api = parse_api(document(spec), UnknownFields.IGNORE, warnings.append)

    assert ["a"] == [method.name for method in api.spec.predictor.methods]
    assert ["spec.predictor.methods[0].route"] == [text.partition(": ")[0] for text in warnings]


def test_an_element_that_is_no_object_is_refused_all_the_same() -> None:
    """Ignoring what is unknown is not ignoring what is wrong."""
    spec = {"predictor": {"path": "m:C", "methods": ["a"]}}

    with pytest.raises(
        ManifestError, match=r"^spec\.predictor\.methods\[0\]: expected an object, got \'a\'$"
    ):
        parse_api(document(spec), UnknownFields.IGNORE)


def test_changes_are_judged_like_a_manifest_that_has_them() -> None:
    """A flag must not get past a rule that the manifest is held to."""
    api = parse_api(document({"serverSideBatching": {"maxLatency": "1s"}}))

    changed = with_changes(api, {"serverSideBatching": {"batchInterval": "5ms"}})

    assert 0.005 == changed.spec.server_side_batching.batch_interval
    assert 1.0 == changed.spec.server_side_batching.max_latency
    assert "max_batch_size" not in changed.spec.server_side_batching.model_fields_set
    with pytest.raises(ManifestError, match=r"batchInterval must be below"):
        with_changes(api, {"serverSideBatching": {"batchInterval": "1s"}})


def test_a_parsed_api_cannot_be_changed() -> None:
    """It is shared between tasks."""
    api: BatchedAPI = parse_api(document())

    with pytest.raises(ValueError, match="frozen"):
        api.spec.replicas = 3  # type: ignore[misc]  # what the test is about
