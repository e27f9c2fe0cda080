"""`decode` and `encode` beside a batched method: side by side, and not in the batch."""

import concurrent.futures
import http.client
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from ports import HOST
from serving import Replica, end_replica, running_replica, start_replica, write_manifest

WAITS: Final = 0.2
ASKED: Final = 8
MOST_SECONDS: Final = 0.45
CODE: Final = """
    import asyncio
    import time

    from batchedapi_serving import ItemError, Response, Tensor, batched

    class Model:
        def __init__(self, context):
            self.context = context
            self.sizes = []

        def read(self, payload, query_params, headers):
            time.sleep(float(query_params.get("wait", 0)))
            if payload == "wrong":
                raise ItemError(415, "no picture")
            if payload == "bug":
                raise KeyError("secret")
            return [payload["a"], payload["b"]]

        def write(self, answer):
            return {"sum": float(answer[0]), "kind": type(answer).__name__}

        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [1]), decode="read",
                 encode="write", max_batch_size=8)
        def predict(self, x):
            return x.sum(axis=1, keepdims=True)

        def picture(self, payload):
            if not hasattr(payload["picture"], "content"):
                raise ItemError(422, "picture: expected a file")
            return len(payload["picture"].content)

        def named(self, answer):
            return {"bytes": answer}

        def made(self, answer):
            return Response("<p>", 201, {"Content-Type": "text/html", "Cache-Control": "no-store"})

        @batched(example=1, encode="made")
        def page(self, items):
            return items

        @batched(example=1, decode="picture", encode="named")
        def upload(self, items):
            return items

        async def wait(self, payload):
            await asyncio.sleep(payload)
            return payload

        @batched(example=0.1, decode="wait")
        def later(self, items):
            return [ItemError(404, "nothing") if item == 0 else item for item in items]

        async def shout(self, answer):
            return answer.upper()

        @batched(example="a", encode="shout")
        async def words(self, items):
            return [f"{item}!" for item in items]
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one web process", "two web processes"])
def replica(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    """The queue is in one process, whichever process a request comes to."""
    folder = tmp_path_factory.mktemp("replica")
    spec: dict[str, Any] = {
        "predictor": {"webProcesses": request.param},
        "serverSideBatching": {"batchInterval": "20ms"},
    }
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, spec))]) as running:
        yield running


def ask(replica: Replica, path: str, payload: Any) -> httpx.Response:
    """One request on a connection of its own."""
    return httpx.post(f"http://{HOST}:{replica.port}{path}", json=payload, timeout=30)


def at_once(replica: Replica, path: str, payloads: list[Any]) -> list[httpx.Response]:
    """Answers in the order of the payloads; all are asked at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(payloads)) as threads:
        return list(threads.map(lambda payload: ask(replica, path, payload), payloads))


def test_each_gets_the_encoded_answer_to_its_own_row(replica: Replica) -> None:
    """In each language; a request of several instances is several calls."""
    answers = at_once(replica, "/predict", [{"a": i, "b": 100} for i in range(50)])
    v1 = ask(replica, "/v1/models/api:predict", {"instances": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]})
    words = ask(replica, "/api/words", "hello")

    assert [{"sum": 100.0 + i, "kind": "ndarray"} for i in range(50)] == [a.json() for a in answers]
    assert [3.0, 7.0] == [one["sum"] for one in v1.json()["predictions"]]
    assert "HELLO!" == words.text


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/predict?wait=0.2", "/api/later"])
def test_waiting_in_decode_is_side_by_side(replica: Replica, path: str) -> None:
    """Eight requests that wait 200 ms each, in a thread or on the loop; else it takes 1.6 s."""
    payload: Any = WAITS if path == "/api/later" else {"a": 1, "b": 2}
    clients = [http.client.HTTPConnection(HOST, replica.port, timeout=30) for _ in range(ASKED)]
    body, took = json.dumps(payload), []

    def answered(client: http.client.HTTPConnection) -> int:
        client.request("POST", path, body, {"content-type": "application/json"})
        response = client.getresponse()
        response.read()
        return response.status

    with concurrent.futures.ThreadPoolExecutor(ASKED) as threads:
        for _ in range(7):
            began = time.monotonic()
            statuses = list(threads.map(answered, clients))
            took.append(time.monotonic() - began)
            assert [200] * ASKED == statuses
    for client in clients:
        client.close()

    assert statistics.median(took) <= MOST_SECONDS


