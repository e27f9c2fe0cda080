"""Keys, CORS, gzip and the access log over real sockets, on every path that a request may take."""

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from batchedapi_serving.codecs import open_inference_pb2 as messages
from ports import HOST, free_port
from serving import Replica, running_replica, start_replica, write_manifest
from serving import end_replica as end

KEY: Final = "a-key-of-some-length"
PAGE: Final = "https://app.example.com"
CODE: Final = """
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]))
        def predict(self, x):
            return x * 2
"""
SPEC: Final = {
    "predictor": {"webProcesses": 2, "logLevel": "error"},
    "networking": {
        "apiKeys": {"secretName": "keys"},
        "cors": {"allowOrigins": [PAGE]},
        "accessLog": True,
    },
    "overload": {"maxBodySize": "64Ki"},
}
ROW: Final = "[1.0, 2.0]"
V2: Final = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
JSON: Final = {"content-type": "application/json"}
BEARER: Final = {"authorization": f"Bearer {KEY}"}
MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """Where the replica answers gRPC."""
    return free_port()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the keys, as a mounted Secret has them: files, and a folder that is none of them."""
    folder = tmp_path_factory.mktemp("replica")
    (folder / "keys" / "..data").mkdir(parents=True)
    (folder / "keys" / "mobile").write_text(f"{KEY}\n")
    (folder / "keys" / "batch-job").write_text("another-key")
    return folder


@pytest.fixture(scope="module")
def replica(folder: Path, grpc_port: int) -> Iterator[Replica]:
    """With two web processes, of which each has to know the keys."""
    manifest = write_manifest(folder, CODE, SPEC)
    arguments = ["-f", str(manifest), "--grpc-port", str(grpc_port), "--api-keys", "keys"]
    with running_replica(folder, arguments) as running:
        yield running


def ask(replica: Replica, method: str, path: str, **more: Any) -> httpx.Response:
    """One request on a connection of its own: whichever web process has it answers."""
    return httpx.request(method, f"http://{HOST}:{replica.port}{path}", timeout=30, **more)


PATHS: Final = [
    ("POST", "/predict", ROW), ("POST", "/api/predict", ROW), ("POST", "/%70redict", ROW),
    ("POST", "/v1/models/api:predict", json.dumps({"instances": [[1, 2]]})),
    ("POST", "/v2/models/api/infer", json.dumps(V2)),
    ("GET", "/v2", None), ("GET", "/v2/models/api", None), ("GET", "/v1/models/api", None),
]  # fmt: skip
WRONG: Final = [
    {}, {"authorization": ""}, {"authorization": "Bearer"},
    {"authorization": f"Basic {KEY}"}, {"authorization": KEY}, {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY[:-1]}"}, {"authorization": f"Bearer {KEY.upper()}"},
    {"x-api-key": ""}, {"x-api-key": "mobile"}, {"x-api-key": f"Bearer {KEY}"},
    {"cookie": f"x-api-key={KEY}"}, {"x-api-key": "x" * 10_000},
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body"), PATHS)
def test_every_path_asks_for_a_key(
    replica: Replica, method: str, path: str, body: str | None
) -> None:
    """Beside FastAPI and in it, in each language; either header, either key, however written."""
    more = {"content": body, "headers": {"content-type": "application/json"}}
    without = ask(replica, method, path, **more)
    right = [
        ask(
            replica, method, path, content=body, headers={"content-type": "application/json", **key}
        )
        for key in (BEARER, {"Authorization": f"bearer {KEY}"}, {"x-api-key": "another-key"})
    ]

    assert (401, "Bearer") == (without.status_code, without.headers["www-authenticate"])
    assert "X-API-Key, got none" in without.text
    assert [200] * 3 == [response.status_code for response in right]


@pytest.mark.parametrize("headers", WRONG, ids=repr)
def test_a_wrong_key_is_refused_and_nothing_of_it_is_told(
    replica: Replica, headers: dict[str, str]
) -> None:
    """Nothing of a key that is wrong or right is in the answer."""
    answer = ask(replica, "POST", "/predict", content=ROW, headers=headers)

    assert (401, "unauthenticated") == (answer.status_code, answer.json()["error"]["code"])
    assert KEY[:5] not in answer.text


def test_a_connection_asks_anew_with_each_request(replica: Replica) -> None:
    """A head that was seen before takes a shortcut, which must not be one around the key."""
    with httpx.Client(base_url=f"http://{HOST}:{replica.port}") as client:
        codes = [
            client.post("/predict", content=ROW, headers=headers).status_code
            for headers in (BEARER, BEARER, {}, {}, BEARER)
        ]

    assert [200, 200, 401, 401, 200] == codes


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"])
def test_health_and_the_documentation_are_open(replica: Replica, path: str) -> None:
    """A load balancer and a browser have no key; a prediction is nothing of the kind."""
    assert 200 == ask(replica, "GET", path).status_code
    assert 401 == ask(replica, "POST", path, content=ROW).status_code


def infer(port: int, metadata: list[tuple[str, str]], path: str = MODEL_INFER) -> str:
    """The name of the code that the call ends with."""
    request = messages.ModelInferRequest(model_name="api")
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[1, 2])
    tensor.contents.fp32_contents.extend([1, 2])
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary(path)
        try:
            call(request.SerializeToString(), metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


@pytest.mark.usefixtures("replica")
def test_calls_of_grpc_ask_for_a_key_too(grpc_port: int) -> None:
    """Health is open here as well: probes have no metadata."""
    service = MODEL_INFER.rpartition("/")[0]

    assert "UNAUTHENTICATED" == infer(grpc_port, [])
    assert "UNAUTHENTICATED" == infer(grpc_port, [("authorization", "Bearer wrong")])
    assert "UNAUTHENTICATED" == infer(grpc_port, [], f"{service}/ModelMetadata")
    assert "OK" == infer(grpc_port, [("authorization", f"Bearer {KEY}")])
    assert "OK" == infer(grpc_port, [("x-api-key", KEY)])
    assert "OK" == infer(grpc_port, [], f"{service}/ServerLive")


def test_a_key_that_is_added_or_removed_holds_without_a_restart(
    replica: Replica, folder: Path
) -> None:
    """As the kubelet renews a mounted Secret; on connections that are open too."""
    file = folder / "keys" / "new"
    with httpx.Client(base_url=f"http://{HOST}:{replica.port}") as client:

        def code() -> int:
            headers = {"x-api-key": "new-key"}
            return client.post("/predict", content=ROW, headers=headers).status_code

        assert code() == 401
        file.write_text("new-key")
        replica.wait_for(lambda: code() == 200, "the new key is not taken", 60)
        file.write_text("not a key")
        assert code() == 200
        file.unlink()
        replica.wait_for(lambda: code() == 401, "the old key is still taken", 60)


def test_a_page_of_that_origin_may_read_and_no_other(replica: Replica) -> None:
    """The preflight brings no key; errors must be readable too."""
    preflight = {"access-control-request-method": "POST",
                 "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    allowed = ask(replica, "OPTIONS", "/predict", headers={"origin": PAGE, **preflight})
    other = ask(replica, "OPTIONS", "/predict", headers={"origin": "https://evil", **preflight})
    answers = [
        ask(replica, method, path, content=body, headers={"origin": PAGE, **headers})
        for method, path, body, headers in (
            ("POST", "/predict", ROW, BEARER), ("POST", "/predict", "{", BEARER),
            ("POST", "/predict", ROW, {}), ("GET", "/v2", None, BEARER),
            ("POST", "/predict", "x" * 70_000, BEARER),
        )
    ]  # fmt: skip
    stranger = ask(replica, "POST", "/predict", content=ROW,
                   headers={"origin": "https://evil", **BEARER})  # fmt: skip

    assert (200, PAGE) == (allowed.status_code, allowed.headers["access-control-allow-origin"])
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert 400 == other.status_code
    assert [200, 400, 401, 200, 413] == [answer.status_code for answer in answers]
    assert {PAGE} == {answer.headers["access-control-allow-origin"] for answer in answers}
    assert all("Origin" in answer.headers["vary"] for answer in answers)
    assert "access-control-allow-origin" not in stranger.headers


def test_curl_sends_gzip_and_a_bomb_is_stopped(replica: Replica, tmp_path: Path) -> None:
    """64 KiB is the limit here; the bomb has 10 MB in 10 KB."""
    codes = []
    for body in (ROW.encode(), b"[" + b"1" * 10_000_000):
        packed = tmp_path / "body.gz"
        packed.write_bytes(gzip.compress(body))
        command = [
            "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", f"@{packed}",
            "-H", "content-encoding: gzip", "-H", "content-type: application/json",
            "-H", f"authorization: Bearer {KEY}", f"http://{HOST}:{replica.port}/predict",
        ]  # fmt: skip
        codes.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert ["200", "413"] == codes


LIMIT: Final = 64 * 1024
BOMB: Final = gzip.compress(b"0" * (LIMIT + 1))
PART: Final = b'--abc\r\nContent-Disposition: form-data; name="a"\r\n\r\nhi\r\n'
FORM: Final = "Content-Type: multipart/form-data; boundary=abc"
UPLOADS: Final[dict[str, tuple[list[str], bytes, int, str]]] = {
    "too long, and nothing of it sent": ([f"Content-Length: {LIMIT + 1}"], b"", 413, "limit"),
    "a terabyte": (["Content-Length: 1099511627776"], b"", 413, "at most 65536 bytes"),
    "too long, and a 100 awaited": (
        [f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"], b"", 413, "at most 65536 bytes",
    ),
    "chunks beyond the limit, and more to come": (
        ["Transfer-Encoding: chunked"], b"10001\r\n" + b"0" * (LIMIT + 1), 413, "at most 65536",
    ),
    "a form beyond the limit": ([FORM, f"Content-Length: {LIMIT + 1}"], PART, 413, "at most 65536"),
    "a bomb": (
        ["Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"], BOMB, 413, "at most 65536",
    ),
    "no length": (["Content-Length: many"], b"", 400, "HTTP/1.1 request"),
    "a negative length": (["Content-Length: -1"], b"", 400, "HTTP/1.1 request"),
    "two lengths": (["Content-Length: 1", "Content-Length: 2"], b"1", 400, "HTTP/1.1 request"),
    "length and chunks": (
        ["Content-Length: 1", "Transfer-Encoding: chunked"], b"0\r\n\r\n", 400, "HTTP/1.1",
    ),
    "a chunk of no length": (["Transfer-Encoding: chunked"], b"zz\r\n", 400, "HTTP/1.1 request"),
    "another coding": (["Content-Encoding: br", "Content-Length: 1"], b"1", 415, "expected gzip"),
    "no gzip": (["Content-Encoding: gzip", "Content-Length: 3"], b"abc", 400, "gzip"),
    "half of a gzip": (["Content-Encoding: gzip", "Content-Length: 9"], BOMB[:9], 400, "gzip"),
    "half of JSON": (["Content-Length: 1"], b"[", 400, "body"),
    "no JSON": (["Content-Length: 2"], b"\xff\xfe", 400, "body"),
    "another type": (["Content-Type: image/png", "Content-Length: 1"], b"1", 415, "image/png"),
    "a form for a method of rows": (
        [FORM, f"Content-Length: {len(PART)}"], PART, 415, "multipart/form-data",
    ),
    "an empty body": (["Content-Length: 0"], b"", 400, "body"),
    "another shape": (["Content-Length: 3"], b"[1]", 422, "expected"),
    "a long head": (["X-A: " + "a" * 70_000], b"", 431, "at most 65536 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", UPLOADS)
def test_a_wrong_upload_is_refused_with_the_reason_before_more_of_it_comes(
    replica: Replica, name: str
) -> None:
    """Nothing is awaited beyond what is wrong: the rest is never sent, and the answer is there.

    The next client is served as if nothing had been.
    """
    headers, body, status, said = UPLOADS[name]
    own = any(line.lower().startswith("content-type") for line in headers)
    lines = ["POST /predict HTTP/1.1", "Host: t", f"X-API-Key: {KEY}", *headers]
    lines += [] if own else ["Content-Type: application/json"]
    with socket.create_connection((HOST, replica.port), timeout=30) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        answer = client.recv(65536)
    head, _, text = answer.partition(b"\r\n\r\n")
    error = json.loads(text)["error"]

    assert status == int(head.split()[1]), answer
    assert ("maxBodySize" if said == "limit" else said) in error["message"]
    assert {"code", "message", "request_id"} == set(error)
    assert b"Traceback" not in text
    assert ask(replica, "POST", "/predict", content=ROW, headers=BEARER | JSON).status_code == 200


def test_each_request_has_one_line_whatever_the_level_of_the_log(
    replica: Replica, grpc_port: int
) -> None:
    """Good and bad requests are logged, FastAPI's and gRPC's; no line has a key or a query."""
    ids = {f"asked-{number}": None for number in range(5)}
    headers = [{"x-request-id": name, **BEARER} for name in ids]
    ask(replica, "POST", "/predict?secret=1", content=ROW, headers=headers[0])
    ask(replica, "POST", "/predict", content="{", headers=headers[1])
    ask(replica, "GET", "/v2", headers=headers[2])
    ask(replica, "POST", "/predict", content=ROW, headers={"x-request-id": "asked-3"})
    infer(grpc_port, [("x-api-key", KEY), ("x-request-id", "asked-4")])

    def lines() -> list[dict[str, Any]]:
        read = (json.loads(line) for line in replica.text().splitlines() if line.endswith("}"))
        return [line for line in read if line.get("request_id") in ids]

    replica.wait_for(lambda: len(lines()) >= len(ids), "lines are missing")
    found = {line["request_id"]: line for line in lines()}
    assert len(ids) == len(lines())
    assert [200, 400, 200, 401, "OK"] == [found[name]["status"] for name in ids]
    assert ["POST", "POST", "GET", "POST", "GRPC"] == [found[name]["method"] for name in ids]
    assert "/predict" == found["asked-0"]["path"]
    assert all(line["seconds"] >= 0 and HOST in line["client"] for line in found.values())
    assert KEY not in replica.text()
    assert "secret" not in replica.text()


@pytest.mark.parametrize(
    ("arguments", "files", "said"),
    [
        ([], {}, "a cluster mounts the Secret keys"),
        (["--api-keys", "keys"], {}, "at least one key, got none"),
        (["--api-keys", "keys"], {"mine": "one two"}, "file mine: expected one key"),
        (["--api-keys", "nowhere"], {}, "expected a folder"),
    ],
    ids=["no folder", "no key", "two keys", "no such folder"],
)
def test_keys_that_are_asked_for_and_not_there_keep_a_replica_from_starting(
    tmp_path: Path, arguments: list[str], files: dict[str, str], said: str
) -> None:
    """Never does it answer whoever comes instead."""
    (tmp_path / "keys").mkdir()
    for name, text in files.items():
        (tmp_path / "keys" / name).write_text(text)
    manifest = write_manifest(tmp_path, CODE, SPEC)
    replica = start_replica(tmp_path, ["-f", str(manifest), *arguments])
    try:
        assert replica.process.wait(60) != 0
        assert said in replica.text()
    finally:
        end(replica)
