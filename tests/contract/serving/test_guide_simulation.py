"""docs/guides/simulation.md: its commands are run, and print what stands below them."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from serving import PROGRAM

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
GAP = re.compile(r"\s{2,}")
FIGURE = re.compile(r"\d[\d.]*")


def shown() -> list[tuple[str, str]]:
    """(command, what the guide says it prints) of every command."""
    found = []
    for block in BLOCK.findall((ROOT / "docs/guides/simulation.md").read_text()):
        for part in block.replace("\\\n", "").split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


RUNNABLE = [
    (command, output)
    for command, output in shown()
    if command.startswith("batchedapi simulate") and "examples/02-sleepy/lunch.csv" in command
]


def labels(output: str) -> set[str]:
    """First cells of lines that begin with a word, without their figures."""
    cells = (GAP.split(line)[0] for line in output.splitlines() if line[:1].isalpha())
    return {FIGURE.sub("", cell) for cell in cells}


@pytest.mark.parametrize(("command", "output"), RUNNABLE)
def test_the_commands_of_the_guide_do_what_it_says(command: str, output: str) -> None:
    """F11: what is copied from a page works; figures may differ by a release, lines may not."""
    arguments = shlex.split(command)[1:]

    done = subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert set() == labels(output) - labels(done.stdout)


def test_the_guide_has_a_command_with_its_output_and_one_that_asserts() -> None:
    """Otherwise the test above would run nothing."""
    assert 2 == len(RUNNABLE)
    assert {"requests", "cost", "one replica"} < labels(RUNNABLE[0][1])
    assert "--assert" in RUNNABLE[1][0]
