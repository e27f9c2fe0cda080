"""Every protocol against a real replica, through clients that others wrote.

One API with three methods: `predict` takes a tensor, `pairs` named tensors, `describe` JSON items.
"""

import json
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from batchedapi_core import contract
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

CODE = """
    from batchedapi_serving import ItemError, Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [2]))
        def predict(self, rows):
            if (rows == 409).any():
                raise ItemError(409, "taken")
            return rows[:, :2] * 2

        @batched(
            inputs={"ids": Tensor("INT64", [2]), "weight": Tensor("FP16", [])},
            outputs={"total": Tensor("INT64", []), "scaled": Tensor("FP64", [2])},
        )
        def pairs(self, inputs):
            ids, weight = inputs["ids"], inputs["weight"]
            return {"total": ids.sum(axis=1), "scaled": ids * weight[:, None].astype("f8")}

        @batched
        def describe(self, items):
            return [ItemError(409, "taken") if i == "taken" else {"got": i} for i in items]
"""
SPEC = {
    "serverSideBatching": {
        "maxBatchSize": 64,
        "batchInterval": "300ms",
        "strategy": "Fixed",
        "receipt": "All",
    }
}
ROW = np.array([[1, 2, 3, 4]], dtype=np.float32)
IDS = np.array([[1, 2], [3, 4]], dtype=np.int64)
WEIGHT = np.array([0.5, 2], dtype=np.float16)
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Served:
    """A replica and where it speaks what."""

    replica: Replica
    grpc_port: int

    @property
    def http(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.replica.port}"

    @property
    def grpc(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.grpc_port}"

    def counted(self, *codes: str) -> float:
        """Requests that ended with one of the codes so far, of all methods."""
        return sum(
            sample.value
            for sample in self._samples(contract.METRIC_REQUESTS)
            if sample.labels["code"] in codes
        )

    def batches(self) -> float:
        """Batches that were dispatched so far, of all methods."""
        return sum(sample.value for sample in self._samples(contract.METRIC_BATCHES))

    def _samples(self, name: str) -> list[Any]:
        families = text_string_to_metric_families(self.replica.admin(contract.PATH_METRICS)[1])
        return [sample for family in families for sample in family.samples if sample.name == name]

    def post(
        self, path: str, body: Any, content_type: str = "application/json"
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a POST; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.http}{path}", data, {"content-type": content_type}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - as above
                return response.status, _lower(response.headers), response.read()
        except urllib.error.HTTPError as error:
            return error.code, _lower(error.headers), error.read()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """One replica for all tests, with receipts, and a window that every request falls into."""
    port = free_port()
    manifest = write_manifest(folder, CODE, SPEC)
    arguments = ["-f", str(manifest), "--grpc-port", str(port)]
    with running_replica(folder, arguments) as replica:
        yield Served(replica, port)


@pytest.fixture
def http_client(served: Served) -> Iterator[Any]:
    """NVIDIA's client over HTTP."""
    with triton_http.InferenceServerClient(served.http, network_timeout=30) as client:
        yield client


@pytest.fixture
def grpc_client(served: Served) -> Iterator[Any]:
    """NVIDIA's client over gRPC."""
    with triton_grpc.InferenceServerClient(served.grpc) as client:
        yield client


def tensor_of(module: Any, name: str, datatype: str, values: Any, **how: Any) -> Any:
    """One input, as either of the clients has it."""
    tensor = module.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, **how)
    return tensor


def pairs_of(module: Any, **how: Any) -> list[Any]:
    """Two rows for the method with named tensors."""
    return [
        tensor_of(module, "ids", "INT64", IDS, **how),
        tensor_of(module, "weight", "FP16", WEIGHT),
    ]


