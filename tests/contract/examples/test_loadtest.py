"""Simulated users, as examples/loadtest/README.md says; `make examples` installs Locust."""

import ast
import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ports import free_port
from serving import Replica, running_replica

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"
LOADTEST: Final = EXAMPLES / "loadtest"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("locust") is None, reason="Locust is not installed: make examples"
)


@pytest.fixture(scope="module")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """The replica to which the locustfile sends its requests."""
    folder = tmp_path_factory.mktemp("iris")
    with running_replica(folder, ["-f", str(EXAMPLES / "01-iris" / "batchedapi.yaml")]) as replica:
        yield replica


def test_the_locustfile_has_the_shape_that_users_know() -> None:
    """N02: an HttpUser with a task `classify` that thinks for 0.01 to 2 s."""
    tree = ast.parse((LOADTEST / "locustfile.py").read_text())
    (user,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]

    assert ["HttpUser"] == [ast.unparse(base) for base in user.bases]
    assert "wait_time = between(0.01, 2)" in ast.unparse(user)
    (task,) = [node for node in user.body if isinstance(node, ast.FunctionDef)]
    assert ("classify", ["task"]) == (task.name, [ast.unparse(d) for d in task.decorator_list])


@pytest.mark.parametrize(("slowest", "all_fail"), [("0", False), ("0.000001", True)])
def test_the_threshold_over_which_a_request_fails_can_be_set(
    iris: Replica, tmp_path: Path, slowest: str, *, all_fail: bool
) -> None:
    """N04, N05: users, spawn rate and host without the page; 0 is no threshold."""
    subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", "locustfile.py",
            "-H", f"http://127.0.0.1:{iris.port}", "--headless", "-u", "20", "-r", "20",
            "-t", "4s", "--csv", str(tmp_path / "run"), "--exit-code-on-error", "0",
        ],
        cwd=LOADTEST, check=True, capture_output=True, timeout=120,
        env={**os.environ, "LOCUST_SLOWEST": slowest},
    )  # fmt: skip
    header, _, aggregated = (tmp_path / "run_stats.csv").read_text().splitlines()
    found = dict(zip(header.split(","), aggregated.split(","), strict=True))

    assert int(found["Request Count"]) > 20
    assert int(found["Failure Count"]) == (int(found["Request Count"]) if all_fail else 0)


def test_the_page_of_locust_is_there(iris: Replica) -> None:
    """N03: the command of the README, with a port of its own."""
    port = free_port()
    with subprocess.Popen(
        [
            sys.executable, "-m", "locust", "-f", "locustfile.py",
            "-H", f"http://127.0.0.1:{iris.port}", "--web-host", "127.0.0.1",
            "--web-port", str(port),
        ],
        cwd=LOADTEST, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as locust:  # fmt: skip
        try:
            page = _page(f"http://127.0.0.1:{port}/")
        finally:
            locust.terminate()

    assert "<title>Locust</title>" in page
    assert f"http://127.0.0.1:{iris.port}" in page


def _page(url: str) -> str:
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - our own
                return str(response.read().decode())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_the_ladder_prints_a_row_a_step(iris: Replica) -> None:
    """N06, N07: requests/s, failures, median, p90, p99 and the slowest."""
    run = subprocess.run(
        [
            sys.executable, "ladder.py", f"http://127.0.0.1:{iris.port}", "--seconds", "4",
            "--steps", "2",
        ],
        cwd=LOADTEST, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    title, rule, *rows = run.stdout.splitlines()

    assert "| users | started/s | requests/s | failed | median ms | p90 | p99 | max |" == title
    assert rule.startswith("|---")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [["1", "1"], ["50", "10"]] == [row[:2] for row in cells]
    assert ["0.0%", "0.0%"] == [row[3] for row in cells]
    assert float(cells[1][2]) > 10
    assert run.stderr == ""
