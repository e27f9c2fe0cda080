"""Projects of other servers after `batchedapi migrate`: they serve once they are filled in."""

import json
import subprocess
from pathlib import Path

import joblib
import yaml
from sklearn.linear_model import LinearRegression

from raw_http import ask
from serving import PROGRAM, running_replica

SECONDS = 120.0


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One of our commands, to its end."""
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


async def test_a_class_of_cortex_serves_batches_as_it_is(tmp_path: Path) -> None:
    """Its predict takes a list already; `check` needs rows to ask with."""
    batching = {"max_batch_size": 8, "batch_interval": 0.01}
    predictor = {"path": "predictor.py", "server_side_batching": batching}
    api = {"name": "pictures", "kind": "RealtimeAPI", "predictor": predictor}
    (tmp_path / "cortex.yaml").write_text(yaml.safe_dump([api]))
    (tmp_path / "rows.json").write_text(json.dumps([{"pixels": [1, 2]}]))
    (tmp_path / "predictor.py").write_text(
        "class PythonPredictor:\n"
        "    def __init__(self, config):\n        pass\n\n"
        "    def predict(self, payload):\n        return [sum(one['pixels']) for one in payload]\n"
    )

    done = run(tmp_path, "migrate", "cortex.yaml")
    checked = run(tmp_path, "check", "-f", "batchedapi.yaml", "--items", "rows.json")
    with running_replica(tmp_path, ["-f", "batchedapi.yaml"]) as replica:
        answer = await ask(replica.port, {"pixels": [3, 4]}, path="/pictures")

    assert (0, 0) == (done.returncode, checked.returncode), done.stderr + checked.stderr
    assert (200, 7) == (answer.status, answer.json())


async def test_a_saved_model_of_kserve_is_served_without_code(tmp_path: Path) -> None:
    """With the one word that nobody else can give."""
    model = LinearRegression(fit_intercept=False).fit([[1.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    (tmp_path / "model").mkdir()
    joblib.dump(model, tmp_path / "model" / "model.joblib")
    uri = f"file://{tmp_path}/model"
    predictor = {"model": {"modelFormat": {"name": "sklearn"}, "storageUri": uri}}
    service = {"kind": "InferenceService", "metadata": {"name": "iris"}}
    (tmp_path / "isvc.yaml").write_text(
        yaml.safe_dump({**service, "spec": {"predictor": predictor}})
    )

    done = run(tmp_path, "migrate", "isvc.yaml")
    assert "if you know who made it set spec.predictor.model.trusted: true" in done.stdout
    manifest = tmp_path / "batchedapi.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace("format: sklearn", "format: sklearn\n      trusted: true"))
    checked = run(tmp_path, "check", "-f", "batchedapi.yaml")
    with running_replica(tmp_path, ["-f", "batchedapi.yaml"]) as replica:
        answer = await ask(
            replica.port, {"instances": [[1.0, 3.0]]}, path="/v1/models/iris:predict"
        )

    assert (0, 0) == (done.returncode, checked.returncode), done.stderr + checked.stderr
    assert not (tmp_path / "batched_model.py").exists()
    assert (200, [5.0]) == (answer.status, answer.json()["predictions"])


def test_a_class_to_fill_in_says_so(tmp_path: Path) -> None:
    """In the words that the command prints and the log has."""
    (tmp_path / "config.properties").write_text("default_workers_per_model=1\n")
    (tmp_path / "rows.json").write_text("[1]")

    done = run(tmp_path, "migrate", "config.properties")
    checked = run(tmp_path, "check", "-f", "batchedapi.yaml", "--items", "rows.json")

    assert 0 == done.returncode
    assert "call the model" in done.stdout
    assert 1 == checked.returncode
    assert "write Model.predict" in checked.stderr


def test_what_is_refused_writes_nothing(tmp_path: Path) -> None:
    """A file that is none of them, and one beside which a manifest is already."""
    (tmp_path / "service.py").write_text("import bentoml\n")
    other = run(tmp_path, "migrate", "service.py")
    assert [tmp_path / "service.py"] == list(tmp_path.iterdir())
    (tmp_path / "batched_model.py").write_text("")
    (tmp_path / "config.properties").write_text("")
    again = run(tmp_path, "migrate", "config.properties")

    assert (2, 2) == (other.returncode, again.returncode)
    assert "code is not translated" in other.stderr
    assert "is there already" in again.stderr
    assert not (tmp_path / "batchedapi.yaml").exists()
