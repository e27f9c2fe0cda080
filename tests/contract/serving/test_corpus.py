"""The fast lane and FastAPI answer the same: good and bad requests, each status of the table.

Design: the hot routes are answered from the HTTP parser's callbacks, or, with the fast lane off, by
FastAPI like every other route. A client must not be able to tell.
"""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from raw_http import Response, connected, request_bytes
from serving import Replica, running_replica, write_manifest

MAX_BODY = 100_000

TENSOR_CODE = """
    import time
    from batchedapi_serving import Tensor, batched

    class Model:
        def __init__(self, config, context):
            pass

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]))
        def predict(self, x):
            if (x == 666).any():
                raise ValueError("secret")
            if (x == 504).any():
                time.sleep(1.6)
            y = x.sum(axis=1, keepdims=True)
            y[x[:, 0] == 777] = float("nan")
            return y
"""
ITEM_CODE = """
    from batchedapi_serving import ItemError, batched

    class Model:
        def __init__(self, config, context):
            pass

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
        def __init__(self, config, context):
            pass

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


class Case(NamedTuple):
    """A request and the status it must get."""

    name: str
    status: int
    data: bytes
    has_body: bool = True


def post(name: str, status: int, body: bytes, path: str = "/predict", **headers: str) -> Case:
    """An ordinary POST; header names are written with underscores."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Case(name, status, request_bytes(path, body, named))


def raw(name: str, status: int, data: bytes, *, has_body: bool = True) -> Case:
    """Exactly these bytes."""
    return Case(name, status, data, has_body)


