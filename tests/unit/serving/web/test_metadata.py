"""Metadata of a replica under /v1 and /v2."""

import dataclasses
import json
from typing import Any

import pytest

from batchedapi_serving.errors import DrainingError, NoSuchRouteError, NotReadyError
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.metrics.slots import BYTES, Memory
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.web.asgi import metadata_answer
from batchedapi_serving.web.frontend import Frontend
from connections import PREDICT, Server, web_settings

pytestmark = pytest.mark.looptime

EMBED = MethodSpec(
    "embed", batched=True, inputs={"input": Tensor("FP32", [2, "tokens"])}, single_input=True
)
VERSIONED = "/v2/models/api.embed/versions/1/"


def frontend(*methods: MethodSpec) -> Any:
    """The front end of a server with these methods."""
    return Server(methods=methods).frontend


def counted(memory: Memory, *methods: MethodSpec) -> Any:
    """The same, with figures."""
    engine = frontend(*methods).engine
    return Frontend(web_settings(), engine, engine.answered, memory=memory)


def document(path: str, *methods: MethodSpec) -> Any:
    """The JSON of a GET."""
    return document_of(frontend(*(methods or (PREDICT, EMBED))), path)


def document_of(asked: Any, path: str) -> Any:
    """The same, of a frontend."""
    answer = metadata_answer(asked, path)
    assert (200, b"application/json") == (answer.status, answer.content_type)
    return json.loads(answer.body)


async def test_a_replica_says_what_it_is() -> None:
    """D11: the Open Inference Protocol's documents, and v1's."""
    assert {"name", "version", "extensions"} == set(document("/v2"))
    assert {"live": True} == document("/v2/health/live")
    assert {"ready": True} == document("/v2/health/ready")
    assert {"status": "alive"} == document("/")
    assert {"models": ["api", "api.predict", "api.embed"]} == document("/v1/models")
    assert {"name": "api", "ready": True} == document("/v1/models/api")
    assert {"name": "api.embed", "ready": True} == document("/v2/models/api.embed/ready")
    assert {"name": "api", "ready": True} == document("/v2/models/api/versions/1/ready")


@pytest.mark.parametrize("path", ["/v2/models/api.embed", "/v2/models/api.embed/versions/1"])
async def test_a_model_says_what_it_takes(path: str) -> None:
    """With -1 for the rows and for each variable dimension."""
    found = document(path)

    assert ("api.embed", ["1"]) == (found["name"], found["versions"])
    assert [{"name": "input", "datatype": "FP32", "shape": [-1, 2, -1]}] == found["inputs"]


@pytest.mark.parametrize("path", ["/v2/models/api.embed/config", VERSIONED + "config"])
async def test_a_model_says_how_it_is_batched(path: str) -> None:
    """Triton's words: one row of each input, the largest batch, how long is waited for one."""
    found = document(path, PREDICT, dataclasses.replace(EMBED, max_batch_size=16))

    assert ("api.embed", 16) == (found["name"], found["max_batch_size"])
    assert [{"name": "input", "data_type": "TYPE_FP32", "dims": [2, -1]}] == found["input"]
    assert {
        "preferred_batch_size": [], "max_queue_delay_microseconds": 10_000,
    } == found["dynamic_batching"]  # fmt: skip
    assert 1 == found["instance_group"][0]["count"]


async def test_a_model_that_is_not_batched_says_so() -> None:
    """And JSON items are texts to the protocol."""
    found = document("/v2/models/api/config", MethodSpec("predict", batched=False))

    assert 1 == found["max_batch_size"]
    assert "dynamic_batching" not in found
    assert [{"name": "input", "data_type": "TYPE_STRING", "dims": []}] == found["input"]
    assert [{"name": "output", "data_type": "TYPE_STRING", "dims": []}] == found["output"]


async def test_a_model_says_what_became_of_its_requests() -> None:
    """Sums since the start: 3 rows in 2 batches of 2 s, one of 4 requests refused."""
    memory = memoryview(bytearray(BYTES)).cast("d")
    recorder = Recorder(memory).method(1)
    recorder.sized(8)
    recorder.dispatched("full", [0.25, 0.5])
    recorder.executed(2, 2, 2, 2.0)
    recorder.executed(1, 1, 1, 2.0)
    recorder.answered(200, [2.5, 2.5, 2.0])
    recorder.answered(429)

    (found,) = document_of(counted(memory, PREDICT, EMBED), "/v2/models/api.embed/stats")[
        "model_stats"
    ]

    assert {
        "name": "api.embed", "version": "1", "inference_count": 3, "execution_count": 2,
        "inference_stats": {
            "success": {"count": 3, "ns": 7_000_000_000},
            "fail": {"count": 1, "ns": 0},
            "queue": {"count": 2, "ns": 750_000_000},
            "compute_input": {"count": 3, "ns": 0},
            "compute_infer": {"count": 3, "ns": 6_000_000_000},
            "compute_output": {"count": 3, "ns": 0},
        },
    } == found  # fmt: skip


async def test_every_model_is_in_the_statistics_of_all() -> None:
    """Once, by the name of its own; a method `stats` keeps its metadata."""
    stats = dataclasses.replace(EMBED, name="stats")
    found = document("/v2/models/stats", PREDICT, EMBED)["model_stats"]

    assert ["api", "api.embed"] == [model["name"] for model in found]
    assert "api.stats" == document("/v2/models/api.stats", PREDICT, stats)["name"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/other", "/v2/models/other", "/v2/models/api.other/ready",
        "/v2/models/api/versions/2", "/v2/models/api/versions/2/ready", "/v2/models", "/v2/x",
        "/v2/models/other/config", "/v2/models/api/versions/2/stats", "/v2/models/api/x",
    ],
)  # fmt: skip
async def test_what_there_is_not_is_404(path: str) -> None:
    """And the error says what there is."""
    with pytest.raises(NoSuchRouteError, match=r"api|/docs"):
        metadata_answer(frontend(PREDICT), path)


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/api", "/v2/models/api/ready"])
async def test_before_the_model_is_loaded_nothing_is_ready(path: str) -> None:
    """But the process lives."""
    loading = frontend()

    with pytest.raises(NotReadyError):
        metadata_answer(loading, path)
    assert b'"live":true' in metadata_answer(loading, "/v2/health/live").body


async def test_a_stopping_replica_is_not_ready() -> None:
    """Clients that look at the protocol's health go elsewhere."""
    stopping = frontend(PREDICT)
    stopping.draining = True

    with pytest.raises(DrainingError):
        metadata_answer(stopping, "/v2/health/ready")
    assert b'"ready":false' in metadata_answer(stopping, "/v1/models/api").body
