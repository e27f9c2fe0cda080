"""Answers of user code, generated, given to a model process as they are."""

import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parents[2] / "fuzz" / "answers.py"


def test_whatever_user_code_hands_back_costs_one_row() -> None:
    """A sample: tests/fuzz/README.md has the command for more, and for compiled beside plain."""
    run = subprocess.run(
        [sys.executable, str(PROGRAM), "--runs", "350"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stderr[-4000:]
    assert "no process lost, no neighbour hurt" in run.stdout
