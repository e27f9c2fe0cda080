"""Configuration of other servers: each key is taken over, or named with what to do about it."""

import contextlib
import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from batchedapi_core.manifest import parse_api
from batchedapi_serving.cli.migrate import translation_of
from batchedapi_serving.laptop.migrating.migration import MigrateError, Migration, Project
from batchedapi_serving.laptop.migrating.triton import parse_text_format
from thorough import examples

CORTEX: Any = [
    {
        "name": "My_API",
        "kind": "RealtimeAPI",
        "predictor": {
            "type": "python", "path": "src/a-b.py", "processes_per_replica": 4,
            "threads_per_process": 2, "config": {"a": {"b": None}}, "env": {"A": 1},
            "log_level": "debug", "image": "cortexlabs/x", "python_path": ".",
            "models": {"path": "s3://a/b", "cache_size": 2},
            "server_side_batching": {"max_batch_size": 32, "batch_interval": 0.1},
        },
        "compute": {"cpu": 0.2, "mem": "1Gi", "gpu": 1, "inf": 1},
        "autoscaling": {
            "min_replicas": 2, "max_replicas": 10, "init_replicas": 3, "window": "60s",
            "target_replica_concurrency": 8, "max_replica_concurrency": 500,
            "downscale_stabilization_period": "5m", "max_downscale_factor": 0.75,
            "max_upscale_factor": 1.5, "upscale_tolerance": 0.1,
        },
        "networking": {"endpoint": "/iris", "api_gateway": "public"},
        "update_strategy": {"max_surge": "25%", "max_unavailable": 0},
    },
    {
        "name": "tf",
        "predictor": {"type": "tensorflow", "server_side_batching": {"max_batch_size": 4}},
    },
    {"name": "third", "kind": "RealtimeAPI", "pod": {"port": 80}},
    {"name": "split", "kind": "TrafficSplitter"},
    {"name": "later", "kind": "AsyncAPI"},
]  # fmt: skip
RUNNERS: Any = {
    "runners": {
        "resources": {"nvidia.com/gpu": [0, 1], "cpu": 0.5},
        "batching": {"max_batch_size": 100, "max_latency_ms": 500, "strategy": "x"},
        "iris": {"timeout": 60, "batching": {"enabled": False}},
        "other": {"resources": {"memory": "500MiB"}},
    },
    "api_server": {
        "workers": None,
        "port": 3000,
        "http": {"cors": {"access_control_allow_origins": ["*"], "access_control_max_age": 1}},
    },
    "logging": {"access": {"enabled": True}},
}
SERVICES: Any = {
    "services": {
        "traffic": {"timeout": 10, "external_queue": True},
        "*": {"workers": 2},
        "first": {"resources": {"memory": "500MiB", "gpu": 1}, "traffic": {"concurrency": 32}},
        "second": {"workers": [{"gpus": 1}], "ssl": {"enabled": True}},
    }
}
BENTOFILE: Any = {
    "service": "service:Iris", "labels": {"owner": "me"}, "include": ["*.py"],
    "python": {"packages": ["a"]}, "models": ["iris:latest"], "envs": [{"name": "A", "value": 1}],
}  # fmt: skip
TRITON: Any = {
    "name": "x",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [
        {"name": "A", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "B", "data_type": "TYPE_INT64", "dims": [-1, 2], "optional": True},
    ],
    "output": [{"name": "O", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}],
    "dynamic_batching": {"max_queue_delay_microseconds": 100, "priority_levels": 2},
    "model_transaction_policy": {"decoupled": True},
    "version_policy": {"latest": {"num_versions": 1}},
}
TORCHSERVE: Any = {
    "inference_address": "http://0.0.0.0:8080",
    "default_workers_per_model": 4,
    "default_response_timeout": 60,
    "max_request_size": 1000000,
    "models": {
        "a": {
            "1.9": {"batchSize": 4},
            "1.10": {"batchSize": 8, "maxBatchDelay": 50, "minWorkers": 1, "maxWorkers": 3},
        },
        "b": {"1.0": {"marName": "b.mar"}},
    },
}
MODEL_CONFIG: Any = {
    "minWorkers": 2, "batchSize": 16, "deviceType": "gpu", "deviceIds": [0, 1], "handler": {"a": 1},
}  # fmt: skip
SKLEARN: Any = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {
        "name": "iris", "namespace": "ml", "labels": {"a": "1"},
        "annotations": {"serving.kserve.io/autoscalerClass": "hpa"},
    },
    "spec": {
        "transformer": {"containers": [{"image": "t"}]},
        "predictor": {
            "minReplicas": 2, "scaleTarget": 4, "canaryTrafficPercent": 10, "timeout": 60,
            "batcher": {"maxBatchSize": 16, "maxLatency": 100},
            "nodeSelector": {"a": "b"},
            "deploymentStrategy": {"rollingUpdate": {"maxSurge": 1}},
            "model": {
                "modelFormat": {"name": "sklearn"}, "storageUri": "s3://a/b",
                "env": [{"name": "A", "value": "1"}],
                "resources": {
                    "requests": {"cpu": "100m", "memory": "256Mi"},
                    "limits": {"cpu": 2, "memory": "4Gi", "amd.com/gpu": 1},
                },
            },
        },
    },
}  # fmt: skip
CUSTOM: Any = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "custom"},
    "spec": {"predictor": {"containers": [{"image": "i", "args": ["a"]}]}},
}
MLSERVER: Any = {
    "name": "digits",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "max_batch_size": 8, "max_batch_time": 0.1, "parallel_workers": 2, "cache_enabled": True,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}],
    "parameters": {
        "uri": "./model.joblib", "version": "v1", "extra": {"task": "text-classification", "x": 1},
    },
}  # fmt: skip
KSERVE: Any = {"kind": "List", "items": [SKLEARN, CUSTOM, {"kind": "Secret"}]}
SOURCES = {
    "cortex.yaml": CORTEX,
    "bentoml_configuration.yaml": RUNNERS,
    "bento_services.yaml": SERVICES,
    "bentofile.yaml": BENTOFILE,
    "config.pbtxt": TRITON,
    "config.properties": TORCHSERVE,
    "model-config.yaml": MODEL_CONFIG,
    "isvc.yaml": KSERVE,
    "model-settings.json": MLSERVER,
}


