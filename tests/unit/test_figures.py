"""Figures that pages repeat are those of the committed results of benchmarks."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "tests/bench/results"
OCCASIONS: Final = "throughput-occasions.md"


def ratios(file: str) -> dict[str, str]:
    """Medians by connections, of a table in the results of benchmarks."""
    rows = re.findall(r"^\| (\d+) +\| ([\d.]+) \(", (RESULTS / file).read_text(), re.MULTILINE)
    return dict(rows)


def ratios_of_occasions(workload: str) -> dict[str, str]:
    """Medians by connections, of three occasions beside mosec."""
    text = (RESULTS / OCCASIONS).read_text().partition(f"**{workload}")[2].partition("\n**")[0]
    rows = re.findall(r"^\| (\d+) .*\| ([\d.]+), ([\d.]+), ([\d.]+) +\|", text, re.MULTILINE)
    return {number: sorted(of_each, key=float)[1] for number, *of_each in rows}


@pytest.mark.parametrize("workload", ["W1", "W3"])
@pytest.mark.parametrize("name", ["mosec", "LitServe", "BentoML"])
def test_figures_beside_others_are_those_of_the_results(workload: str, name: str) -> None:
    """Whoever renews the results renews the page."""
    file = OCCASIONS
    if name != "mosec":
        file = f"throughput-{workload}-{name}.md".lower()
    found = ratios_of_occasions(workload) if file == OCCASIONS else ratios(file)
    cells = " | ".join(found[number] for number in ("1", "16", "64", "256"))
    page = (ROOT / "docs/why.md").read_text()

    assert f"| {name} | {cells} | [{file}](../tests/bench/results/{file}) |" in page
