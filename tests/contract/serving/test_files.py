"""Models served as they are: `batchedapi serve FILE`, and a manifest without a path."""

import json
import subprocess
from pathlib import Path

import joblib
import yaml
from sklearn.linear_model import LinearRegression

from batchedapi_core import contract
from onnx_models import iris_model
from raw_http import ask, connected, request_bytes
from serving import PROGRAM, running_replica

SECONDS = 120.0


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One of our commands, to its end."""
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


async def described(port: int, path: str) -> str:
    """The text of a document."""
    async with connected(port) as connection:
        await connection.send(request_bytes(path, b"", method="GET"))
        return json.dumps((await connection.receive()).json())


async def test_a_file_is_an_api_of_its_name(tmp_path: Path) -> None:
    """Its names and types are those of the metadata, the configuration and /docs."""
    tensor = {"name": "sepals", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    v1, v2 = "/v1/models/iris:predict", "/v2/models/iris"
    with running_replica(tmp_path, [str(iris_model(tmp_path / "iris.onnx"))]) as replica:
        one = await ask(replica.port, [1, 2, 3, 4], "/iris")
        many = await ask(replica.port, {"instances": [[5, 6, 7, 8]]}, v1)
        inferred = await ask(replica.port, {"inputs": [tensor]}, f"{v2}/infer")
        texts = [await described(replica.port, path) for path in (v2, f"{v2}/config")]
        texts.append(await described(replica.port, "/openapi.json"))

    assert [1.0, 2.0, 3.0] == one.json()
    assert {"predictions": [[5.0, 6.0, 7.0]]} == many.json()
    assert ["scores"] == [output["name"] for output in inferred.json()["outputs"]]
    for text in texts:
        assert "sepals" in text


async def test_a_manifest_without_a_path_serves_its_model(tmp_path: Path) -> None:
    """Another name than the file's, and a format that the name does not tell."""
    joblib.dump(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]), tmp_path / "model.bin")
    model = {"uri": (tmp_path / "model.bin").as_uri(), "format": "sklearn", "trusted": True}
    manifest = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "prices"},
        "spec": {"predictor": {"model": model}},
    }
    (tmp_path / "api.yaml").write_text(yaml.safe_dump(manifest))

    with running_replica(tmp_path, ["-f", "api.yaml"]) as replica:
        found = await ask(replica.port, [[1.0], [2.0]], "/prices")

    assert [3.0, 5.0] == [round(one, 6) for one in found.json()]


def test_a_file_is_checked(tmp_path: Path) -> None:
    """As a class is."""
    done = run(tmp_path, "check", str(iris_model(tmp_path / "iris.onnx")))

    assert 0 == done.returncode, done.stderr
    assert "are answered the same alone" in done.stdout


def test_a_file_that_is_refused_is_one_sentence(tmp_path: Path) -> None:
    """And the exit code of a predictor that does not start."""
    joblib.dump({}, tmp_path / "model.joblib")

    done = run(tmp_path, "serve", "model.joblib", "--port", "0", "--admin-port", "0")

    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert last.startswith("batchedapi: InitFailed: spec.predictor.model 'model.joblib': expected")
    assert "--trusted" in last