def pbtxt(value: Any) -> str:
    """A mapping in protobuf's text format."""
    found = []
    for key, member in value.items() if isinstance(value, dict) else ():
        for one in member if isinstance(member, list) else [member]:
            if isinstance(one, dict):
                found.append(f"{key} {{ {pbtxt(one)} }}")
            elif one is not None:
                plain = not isinstance(one, str) or one.startswith(("TYPE_", "KIND_"))
                scalar = "true" if one is True else str(one) if plain else json.dumps(one)
                found.append(f"{key}: {scalar}")
    return "\n".join(found)


def migrated(file: str, source: Any, **beside: str) -> Migration:
    """The source written in the format of its file, and migrated; every manifest is valid."""
    if not isinstance(source, dict | list):
        text = str(source)
    elif file.endswith(".pbtxt"):
        text = pbtxt(source)
    elif file.endswith(".properties"):
        text = "\n".join(
            f"{k}={json.dumps(v) if isinstance(v, dict | list) else v}"
            for k, v in (source.items() if isinstance(source, dict) else ())
        )
    else:
        text = yaml.safe_dump(source)
    made = translation_of(Project("here", file, text, beside, "file:///here"))
    for document in yaml.safe_load_all(made.files["batchedapi.yaml"]):
        parse_api(document)
    if "batched_model.py" in made.files:
        compile(made.files["batched_model.py"], "batched_model.py", "exec")
    assert all(note.place and note.reason and note.remedy for note in made.notes)
    return made


def specs(made: Migration) -> list[dict[str, Any]]:
    """The spec of each API."""
    return [one["spec"] for one in yaml.safe_load_all(made.files["batchedapi.yaml"])]


