"""Good and bad requests of every kind, each status of the table, and what an error tells."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raw_http import Response, connected, request_bytes
from request_corpus import (
    CALL_CASES,
    GOOD,
    HEADERS_CASES,
    ITEM_CASES,
    MAX_BODY,
    NPY,
    PROTOCOL_CASES,
    TENSOR_CASES,
    V1,
    V2,
    Case,
    chunked,
    post,
    raw,
)
from serving import Replica, running_replica, write_manifest

TENSOR_CODE = """
    import time
    from batchedapi_serving import ItemError, Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            if (x == 666).any():
                raise ValueError("secret")
            if (x == 409).any():
                raise ItemError(409, "taken")
            if (x == 504).any():
                time.sleep(8.6)
            if (x == 505).any():
                time.sleep(1)
            y = x.sum(axis=1, keepdims=True)
            y[x[:, 0] == 777] = float("nan")
            return y

        @batched(
            inputs=Tensor("FP32", [2], allow_non_finite=True),
            outputs=Tensor("FP32", [2], allow_non_finite=True),
        )
        def missing(self, x):
            return x
"""
ITEM_CODE = """
    from batchedapi_serving import ItemError, batched

    class Model:
        @batched
        def predict(self, items):
            return [
                ItemError(409, "taken") if item == "conflict"
                else float("nan") if item == "nan"
                else {"echo": item}
                for item in items
            ]
"""
CALL_CODE = """
    from batchedapi_serving import ItemError

    class Model:
        def predict(self, payload, query_params, headers):
            if payload == "text":
                return "text"
            if payload == "bytes":
                return b"bytes"
            if payload == "refused":
                return ItemError(403, "no")
            value = payload.decode("latin-1") if isinstance(payload, bytes) else payload
            return {"payload": value, "query": query_params, "user": headers.get("x-user")}
"""


def replica_of(folder: Path, code: str) -> Iterator[Replica]:
    """With a short timeout and a small limit of bodies."""
    # The timeout is also what a request waits for the process that follows one that hung.
    limits = {"maxBodySize": str(MAX_BODY), "timeout": "8s"}
    manifest = write_manifest(folder, code, {"overload": limits})
    with running_replica(folder, ["-f", str(manifest)]) as started:
        yield started


@pytest.fixture(scope="module")
def tensor_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A declared tensor."""
    yield from replica_of(tmp_path_factory.mktemp("tensor"), TENSOR_CODE)


@pytest.fixture(scope="module")
def item_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """JSON items."""
    yield from replica_of(tmp_path_factory.mktemp("items"), ITEM_CODE)


@pytest.fixture(scope="module")
def call_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """Whole requests."""
    yield from replica_of(tmp_path_factory.mktemp("calls"), CALL_CODE)


async def answer(port: int, case: Case) -> Response:
    """Over a connection of its own."""
    async with connected(port) as connection:
        await connection.send(case.data)
        return await connection.receive(has_body=case.has_body)


async def check(replica: Replica, case: Case) -> None:
    """The expected status; an error has an id, in the header and in the body, and no secrets."""
    response = await answer(replica.port, case)

    assert case.status == response.status, response
    if case.status != 200:
        assert response.headers["x-request-id"] or not case.has_body
    if case.status != 200 and case.has_body:
        assert b"Traceback" not in response.body
        assert b"secret" not in response.body
        error = response.json()["error"]
        if not isinstance(error, str):  # the Open Inference Protocol's is one
            assert {"code", "message", "request_id"} == set(error)
            assert response.headers["x-request-id"] == error["request_id"]


@pytest.mark.parametrize(
    "case", TENSOR_CASES + PROTOCOL_CASES + HEADERS_CASES, ids=lambda case: case.name
)
async def test_a_tensor_method_answers_each_request_of_the_corpus(
    tensor_replica: Replica, case: Case
) -> None:
    """Status, content type and body; every status that needs no overload."""
    await check(tensor_replica, case)


@pytest.mark.parametrize("case", ITEM_CASES, ids=lambda case: case.name)
async def test_an_item_method_answers_each_request_of_the_corpus(
    item_replica: Replica, case: Case
) -> None:
    """An item's own status included."""
    await check(item_replica, case)


@pytest.mark.parametrize("case", CALL_CASES, ids=lambda case: case.name)
async def test_a_plain_method_answers_each_request_of_the_corpus(
    call_replica: Replica, case: Case
) -> None:
    """C17: (payload, query_params, headers), one request at a time."""
    await check(call_replica, case)