def test_rows_that_were_decoded_ride_together(replica: Replica) -> None:
    """Rows decoded at the same time are one batch, under a name of its own in the metrics."""
    before = replica.metrics()
    at_once(replica, "/predict?wait=0.2", [{"a": 1, "b": 2}] * ASKED)
    page = replica.admin("/metrics")[1]

    assert 'batchedapi_batch_rows_sum{method="predict.batch"}' in page
    assert replica.metrics() != before


def test_what_decode_or_a_row_refuses_fails_alone(replica: Replica) -> None:
    """With its own status; a bug is a 500 of that request, and tells nothing."""
    good, wrong, bug, shape = at_once(
        replica, "/predict", [{"a": 1, "b": 2}, "wrong", "bug", {"a": "x", "b": 2}]
    )
    item = ask(replica, "/api/later", 0)

    assert [200, 415, 500, 422] == [a.status_code for a in (good, wrong, bug, shape)]
    assert "no picture" in wrong.text
    assert "secret" not in bug.text
    assert (404, "nothing") == (item.status_code, item.json()["error"]["message"])


def test_status_and_headers_of_the_predictor_are_sent(replica: Replica) -> None:
    """Over plain HTTP; of several instances, and over v1, the content alone is answered."""
    one, v1 = (
        ask(replica, "/api/page", 1),
        ask(replica, "/v1/models/api.page:predict", {"instances": [1, 2]}),
    )

    assert (201, "<p>") == (one.status_code, one.text)
    assert ("text/html", "no-store") == (one.headers["content-type"], one.headers["cache-control"])
    assert (200, {"predictions": ["<p>", "<p>"]}) == (v1.status_code, v1.json())


def test_files_of_curl_and_httpx_are_decoded(replica: Replica, tmp_path: Path) -> None:
    """Beside a wrong form, which costs neither the connection nor the log anything."""
    picture = tmp_path / "picture.bin"
    picture.write_bytes(bytes(range(256)) * 1000)
    url = f"http://{HOST}:{replica.port}/api/upload"
    command = ["curl", "-s", "-F", f"picture=@{picture}", "-F", "title=x", url]
    by_curl = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with httpx.Client(timeout=30) as client:
        by_httpx = client.post(url, files={"picture": picture.read_bytes()}, data={"title": "x"})
        field = client.post(url, data={"x": "1"}, files={"y": b"1"})
        text = client.post(url, files={"picture": (None, "no file")})
        wrong = client.post(url, content=b"--a", headers={
            "content-type": "multipart/form-data; boundary=b"})  # fmt: skip

    assert [{"bytes": 256_000}] * 2 == [json.loads(by_curl), by_httpx.json()]
    assert [500, 422, 400] == [answer.status_code for answer in (field, text, wrong)]
    assert "before the first part" in wrong.text
    assert "Expected boundary" not in replica.text()


@pytest.mark.parametrize("path", ["/api/predict.batch", "/v2/models/api.predict.batch/infer"])
def test_nobody_goes_around_decode(replica: Replica, path: str) -> None:
    """It may check what a row alone does not show."""
    assert 404 == ask(replica, path, [[1, 2]]).status_code
    assert ".batch" not in httpx.get(f"http://{HOST}:{replica.port}/openapi.json").text


@pytest.mark.parametrize(
    ("arguments", "method", "said"),
    [
        ('decode="nowhere"', "", "there is no such method; write def nowhere(self, payload)"),
        ('decode="read"', "def read(self, a, b): return a", "write def read(self, payload"),
        ('encode="show"', "def show(self, a, b): return a", "write def show(self, answer)"),
        ('encode="show"', "def show(self, a): yield a", "return it whole"),
        ("decode=3", "", "expected decode to be the name of a method"),
    ],
)
def test_what_cannot_be_called_is_told_at_the_start(
    tmp_path: Path, arguments: str, method: str, said: str
) -> None:
    """And not by the first client."""
    code = f"""
from batchedapi_serving import batched

class Model:
    {method}
    @batched(example=1, {arguments})
    def predict(self, items): return items
"""
    replica = start_replica(tmp_path, ["-f", str(write_manifest(tmp_path, code, {}))])
    try:
        assert replica.process.wait(60) != 0
        assert said in replica.text()
    finally:
        end_replica(replica)
