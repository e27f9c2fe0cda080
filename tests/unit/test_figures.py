"""Results of benchmarks that pages quote exist."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULT: Final = re.compile(r"tests/bench/results/[\w-]+\.(?:md|json)")


def test_every_quoted_result_is_there() -> None:
    """A figure without its table cannot be checked."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    quoted = {name for page in pages for name in RESULT.findall(page.read_text("utf-8"))}

    assert quoted
    assert [] == [name for name in sorted(quoted) if not (ROOT / name).is_file()]
