"""Makes this folder a program: `python tests/bench/autoscaling --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as for the programs beside it

from autoscaling.compare import main

if __name__ == "__main__":
    main()