async def test_what_a_plain_method_is_given_is_what_was_sent(call_replica: Replica) -> None:
    """Query and headers are its own to read."""
    response = await answer(call_replica.port, CALL_CASES[0])

    expected = {"payload": {"instances": [1]}, "query": {"q": "2", "e": ""}, "user": "me"}
    assert expected == response.json()


async def test_pipelined_requests_are_answered_in_order(tensor_replica: Replica) -> None:
    """Hot and cold routes, good and bad, two hundred at once."""
    expected: list[tuple[int, Any]] = []
    data = b""
    for n in range(200):
        kind = n % 4
        if kind == 0:
            data += request_bytes("/nowhere", b"")
            expected.append((404, None))
        elif kind == 1:
            data += request_bytes("/predict", b"[1]")
            expected.append((422, None))
        else:
            data += request_bytes("/predict", b"[%d, 1]" % n)
            expected.append((200, [n + 1]))

    async with connected(tensor_replica.port) as connection:
        await connection.send(data)
        responses = [await connection.receive() for _ in expected]

    assert expected == [
        (response.status, response.json() if response.status == 200 else None)
        for response in responses
    ]


async def test_a_refused_request_closes_its_connection(tensor_replica: Replica) -> None:
    """The bytes that follow cannot be told from the rest of the request."""
    async with connected(tensor_replica.port) as connection:
        await connection.send(b"NONSENSE\r\n\r\n")
        response = await connection.receive()

        assert response.headers["connection"] == "close"
        assert await connection.is_closed_by_server()


async def test_an_error_in_the_body_keeps_the_connection(tensor_replica: Replica) -> None:
    """A client that mistyped one row need not connect again."""
    async with connected(tensor_replica.port) as connection:
        for _ in range(3):
            assert (await connection.post("/predict", b"[1]")).status == 422
            assert (await connection.post("/predict", b"[1, 2]")).json() == [3]


async def test_bytes_may_come_one_by_one(tensor_replica: Replica) -> None:
    """A slow network is not an error."""
    data = request_bytes("/predict", GOOD) + chunked(GOOD)
    async with connected(tensor_replica.port) as connection:
        for i in range(len(data)):
            await connection.send(data[i : i + 1])
            await asyncio.sleep(0)
        responses = [await connection.receive() for _ in range(2)]

    assert [{"predictions": [[3], [7]]}] * 2 == [response.json() for response in responses]


async def test_expect_100_continue_is_answered_before_the_body(tensor_replica: Replica) -> None:
    """Curl waits a second for it with every large body."""
    data = request_bytes("/predict", GOOD, {"expect": "100-continue"})
    head, _, body = data.partition(b"\r\n\r\n")
    async with connected(tensor_replica.port) as connection:
        await connection.send(head + b"\r\n\r\n")
        async with asyncio.timeout(5):
            interim = await connection._reader.readuntil(b"\r\n\r\n")
        await connection.send(body)
        response = await connection.receive()

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert response.status == 200


async def test_the_docs_describe_the_routes(tensor_replica: Replica) -> None:
    """D09: /docs, with an example that works."""
    case = raw("docs", 200, request_bytes("/openapi.json", b"", method="GET"))
    schema = (await answer(tensor_replica.port, case)).json()
    page = await answer(
        tensor_replica.port, raw("docs", 200, request_bytes("/docs", b"", method="GET"))
    )

    links = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert ["docs/swagger-ui.css", "data:,", "docs/swagger-ui-bundle.js"] == links, "no CDN"
    for file, start in (("swagger-ui.css", b".swagger-ui"), ("swagger-ui-bundle.js", b"/*")):
        get = request_bytes(f"/docs/{file}", b"", method="GET")
        assert (await answer(tensor_replica.port, raw(file, 200, get))).body.startswith(start)
    assert "url: 'openapi.json'" in page.body.decode()
    assert {"/predict", "/api", "/api/predict", V1, V2, "/v2", "/v2/models/api"} < set(
        schema["paths"]
    )
    content = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
    example = json.dumps(content["application/json"]["example"]).encode()
    tried = await answer(tensor_replica.port, post("example", 200, example))
    assert (200, 200) == (page.status, tried.status)
    assert NPY in content
