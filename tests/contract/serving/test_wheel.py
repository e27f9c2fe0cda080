"""The wheel as a stranger installs it: from a folder of wheels, without a clone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
SECONDS: Final = 300.0
"""pip may fetch every package, on a busy machine."""
CONSTRAINTS: Final = ("-c", ROOT / "constraints.txt")
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "-q")


def run(*command: object) -> str:
    """The output of a command, on stdout and stderr."""
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ours, and all that serving and the operator need."""
    folder = tmp_path_factory.mktemp("wheels")
    out = run(
        sys.executable, *PIP, "wheel", *CONSTRAINTS, "-w", folder, f"{ROOT}[serving,operator]"
    )
    assert list(folder.glob("batchedapi-*.whl")), out
    return folder


def installed(folder: Path, wheels: Path, requirement: str) -> Path:
    """The programs of an environment with nothing but `requirement`, from `wheels` alone."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    program = folder / "bin"
    pip = [sys.executable, *PIP, "--python", program / "python"]
    out = run(*pip, "install", "--no-compile", "--no-index", "--find-links", wheels, requirement)
    assert not out, out
    return program


def test_the_wheel_serves_a_first_project(tmp_path: Path, wheels: Path) -> None:
    """`pip install 'batchedapi[serving]'`, `batchedapi init`, `batchedapi check`: all is in it."""
    programs = installed(tmp_path / "venv", wheels, "batchedapi[serving]")
    project = tmp_path / "prices"

    made = run(programs / "batchedapi", "init", project)
    checked = run(programs / "batchedapi", "check", "-f", project / "batchedapi.yaml")

    assert f"{project}: model.py" in made
    assert "32 rows (random numbers and zeros) are answered the same alone" in checked
    assert "batchedapi, version" in run(programs / "batchedapi", "--version")


def test_the_extra_of_the_operator_stands_alone(tmp_path: Path, wheels: Path) -> None:
    """Its plugin and the operator itself start without anything of serving's, which says so."""
    programs = installed(tmp_path / "venv", wheels, "batchedapi[operator]")

    assert "kubectl batchedapi, version" in run(programs / "kubectl-batchedapi", "--version")
    assert "why" in run(programs / "kubectl_complete-batchedapi", "")
    assert "Usage:" in run(programs / "python", "-m", "batchedapi_operator", "--help")
    assert "pip install 'batchedapi[serving]'" in run(programs / "batchedapi", "--version")


def test_a_missing_extra_is_a_sentence(tmp_path: Path, wheels: Path) -> None:
    """Not a traceback: who leaves the extra out is told which one it is."""
    programs = installed(tmp_path / "venv", wheels, "batchedapi")

    serving = run(programs / "batchedapi", "serve", "model:Model")
    plugin = run(programs / "kubectl-batchedapi", "why", "iris")
    completion = run(programs / "kubectl_complete-batchedapi", "")

    assert "Traceback" not in serving + plugin + completion
    assert "pip install 'batchedapi[serving]'" in serving
    assert "pip install 'batchedapi[operator]'" in plugin
    assert "pip install 'batchedapi[operator]'" in completion
