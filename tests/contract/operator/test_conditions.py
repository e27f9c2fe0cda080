"""Failures of every kind, induced in an apiserver of their own, and what others read of them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.devcluster import tools

ROOT: Final = Path(__file__).resolve().parents[3]
GUIDE: Final = ROOT / "docs/guides/looking.md"
PATIENCE: Final = 60.0
"""Seconds for each to be told: this machine may be busy. `make bench` holds them to ten."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def seen(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001 - it is there: its binary is
    """The APIs by the name of what was done to them: as told, and as cleared."""
    tools.kubernetes()
    objects = tmp_path_factory.mktemp("conditions") / "objects.json"
    command = [
        sys.executable, str(ROOT / "tests/bench/conditions.py"), "--quick", "--seconds",
        str(PATIENCE), "--objects", str(objects),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(objects.read_text())
    return found


@pytest.fixture(scope="module")
def verdicts(seen: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The verdicts of kstatus itself and of Argo CD's Lua with the guide's health check on each."""
    folder = tmp_path_factory.mktemp("kstatus")
    block = re.search(r"```yaml\n(data:.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    (script,) = yaml.safe_load(block[1])["data"].values()
    (folder / "health.lua").write_text(script)
    build = ["go", "build", "-o", str(folder / "kstatus"), "."]
    subprocess.run(build, cwd=Path(__file__).parent / "kstatus", check=True, timeout=900)
    flat = {
        f"{name}/{when}": body for name, pair in seen.items() for when, body in pair.items() if body
    }
    done = subprocess.run(
        [str(folder / "kstatus"), str(folder / "health.lua")],
        input=json.dumps(flat), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_failure_is_told_with_its_reason_and_remedy_and_taken_back(
    seen: dict[str, Any],
) -> None:
    """Each has checked its own: type, status, reason, words, remedy, generation and message."""
    assert 50 <= len(seen)


@pytest.mark.parametrize(
    ("name", "kstatus", "argo"),
    [
        ("a real replica: ImportFailed", "Failed", "Degraded"),
        ("a real replica: DownloadFailed", "InProgress", "Progressing"),
        ("killed for memory", "Failed", "Degraded"),
        ("a volume is missing", "InProgress", "Progressing"),
        ("a volume is missing, maybe", "InProgress", "Progressing"),
        ("a Secret of env is missing", "InProgress", "Progressing"),
        ("a pod is evicted", "InProgress", "Progressing"),
        ("the image cannot be pulled", "InProgress", "Progressing"),
        ("the Deployment is somebody's", "Failed", "Degraded"),
        ("Pod Security refuses pods", "Failed", "Degraded"),
        ("a quota has no room", "InProgress", "Progressing"),
        ("the source is deleted", "InProgress", "Progressing"),
        ("a child is held in deletion", "InProgress", "Progressing"),
        ("the rollout is stuck", "Failed", "Degraded"),
        ("a new revision is starting", "InProgress", "Progressing"),
        ("the model is loading", "InProgress", "Progressing"),
        ("no page comes", "Current", "Healthy"),
    ],
)
def test_tools_that_read_kstatus_see_what_there_is_to_wait_for(
    verdicts: dict[str, Any], name: str, kstatus: str, argo: str
) -> None:
    """Flux and Helm give up on what is Failed and wait for what is InProgress."""
    told = verdicts[f"{name}/told"]

    assert (kstatus, argo) == (told["kstatus"], told["argo"])


def test_a_model_that_starts_after_all_is_current(verdicts: dict[str, Any]) -> None:
    """Neither Stalled nor Reconciling is left."""
    after = verdicts["killed for memory/cleared"]

    assert ("Current", "Healthy") == (after["kstatus"], after["argo"])
