"""Whoever brings a Cortex document is shown the one to apply instead."""

from typing import Any

import pytest
import yaml

from batchedapi_core.batching import Strategy
from batchedapi_core.manifest import parse_api
from batchedapi_core.scaling.policy import PolicyKind
from batchedapi_serving.migrating.cortex import translate, translated

EVERYTHING: dict[str, Any] = {
    "name": "iris",
    "kind": "RealtimeAPI",
    "predictor": {
        "type": "python",
        "path": "src/predictor.py",
        "processes_per_replica": 4,
        "threads_per_process": 2,
        "config": {"a": {"b": 1}},
        "env": {"A": 1},
        "log_level": "debug",
        "server_side_batching": {"max_batch_size": 32, "batch_interval": 0.1},
    },
    "compute": {"cpu": 0.2, "mem": "1Gi", "gpu": 1, "inf": 1},
    "autoscaling": {
        "min_replicas": 2,
        "max_replicas": 10,
        "init_replicas": 3,
        "target_replica_concurrency": 8,
        "max_replica_concurrency": 500,
        "window": "60s",
        "downscale_stabilization_period": "5m",
        "upscale_stabilization_period": "1m",
        "max_downscale_factor": 0.75,
        "max_upscale_factor": 1.5,
        "downscale_tolerance": 0.05,
        "upscale_tolerance": 0.1,
    },
    "networking": {"endpoint": "/iris", "api_gateway": "public"},
    "update_strategy": {"max_surge": "25%", "max_unavailable": 0},
}


def test_every_field_is_found_again_and_what_has_none_is_named() -> None:
    """The result can be applied as it is."""
    manifest, left = translate(EVERYTHING)
    spec = parse_api(manifest).spec

    assert ["compute.inf", "networking.api_gateway"] == left
    assert ("src.predictor:PythonPredictor", 4, 2, {"a": {"b": 1}}, "debug") == (
        spec.predictor.path,
        spec.predictor.processes_per_replica,
        spec.predictor.threads_per_process,
        spec.predictor.config,
        spec.predictor.log_level,
    )
    assert [("A", "1")] == [(variable.name, variable.value) for variable in spec.predictor.env]
    batching, scaling = spec.server_side_batching, spec.autoscaling
    assert (32, 0.1, Strategy.FIXED) == (
        batching.max_batch_size,
        batching.batch_interval,
        batching.strategy,
    )
    assert ("0.2", "1Gi", 1, 500) == (
        spec.compute.cpu,
        spec.compute.mem,
        spec.compute.gpu,
        spec.overload.max_replica_concurrency,
    )
    assert (2, 10, 3, "8", 60.0, PolicyKind.CONCURRENCY) == (
        scaling.min_replicas,
        scaling.max_replicas,
        scaling.init_replicas,
        scaling.target_replica_concurrency,
        scaling.window,
        scaling.policy,
    )
    assert scaling.behavior is not None
    up, down = scaling.behavior.scale_up, scaling.behavior.scale_down
    assert up is not None
    assert down is not None
    assert (60, 300, "0.1", "0.05") == (
        up.stabilization_window_seconds,
        down.stabilization_window_seconds,
        up.tolerance,
        down.tolerance,
    )
    assert up.policies is not None
    assert down.policies is not None
    assert [(50, 10), (25, 10)] == [
        (step.value, step.period_seconds) for step in (*up.policies, *down.policies)
    ]
    assert ("/iris", "25%", 0) == (
        spec.networking.endpoint,
        spec.update_strategy.max_surge,
        spec.update_strategy.max_unavailable,
    )


def test_the_error_says_what_came_shows_the_manifest_and_what_is_left() -> None:
    """To copy out of the terminal."""
    text = translated([EVERYTHING]) or ""

    head, _, rest = text.partition("\n\n")
    manifest, _, tail = rest.partition("\n\n")
    assert "expected a BatchedAPI document, got a list of Cortex's RealtimeAPI" in head
    assert translate(EVERYTHING)[0] == yaml.safe_load(manifest)
    assert "There is no field here for compute.inf, networking.api_gateway." in tail
    assert "(config, context)" in tail


def test_several_are_several_documents() -> None:
    """Each is an API of its own."""
    other = {"name": "two", "kind": "RealtimeAPI", "monitoring": {"key": "x"}}
    text = translated([{"name": "one", "kind": "SyncAPI"}, other]) or ""

    documents = list(yaml.safe_load_all(text[text.index("---") : text.index("There is")]))

    assert ["one", "two"] == [document["metadata"]["name"] for document in documents]
    assert "There is no field here for monitoring.key of two." in text


@pytest.mark.parametrize(
    ("predictor", "path"),
    [
        ({"type": "tensorflow", "path": "p.py"}, "p:TensorFlowPredictor"),
        ({"type": "onnx", "path": "p.py"}, "p:ONNXPredictor"),
        ({}, "predictor:PythonPredictor"),
        (None, "predictor:PythonPredictor"),
    ],
)
def test_the_class_has_the_name_that_cortex_looks_for(predictor: Any, path: str) -> None:
    """It stands in no document of theirs."""
    entry = {"name": "a", "kind": "RealtimeAPI", "predictor": predictor}

    assert path == translate(entry)[0]["spec"]["predictor"]["path"]


def test_what_cannot_be_converted_stays_as_it_is() -> None:
    """The reader sees where to look; our own words refuse it then."""
    manifest, left = translate(
        {
            "name": "a",
            "kind": "RealtimeAPI",
            "predictor": {"env": ["A=1"], "server_side_batching": {"batch_interval": "soon"}},
            "autoscaling": {
                "upscale_stabilization_period": "soon",
                "max_upscale_factor": "some",
                "max_downscale_factor": None,
            },
        }
    )

    spec = manifest["spec"]
    assert [] == left
    assert ["A=1"] == spec["predictor"]["env"]
    assert "soon" == spec["serverSideBatching"]["batchInterval"]
    assert "some" == spec["autoscaling"]["behavior"]["scaleUp"]["policies"]


@pytest.mark.parametrize(
    "document",
    [[], ["a"], "a", [{"kind": "Deployment"}], {"apiVersion": "v1", "kind": "RealtimeAPI"}],
    ids=str,
)
def test_any_other_document_is_none_of_theirs(document: Any) -> None:
    """It is told something else."""
    assert translated(document) is None