def saved(array: Any) -> bytes:
    """What numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def chunked(body: bytes, *, size: int = 7, headers: bytes = b"") -> bytes:
    """A POST whose length is not known beforehand."""
    chunks = (body[i : i + size] for i in range(0, len(body), size))
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n" + headers + b"\r\n" + encoded + b"0\r\n\r\n"
    )


NPY = "application/x-npy"
GOOD = b'{"instances": [[1, 2], [3, 4]]}'
TENSOR_CASES = [
    post("item", 200, b"[1, 2]"),
    post("instances", 200, GOOD),
    post("named endpoint", 200, b"[1, 2]", "/api"),
    post("named method", 200, b"[1, 2]", "/api/predict"),
    post("query", 200, b"[1, 2]", "/predict?a=1&b=%20"),
    post("escaped path", 200, b"[1, 2]", "/pre%64ict"),
    post("json with charset", 200, b"[1, 2]", content_type="application/json; charset=utf-8"),
    post("json suffix", 200, b"[1, 2]", content_type="application/vnd.x+json"),
    post("whitespace", 200, b" [1,\n2] "),
    post("npy", 200, saved(np.ones((3, 2), "<f4")), content_type=NPY),
    post("npy of float64", 200, saved(np.ones((1, 2))), content_type=NPY),
    post("npy in Fortran order", 200, saved(np.asfortranarray(np.eye(2))), content_type=NPY),
    post("oversize", 200, json.dumps({"instances": [[n, n] for n in range(50)]}).encode()),
    post("request id", 200, b"[1, 2]", x_request_id="abc"),
    raw("chunked", 200, chunked(GOOD)),
    raw("expect", 200, request_bytes("/predict", GOOD, {"expect": "100-continue"})),
    raw("http/1.0", 200, request_bytes("/predict", GOOD, version="1.0")),
    raw("http/1.0 keep-alive", 200,
        request_bytes("/predict", GOOD, {"connection": "keep-alive"}, version="1.0")),
    raw("close", 200, request_bytes("/predict", GOOD, {"connection": "close"})),
    raw("no content type", 200,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\n[1,2]"),
    raw("upper case headers", 200,
        b"POST /predict HTTP/1.1\r\nHOST: t\r\nCONTENT-LENGTH: 5\r\nCONTENT-TYPE: application/json"
        b"\r\n\r\n[1,2]"),
    post("empty", 400, b""),
    post("no json", 400, b"{"),
    post("NaN", 400, b"[NaN, 1]"),
    post("two values", 400, b"[1, 2] [3, 4]"),
    post("no utf-8", 400, b'["\xff"]'),
    post("too deep", 400, b"[" * 65 + b"]" * 65),
    post("no npy", 400, b"[1, 2]", content_type=NPY),
    post("short npy", 400, saved(np.ones((3, 2), "<f4"))[:-1], content_type=NPY),
    post("hostile npy", 400, b"\x93NUMPY\x01\x00\x10\x00{" + b"(" * 15, content_type=NPY),
    post("request id in an error", 400, b"{", x_request_id="abc"),
    raw("not http", 400, b"NONSENSE\r\n\r\n"),
    raw("no colon", 400, b"POST /predict HTTP/1.1\r\nno colon\r\n\r\n"),
    raw("bad length", 400, b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: x\r\n\r\n"),
    raw("bad chunk", 400,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"),
    post("no route", 404, b"[1, 2]", "/nowhere"),
    post("no route, other method", 404, b"[1, 2]", "/api/other"),
    post("request id in a 404", 404, b"[1, 2]", "/nowhere", x_request_id="abc"),
    raw("get", 405, request_bytes("/predict", b"", method="GET")),
    raw("head", 405, request_bytes("/predict", b"", method="HEAD"), has_body=False),
    raw("put", 405, request_bytes("/predict", b"[1, 2]", method="PUT")),
    raw("delete", 405, request_bytes("/api", b"", method="DELETE")),
    post("too large", 413, b"[1, " + b" " * MAX_BODY + b"2]"),
    raw("too large by content-length", 413,
        b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 999999999999\r\n\r\n"),
    raw("too large in chunks", 413, chunked(b" " * (MAX_BODY + 1), size=5000)),
    post("form", 415, b"a=1", content_type="application/x-www-form-urlencoded"),
    post("text", 415, b"[1, 2]", content_type="text/plain"),
    post("request id in a 415", 415, b"[1, 2]", content_type="a/b", x_request_id="x" * 300),
    post("short row", 422, b"[1]"),
    post("path is named", 422, b'{"instances": [[1, 2], [3, "x"]]}'),
    post("bool", 422, b"[1, true]"),
    post("object", 422, b'{"a": 1}'),
    post("null", 422, b"null"),
    post("no rows", 422, b'{"instances": []}'),
    post("out of range", 422, b"[1, 1e39]"),
    post("npy shape", 422, saved(np.ones((1, 3), "<f4")), content_type=NPY),
    post("npy type", 422, saved(np.array([["a", "b"]])), content_type=NPY),
    post("npy NaN", 422, saved(np.array([[1, np.nan]], "<f4")), content_type=NPY),
    raw("long header", 431,
        b"POST /predict HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 70_000 + b"\r\n\r\n"),
    raw("long target", 431, b"POST /predict?" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: t\r\n\r\n"),
    raw("many headers", 431,
        b"POST /predict HTTP/1.1\r\n"
        + b"".join(b"x-%d: %b\r\n" % (n, b"v" * 80) for n in range(1000)) + b"\r\n"),
    post("raised", 500, b"[666, 1]"),
    post("NaN answer", 500, b"[777, 1]"),
    post("timeout", 504, b"[504, 1]"),
]  # fmt: skip
ITEM_CASES = [
    post("item", 200, b'{"a": [1, null, "\xc3\xa9"]}'),
    post("scalar", 200, b"3"),
    post("instances", 200, b'{"instances": [1, {"b": 2}, "x"]}'),
    post("item error", 409, b'"conflict"'),
    post("item error among many", 409, b'{"instances": [1, "conflict", 2]}'),
    post("NaN", 500, b'"nan"'),
    post("npy", 415, saved(np.ones(2)), content_type=NPY),
]
CALL_CASES = [
    post("json", 200, b'{"instances": [1]}', "/api?q=1&q=2&e=", x_user="me"),
    post("text body", 200, b"a,b", content_type="text/csv"),
    post("other body", 200, b"\x89PNG", content_type="image/png"),
    post("text answer", 200, b'"text"'),
    post("bytes answer", 200, b'"bytes"'),
    post("refused", 403, b'"refused"'),
    post("no json", 400, b"{"),
]


class Pair(NamedTuple):
    """The same predictor twice."""

    fast: Replica
    slow: Replica


def pair_of(folder: Path, code: str) -> Iterator[Pair]:
    """With the fast lane, and without."""
    limits = {"maxBodySize": str(MAX_BODY), "timeout": "1s"}
    manifest = write_manifest(folder, code, {"overload": limits})
    arguments = ["-f", str(manifest)]
    with (
        running_replica(folder, arguments) as fast,
        running_replica(folder, [*arguments, "--no-fast-lane"]) as slow,
    ):
        yield Pair(fast, slow)


@pytest.fixture(scope="module")
def tensor_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A declared tensor."""
    yield from pair_of(tmp_path_factory.mktemp("tensor"), TENSOR_CODE)


@pytest.fixture(scope="module")
def item_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """JSON items."""
    yield from pair_of(tmp_path_factory.mktemp("items"), ITEM_CODE)


