"""Tools for any gRPC server, which have no proto file of ours: grpcurl and grpc_health_probe."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

ROOT: Final = Path(__file__).resolve().parents[3]
SECONDS: Final = 900.0
"""To build both programs on a busy machine, where nobody has yet."""
CODE: Final = """
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP32", [2]))
        def predict(self, x):
            return x * 2
"""


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """Where the replica answers gRPC."""
    return free_port()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[Replica]:
    """One that serves gRPC."""
    folder = tmp_path_factory.mktemp("replica")
    manifest = write_manifest(folder, CODE, {})
    with running_replica(folder, ["-f", str(manifest), "--grpc-port", str(grpc_port)]) as running:
        yield running


@pytest.fixture(scope="module")
def programs() -> Path:
    """Folder of both, built from their Go modules."""
    command = [sys.executable, ROOT / "tests/cluster/tools", "grpcurl", "grpc-health-probe"]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return ROOT / ".cache" / "bin"


def run(*command: object) -> "subprocess.CompletedProcess[str]":
    """Run a program; the result has its output and its exit code."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.usefixtures("replica")
def test_grpcurl_finds_and_asks_without_a_proto_file(grpc_port: int, programs: Path) -> None:
    """It lists the services, describes a message and gets an answer; the probe needs no name."""
    curl: tuple[Any, ...] = (programs / "grpcurl", "-plaintext")
    service, address = "inference.GRPCInferenceService", f"{HOST}:{grpc_port}"
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 2]}
    request = {
        "model_name": "api",
        "inputs": [{**tensor, "contents": {"fp32_contents": [1.5, 2.0]}}],
    }

    listed = run(*curl, address, "list").stdout.split()
    described = run(*curl, address, "describe", "inference.ModelInferRequest").stdout
    probed = run(programs / "grpc-health-probe", f"-addr={address}")
    asked = run(*curl, "-d", json.dumps(request), address, f"{service}/ModelInfer")

    assert {service, "grpc.health.v1.Health"} <= set(listed)
    assert "string model_name = 1;" in described
    assert "status: SERVING" in probed.stdout + probed.stderr
    assert "api" == json.loads(asked.stdout)["model_name"], asked.stderr


@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize(
    ("service", "code", "text"),
    [
        ("", 0, "SERVING"),
        ("inference.GRPCInferenceService", 0, "SERVING"),
        ("other", 3, "NotFound"),
    ],
)
def test_the_health_probe_of_kubernetes_is_answered(
    grpc_port: int, programs: Path, service: str, code: int, text: str
) -> None:
    """As a kubelet, a mesh or a load balancer asks."""
    program = programs / "grpc-health-probe"

    done = run(program, f"-addr={HOST}:{grpc_port}", f"-service={service}")

    assert code == done.returncode, done.stderr
    assert text in done.stdout + done.stderr


def test_an_open_watch_sees_the_end_and_does_not_hold_it_up(tmp_path: Path) -> None:
    """Somebody's page with the health in it is no reason to wait for the grace period."""
    port = free_port()
    manifest = write_manifest(tmp_path, CODE, {"overload": {"timeout": "300s"}})
    arguments = ["-f", str(manifest), "--grpc-port", str(port)]
    with (
        running_replica(tmp_path, arguments) as replica,
        grpc.insecure_channel(f"{HOST}:{port}") as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        first = next(watch).status

        code = replica.stop(seconds=60)

        later = [update.status for update in watch]
    assert health_pb2.HealthCheckResponse.SERVING == first
    assert health_pb2.HealthCheckResponse.NOT_SERVING == later[-1]
    assert 0 == code
