"""Models from a store, a hub and a registry, cut and shared: a small sample of the benchmark."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_models_come_whole_when_cut_and_once_when_shared() -> None:
    """The program's exit code says whether each replica has loaded what was sent."""
    command = [sys.executable, str(BENCH / "model_sources.py"), "--mebibytes", "48"]

    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, cwd=BENCH
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    for source in ("s3", "hf", "oci"):
        assert ran.stdout.count(f"\n| {source} ") == 2
