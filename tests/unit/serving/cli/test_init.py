"""`batchedapi init`: what it writes, and what it leaves as it is."""

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import skops.io
import yaml
from click.testing import CliRunner, Result
from sklearn.linear_model import LogisticRegression

from batchedapi_core.manifest import parse_api
from batchedapi_serving import Context
from batchedapi_serving.cli.main import main
from batchedapi_serving.model.loading import method_spec
from onnx_models import iris_model


def init(*arguments: object) -> Result:
    """`batchedapi init ARGUMENTS`."""
    return CliRunner().invoke(main, ["init", *map(str, arguments)])


@pytest.mark.parametrize("kind", ["json", "numpy", "scikit-learn", "torch"])
def test_a_project_is_whole(tmp_path: Path, kind: str) -> None:
    """Code that compiles, a manifest that is one, and the API of the folder's name."""
    result = init(tmp_path / "prices", "--template", kind)

    files = {file.name: file.read_text() for file in (tmp_path / "prices").iterdir()}
    assert {"model.py", "batchedapi.yaml", "test_model.py", "Dockerfile"} == set(files)
    compile(files["model.py"], "model.py", "exec")
    compile(files["test_model.py"], "test_model.py", "exec")
    assert "prices" == parse_api(yaml.safe_load(files["batchedapi.yaml"])).metadata.name
    assert "curl localhost:8080/prices" in result.output
    assert 0 == result.exit_code


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """Not even beside a file of somebody else's."""
    folder = tmp_path / "prices"
    folder.mkdir()
    (folder / "model.py").write_text("mine")

    result = init(folder)

    assert 1 == result.exit_code
    assert "model.py: is there already; name another folder, or remove it" in result.output
    assert ["model.py"] == [file.name for file in folder.iterdir()]


@pytest.mark.parametrize("name", ["Prices", "my_model", "1st", "x" * 46])
def test_a_folder_that_cannot_name_an_api_is_refused(tmp_path: Path, name: str) -> None:
    """Before a cluster refuses it."""
    result = init(tmp_path / name)

    assert 1 == result.exit_code
    assert "the folder's name is the API's: expected lower-case letters" in result.output
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """With the system's own words."""
    (tmp_path / "file").write_text("")

    result = init(tmp_path / "file" / "prices")

    assert 1 == result.exit_code
    assert f"{tmp_path / 'file' / 'prices'}: " in result.output


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_shells_are_told_how_to_complete(shell: str) -> None:
    """By click's own scripts."""
    result = CliRunner().invoke(main, ["completion", shell])

    assert 0 == result.exit_code
    assert "_BATCHEDAPI_COMPLETE" in result.output


def test_a_saved_model_becomes_its_class(tmp_path: Path) -> None:
    """Which answers as the file did, under the same names, and may be changed."""
    file = iris_model(tmp_path / "iris.onnx")

    result = init(tmp_path / "iris", "--from", file)

    assert 0 == result.exit_code, result.output
    api = parse_api(yaml.safe_load((tmp_path / "iris" / "batchedapi.yaml").read_text()))
    assert ("iris", "model:Model") == (api.metadata.name, api.spec.predictor.path)
    scope: dict[str, Any] = {}
    exec((tmp_path / "iris" / "model.py").read_text(), scope)  # noqa: S102 - it was just written
    spec = method_spec(scope["Model"], "predict")
    assert spec is not None
    assert (["sepals"], ["scores"]) == (list(spec.inputs), list(spec.outputs))
    model = scope["Model"](Context("iris", 0, 1, 1, "cpu", model_path=str(file)))
    assert [[1, 2, 3]] == model.predict(np.array([[1, 2, 3, 4]], np.float32)).tolist()


def test_each_method_of_a_saved_model_is_written(tmp_path: Path) -> None:
    """Of a pickle with trust, and of an archive of skops without."""
    x, kinds = np.array([[0.0], [1.0]]), np.array(["no", "yes"])
    model = LogisticRegression().fit(x, kinds)
    joblib.dump(model, tmp_path / "a.joblib")
    skops.io.dump(model, tmp_path / "a.skops")

    for file, more in ((tmp_path / "a.joblib", ["--trusted"]), (tmp_path / "a.skops", [])):
        folder = tmp_path / file.suffix[1:]
        assert 0 == init(folder, "--from", file, *more).exit_code
        scope: dict[str, Any] = {}
        exec((folder / "model.py").read_text(), scope)  # noqa: S102 - it was just written
        if more:
            made = scope["Model"](Context("a", 0, 1, 1, "cpu", model_path=str(file)))
            assert ["no", "yes"] == made.predict([[0.0], [1.0]])
            assert (1, 2) == made.predict_proba(np.array([[0.5]])).shape


def test_what_is_no_saved_model_is_refused(tmp_path: Path) -> None:
    """As `serve` refuses it."""
    joblib.dump({}, tmp_path / "a.joblib")

    result = init(tmp_path / "a", "--from", tmp_path / "a.joblib")

    assert 1 == result.exit_code
    assert "batchedapi: InitFailed: spec.predictor.model 'a.joblib'" in result.output
    assert not (tmp_path / "a").exists()
