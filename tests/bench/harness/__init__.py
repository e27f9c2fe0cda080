"""Shared parts of the benchmark programs: servers, load generators, statistics and reports.

Importing it makes what it shares with the tests importable: `tests/support` and the package
`tests`; and its neighbours, for a test that imports it as `tests.bench.harness`. So it is imported
before them, as the order of imports has it.
"""

import sys
from pathlib import Path

_BENCH = Path(__file__).resolve().parents[1]
_ROOT = _BENCH.parents[1]
sys.path[:0] = map(str, (_BENCH, _ROOT / "tests/support", _ROOT))
