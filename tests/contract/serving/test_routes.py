"""Many clients in many languages at once: one batch, and each gets its own answer.

Defects of other servers that must not be ours: a batcher that answers every path of a batch as the
last one (KServe's), drops headers, turns errors into 200, or answers a timeout with null and 200.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raw_http import Response, connected, request_bytes
from serving import Replica, running_replica, write_manifest

CODE = """
    import time
    from batchedapi_serving import Tensor, batched, endpoint

    class Model:
        @batched(inputs=Tensor("FP32", [1]), outputs=Tensor("FP32", [1]), max_batch_size=64)
        def predict(self, x):
            if (x == 504).any():
                time.sleep(1)
            return x + 1

        @batched(inputs=Tensor("FP32", [1]), outputs=Tensor("FP32", [1]), max_batch_size=64)
        def double(self, x):
            return x * 2

        @endpoint
        def who(self, payload, query_params, headers):
            return {"user": headers.get("x-user"), "query": query_params, "payload": payload}
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one web process", "two web processes"])
def replica(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Replica]:
    """A replica that waits for batches of many clients and says which requests shared a batch."""
    folder: Path = tmp_path_factory.mktemp("routes")
    batching = {"batchInterval": "50ms", "strategy": "Fixed", "receipt": "Headers"}
    spec = {
        "serverSideBatching": batching,
        "predictor": {"webProcesses": request.param},
    }
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, spec))]) as started:
        yield started


async def post(replica: Replica, path: str, body: Any, **headers: str) -> Response:
    """Over a connection of its own."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with connected(replica.port) as connection:
        await connection.send(request_bytes(path, json.dumps(body).encode(), named))
        return await connection.receive()


def v2(number: float) -> Any:
    """An inference request of one row."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [number]}
    return {"inputs": [tensor]}


async def test_paths_and_languages_share_batches_and_keep_their_answers(replica: Replica) -> None:
    """Eighty requests in six languages and methods at once: nobody gets a neighbour's answer."""
    asked: list[tuple[str, Any, Any]] = []
    for n in range(10):
        asked += [
            ("/predict", [n], [n + 1]),
            ("/api", {"instances": [[n], [n + 1]]}, {"predictions": [[n + 1], [n + 2]]}),
            ("/v1/models/api:predict", {"instances": [[n]]}, {"predictions": [[n + 1]]}),
            ("/v2/models/api/infer", v2(n), [n + 1]),
            ("/api", [[n], [n + 1]], [[n + 1], [n + 2]]),
            ("/predict", [[n]], [[n + 1]]),
            ("/api/double", [n], [2 * n]),
            ("/v2/models/api.double/infer", v2(n), [2 * n]),
        ]

    responses = await asyncio.gather(*(post(replica, path, body) for path, body, _ in asked))

    assert {200} == {response.status for response in responses}
    for (path, _, expected), response in zip(asked, responses, strict=True):
        found = response.json()
        assert expected == (found["outputs"][0]["data"] if path.startswith("/v2") else found)
    batches = {response.headers["x-batchedapi-batch-id"] for response in responses}
    assert len(batches) < len(asked) / 3


async def test_an_error_among_others_is_never_200_and_nobody_elses(replica: Replica) -> None:
    """One malformed, one too short, one unknown model, and thirty good ones beside them."""
    good = [post(replica, "/predict", [n]) for n in range(30)]
    bad = [
        post(replica, "/predict", [1, 2]),
        post(replica, "/v2/models/api/infer", {"inputs": []}),
        post(replica, "/v1/models/other:predict", {"instances": [[1]]}),
        post(replica, "/predict", [1], x_request_timeout_ms="x"),
    ]

    responses = await asyncio.gather(*good, *bad)

    assert [200] * 30 + [422, 422, 404, 400] == [response.status for response in responses]
    assert [[n + 1] for n in range(30)] == [response.json() for response in responses[:30]]


async def test_a_timeout_is_an_error_with_words(replica: Replica) -> None:
    """Not null with 200, as dynamic_batcher's; and only who hurried is late."""
    slow = asyncio.create_task(post(replica, "/predict", [504], x_request_timeout_ms="300"))
    late = await slow
    after = await post(replica, "/predict", [1])

    assert (504, "deadline_exceeded") == (late.status, late.error["code"])
    assert "0.3 s" in late.error["message"]
    assert (200, [2]) == (after.status, after.json())


async def test_headers_and_query_reach_the_method_that_takes_them(replica: Replica) -> None:
    """KServe's batcher drops them."""
    response = await post(replica, "/api/who?q=1", {"a": 2}, x_user="me", x_request_id="mine")

    assert {"user": "me", "query": {"q": "1"}, "payload": {"a": 2}} == response.json()
    assert "mine" == response.headers["x-request-id"]
