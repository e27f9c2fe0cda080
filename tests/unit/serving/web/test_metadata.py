"""What a replica says of itself under /v1 and /v2."""

import json
from typing import Any

import pytest

from batchedapi_serving.errors import DrainingError, NoSuchRouteError, NotReadyError
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.web.asgi import metadata_answer
from connections import PREDICT, Server

pytestmark = pytest.mark.looptime

EMBED = MethodSpec(
    "embed", batched=True, inputs={"input": Tensor("FP32", [2, "tokens"])}, single_input=True
)


def frontend(*methods: MethodSpec) -> Any:
    """Of a server with these."""
    return Server(methods=methods).frontend


def document(path: str, *methods: MethodSpec) -> Any:
    """The JSON of a GET."""
    answer = metadata_answer(frontend(*(methods or (PREDICT, EMBED))), path)
    assert (200, b"application/json") == (answer.status, answer.content_type)
    return json.loads(answer.body)


async def test_a_replica_says_what_it_is() -> None:
    """D11: the Open Inference Protocol's documents, and v1's."""
    assert {"name", "version", "extensions"} == set(document("/v2"))
    assert {"live": True} == document("/v2/health/live")
    assert {"ready": True} == document("/v2/health/ready")
    assert {"name": "api", "ready": True} == document("/v1/models/api")
    assert {"name": "api.embed", "ready": True} == document("/v2/models/api.embed/ready")
    assert {"name": "api", "ready": True} == document("/v2/models/api/versions/1/ready")


@pytest.mark.parametrize("path", ["/v2/models/api.embed", "/v2/models/api.embed/versions/1"])
async def test_a_model_says_what_it_takes(path: str) -> None:
    """With -1 for the rows and for each variable dimension."""
    found = document(path)

    assert ("api.embed", ["1"]) == (found["name"], found["versions"])
    assert [{"name": "input", "datatype": "FP32", "shape": [-1, 2, -1]}] == found["inputs"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/other", "/v2/models/other", "/v2/models/api.other/ready",
        "/v2/models/api/versions/2", "/v2/models/api/versions/2/ready", "/v2/models", "/v2/x",
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