@pytest.mark.parametrize("name", ["http_client", "grpc_client"])
def test_health_and_metadata_are_as_triton_reads_them(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Before any inference, its tools ask for all of these."""
    client = request.getfixturevalue(name)
    as_json = {} if name == "http_client" else {"as_json": True}

    metadata = client.get_model_metadata("api.pairs", **as_json)

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("api")
    assert client.is_model_ready("api.pairs", "1")
    assert "binary_tensor_data" in client.get_server_metadata(**as_json)["extensions"]
    inputs = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
    assert {"ids": "INT64", "weight": "FP16"} == inputs
    assert [-1, 2] == [int(n) for n in metadata["outputs"][1]["shape"]]
    with pytest.raises(InferenceServerException):
        client.get_model_metadata("nobody", **as_json)


@pytest.mark.parametrize("binary", [True, False], ids=["raw", "JSON"])
def test_triton_infers_over_http(http_client: Any, binary: bool) -> None:  # noqa: FBT001 - a parameter
    """Tensors raw and in JSON, both ways; id and receipt come back."""
    result = http_client.infer(
        "api",
        [tensor_of(triton_http, "input", "FP32", ROW, binary_data=binary)],
        outputs=[triton_http.InferRequestedOutput("output", binary_data=binary)],
        request_id="42",
    )

    response = result.get_response()
    assert [[2, 4]] == result.as_numpy("output").tolist()
    assert ("42", "api", "1") == (
        response["id"],
        response["model_name"],
        response["model_version"],
    )
    assert 1 == response["parameters"]["my_rows"]
    assert ("binary_data_size" in response["outputs"][0].get("parameters", {})) is binary


def test_triton_infers_over_grpc(grpc_client: Any) -> None:
    """Raw tensors both ways."""
    result = grpc_client.infer(
        "api", [tensor_of(triton_grpc, "input", "FP32", ROW)], request_id="42"
    )

    assert [[2, 4]] == result.as_numpy("output").tolist()
    assert "42" == result.get_response().id
    assert 1 == result.get_response().parameters["my_rows"].int64_param


@pytest.mark.parametrize(
    ("name", "module"), [("http_client", triton_http), ("grpc_client", triton_grpc)]
)
def test_only_requested_outputs_are_answered(
    name: str, module: Any, request: pytest.FixtureRequest
) -> None:
    """MLServer #514 answers all of them."""
    client = request.getfixturevalue(name)

    result = client.infer(
        "api.pairs", pairs_of(module), outputs=[module.InferRequestedOutput("scaled")]
    )

    assert [[0.5, 1], [6, 8]] == result.as_numpy("scaled").tolist()
    assert result.as_numpy("total") is None
    with pytest.raises(InferenceServerException, match="expected 'total' or 'scaled'"):
        client.infer("api.pairs", pairs_of(module), outputs=[module.InferRequestedOutput("x")])


@pytest.mark.parametrize(
    ("name", "module"), [("http_client", triton_http), ("grpc_client", triton_grpc)]
)
def test_strings_are_items_and_answers_are_json_texts(
    name: str, module: Any, request: pytest.FixtureRequest
) -> None:
    """A method without tensors takes BYTES."""
    client = request.getfixturevalue(name)
    words = np.array([["größer"], ["b"]], dtype=object)

    result = client.infer("api.describe", [tensor_of(module, "text", "BYTES", words)])

    answers = [json.loads(text) for text in result.as_numpy("output")]
    assert [{"got": "größer"}, {"got": "b"}] == answers


@pytest.mark.parametrize(
    ("name", "module"), [("http_client", triton_http), ("grpc_client", triton_grpc)]
)
def test_a_failure_is_never_a_success(
    name: str, module: Any, request: pytest.FixtureRequest
) -> None:
    """KServe's batcher answers it with 200; the message is the predictor's own."""
    client = request.getfixturevalue(name)
    words = np.array(["fine", "taken"], dtype=object)

    with pytest.raises(InferenceServerException, match="row 1: taken") as raised:
        client.infer("api.describe", [tensor_of(module, "text", "BYTES", words)])

    assert raised.value.status() in ("409", "StatusCode.ABORTED")


@pytest.mark.parametrize(
    ("name", "module"), [("http_client", triton_http), ("grpc_client", triton_grpc)]
)
def test_an_item_error_that_is_raised_over_many_rows_is_that_of_its_row(
    name: str, module: Any, request: pytest.FixtureRequest, served: Served
) -> None:
    """Raised over arrays, it cannot say whose it is: the row is found, and named to everybody."""
    client = request.getfixturevalue(name)
    rows = np.full((5, 4), 1, np.float32)
    rows[3, 1] = 409

    with pytest.raises(InferenceServerException, match="row 3: taken") as raised:
        client.infer("api", [tensor_of(module, "input", "FP32", rows)])
    status, _, body = served.post("/predict", {"instances": rows.tolist()})

    assert raised.value.status() in ("409", "StatusCode.ABORTED")
    *others, failed, last = json.loads(body)["predictions"]
    assert (409, "taken") == (status, failed["error"]["message"])
    assert [[2, 2]] * 4 == [*others, last]


def test_v1_is_as_kserve_has_it(served: Served) -> None:
    """Predictions for instances, readiness by name."""
    status, headers, body = served.post("/v1/models/api:predict", {"instances": ROW.tolist()})
    with urllib.request.urlopen(f"http://{served.http}/v1/models/api", timeout=30) as response:
        ready = json.load(response)

    assert (200, {"predictions": [[2, 4]]}) == (status, json.loads(body))
    assert "1" == headers["x-batchedapi-my-rows"]
    assert {"name": "api", "ready": True} == ready
    status, _, body = served.post("/v1/models/api.describe:predict", {"instances": ["taken", "b"]})
    assert (409, {"got": "b"}) == (status, json.loads(body)["predictions"][1])


def test_msgpack_is_answered_in_msgpack(served: Served) -> None:
    """Answers and errors."""
    path, kind = "/predict", "application/x-msgpack"

    status, headers, body = served.post(path, msgpack.packb({"instances": ROW.tolist()}), kind)
    wrong, _, refusal = served.post(path, msgpack.packb([1, 2, 3, float("nan")]), kind)

    assert (200, kind) == (status, headers["content-type"])
    assert {"predictions": [[2, 4]]} == msgpack.unpackb(body)
    assert 422 == wrong
    assert b"finite" in refusal


def test_every_protocol_rides_in_the_same_batch(
    served: Served, http_client: Any, grpc_client: Any
) -> None:
    """KServe batches v1 only. Here six languages at once are one batch of six rows."""
    npy = b"\x93NUMPY\x01\x00\x46\x00" + (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }".ljust(69) + b"\n"
    ) + struct.pack("<4f", 1, 2, 3, 4)  # fmt: skip
    start = threading.Barrier(6)

    def http_batch(path: str, body: Any, kind: str = "application/json") -> str:
        start.wait()
        status, headers, answer = served.post(path, body, kind)
        assert status == 200, answer
        return headers["x-batchedapi-batch-id"]

    def over_http() -> str:
        tensor = tensor_of(triton_http, "input", "FP32", ROW)
        start.wait()
        response = http_client.infer("api", [tensor]).get_response()
        return str(response["parameters"]["batch_id"])

    def over_grpc() -> str:
        tensor = tensor_of(triton_grpc, "input", "FP32", ROW)
        start.wait()
        response = grpc_client.infer("api", [tensor]).get_response()
        return str(response.parameters["batch_id"].string_param)

    packed = msgpack.packb({"instances": ROW.tolist()})
    calls: list[Callable[[], str]] = [
        lambda: http_batch("/predict", {"instances": ROW.tolist()}),
        lambda: http_batch("/predict", npy, "application/x-npy"),
        lambda: http_batch("/predict", packed, "application/msgpack"),
        lambda: http_batch("/v1/models/api:predict", {"instances": ROW.tolist()}),
        over_http,
        over_grpc,
    ]
    with ThreadPoolExecutor(6) as pool:
        batches = [done.result() for done in [pool.submit(call) for call in calls]]

    assert 1 == len(set(batches))