@pytest.fixture(scope="module")
def call_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Whole requests."""
    yield from pair_of(tmp_path_factory.mktemp("calls"), CALL_CODE)


async def answer(port: int, case: Case) -> Response:
    """Over a connection of its own."""
    async with connected(port) as connection:
        await connection.send(case.data)
        return await connection.receive(has_body=case.has_body)


def comparable(response: Response) -> tuple[int, str, bytes, str | None]:
    """What a client can tell."""
    headers = response.headers
    return response.status, headers["content-type"], response.body, headers.get("retry-after")


async def check(pair: Pair, case: Case) -> None:
    """Both give the expected status, and the same answer."""
    fast, slow = await asyncio.gather(answer(pair.fast.port, case), answer(pair.slow.port, case))

    assert case.status == fast.status, fast
    assert comparable(fast) == comparable(slow)
    if case.status != 200 and case.has_body:
        assert {"code", "message", "request_id"} == set(fast.error)
        assert b"Traceback" not in fast.body
        assert b"secret" not in fast.body


@pytest.mark.parametrize("case", TENSOR_CASES, ids=lambda case: case.name)
async def test_a_tensor_method_answers_the_same_in_both_lanes(
    tensor_pair: Pair, case: Case
) -> None:
    """Status, content type and body; every status that needs no overload."""
    await check(tensor_pair, case)


@pytest.mark.parametrize("case", ITEM_CASES, ids=lambda case: case.name)
async def test_an_item_method_answers_the_same_in_both_lanes(item_pair: Pair, case: Case) -> None:
    """An item's own status included."""
    await check(item_pair, case)


@pytest.mark.parametrize("case", CALL_CASES, ids=lambda case: case.name)
async def test_a_plain_method_answers_the_same_in_both_lanes(call_pair: Pair, case: Case) -> None:
    """C17: (payload, query_params, headers), one request at a time."""
    await check(call_pair, case)


async def test_what_a_plain_method_is_given_is_what_was_sent(call_pair: Pair) -> None:
    """Query and headers are its own to read."""
    response = await answer(call_pair.fast.port, CALL_CASES[0])

    expected = {"payload": {"instances": [1]}, "query": {"q": "2", "e": ""}, "user": "me"}
    assert expected == response.json()


@pytest.mark.parametrize("lane", ["fast", "slow"])
async def test_pipelined_requests_are_answered_in_order(tensor_pair: Pair, lane: str) -> None:
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

    async with connected(getattr(tensor_pair, lane).port) as connection:
        await connection.send(data)
        responses = [await connection.receive() for _ in expected]

    assert expected == [
        (response.status, response.json() if response.status == 200 else None)
        for response in responses
    ]


@pytest.mark.parametrize("lane", ["fast", "slow"])
async def test_a_refused_request_closes_its_connection(tensor_pair: Pair, lane: str) -> None:
    """What follows cannot be told from the rest of it."""
    async with connected(getattr(tensor_pair, lane).port) as connection:
        await connection.send(b"NONSENSE\r\n\r\n")
        response = await connection.receive()

        assert response.headers["connection"] == "close"
        assert await connection.is_closed_by_server()


@pytest.mark.parametrize("lane", ["fast", "slow"])
async def test_an_error_in_the_body_keeps_the_connection(tensor_pair: Pair, lane: str) -> None:
    """A client that mistyped one row need not connect again."""
    async with connected(getattr(tensor_pair, lane).port) as connection:
        for _ in range(3):
            assert (await connection.post("/predict", b"[1]")).status == 422
            assert (await connection.post("/predict", b"[1, 2]")).json() == [3]


@pytest.mark.parametrize("lane", ["fast", "slow"])
async def test_bytes_may_come_one_by_one(tensor_pair: Pair, lane: str) -> None:
    """A slow network is not an error."""
    data = request_bytes("/predict", GOOD) + chunked(GOOD)
    async with connected(getattr(tensor_pair, lane).port) as connection:
        for i in range(len(data)):
            await connection.send(data[i : i + 1])
            await asyncio.sleep(0)
        responses = [await connection.receive() for _ in range(2)]

    assert [{"predictions": [[3], [7]]}] * 2 == [response.json() for response in responses]


@pytest.mark.parametrize("lane", ["fast", "slow"])
async def test_expect_100_continue_is_answered_before_the_body(
    tensor_pair: Pair, lane: str
) -> None:
    """Curl waits a second for it with every large body."""
    data = request_bytes("/predict", GOOD, {"expect": "100-continue"})
    head, _, body = data.partition(b"\r\n\r\n")
    async with connected(getattr(tensor_pair, lane).port) as connection:
        await connection.send(head + b"\r\n\r\n")
        async with asyncio.timeout(5):
            interim = await connection._reader.readuntil(b"\r\n\r\n")
        await connection.send(body)
        response = await connection.receive()

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert response.status == 200


async def test_the_docs_describe_the_routes(tensor_pair: Pair) -> None:
    """D09: /docs, with an example that works."""
    case = raw("docs", 200, request_bytes("/openapi.json", b"", method="GET"))
    schema = (await answer(tensor_pair.fast.port, case)).json()
    page = await answer(
        tensor_pair.fast.port, raw("docs", 200, request_bytes("/docs", b"", method="GET"))
    )

    assert {"/predict", "/api", "/api/predict"} == set(schema["paths"])
    content = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
    example = json.dumps(content["application/json"]["example"]).encode()
    tried = await answer(tensor_pair.fast.port, post("example", 200, example))
    assert (200, 200) == (page.status, tried.status)
    assert NPY in content
