"""Where things lie: what can be made again is under .cache, what runs is under .run."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "tests" / "cluster"
CACHE: Final = ROOT / ".cache" / "cluster"
BIN: Final = ROOT / ".cache" / "bin"
RUN: Final = ROOT / ".run" / "cluster"
"""State of the running cluster; `down` removes it, all but the logs."""
KUBECONFIG: Final = RUN / "kubeconfig"
LOGS: Final = RUN / "log"
