"""Answers and requests that are odd in every language: kept, or refused, never changed.

Through a real server: the same value is the same answer over JSON, msgpack, v1, v2, gRPC, streams,
responses and `encode`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

CODE = """
    import collections, dataclasses, enum
    import numpy as np
    from batchedapi_serving import Response, batched, endpoint

    Pair = collections.namedtuple("Pair", ["label", "score"])

    @dataclasses.dataclass
    class Scored:
        score: float

    class Unknown(enum.Enum):
        SCORE = float("nan")

    VALUES = {
        "named tuple": Pair("cat", 0.5),
        "texts": {"labels": np.array(["cat", "dog"]), "of": np.array(["a", 1], object)},
        "masked": np.ma.array([1, 2], mask=[False, True]),
        "wide": 2**64 - 1,
        "nan in a dataclass": [Scored(float("nan"))],
        "nan of an enum": {"a": Unknown.SCORE},
        "inf in a named tuple": Pair("cat", np.float32("inf")),
        "inf as a key": {float("inf"): 1},
        "wider": 2**64,
        "two keys": {1: "a", "1": "b"},
        "half a surrogate": {"a": chr(0xD800)},
        "bytes inside": [b"a"],
    }

    class Model:
        @batched
        def predict(self, names):
            return [VALUES[name] for name in names]

        @batched(encode="encoded")
        def encodes(self, names):
            return names

        def encoded(self, name):
            return VALUES[name]

        @endpoint
        def call(self, payload, query_params):
            return {"payload": payload, "query": query_params}

        @endpoint
        def response(self, payload):
            return Response(VALUES[payload], status=201)

        @endpoint
        def stream(self, payload):
            yield 1
            yield VALUES[payload]
"""
KEPT = {
    "named tuple": ["cat", 0.5],
    "texts": {"labels": ["cat", "dog"], "of": ["a", 1]},
    "masked": [1, None],
    "wide": 2**64 - 1,
}
FORM = (
    b'--abc\r\nContent-Disposition: form-data; name="a"\r\n'
    b"Content-Type: text/plain; charset=iso-8859-1\r\n\r\n\xf6\r\n--abc--\r\n"
)
REFUSED = (
    "nan in a dataclass", "nan of an enum", "inf in a named tuple", "inf as a key", "wider",
    "two keys", "half a surrogate", "bytes inside",
)  # fmt: skip


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """The gRPC port of the module's replica."""
    return free_port()


@pytest.fixture(scope="module")
def replica(folder: Path, grpc_port: int) -> Iterator[Replica]:
    """With gRPC."""
    manifest = write_manifest(folder, CODE, {})
    with running_replica(folder, ["-f", str(manifest), "--grpc-port", str(grpc_port)]) as started:
        yield started


@pytest.fixture(scope="module")
def client(replica: Replica) -> Iterator[httpx.Client]:
    """A client for HTTP."""
    with httpx.Client(base_url=f"http://{HOST}:{replica.port}", timeout=30) as http:
        yield http


