"""Programs of tests/bench that nobody runs for weeks still start."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
PROGRAMS = sorted(
    path
    for path in BENCH.glob("*.py")
    if not path.name.startswith("test_") and "@click.command" in path.read_text()
)


def test_programs_are_found() -> None:
    """An empty list would pass the test below."""
    assert len(PROGRAMS) > 10


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_says_how_it_is_used(path: Path) -> None:
    """As a process of its own: what it imports must not come from the path of the tests."""
    command = [sys.executable, str(path), "--help"]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=BENCH
    )

    assert 0 == ran.returncode, ran.stderr
    assert ran.stdout.startswith(f"Usage: {path.name}")
