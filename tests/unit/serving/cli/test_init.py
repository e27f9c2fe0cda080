"""`batchedapi init`: what it writes, and what it leaves as it is."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from batchedapi_core.manifest import parse_api
from batchedapi_serving.cli.main import main


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
