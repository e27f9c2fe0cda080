"""From `batchedapi init` to an answer, as somebody new goes, and an edit that is served at once."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raw_http import ask
from serving import PROGRAM, end_replica, running_replica, start_replica

SECONDS = 60.0
"""For a start on a machine with nothing to spare."""


def init(folder: Path, kind: str) -> None:
    """`batchedapi init`."""
    command = [PROGRAM, "init", folder, "--template", kind]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)


def output_of_its_test(folder: Path) -> str:
    """The output of pytest for the project's own test."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_model.py"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "row", "answer"),
    [
        ("numpy", [1.0, 2.0, 3.0], [4.0, 5.0]),
        ("scikit-learn", [3.0], 7.0),
        ("json", {"text": "two words"}, {"words": 2}),
    ],
)
async def test_a_project_serves_and_passes_its_test(
    tmp_path: Path, kind: str, row: object, answer: object
) -> None:
    """Unedited: what `init` prints is all that there is to do."""
    folder = tmp_path / "prices"
    init(folder, kind)

    with running_replica(folder, ["-f", "batchedapi.yaml"]) as replica:
        response = await ask(replica.port, row, path="/prices")

    assert (200, answer) == (response.status, response.json())
    assert "1 passed" in output_of_its_test(folder)


async def test_an_edit_is_served_and_a_mistake_is_waited_out(tmp_path: Path) -> None:
    """`--reload`: after an edit that does not load, the next one does; Ctrl+C ends all of it."""
    folder = tmp_path / "words"
    init(folder, "json")
    model = folder / "model.py"
    code = model.read_text()
    replica = start_replica(folder, ["-f", "batchedapi.yaml", "--reload"])
    try:
        replica.wait_ready()
        model.write_text("class Model(")
        replica.wait_for(lambda: "ImportFailed" in replica.text(), "not loaded again", SECONDS)
        model.write_text(code.replace('"words"', '"length"'))
        replica.wait_for(
            lambda: replica.admin("/readyz")[0] == 200, "not ready after the edit", SECONDS
        )

        answer = (await ask(replica.port, {"text": "two words"}, path="/words")).json()

        assert {"length": 2} == answer
        assert 0 == replica.stop(signal.SIGINT, SECONDS)
        assert 0 == replica.admin("/livez")[0]
    finally:
        replica.stop(signal.SIGINT, SECONDS)
        end_replica(replica)