def test_methods_never_share_a_batch(served: Served) -> None:
    """KServe's batcher sends what came for one path to another."""
    bodies: list[tuple[str, Any]] = [
        ("/v1/models/api:predict", {"instances": ROW.tolist()}),
        ("/v1/models/api.describe:predict", {"instances": ["a"]}),
    ]
    with ThreadPoolExecutor(2) as pool:
        (_, first, a), (_, second, b) = pool.map(lambda sent: served.post(*sent), bodies)

    assert first["x-batchedapi-batch-id"] != second["x-batchedapi-batch-id"]
    assert {"predictions": [[2, 4]]} == json.loads(a)
    assert {"predictions": [{"got": "a"}]} == json.loads(b)


def test_a_client_of_triton_learns_sizes_and_times(served: Served) -> None:
    """Over HTTP and over gRPC the same: what perf tools of Triton read before and after a load."""
    with (
        triton_http.InferenceServerClient(served.http) as http,
        triton_grpc.InferenceServerClient(served.grpc) as call,
    ):
        tensor = triton_http.InferInput("input", [1, 4], "FP32").set_data_from_numpy(ROW)
        before = http.get_inference_statistics("api")["model_stats"][0]
        http.infer("api", [tensor])
        after = http.get_inference_statistics("api", "1")["model_stats"][0]
        configs = http.get_model_config("api"), call.get_model_config("api", as_json=True)["config"]
        statistics = call.get_inference_statistics("api").model_stats[0]
        models = http.get_inference_statistics()["model_stats"]

    assert before["inference_count"] + 1 == after["inference_count"] == statistics.inference_count
    assert after["inference_stats"]["compute_infer"]["ns"] == (
        statistics.inference_stats.compute_infer.ns
    )
    assert 0 < after["inference_stats"]["success"]["ns"]
    assert [configs[0][key] for key in ("name", "platform", "max_batch_size")] == [
        configs[1][key] for key in ("name", "platform", "max_batch_size")
    ]
    assert "api.describe" in {model["name"] for model in models}


@pytest.mark.parametrize("timeout", [0.1, None], ids=["deadline", "cancelled"])
def test_a_client_that_leaves_over_grpc_is_not_run(served: Served, timeout: float | None) -> None:
    """B22: its row leaves the queue and never reaches the model; the call is counted once."""
    tensor = triton_grpc.InferInput("input", [1, 4], "FP32").set_data_from_numpy(ROW)
    message = triton_grpc.service_pb2.ModelInferRequest(
        model_name="api", inputs=[tensor._get_tensor()], raw_input_contents=[ROW.tobytes()]
    )
    ended, batches = served.counted("499", "504"), served.batches()

    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary(INFER).future(message.SerializeToString(), timeout=timeout)
        if timeout is None:
            time.sleep(0.1)  # less than the batch interval: it waits in the queue by then
            call.cancel()
        with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
            call.result()
        served.replica.wait_for(
            lambda: served.counted("499", "504") == ended + 1, "it was not counted once"
        )

    time.sleep(0.4)  # more than the batch interval
    assert batches == served.batches()