def said(client: httpx.Client, grpc_port: int, name: str) -> dict[str, tuple[int, Any]]:
    """Status and value of one answer in each language."""
    v2 = {
        "inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "data": [name]}],
    }
    rows = {"instances": [name]}
    packed = client.post(
        "/predict", content=msgpack.packb(name), headers={"content-type": "application/msgpack"}
    )
    answers = {
        "plain": (client.post("/predict", json=name), json.loads),
        "rows": (client.post("/predict", json=rows), lambda b: json.loads(b)["predictions"][0]),
        "v1": (
            client.post("/v1/models/api:predict", json=rows),
            lambda body: json.loads(body)["predictions"][0],
        ),
        "v2": (
            client.post("/v2/models/api/infer", json=v2),
            lambda body: json.loads(json.loads(body)["outputs"][0]["data"][0]),
        ),
        "msgpack": (packed, msgpack.unpackb),
        "encode": (client.post("/api/encodes", json=name), json.loads),
        "response": (client.post("/api/response", json=name), json.loads),
    }
    found = {
        language: (answer.status_code, read(answer.content) if answer.is_success else answer.text)
        for language, (answer, read) in answers.items()
    }
    with triton_grpc.InferenceServerClient(f"{HOST}:{grpc_port}") as grpc:
        tensor = triton_grpc.InferInput("input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([name.encode()], object))
        try:
            text = grpc.infer("api", [tensor]).as_numpy("output")[0]
            found["grpc"] = (200, json.loads(text))
        except InferenceServerException as error:
            found["grpc"] = (500, str(error))
    with client.stream(
        "POST", "/api/stream", json=name, headers={"accept": "application/x-ndjson"}
    ) as answer:
        *_, last = answer.iter_lines()
    value = json.loads(last)
    failed = isinstance(value, dict) and "error" in value
    found["stream"] = (500 if failed else 200, value)
    return found


@pytest.mark.parametrize("name", KEPT)
def test_an_answer_with_a_natural_form_has_it_in_every_language(
    client: httpx.Client, grpc_port: int, name: str
) -> None:
    """Named tuples and arrays of text were no JSON at all."""
    found = said(client, grpc_port, name)

    assert {
        language: (201 if language == "response" else 200, KEPT[name]) for language in found
    } == found


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_without_one_is_a_failure_in_every_language(
    replica: Replica, client: httpx.Client, grpc_port: int, name: str
) -> None:
    """Null, another number or one key less would be answered with 200."""
    found = said(client, grpc_port, name)

    assert {500} == {status for status, _ in found.values()}, found
    assert all("the predictor answered" in str(told) for _, told in found.values()), found
    assert '"wrong answer"' in replica.text()


@pytest.mark.parametrize(
    ("content_type", "body", "status", "payload"),
    [
        ("text/plain; charset=latin-1", b"J\xf6rg", 200, "J\u00f6rg"),
        ("text/plain; charset=utf-16", "J\u00f6rg".encode("utf-16"), 200, "J\u00f6rg"),
        ("text/plain", b"J\xf6rg", 400, "expected text in UTF-8"),
        ("text/plain; charset=klingon", b"x", 415, "klingon"),
        ("application/json; charset=utf-16", '"\u00f6"'.encode("utf-16"), 415, "utf-16"),
        ("application/json", b"\xef\xbb\xbf1", 400, "byte order mark"),
        ("application/json", b"18446744073709551615", 200, 2**64 - 1),
        ("application/json", b"18446744073709551616", 422, "integers of 64 bits"),
        ("application/json", b"[-9223372036854775809]", 422, "integers of 64 bits"),
        ("application/json", b'["18446744073709551616"]', 200, ["18446744073709551616"]),
        ("application/json", b"1e400", 400, "infinity"),
        ("application/json", b'"\\ud800"', 400, "surrogate"),
        ("application/json", b"-0.0", 200, -0.0),
        (
            "multipart/form-data; boundary=abc",
            FORM,
            200,
            {"a": "\u00f6"},
        ),
    ],
)
def test_a_body_is_read_as_it_was_meant_or_refused(
    client: httpx.Client, content_type: str, body: bytes, status: int, payload: Any
) -> None:
    """Not as the nearest text or number."""
    answer = client.post("/api/call", content=body, headers={"content-type": content_type})

    assert status == answer.status_code, answer.text
    if status == httpx.codes.OK:
        assert payload == answer.json()["payload"]
    else:
        assert payload.lower() in answer.json()["error"]["message"].lower()


def test_a_query_is_utf_8_or_refused(client: httpx.Client) -> None:
    """Its bytes are escaped, or are not."""
    good, bad = (client.post(f"/api/call?q={q}", json=1) for q in ("J%C3%B6rg", "J%F6rg"))

    assert {"q": "J\u00f6rg"} == good.json()["query"]
    assert (400, "malformed") == (bad.status_code, bad.json()["error"]["code"])