@pytest.mark.parametrize(
    ("file", "names", "fields"),
    [
        (
            "cortex.yaml", ["my-api", "tf", "third"],
            {
                "predictor.path": "src.a_b:PythonPredictor", "predictor.processesPerReplica": 4,
                "predictor.config": {"a": {"b": None}}, "predictor.model.uri": "s3://a/b",
                "predictor.env": [{"name": "A", "value": "1"}], "compute.cpu": "0.2",
                "predictor.methods": [{"name": "predict", "batchable": True}],
                "serverSideBatching":
                    {"maxBatchSize": 32, "batchInterval": "100ms", "strategy": "Fixed"},
                "overload.maxReplicaConcurrency": 500, "autoscaling.policy": "Concurrency",
                "autoscaling.targetReplicaConcurrency": "8",
                "autoscaling.behavior.scaleDown.stabilizationWindowSeconds": 300,
                "autoscaling.behavior.scaleUp.policies":
                    [{"type": "Percent", "value": 50, "periodSeconds": 10}],
                "autoscaling.behavior.scaleUp.tolerance": "0.1",
                "networking.endpoint": "/iris", "updateStrategy.maxUnavailable": 0,
            },
        ),
        (
            "bentoml_configuration.yaml", ["iris", "other"],
            {
                "serverSideBatching": {"maxBatchSize": 100, "enabled": False},
                "compute": {"gpu": 2, "cpu": "0.5"}, "overload.timeout": "1m",
            },
        ),
        (
            "bento_services.yaml", ["first", "second"],
            {
                "compute": {"mem": "500Mi", "gpu": 1}, "predictor.processesPerReplica": 2,
                "overload.timeout": "10s", "autoscaling.targetReplicaConcurrency": "32",
            },
        ),
        ("bentofile.yaml", ["iris"], {"pod.labels": {"owner": "me"}}),
        (
            "config.pbtxt", ["x"],
            {
                "serverSideBatching":
                    {"maxBatchSize": 8, "batchInterval": "100us", "strategy": "Fixed"},
                "predictor.processesPerReplica": 4, "compute.gpu": 2,
                "predictor.model": {"uri": "file:///here/1/model.onnx", "format": "onnx"},
            },
        ),
        (
            "config.properties", ["a", "b"],
            {
                "serverSideBatching":
                    {"maxBatchSize": 8, "batchInterval": "50ms", "strategy": "Fixed"},
                "overload": {"timeout": "1m", "maxBodySize": "1000000"},
                "predictor.processesPerReplica": 1,
            },
        ),
        (
            "model-config.yaml", ["here"],
            {
                "predictor.config": {"handler": {"a": 1}}, "compute.gpu": 2,
                "serverSideBatching.maxBatchSize": 16,
            },
        ),
        (
            "isvc.yaml", ["iris", "custom"],
            {
                "compute": {"cpu": "100m", "cpuLimit": "2", "mem": "4Gi", "gpu": 1,
                            "gpuResource": "amd.com/gpu"},
                "predictor.model": {"uri": "s3://a/b", "format": "sklearn"},
                "overload.timeout": "1m",
                "serverSideBatching":
                    {"maxBatchSize": 16, "batchInterval": "100ms", "strategy": "Fixed"},
                "autoscaling": {"minReplicas": 2, "targetReplicaConcurrency": "4",
                                "policy": "Concurrency"},
                "pod.nodeSelector": {"a": "b"}, "updateStrategy.maxSurge": 1,
            },
        ),
        (
            "model-settings.json", ["digits"],
            {
                "predictor.model": {"uri": "file:///here/model.joblib", "format": "sklearn"},
                "predictor.config": {"task": "text-classification"},
                "predictor.processesPerReplica": 2,
                "serverSideBatching":
                    {"maxBatchSize": 8, "batchInterval": "100ms", "strategy": "Fixed"},
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_has_a_field_is_taken_over(
    file: str, names: list[str], fields: dict[str, Any]
) -> None:
    """All APIs of the file; the fields are those of the first one."""
    made = migrated(file, SOURCES[file])

    assert names == list(made.names)
    for path, expected in fields.items():
        value: Any = specs(made)[0]
        for part in path.split("."):
            value = value[part]
        assert expected == value, path


@pytest.mark.parametrize(
    ("file", "places"),
    [
        ("cortex.yaml", ["split: TrafficSplitter", "later: AsyncAPI", "name 'My_API'",
                         "My_API: compute.inf", "My_API: networking.api_gateway",
                         "My_API: predictor.models.cache_size", "My_API: threads_per_process",
                         "My_API: predictor.path: src/a-b.py", "tf: server_side_batching",
                         "third: pod"]),
        ("bentoml_configuration.yaml", ["api_server.port", "api_server.http", "runners",
                                        "bentoml.depends", "bentoml.models"]),
        ("bento_services.yaml", ["services.first.traffic.external_queue", "services.second.ssl"]),
        ("bentofile.yaml", ["include", "python", "models"]),
        ("config.pbtxt", ["input[1].optional", "dynamic_batching.priority_levels",
                          "model_transaction_policy.decoupled"]),
        ("config.properties", ["inference_address", "models.a.1.9", "models.a.1.10.maxWorkers",
                               "models.b.1.0.marName", "the handler"]),
        ("isvc.yaml", ["iris: metadata.annotations.serving.kserve.io/autoscalerClass",
                       "iris: spec.transformer", "iris: spec.predictor.canaryTrafficPercent",
                       "iris: spec.predictor.model.resources.requests.memory",
                       "custom: spec.predictor", "iris: spec.predictor.model", "Secret None"]),
        ("model-settings.json", ["cache_enabled", "parameters.version", "parameters.extra.x",
                                 "parameters.uri"]),
    ],
)  # fmt: skip
def test_what_has_no_field_is_named(file: str, places: list[str]) -> None:
    """Each with a reason and a remedy."""
    assert set(places) <= {note.place for note in migrated(file, SOURCES[file]).notes}


def places_of(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every container with each of its keys, and the path to it."""
    for key in value if isinstance(value, dict) else range(len(value)):
        below = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]"
        yield value, key, below
        if isinstance(value[key], dict | list):
            yield from places_of(value[key], below)


@pytest.mark.parametrize("file", SOURCES)
def test_a_key_that_nobody_knows_is_told_wherever_it_is(file: str) -> None:
    """It is in the manifest, in a note, or below something that is in a note."""
    source = {"": SOURCES[file]}
    for number, (holder, key, path) in enumerate(places_of(source)):
        if not isinstance(holder[key], dict):
            continue
        changed = copy.deepcopy(source)
        there, at, _ = list(places_of(changed))[number]
        there[at]["surprise"] = {"a": 1}

        made = migrated(file, changed[""])

        above = [*re.findall(r"[^.\[\]]+", path), str(holder[key].get("kind", "."))]
        named = re.split(r"[.: \[\]]", " ".join(note.place for note in made.notes))
        assert "surprise" in str(made) or set(above) & set(named), path


ODD = (None, [], {}, "x", -1, 1.5, True, [None], [{"a": None}], {"a": 1})


@pytest.mark.parametrize("shift", range(examples(1)))
@pytest.mark.parametrize("file", SOURCES)
def test_odd_values_are_told_or_refused(file: str, shift: int) -> None:
    """A null where a number is expected is no traceback."""
    source = {"": SOURCES[file]}
    for number, _ in enumerate(list(places_of(source))):
        changed = copy.deepcopy(source)
        there, at, _ = list(places_of(changed))[number]
        there[at] = ODD[(number + shift) % len(ODD)]
        with contextlib.suppress(MigrateError):
            migrated(file, changed[""])


def test_a_misspelled_setting_of_torchserve_is_told() -> None:
    """The class gets it, as it may be the handler's own; handler does not look like one of ours."""
    made = migrated("model-config.yaml", {"batchsize": 8, "handler": {"a": 1}})

    (spec,) = specs(made)
    assert {"batchsize": 8, "handler": {"a": 1}} == spec["predictor"]["config"]
    remedies = {note.place: note.remedy for note in made.notes}
    assert "if batchSize was meant, rename it" == remedies["batchsize"]
    assert "handler" not in remedies


@pytest.mark.parametrize(
    "number", ["max_batch_size", "instance_group[0].count", "input[0].dims[0]"]
)
def test_a_bad_number_of_triton_is_told_and_the_rest_is_taken_over(number: str) -> None:
    """A file is not lost for one of its fields."""
    changed = copy.deepcopy(TRITON)
    for holder, key, path in places_of(changed):
        if path == f".{number}":
            holder[key] = "many"

    made = migrated("config.pbtxt", changed)

    assert any("'many'" in note.reason for note in made.notes)
    assert 2 == specs(made)[0]["compute"]["gpu"]


def test_files_beside_are_named() -> None:
    """Dependencies, code and models: whoever forgets them finds out in the cluster."""
    made = migrated(
        "cortex.yaml", CORTEX, **{"requirements.txt": "", "a.onnx": "", "README.md": ""}
    )

    assert {"requirements.txt", "a.onnx"} <= {note.place for note in made.notes}
    assert "README.md" not in str(made.notes)


def test_model_config_beside_is_the_model_s() -> None:
    """Where there is one model."""
    made = migrated(
        "config.properties", {"load_models": "all"}, **{"model-config.yaml": "batchSize: 16"}
    )

    assert 16 == specs(made)[0]["serverSideBatching"]["maxBatchSize"]


def test_a_saved_model_of_triton_is_served_from_its_latest_version() -> None:
    """Without a class. The name and the tensors of TorchScript are in the manifest alone."""
    made = migrated("config.pbtxt", TRITON, **{"1/": "", "12/": ""})
    script = TRITON | {"backend": "pytorch", "default_model_filename": "a.pt"}
    other = migrated("config.pbtxt", script)

    assert ["batchedapi.yaml"] == list(made.files) == list(other.files)
    assert "file:///here/12/model.onnx" == specs(made)[0]["predictor"]["model"]["uri"]
    predictor = specs(other)[0]["predictor"]
    assert {"uri": "file:///here/1/a.pt", "format": "torchscript"} == predictor["model"]
    a, b = {"datatype": "FP32", "shape": ["A_1"]}, {"datatype": "INT64", "shape": ["B_1", 2]}
    assert {"inputs": {"A": a, "B": b}, "outputs": ["O"]} == predictor["config"]
    assert any("model.trusted: true" in note.remedy for note in other.notes)


@pytest.mark.parametrize(
    ("told", "uri"),
    [("a b#1.onnx", "file:///here/1/a%20b%231.onnx"), ("", "file:///here/1/model.onnx")],
)
def test_a_file_of_triton_has_its_address_whatever_it_is_called(told: str, uri: str) -> None:
    """An address has no spaces; an empty text is none, as everywhere in protobuf."""
    made = migrated("config.pbtxt", TRITON | {"default_model_filename": told})

    assert {"uri": uri, "format": "onnx"} == specs(made)[0]["predictor"]["model"]


def test_a_file_of_triton_that_is_none_is_told_and_a_class_is_to_be_filled_in() -> None:
    """Two names are no path."""
    made = migrated("config.pbtxt", TRITON | {"default_model_filename": ["a", "b"]})

    reasons = {note.place: note.reason for note in made.notes}
    assert "expected a text or a number, got ['a', 'b']" == reasons["default_model_filename"]
    assert "batched_model.py" in made.files


@pytest.mark.parametrize("name", ["sklearn", "xgboost", "lightgbm", "onnx", "huggingface"])
def test_a_saved_model_of_kserve_needs_no_class(name: str) -> None:
    """Nobody but the user says that it may run code."""
    service = copy.deepcopy(SKLEARN)
    service["spec"]["predictor"]["model"]["modelFormat"]["name"] = name

    made = migrated("isvc.yaml", service)

    assert ["batchedapi.yaml"] == list(made.files)
    assert {"uri": "s3://a/b", "format": name} == specs(made)[0]["predictor"]["model"]
    assert ("sklearn" == name) == any("model.trusted" in note.remedy for note in made.notes)


@pytest.mark.parametrize(
    "model",
    [
        {"args": ["--model_id=a/b", "--x=1"]},
        {"storageUri": "hf://a/b"},
        {"storageUri": "hf://a/b:c"},
    ],
    ids=str,
)
def test_a_model_of_the_hub_has_our_address(model: dict[str, Any]) -> None:
    """KServe names it by an argument, or with a colon before the revision."""
    service = copy.deepcopy(CUSTOM) | {"spec": {"predictor": {"huggingface": model}}}

    made = migrated("isvc.yaml", service)

    expected = "hf://a/b@c" if model.get("storageUri", "").endswith("c") else "hf://a/b"
    assert expected == specs(made)[0]["predictor"]["model"]["uri"]
    assert ("args" in model) == any("--x=1" in note.place for note in made.notes)


@pytest.mark.parametrize(
    "model",
    [{"storage": {"key": "a"}}, {"storageUri": "hdfs://a/b"}],
    ids=lambda model: next(iter(model)),
)
def test_a_model_without_an_address_gets_a_class_to_fill_in(model: dict[str, Any]) -> None:
    """Whoever fills in the address may remove it."""
    service = copy.deepcopy(CUSTOM) | {"spec": {"predictor": {"sklearn": model}}}

    made = migrated("isvc.yaml", service)

    assert "batched_model.py" in made.files
    assert "set spec.predictor.model.uri" in {note.remedy for note in made.notes}


def test_mlserver_finds_a_file_by_its_name() -> None:
    """Without batching a request is a batch; a runtime of one's own is a class to fill in."""
    settings = {"implementation": "mlserver_xgboost.XGBoostModel"}
    made = migrated("model-settings.json", settings, **{"model.bst": ""})
    own = migrated("model-settings.json", {"implementation": "mine.Model"})

    (spec,) = specs(made)
    assert {"uri": "file:///here/model.bst", "format": "xgboost"} == spec["predictor"]["model"]
    assert {"maxBatchSize": 1, "sizeUnit": "Requests"} == spec["serverSideBatching"]
    assert "batched_model.py" in own.files
    assert "implementation" in {note.place for note in own.notes}


def test_mlserver_s_file_is_one_of_the_runtime_s_format() -> None:
    """Whatever else begins with `model`, such as its description."""
    beside = {"model.json": "", "model.md": "", "model.pkl": ""}
    made = migrated("model-settings.json", {"implementation": MLSERVER["implementation"]}, **beside)

    assert "file:///here/model.pkl" == specs(made)[0]["predictor"]["model"]["uri"]
    assert any("model.md" in note.place for note in made.notes)


@pytest.mark.parametrize(
    ("told", "uri"),
    [
        ("/mnt/models/model.joblib", "file:///mnt/models/model.joblib"),
        ("./my model.joblib", "file:///here/my%20model.joblib"),
        ("../model.joblib", "file:///model.joblib"),
        ("s3://a/model.joblib", "s3://a/model.joblib"),
        (["a"], None),
    ],
    ids=str,
)
def test_mlserver_s_address_is_a_path_or_one_of_ours(told: Any, uri: str | None) -> None:
    """A path that is not absolute begins at the file's folder; anything else is told."""
    made = migrated("model-settings.json", MLSERVER | {"parameters": {"uri": told}})

    assert uri == specs(made)[0]["predictor"].get("model", {}).get("uri")
    reasons = {note.reason for note in made.notes if "parameters.uri" == note.place}
    assert (uri is None) == ("expected a text or a number, got ['a']" in reasons)


@pytest.mark.parametrize("size", [{}, {"max_batch_size": 1}], ids=str)
def test_mlserver_s_time_without_a_size_is_told(size: dict[str, int]) -> None:
    """A request is a batch there, and waits for nobody."""
    source = {"implementation": MLSERVER["implementation"], "max_batch_time": 0.1, **size}

    made = migrated("model-settings.json", source)

    assert "max_batch_time" in {note.place for note in made.notes}
    assert "batchInterval" not in specs(made)[0]["serverSideBatching"]


@pytest.mark.parametrize(
    ("dims", "shape"), [([1, 2], [2]), ([-1, 2], [2]), ([3, 2], None)], ids=str
)
def test_without_a_batch_size_the_first_dimension_is_that_of_rows(
    dims: list[int], shape: list[int] | None
) -> None:
    """Where it is 1 or any; an array that has none is for a class to take apart."""
    tensor = {"name": "A", "data_type": "TYPE_FP32", "dims": dims}
    source = {"backend": "pytorch", "input": [tensor], "output": [tensor]}

    made = migrated("config.pbtxt", source)

    if shape is None:
        assert 'Tensor("FP32", [3, 2])' in made.files["batched_model.py"]
    else:
        inputs = specs(made)[0]["predictor"]["config"]["inputs"]
        assert {"A": {"datatype": "FP32", "shape": shape}} == inputs


def test_without_dynamic_batching_a_request_of_triton_is_a_batch() -> None:
    """The batch has as many rows as the client sends."""
    (spec,) = specs(migrated("config.pbtxt", {"name": "x", "max_batch_size": 8}))

    assert {"maxBatchSize": 1, "sizeUnit": "Requests"} == spec["serverSideBatching"]


def test_texts_are_items() -> None:
    """An array has no texts here."""
    tensor = {"name": "A", "data_type": "TYPE_STRING", "dims": [1]}
    made = migrated("config.pbtxt", {"backend": "python", "input": [tensor]})

    assert "input 'A'" in {note.place for note in made.notes}
    assert "items" in made.files["batched_model.py"]


@pytest.mark.parametrize("dims", [([3, 2], [1]), ([1], [3, 2]), ([1], [1])], ids=str)
def test_a_tensor_without_rows_is_for_a_class_also_beside_a_text(dims: Any) -> None:
    """In either order: where each has them the graph says the rest itself."""
    inputs = [
        {"name": "A", "data_type": "TYPE_FP32", "dims": dims[0]},
        {"name": "B", "data_type": "TYPE_STRING", "dims": dims[1]},
    ]
    for ordered in (inputs, inputs[::-1]):
        source = TRITON | {"max_batch_size": 0, "input": ordered}
        source["output"] = [{"name": "O", "data_type": "TYPE_FP32", "dims": [1, 3]}]

        made = migrated("config.pbtxt", source)

        assert (([1], [1]) != dims) == ("batched_model.py" in made.files)


def test_the_text_format_knows_lists_comments_and_messages_in_both_brackets() -> None:
    """As protobuf's own reader does."""
    text = 'a: 1 # one\nb < c: "x" > d [ 1, 2 ]\nd: 3\ne { f: true }'

    assert {"a": 1, "b": {"c": "x"}, "d": [1, 2, 3], "e": {"f": True}} == parse_text_format(text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("config.pbtxt", one) for one in ("a {", "a: [1", "{", "a: }", "a: \x00")),
        ("config.pbtxt", "name: 'a' name: 'b'"),
        ("isvc.yaml", "a: 1\na: 2"),
        ("isvc.yaml", "a: ["),
        ("service.py", "import bentoml"),
        ("cortex.yaml", "[{name: a, kind: BatchAPI}]"),
        ("config.properties", "models=all"),
    ],
)  # fmt: skip
def test_what_is_none_of_them_is_refused(file: str, text: str) -> None:
    """With the line or a remedy, rather than half of it taken over."""
    with pytest.raises(MigrateError, match=r"expected|Job"):
        translation_of(Project("here", file, text, {}, "file:///here"))
