"""Projects of other servers after `batchedapi migrate`: they serve, and `check` is content."""

import subprocess
from pathlib import Path

import joblib
import pytest
import yaml
from sklearn.linear_model import LinearRegression

from elsewhere import PROJECTS, Elsewhere
from raw_http import ask
from serving import PROGRAM, running_replica

SECONDS = 120.0
TAKEN = [one for one in PROJECTS if one.refused is None]


def run(command: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One of our commands, to its end."""
    return subprocess.run(
        [PROGRAM, command, *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


def laid_out(project: Elsewhere, folder: Path) -> Path:
    """Its files, and models of y = 2 a + b."""
    folder.mkdir()
    for name, text in project.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("FOLDER", str(folder)))
    model = LinearRegression(fit_intercept=False).fit([[1.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    for name in project.models:
        (folder / name).parent.mkdir(exist_ok=True)
        joblib.dump(model, folder / name)
    return folder


def test_nineteen_of_twenty_one_are_taken_over() -> None:
    """Nine in ten; the rest are told why."""
    assert (21, 19) == (len(PROJECTS), len(TAKEN))


@pytest.mark.parametrize("project", TAKEN, ids=lambda one: one.name)
async def test_a_migrated_project_serves_and_passes_check(
    tmp_path: Path, project: Elsewhere
) -> None:
    """Unedited, or with the one line that the command names."""
    folder = laid_out(project, tmp_path / "project")
    done = run("migrate", folder, project.file)
    assert 0 == done.returncode, done.stderr
    edits = [line for line in done.stdout.splitlines() if line.startswith("to edit")]
    assert len(edits) == (project.edit is not None), done.stdout
    for line in edits:
        path, number = line.split()[2].split(":")[:2]
        lines = (folder / path).read_text().splitlines()
        lines[int(number) - 1] = str(project.edit)
        (folder / path).write_text("\n".join(lines) + "\n")

    checked = run("check", folder, "-f", "batchedapi.yaml")
    name = yaml.safe_load((folder / "batchedapi.yaml").read_text())["metadata"]["name"]
    with running_replica(folder, ["-f", "batchedapi.yaml"]) as replica:
        answer = await ask(replica.port, project.row, path=f"/{name}")

    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert (200, project.answer) == (answer.status, answer.json())


@pytest.mark.parametrize("project", [one for one in PROJECTS if one.refused], ids=lambda o: o.name)
def test_what_cannot_be_taken_over_is_told_why(tmp_path: Path, project: Elsewhere) -> None:
    """Nothing is written, and the remedy is in the line."""
    folder = laid_out(project, tmp_path / "project")

    done = run("migrate", folder, project.file)

    assert 2 == done.returncode
    assert str(project.refused) in done.stderr
    assert not (folder / "batchedapi.yaml").exists()
